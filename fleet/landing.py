"""From proved empty to bound: open the nodes to the gang, steer its pods there, and see the claim off."""

from datetime import datetime, timedelta

from fleet.actions import Look, Open, Poke, Steer
from fleet.cards import scheduled, waiting
from fleet.kueue.expected import is_expected
from fleet.kueue.gangs import unready_now
from fleet.kueue.turns import gated_by_kueue
from fleet.marks import labelled_for, steered
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Avoided, Phase, WholeNodeClaim
from fleet.starts import NOT_AGAIN, refused_start
from fleet.statuses import enter, entered_at, give_back
from fleet.stopping import stop_strangers
from fleet.upkeep import Context
from fleet.wakes import last_tried


def open_nodes(context: Context, claim: WholeNodeClaim) -> None:
    """Label all nodes, then let the gang land: no node opens before all of them are proved empty."""
    since = entered_at(claim.status, Phase.READY)
    if since is not None and context.now >= since + context.timing.landing_timeout:
        text = "the nodes could not be labelled"
        context.write(claim, give_back(claim, Reason.LANDING_TIMED_OUT, text, context.now, context.timing))
        return
    closed = []
    for held in claim.status.nodes:
        node = context.node_of(held)
        if node is not None and labelled_for(node) != claim.metadata.uid:
            closed.append(Open(node, claim.metadata.uid))
    if closed:
        context.decision.actions.extend(closed)
        return
    text = "the nodes are open to the gang"
    context.write(claim, enter(claim, Phase.LANDING, Reason.LANDING, text, context.now))


def land(context: Context, claim: WholeNodeClaim) -> None:
    """Steer the members, keep strangers out, and notice when all are bound."""
    gang = context.view.gang_of(claim)
    held = {one.name for one in claim.status.nodes}
    takers = context.view.takers(gang)
    landed = [pod for pod in takers if pod.spec.node_name in held]
    waits = [pod for pod in takers if waiting(pod)]
    if len({pod.spec.node_name for pod in landed}) == len(held) or (landed and not waits):
        text = f"{len(landed)} pod(s) bound to {', '.join(sorted(held))}"
        context.write(claim, enter(claim, Phase.BOUND, Reason.BOUND, text, context.now))
        return
    since = entered_at(claim.status, Phase.LANDING) or context.now
    if context.now >= since + context.timing.landing_timeout:
        text = f"{len(landed)} of {len(held)} pods were bound within {context.timing.landing_timeout}"
        tries = sum(one.phase is Phase.LANDING for one in claim.status.phases)
        if tries >= context.timing.landing_tries:
            text += f", in the last of {tries} tries; something else keeps them from starting{_said(waits)}"
            status = enter(claim, Phase.FAILED, Reason.LANDING_TIMED_OUT, text, context.now, nodes=())
        else:
            status = give_back(claim, Reason.LANDING_TIMED_OUT, text, context.now, context.timing)
        context.write(claim, status)
        return
    context.decision.wake(since + context.timing.landing_timeout)
    if not _watch_for_strangers(context, claim) or gang is None:
        return
    missing = None if landed else unready_now(context.view, claim, gang)
    if missing is not None:
        context.say_if_new(claim, enter(claim, Phase.LANDING, *missing, context.now))
        return
    _steer(context, claim, waits, len(held) - len(landed), since)


def _said(waits: list[Pod]) -> str:
    """What the scheduler says of the first member that is not bound, if it says anything."""
    for pod in waits:
        told = scheduled(pod)
        if told is not None and told.message:
            return f"; of pod {pod.metadata.name} the scheduler says: {told.message}"
    return ""


def _watch_for_strangers(context: Context, claim: WholeNodeClaim) -> bool:
    """Look at the nodes every second until the gang is bound; False if a stranger is being dealt with."""
    looks: dict[str, Look] = {}
    for held in claim.status.nodes:
        look = context.looks.get(held.name) if held.proved_empty_at else None
        fresh = context.look(held.name, held.proved_empty_at or context.now)
        if fresh is not None:
            looks[held.name] = fresh
        elif look is not None and context.card_holders(look):
            return False
    progress = stop_strangers(context, claim, looks)
    return progress is not None and not progress.left


def _steer(context: Context, claim: WholeNodeClaim, waits: list[Pod], places: int, since: datetime) -> None:
    """Send as many members as there are places: one sent to a claim without a node for it could never start.

    Kueue sends those that it starts itself: pods that it has not made yet, or has not lifted its gate from.
    """
    uid = claim.metadata.uid
    there = [pod for pod in waits if not is_expected(pod) and not gated_by_kueue(pod)]
    for pod in sorted(there, key=lambda one: not steered(one, uid))[:places]:
        if steered(pod, uid):
            _poke(context, pod, since)
        else:
            context.decision.actions.append(Steer(pod, uid))


def _poke(context: Context, pod: Pod, since: datetime) -> None:
    """kube-scheduler may have asked an extender whose cache was behind; nothing else would wake the pod again."""
    timing = context.timing
    last = last_tried(pod, since, context.now)
    pause: timedelta = min(max(timing.poke_after, (context.now - since) / 4), timing.poke_at_most_every)
    if context.now >= last + pause:
        context.decision.actions.append(Poke(pod, context.now))
    else:
        context.decision.wake(last + pause)


def settle_bound(context: Context, claim: WholeNodeClaim) -> None:
    """A bound claim is done when its gang is: ended, deleted, or short of a member that was recreated."""
    if claim.status.phase is not Phase.BOUND:
        return
    gang, refused = context.view.gang_of(claim), refused_start(context.view, claim)
    if gang is None and refused is not None:
        context.write(claim, enter(claim, Phase.FAILED, Reason.START_FAILED, refused[1], context.now))
    elif gang is None:
        text = "the gang has ended; the nodes are anybody's again"
        context.write(claim, enter(claim, Phase.RELEASED, Reason.GANG_ENDED, text, context.now))
    elif any(waiting(pod) for pod in context.view.takers(gang)):
        reason, text = Reason.MEMBER_RECREATED, "a member was recreated and waits again; a new claim looks for its node"
        avoid = claim.status.avoid
        if refused is not None:
            reason, text = Reason.START_FAILED, f"{refused[1]}; a new claim looks for another node"
            avoid = (*avoid, Avoided(refused[0], str(reason), context.now + NOT_AGAIN))
        context.write(claim, enter(claim, Phase.RELEASED, reason, text, context.now, avoid=avoid))
