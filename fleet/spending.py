"""What has been stopped so far, and what agreements still allow: worked out of the records, each pod counted once."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeVar

from fleet.resources import Budget, DrainAgreement, DrainRecord, Outcome, Victim, WholeNodeClaim
from fleet.times import clock

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
KEPT = timedelta(days=7)
"""How far back anything here looks: the fairness between namespaces goes by a week."""

_STOPPED, _PENDING, _UNWRITTEN = range(3)
K = TypeVar("K")
_Hit = tuple[str, datetime]
"""UID of a claim, and when it stopped pods of a job: that hits the job once, however many they are."""


@dataclass(frozen=True, slots=True, order=True)
class Stop:
    """One pod that was stopped, or is about to be. The fields' order says which of two about the same pod counts."""

    certainty: int
    at: datetime
    claim_uid: str
    namespace: str
    agreement: str
    job: str
    lost_gpu_seconds: float
    pod_uid: str

    @property
    def hit(self) -> _Hit:
        """What is stopped for one claim at one moment hits a job once, however many pods it has there."""
        return self.claim_uid, self.at


@dataclass(frozen=True, slots=True)
class Overdraft:
    """A pod may not be stopped: `agreement` (namespace/name) has too little left until `from_`, or for ever."""

    agreement: str
    text: str
    from_: datetime | None


@dataclass(frozen=True)
class Spending:
    """All stops of the last week by pod UID. A day is the last 24 hours, an hour the last 60 minutes before `now`."""

    now: datetime
    stops: Mapping[str, Stop] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[DrainRecord], claims: Iterable[WholeNodeClaim], now: datetime) -> "Spending":
        """From the records, and from the claims' statuses where an intention has no record yet."""
        horizon = now - KEPT
        recent = [record for record in records if record.spec.at > horizon]
        spared: dict[tuple[str, str], datetime] = {}
        for record in recent:
            if record.status.outcome is Outcome.SPARED:
                pair = (record.spec.pod_uid, record.spec.claim_uid)
                spared[pair] = max(record.spec.at, spared.get(pair, record.spec.at))
        found = [_of_record(record) for record in recent if record.status.outcome is not Outcome.SPARED]
        for claim in claims:
            for stop in _intended(claim.status.victims, claim.metadata.uid):
                pair = (stop.pod_uid, stop.claim_uid)
                if stop.at > horizon and (pair not in spared or stop.at > spared[pair]):
                    found.append(stop)
        return cls(now, _each_pod_once(found))

    def including(self, victims: Iterable[Victim], claim_uid: str) -> "Spending":
        """As if these victims of a claim, those that are to be stopped, had been recorded already."""
        return Spending(self.now, _each_pod_once((*self.stops.values(), *_intended(victims, claim_uid))))

    def without(self, pod_uids: Iterable[str]) -> "Spending":
        """As if these pods had not been recorded: for asking anew whether they may be stopped."""
        left_out = set(pod_uids)
        return Spending(self.now, {uid: stop for uid, stop in self.stops.items() if uid not in left_out})

    def overdrafts(
        self, wanted: Iterable[Victim], agreements: Mapping[tuple[str, str], DrainAgreement], claim_uid: str = ""
    ) -> Mapping[str, Overdraft]:
        """Which of the pods (by UID) their agreements have no budget for, if all of them are stopped together.

        Agreements are keyed by namespace and name; `claim_uid` is the claim they would be stopped for. Pods that are
        counted already cost nothing more.
        """
        groups: dict[tuple[str, str], list[Victim]] = {}
        hits: dict[str, set[datetime]] = {}
        for victim in {one.uid: one for one in wanted if one.uid not in self.stops}.values():
            groups.setdefault((victim.namespace, victim.agreement), []).append(victim)
            hits.setdefault(victim.job, set()).add(victim.evicted_at or self.now)
        own = {job: [(claim_uid, moment) for moment in sorted(moments)] for job, moments in hits.items()}
        found: dict[str, Overdraft] = {}
        for key, victims in groups.items():
            agreement = agreements.get(key)
            if agreement is not None and agreement.spec.budget is not None:
                found.update(self._overdrawn(key, agreement.spec.budget, victims, own))
        return found

    def stopped_at(self, job: str, *, but_for: str = "") -> datetime | None:
        """When the job was last stopped; `but_for` is the UID of a claim whose own stops do not count."""
        moments = (stop.at for stop in self._by_job.get(job, ()) if not but_for or stop.claim_uid != but_for)
        return max(moments, default=None)

    def lost_since(self, namespace: str, since: datetime) -> float:
        """GPU-seconds of work that the namespace has lost from `since` on, a week back at most."""
        return math.fsum(
            stop.lost_gpu_seconds for stop in self.stops.values() if stop.namespace == namespace and stop.at >= since
        )

    def lost_by_namespace(self, since: datetime) -> Mapping[str, float]:
        """As `lost_since`, for every namespace that has lost anything."""
        names = {stop.namespace for stop in self.stops.values()}
        return {name: lost for name in sorted(names) if (lost := self.lost_since(name, since)) > 0}

    def lost_under(self, namespace: str, agreement: str) -> float:
        """GPU-seconds lost under the agreement in the last 24 hours."""
        return math.fsum(stop.lost_gpu_seconds for stop in self._within((namespace, agreement), DAY))

    def stopped_under(self, namespace: str, agreement: str) -> int:
        """Pods stopped under the agreement in the last 60 minutes."""
        return len(self._within((namespace, agreement), HOUR))

    @cached_property
    def _by_agreement(self) -> Mapping[tuple[str, str], list[Stop]]:
        return _grouped(((stop.namespace, stop.agreement), stop) for stop in self._in_time)

    @cached_property
    def _by_job(self) -> Mapping[str, list[Stop]]:
        return _grouped((stop.job, stop) for stop in self._in_time if stop.job)

    @cached_property
    def _in_time(self) -> list[Stop]:
        return sorted(self.stops.values(), key=lambda stop: (stop.at, stop.pod_uid))

    def _within(self, key: tuple[str, str], window: timedelta) -> list[Stop]:
        stops = self._by_agreement.get(key, [])
        return stops[bisect_right(stops, self.now - window, key=lambda stop: stop.at) :]

    def _overdrawn(
        self, key: tuple[str, str], budget: Budget, victims: list[Victim], own: Mapping[str, list[_Hit]]
    ) -> Iterator[tuple[str, Overdraft]]:
        name = f"{key[0]}/{key[1]}"
        shared = [*self._lost_too_much(key, budget, victims), *self._too_many(key, budget, victims)]
        for victim in victims:
            against = [*shared, *self._hit_too_often(budget, victim, own[victim.job])]
            if against:
                moments = [from_ for _, from_ in against if from_ is not None]
                from_ = max(moments) if len(moments) == len(against) else None
                yield victim.uid, Overdraft(name, f"agreement {name}: {against[0][0]}{_from(from_)}", from_)

    def _lost_too_much(
        self, key: tuple[str, str], budget: Budget, victims: list[Victim]
    ) -> Iterator[tuple[str, datetime | None]]:
        limit = budget.gpu_seconds_per_day
        if limit is None:
            return
        stops, wanted = self._within(key, DAY), [victim.lost_gpu_seconds for victim in victims]
        weights = [stop.lost_gpu_seconds for stop in stops]
        spent, more = math.fsum(weights), math.fsum(wanted)
        if math.fsum((*weights, *wanted)) > limit:
            text = f"{spent:.0f} of {limit} GPU-seconds in 24 hours are used, {rough(more)} more would be lost"
            yield text, _aged_out([(stop.at, stop.lost_gpu_seconds) for stop in stops], wanted, limit, DAY)

    def _too_many(
        self, key: tuple[str, str], budget: Budget, victims: list[Victim]
    ) -> Iterator[tuple[str, datetime | None]]:
        limit = budget.evictions_per_hour
        if limit is None:
            return
        stops = self._within(key, HOUR)
        if len(stops) + len(victims) > limit:
            text = f"{len(stops)} of {limit} evictions in 60 minutes are used, {len(victims)} more would be needed"
            yield text, _aged_out([(stop.at, 1.0) for stop in stops], [1.0] * len(victims), limit, HOUR)

    def _hit_too_often(self, budget: Budget, victim: Victim, own: list[_Hit]) -> Iterator[tuple[str, datetime | None]]:
        """`own` are all hits of the job that are asked for together: of these the earlier go first."""
        limit = budget.evictions_per_job_per_day
        if limit is None:
            return
        done = {stop.hit for stop in self._by_job.get(victim.job, ()) if stop.at > self.now - DAY}
        hit = next(one for one in own if one[1] == (victim.evicted_at or self.now))
        # The rest of a gang whose first pods were stopped for the claim at the same moment is no further hit.
        if hit in done:
            return
        earlier = [one for one in own[: own.index(hit)] if one not in done]
        if len(done) + len(earlier) + 1 > limit:
            moments = sorted([moment for _, moment in done] + [moment for _, moment in earlier])
            text = f"its job was stopped {len(moments)} time(s) in 24 hours, {limit} are allowed"
            yield text, _aged_out([(moment, 1.0) for moment in moments], [1.0], limit, DAY)


