"""From the first taint to proof: hold the nodes, stop who agreed, and look until no card holder is left."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fleet.actions import Evict, EvictionAnswer, Hold, Look, WriteStatus
from fleet.agreements import Consent, Verdict
from fleet.budgets import matching
from fleet.candidates import consent, grace, shortfalls, unevictable, victim_of
from fleet.cards import seat, terminating
from fleet.marks import holds
from fleet.objects import Pod
from fleet.planning import may_stop, unready
from fleet.reasons import Reason
from fleet.requests import RequestClass
from fleet.resources import ClaimStatus, Drain, Phase, Victim, WholeNodeClaim
from fleet.statuses import enter, entered_at, give_back
from fleet.upkeep import Context, member


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
    since = entered_at(claim.status, Phase.CORDONING)
    if since is None or context.now < since + context.timing.drain_timeout:
        return None
    text = f"not empty within {int(context.timing.drain_timeout.total_seconds())} s; last: {claim.status.message}"
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


@dataclass(frozen=True, slots=True)
class Progress:
    """Card holders still on the claim's nodes, and what stands in the way of stopping them, in words."""

    left: tuple[Pod, ...]
    refusals: tuple[str, ...]


def stop_strangers(context: Context, claim: WholeNodeClaim, looks: dict[str, Look]) -> Progress | None:
    """Have every card holder that is not of the gang stopped, or give the nodes back.

    Consent is asked for again now, for planned victims and for pods that slipped in alike. Whoever is to be
    stopped is written into the status first; None means that such a write was asked for instead of evictions.
    """
    # A member that is going holds its cards until it is gone, like anybody else.
    strangers = [
        pod
        for look in looks.values()
        for pod in context.card_holders(look)
        if terminating(pod) or not _may_stay(context, claim, pod)
    ]
    recorded = {victim.uid: victim for victim in claim.status.victims if victim.evicted_at is not None}
    running = [pod for pod in strangers if not terminating(pod)]
    new: list[Victim] = []
    since = entered_at(claim.status, Phase.CORDONING) or context.now
    counted = {victim.gang for victim in recorded.values() if victim.evicted_at and victim.evicted_at >= since}
    verdicts = {pod.metadata.uid: consent(context.view, claim, pod, context.now) for pod in running}
    ending = {pod.metadata.uid for pod in strangers if terminating(pod)}
    objections = _objections(context, claim, running, verdicts, ending)
    for pod in running:
        verdict = verdicts[pod.metadata.uid]
        if (why := objections.get(pod.metadata.uid)) is not None:
            _protected(context, claim, pod, why)
            return None
        if pod.metadata.uid not in recorded:
            key = context.view.gang_key_of(pod)
            victim = victim_of(context.view, pod, verdict.agreement, context.now, already_counted=key in counted)
            new.append(msgspec.structs.replace(victim, evicted_at=context.now, node=pod.spec.node_name or ""))
            counted.add(key)
    if new:
        _record(context, claim, new)
        return None
    refusals = []
    for pod in _first_to_go(context, running):
        refusal = _evict(context, claim, recorded[pod.metadata.uid], pod)
        if isinstance(refusal, str):
            refusals.append(refusal)
        elif refusal is not None:
            context.write(claim, refusal)
            return None
    return Progress(tuple(strangers), tuple(refusals))


def _objections(
    context: Context, claim: WholeNodeClaim, pods: list[Pod], verdicts: Mapping[str, Verdict], ending: set[str]
) -> dict[str, str]:
    """Which of the pods (by UID) may not be stopped, and why; `ending` are UIDs of those that are going already."""
    allowed, _, not_allowed, _ = may_stop(claim, context.now)
    found = {}
    for pod in pods:
        pool, consents = context.view.membership.pool_of(pod.spec.node_name or ""), verdicts[pod.metadata.uid].consent
        if not allowed:
            found[pod.metadata.uid] = not_allowed
        elif pool is None or pool.spec.drain is not Drain.AGREED:
            found[pod.metadata.uid] = str(Reason.DRAIN_DISABLED)
        elif consents is not Consent.GIVEN:
            found[pod.metadata.uid] = str(consents)
        elif unevictable(pod):
            found[pod.metadata.uid] = str(Reason.UNEVICTABLE)
        elif grace(pod) > context.timing.drain_timeout:
            found[pod.metadata.uid] = str(Reason.GRACE_TOO_LONG)
    if not found:
        keeps = [(pod, verdicts[pod.metadata.uid].keep_ready) for pod in pods]
        needed = shortfalls(context.view, keeps, ending | _victims_in_writing(context))
        found = {uid: f"{Consent.KEEP_READY}: {short}" for uid, short in needed.items()}
    return found


def _victims_in_writing(context: Context) -> set[str]:
    """UIDs of pods that claims decided to stop in this very pass: the picture of the cluster does not show that yet."""
    return {
        victim.uid
        for action in context.decision.actions
        if isinstance(action, WriteStatus)
        for victim in action.status.victims
        if victim.evicted_at is not None
    }


