"""What one claim may do about the pods in its way: the agreements' word on each, and jobs that are left alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fleet.agreements import Consent, Verdict, queue_of, verdict
from fleet.costs import job_of
from fleet.gangs import gang_key
from fleet.objects import Pod
from fleet.resources import DrainAgreement, Outcome, WholeNodeClaim
from fleet.spending import Spending
from fleet.times import format_duration, parse_duration
from fleet.view import View

Look = tuple[str, tuple[tuple[str, str], ...], int | None]
"""What selectors and ceilings see of a pod: namespace, labels, priority."""


@dataclass(slots=True)
class Consents:
    """The verdicts on pods for one claim at one moment; those on pods that agreements cannot tell apart are shared.

    `displacers`: gangs that the claim's own was stopped for within the cool-down -> until when they are left alone.
    `cooling` says about the last job that was found to be cooling down why it is.
    """

    view: View
    claim: WholeNodeClaim
    now: datetime
    queue: str
    cool_down: timedelta
    spending: Spending
    displacers: Mapping[str, datetime]
    cooling: str = ""
    _known: dict[int, Verdict] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, claim: WholeNodeClaim, now: datetime, cool_down: timedelta = timedelta(0)) -> "Consents":
        return cls(
            view,
            claim,
            now,
            _queue(view, claim),
            cool_down,
            view.spending(now),
            _displacers(view, claim, now, cool_down),
        )

    def of_each(self, pods: Sequence[Pod], kinds: Sequence[int]) -> list[Verdict]:
        """What the agreements say about stopping each pod, and whether its job is to be left alone for a while.

        `kinds` are the pods' numbers (`kind_of`).
        """
        known, verdicts = self._known, []
        for pod, kind in zip(pods, kinds, strict=True):
            one = known.get(kind)
            if one is None:
                one = known[kind] = self.agreed(pod)
            verdicts.append(one)
        if not self.cool_down or not (self.spending.stops or self.displacers):
            return verdicts
        return [self._unless_cooling(pod, one) for pod, one in zip(pods, verdicts, strict=True)]

    def _unless_cooling(self, pod: Pod, agreed: Verdict) -> Verdict:
        until = self._cools_until(pod) if agreed.consent is Consent.GIVEN else None
        return agreed if until is None else Verdict(Consent.COOL_DOWN, agreed.agreement, until)

    def agreed(self, pod: Pod) -> Verdict:
        """What the agreements alone say."""
        valid = self.view.in_force(self.now).get(pod.metadata.namespace, ())
        return _verdict(self.view, self.claim, pod, self.now, self.queue, valid)

    def _cools_until(self, pod: Pod) -> datetime | None:
        job = job_of(self.view, pod)
        stopped = self.spending.stopped_at(job, but_for=self.claim.metadata.uid)
        if stopped is not None and stopped + self.cool_down > self.now:
            self.cooling = f"{job} was stopped less than {format_duration(self.cool_down)} ago and is left alone"
            return stopped + self.cool_down
        until = self.displacers.get(self.view.gang_key_of(pod))
        if until is not None:
            self.cooling = f"{job} had this gang stopped less than {format_duration(self.cool_down)} ago"
        return until


def look_of(pod: Pod) -> Look:
    labels = pod.metadata.labels
    return pod.metadata.namespace, tuple(labels.items()) if labels else (), pod.spec.priority


def kind_of(view: View, pod: Pod, look: Look, now: datetime) -> int:
    """A number that pods share only if no agreement can tell them apart: by look, and what else it asks."""
    by_start, by_checkpoint = _told_apart_by(view, look[0], now)
    key = (
        look,
        pod.status.start_time if by_start else None,
        view.gang_key_of(pod) if by_checkpoint else None,
    )
    numbers: dict[object, int] = view.memo.setdefault(("kinds", now), {})
    return numbers.setdefault(key, len(numbers))


def _told_apart_by(view: View, namespace: str, now: datetime) -> tuple[bool, bool]:
    """Whether it matters to the namespace's agreements when a pod started, and what its gang has saved."""
    known: tuple[bool, bool] | None = view.memo.get(("told apart", namespace, now))
    if known is None:
        valid = view.in_force(now).get(namespace, ())
        by_start = any(parse_duration(one.spec.min_runtime) > timedelta(0) for one in valid)
        by_checkpoint = any(one.spec.checkpoint is not None and one.spec.checkpoint.required for one in valid)
        known = view.memo["told apart", namespace, now] = by_start, by_checkpoint
    return known


def _displacers(view: View, claim: WholeNodeClaim, now: datetime, cool_down: timedelta) -> Mapping[str, datetime]:
    """Gangs that others' stops of this claim's own gang were for: it does not pay them back within the cool-down."""
    gang = view.gang_of(claim)
    if not cool_down or gang is None:
        return {}
    own = {gang.key} | {job_of(view, pod) for pod in gang.pods}
    stops = [
        (record.spec.at, record.spec.beneficiary_gang)
        for record in view.records.values()
        if record.status.outcome is not Outcome.SPARED and not own.isdisjoint((record.spec.job, record.spec.gang))
    ]
    for other in view.claims.values():
        if other.spec.gang is not None:
            key = gang_key(other.metadata.namespace, other.spec.gang)
            stops += [
                (victim.evicted_at, key)
                for victim in other.status.victims
                if victim.evicted_at and not own.isdisjoint((victim.job, victim.gang))
            ]
    found: dict[str, datetime] = {}
    for at, key in sorted(stops):
        if key and key != gang.key and at + cool_down > now:
            found[key] = at + cool_down
    return found


def consent(view: View, claim: WholeNodeClaim, pod: Pod, now: datetime, under: str | None = None) -> Verdict:
    """What the agreements say about stopping the pod for this claim, now. `under`: only the one of that name."""
    valid = view.in_force(now).get(pod.metadata.namespace, ())
    if under is not None:
        valid = tuple(one for one in valid if one.metadata.name == under)
    return _verdict(view, claim, pod, now, _queue(view, claim), valid)


def _queue(view: View, claim: WholeNodeClaim) -> str:
    gang = view.gang_of(claim)
    return queue_of(gang.pods) if gang else ""


def _verdict(
    view: View, claim: WholeNodeClaim, pod: Pod, now: datetime, queue: str, valid: tuple[DrainAgreement, ...]
) -> Verdict:
    gang = view.gangs.get(view.gang_key_of(pod)) if valid else None
    since = claim.metadata.creation_timestamp or now
    return verdict(pod, claim.metadata.namespace, valid, since, now, queue, gang.pods if gang else ())