def _of_record(record: DrainRecord) -> Stop:
    spec = record.spec
    certainty = _STOPPED if record.status.outcome is Outcome.STOPPED else _PENDING
    return Stop(
        certainty,
        spec.at,
        spec.claim_uid,
        record.metadata.namespace,
        spec.agreement,
        spec.job,
        spec.lost_gpu_seconds,
        spec.pod_uid,
    )


def _intended(victims: Iterable[Victim], claim_uid: str) -> Iterator[Stop]:
    for one in victims:
        if one.evicted_at is not None:
            yield Stop(
                _UNWRITTEN,
                one.evicted_at,
                claim_uid,
                one.namespace,
                one.agreement,
                one.job,
                one.lost_gpu_seconds,
                one.uid,
            )


def _each_pod_once(stops: Iterable[Stop]) -> dict[str, Stop]:
    """Of several about one pod the surest counts, then the earliest: a pod is stopped once, whoever wrote it down."""
    found: dict[str, Stop] = {}
    for stop in stops:
        known = found.get(stop.pod_uid)
        if known is None or stop < known:
            found[stop.pod_uid] = stop
    return found


def _grouped(pairs: Iterable[tuple[K, Stop]]) -> dict[K, list[Stop]]:
    found: dict[K, list[Stop]] = {}
    for key, stop in pairs:
        found.setdefault(key, []).append(stop)
    return found


def _aged_out(
    stops: list[tuple[datetime, float]], wanted: list[float], limit: float, window: timedelta
) -> datetime | None:
    """When enough of the stops (moment, weight; in time) are older than the window; None if `wanted` never fits."""
    if math.fsum(wanted) > limit:
        return None
    for index, (moment, _) in enumerate(stops):
        left = [weight for _, weight in stops[index + 1 :]]
        if math.fsum((*left, *wanted)) <= limit:
            return moment + window
    return None


def rough(gpu_seconds: float) -> str:
    """A figure with two digits that count: texts that changed with every second would be written every second."""
    return f"about {float(f'{gpu_seconds:.2g}'):.0f}"


def _from(moment: datetime | None) -> str:
    return f"; from {clock(moment)} on there is enough" if moment else "; that alone is too much"
