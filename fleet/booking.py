"""With whom a gang's loss stands: once, with one of its pods, whoever stops the others."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from fleet.actions import EvictionAnswer
from fleet.cards import terminating
from fleet.kueue.victims import leaving
from fleet.objections import writes
from fleet.objects import Pod
from fleet.records import unharmed
from fleet.resources import Phase, Victim, WholeNodeClaim
from fleet.statuses import entered_at
from fleet.upkeep import Context


def drained_victims(claim: WholeNodeClaim) -> tuple[Victim, ...]:
    """Victims written down since the claim took the nodes it holds now."""
    since = entered_at(claim.status, Phase.CORDONING)
    return tuple(
        one for one in claim.status.victims if one.evicted_at is not None and (since is None or one.evicted_at >= since)
    )


def accepted(context: Context, uid: str) -> bool:
    """Whether the API server has taken the pod's eviction, or Kueue is stopping its job: it is on its way."""
    answer, pod = context.answers.get(uid), context.view.pods.get(uid)
    if answer is not None and answer.kind is EvictionAnswer.ACCEPTED:
        return True
    return pod is not None and leaving(context.view, pod)


def before(
    context: Context, claim: WholeNodeClaim, new: Iterable[Pod], left_alone: Collection[str] = ()
) -> tuple[Victim, ...]:
    """Victims of the same drain that still run: the loss of their gangs may stand with them.

    What is lost with those that were stopped is left out by `costs.gang_loss`. `left_alone` are UIDs of the claim's
    victims that nobody has stopped.
    """
    leave_out = {pod.metadata.uid for pod in new}.union(left_alone)
    return tuple(one for one in drained_victims(claim) if one.uid not in leave_out and _runs(context, one.uid))


def undecided(context: Context, claim: WholeNodeClaim, new: Iterable[Pod]) -> str | None:
    """A gang of the new ones that another claim means to hit and has not yet: who books its loss is open."""
    new = tuple(new)
    uids = {one.uid for one in claim.status.victims}.union(pod.metadata.uid for pod in new)
    return next((gang for gang, uid in _meant(context, new) if uid not in uids and _runs(context, uid)), None)


def _meant(context: Context, new: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """Gangs of the new ones, with the UIDs of members that claims have stopped, or mean to stop, in this run."""
    view, begun = context.view, dict[str, datetime]()
    for pod in new:
        key = view.gang_key_of(pod)
        members = (*view.gangs[key].pods, pod) if key in view.gangs else (pod,)
        start = min(one.status.start_time or context.now for one in members)
        begun[key] = min(start, begun.get(key, start))
    statuses = {one.metadata.uid: one.status for one in view.claims.values()} | {
        one.claim.metadata.uid: one.status for one in writes(context)
    }
    for claim_uid, status in statuses.items():
        for one in status.victims:
            known = one.gang in begun and one.evicted_at is not None and one.evicted_at >= begun[one.gang]
            if known and not unharmed(view, claim_uid, one):
                yield one.gang, one.uid


def _runs(context: Context, uid: str) -> bool:
    """Whether the pod is still there and nobody has deleted it, as far as records go by."""
    pod = context.view.pods.get(uid)
    return pod is not None and not terminating(pod)