def _first_to_go(context: Context, running: list[Pod]) -> list[Pod]:
    """Pods that a budget may keep go first, and alone: if they cannot, nobody else was stopped for nothing."""
    budgets, answers = context.view.budgets, context.answers
    covered = [pod for pod in running if matching(pod, budgets)]
    open_ = [
        pod
        for pod in covered
        if (answer := answers.get(pod.metadata.uid)) is None or answer.kind is not EvictionAnswer.ACCEPTED
    ]
    return covered if open_ else running


def _may_stay(context: Context, claim: WholeNodeClaim, pod: Pod) -> bool:
    """Whether the card holder is what the node is vacated for: a member that takes the whole node."""
    return member(claim, pod) and context.view.classify(pod).request_class is RequestClass.WHOLE_NODE


def _protected(context: Context, claim: WholeNodeClaim, pod: Pod, why: str) -> None:
    node = pod.spec.node_name or ""
    if claim.status.phase is Phase.LANDING and _partly_landed(context, claim):
        # Giving the nodes back now would leave half a gang: the stranger's end is waited for.
        text = f"pod {pod.key} on node {node} may not be stopped: {why}; the gang is partly bound and waits for its end"
        context.say_if_new(claim, enter(claim, Phase.LANDING, Reason.PROTECTED_POD, text, context.now))
        return
    text = f"pod {pod.key} on node {node} may not be stopped: {why}; the nodes are given back"
    status = give_back(claim, Reason.PROTECTED_POD, text, context.now, context.timing, avoid=(node,))
    context.write(claim, status)


def _partly_landed(context: Context, claim: WholeNodeClaim) -> bool:
    held = {one.name for one in claim.status.nodes}
    return any(pod.spec.node_name in held for pod in context.view.takers(context.view.gang_of(claim)))


def _record(context: Context, claim: WholeNodeClaim, new: list[Victim]) -> None:
    victims = (*claim.status.victims, *new)
    lost = round(sum(victim.lost_gpu_seconds for victim in victims), 3)
    text = f"stopping {len(new)} pod(s) whose owners agreed"
    phase = claim.status.phase if claim.status.phase in {Phase.READY, Phase.LANDING} else Phase.DRAINING
    status = enter(claim, phase, Reason.EVICTING, text, context.now, victims=victims, lost_gpu_seconds=lost)
    context.write(claim, status)


def _evict(context: Context, claim: WholeNodeClaim, victim: Victim, pod: Pod) -> str | ClaimStatus | None:
    """Ask for the eviction, or say what keeps it from happening: a text to show, or the status that gives up."""
    answer = context.answers.get(victim.uid)
    if answer is None:
        context.decision.actions.append(Evict(claim, victim))
        return None
    if answer.kind is EvictionAnswer.ACCEPTED:
        return None
    if answer.kind is EvictionAnswer.REFUSED:
        node = pod.spec.node_name or ""
        text = f"stopping pod {pod.key} was refused: {answer.text}"
        return give_back(claim, Reason.EVICTION_REFUSED, text, context.now, context.timing, avoid=(node,))
    if answer.retry_at is None or context.now >= answer.retry_at:
        context.decision.actions.append(Evict(claim, victim))
    else:
        context.decision.wake(answer.retry_at)
    return answer.text


def _draining(context: Context, claim: WholeNodeClaim, progress: Progress) -> None:
    ending = sum(terminating(pod) for pod in progress.left)
    finalizers = sorted({name for pod in progress.left if terminating(pod) for name in pod.metadata.finalizers or ()})
    if progress.refusals:
        reason, text = Reason.BUDGET, "; ".join(progress.refusals[:3])
    else:
        reason = Reason.TERMINATING
        text = f"{ending} of {len(progress.left)} card holder(s) left are terminating"
        if finalizers:
            text += f"; finalizers: {', '.join(finalizers)}"
    context.say_if_new(claim, enter(claim, Phase.DRAINING, reason, text, context.now))


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
    missing = unready(claim, context.view.gang_of(claim))
    if missing is not None:
        context.say_if_new(claim, enter(claim, Phase.PROVING_EMPTY, *missing, context.now))
        return
    booked = _booked(context, claim)
    if booked is not None:
        text = f"HAMi has booked cards of node {seat(booked)} for pod {booked.key}, which is not bound yet"
        context.say_if_new(claim, enter(claim, Phase.PROVING_EMPTY, Reason.BOOKED, text, context.now))
        return
    nodes = tuple(msgspec.structs.replace(held, proved_empty_at=proofs[held.name]) for held in claim.status.nodes)
    text = f"{len(nodes)} node(s) proved empty"
    context.write(claim, enter(claim, Phase.READY, Reason.PROVED, text, context.now, nodes=nodes))


def _booked(context: Context, claim: WholeNodeClaim) -> Pod | None:
    """A pod of somebody else that HAMi has chosen a node of the claim for: no list of the node's pods shows it."""
    for held in claim.status.nodes:
        for pod in context.view.gpu_pods_on(held.name):
            if pod.spec.node_name is None and not member(claim, pod):
                return pod
    return None
