"""From the first taint to proof: hold the nodes, stop who agreed, and look until no card holder is left."""

import msgspec

from fleet.actions import Hold, Look
from fleet.endings import drained_by, told
from fleet.kueue.gangs import unready_now
from fleet.limits import drain_limit
from fleet.marks import holds
from fleet.proofs import doubt
from fleet.reasons import Reason
from fleet.resources import ClaimStatus, Phase, WholeNodeClaim
from fleet.statuses import enter, entered_at, give_back
from fleet.stopping import Progress, stop_strangers
from fleet.upkeep import Context


def drain(context: Context, claim: WholeNodeClaim) -> None:
    """One step of Cordoning, Draining or ProvingEmpty."""
    late = _timed_out(context, claim)
    if late is not None:
        context.write(claim, late)
        return
    if claim.status.phase is Phase.CORDONING:
        _hold(context, claim)
        return
    looks = _looks(context, claim)
    if looks is None:
        return
    progress = stop_strangers(context, claim, looks)
    if progress is None:
        return
    if progress.left:
        _draining(context, claim, progress)
    else:
        _prove(context, claim)


def _hold(context: Context, claim: WholeNodeClaim) -> None:
    bare = []
    for held in claim.status.nodes:
        node = context.node_of(held)
        if node is not None and not holds(node, claim.metadata.uid):
            bare.append(Hold(node, claim.metadata.uid))
    if bare:
        context.decision.actions.extend(bare)
        return
    nodes = tuple(msgspec.structs.replace(held, held_at=context.now) for held in claim.status.nodes)
    text = "nodes are tainted; schedulers get a moment to see it"
    context.write(claim, enter(claim, Phase.DRAINING, Reason.SETTLING, text, context.now, nodes=nodes))


def _timed_out(context: Context, claim: WholeNodeClaim) -> ClaimStatus | None:
    if context.now < drain_limit(context, claim):
        return None
    waited = context.now - (entered_at(claim.status, Phase.CORDONING) or context.now)
    text = f"not empty within {int(waited.total_seconds())} s; last: {claim.status.message}"
    avoid = tuple(held.name for held in claim.status.nodes if context.view.gpu_pods_on(held.name))
    return give_back(claim, Reason.DRAIN_TIMED_OUT, text, context.now, context.timing, avoid=avoid)


def _looks(context: Context, claim: WholeNodeClaim) -> dict[str, Look] | None:
    """A fresh look at every node; None while one is still to be taken."""
    found: dict[str, Look] = {}
    for held in claim.status.nodes:
        if held.held_at is None:
            return None
        look = context.look(held.name, held.held_at + context.timing.settle_before_eviction)
        if look is not None:
            found[held.name] = look
    return found if len(found) == len(claim.status.nodes) else None


def _draining(context: Context, claim: WholeNodeClaim, progress: Progress) -> None:
    reason, text = progress.wait or (Reason.TERMINATING, told(progress.left, context.now))
    by = drained_by(context, claim, progress.left, claim.status.victims) if reason is not Reason.BUDGET else None
    context.say_if_new(claim, enter(claim, Phase.DRAINING, reason, text, context.now, drained_by=by))


def _prove(context: Context, claim: WholeNodeClaim) -> None:
    """No card holder was seen. It counts as proof once the taint has stood for the settling time."""
    proofs = {}
    for held in claim.status.nodes:
        if held.held_at is None:
            return
        look = context.look(held.name, held.held_at + context.timing.settle_before_proof)
        if look is not None:
            proofs[held.name] = look.at
    if claim.status.phase is not Phase.PROVING_EMPTY:
        text = "no card holder is left; the last look must come after the settling time"
        context.write(claim, enter(claim, Phase.PROVING_EMPTY, Reason.PROVING, text, context.now))
        return
    if len(proofs) < len(claim.status.nodes):
        return
    missing = unready_now(context.view, claim, context.view.gang_of(claim))
    if missing is not None:
        context.say_if_new(claim, enter(claim, Phase.PROVING_EMPTY, *missing, context.now))
        return
    unproved = doubt(context, claim)
    if unproved is not None:
        context.decision.wake(unproved.until)
        said = enter(claim, Phase.PROVING_EMPTY, unproved.reason, unproved.text, context.now)
        context.say_if_new(claim, said)
        return
    nodes = tuple(msgspec.structs.replace(held, proved_empty_at=proofs[held.name]) for held in claim.status.nodes)
    text = f"{len(nodes)} node(s) proved empty"
    context.write(claim, enter(claim, Phase.READY, Reason.PROVED, text, context.now, nodes=nodes))
