"""With whom a gang's loss stands: once, with one of its pods, whoever stops the others."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from fleet.actions import EvictionAnswer
from fleet.cards import terminating
from fleet.kueue.victims import leaving
from fleet.objections import writes
from fleet.objects import Pod
from fleet.records import unharmed
from fleet.resources import Outcome, Phase, Victim, WholeNodeClaim
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


def booked(context: Context, claim: WholeNodeClaim, new: Iterable[Pod], left_alone: Collection[str] = ()) -> set[str]:
    """Gangs of the new ones whose loss stands with another pod that was stopped, for whatever claim.

    What was stopped before the pod began to run was another loss, unless it was for the same drain. `left_alone` are
    UIDs of the claim's victims that nobody has stopped.
    """
    new = tuple(new)
    leave_out = {pod.metadata.uid for pod in new}.union(left_alone)
    here = {one.gang for one in drained_victims(claim) if one.uid not in leave_out}
    return here | {gang for gang, uid in _hits(context, new) if uid not in leave_out and _stopped(context, uid)}


def undecided(context: Context, claim: WholeNodeClaim, new: Iterable[Pod]) -> str | None:
    """A gang of the new ones that another claim means to hit and has not yet: who books its loss is open."""
    new = tuple(new)
    uids = {one.uid for one in claim.status.victims}.union(pod.metadata.uid for pod in new)
    hits = _hits(context, new)
    return next((gang for gang, uid in hits if uid not in uids and not _stopped(context, uid)), None)


def _hits(context: Context, new: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """Gangs of the new ones, with the UIDs of members that claims have stopped, or mean to stop, in this run."""
    view, begun = context.view, dict[str, datetime]()
    for pod in new:
        key, start = view.gang_key_of(pod), pod.status.start_time or context.now
        begun[key] = min(start, begun.get(key, start))
    statuses = {one.metadata.uid: one.status for one in view.claims.values()} | {
        one.claim.metadata.uid: one.status for one in writes(context)
    }
    for claim_uid, status in statuses.items():
        for one in status.victims:
            known = one.gang in begun and one.evicted_at is not None and one.evicted_at >= begun[one.gang]
            if known and not unharmed(view, claim_uid, one):
                yield one.gang, one.uid
    for record in view.records.values():
        spec, stopped = record.spec, record.status.outcome is Outcome.STOPPED
        if stopped and spec.gang in begun and spec.at >= begun[spec.gang]:
            yield spec.gang, spec.pod_uid


def _stopped(context: Context, uid: str) -> bool:
    pod = context.view.pods.get(uid)
    return pod is None or terminating(pod) or accepted(context, uid)
