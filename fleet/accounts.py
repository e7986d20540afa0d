"""The ledger read back: who lost what, for whom and under which agreement, and how long the others waited."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import fsum
from statistics import median

from fleet.marks import ENDED
from fleet.resources import DrainRecord, Outcome, Phase, Policy, WholeNodeClaim
from fleet.statuses import entered_at
from fleet.view import age_key


class By(StrEnum):
    """What the rows of the ledger are about."""

    VICTIM = "victim"
    BENEFICIARY = "beneficiary"
    AGREEMENT = "agreement"
    CLAIM = "claim"
    JOB = "job"


PARTIES = (By.VICTIM, By.BENEFICIARY, By.AGREEMENT)
"""The rows when nothing else is asked for: each pair of teams, and what they agreed."""
_READ: Mapping[By, Callable[[DrainRecord], str]] = {
    By.VICTIM: lambda record: record.metadata.namespace,
    By.BENEFICIARY: lambda record: record.spec.beneficiary,
    By.AGREEMENT: lambda record: record.spec.agreement and f"{record.metadata.namespace}/{record.spec.agreement}",
    By.CLAIM: lambda record: record.spec.claim,
    By.JOB: lambda record: record.spec.job or record.spec.gang,
}
_SUREST_FIRST = (Outcome.STOPPED, Outcome.PENDING, Outcome.SPARED)


@dataclass(frozen=True, slots=True)
class Sums:
    """Of some records: pods stopped, their cards and jobs, work lost; pods spared, and those not decided yet.

    Lost GPU-seconds are those of stopped pods alone: what is only intended may still be spared.
    """

    evictions: int = 0
    jobs: int = 0
    cards: int = 0
    lost_gpu_seconds: float = 0.0
    spared: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """The sums of all records that agree in `key`, one text for each of what the rows are about."""

    key: tuple[str, ...]
    sums: Sums


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the claims of one namespace waited for their nodes; those that still wait count up to now."""

    beneficiary: str
    claims: int
    bound: int
    waiting: int
    median_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class Account:
    """The ledger of the time from `since` to `until`: most lost first, and the sums of all of it."""

    since: datetime
    until: datetime
    by: tuple[By, ...]
    rows: tuple[Row, ...]
    total: Sums
    waits: tuple[Waits, ...]


def account(
    records: Iterable[DrainRecord],
    claims: Iterable[WholeNodeClaim],
    since: datetime,
    until: datetime,
    by: tuple[By, ...] = PARTIES,
    namespace: str | None = None,
) -> Account:
    """Add up what was decided from `since` on. `until` is now; a record of a clock that is ahead of it counts too.

    `namespace`: only what its pods lost, and only how long its own claims waited.
    """
    within = [one for one in each_pod_once(records) if since <= one.spec.at]
    mine = [one for one in within if namespace in (None, one.metadata.namespace)]
    grouped: dict[tuple[str, ...], list[DrainRecord]] = {}
    for record in mine:
        grouped.setdefault(tuple(_READ[one](record) for one in by), []).append(record)
    rows = [Row(key, sums(some)) for key, some in grouped.items()]
    rows.sort(key=lambda row: (-row.sums.lost_gpu_seconds, -row.sums.evictions, row.key))
    waited = waits((one for one in claims if namespace in (None, one.metadata.namespace)), since, until)
    return Account(since, until, by, tuple(rows), sums(mine), waited)


def each_pod_once(records: Iterable[DrainRecord]) -> tuple[DrainRecord, ...]:
    """Of several records about one pod UID the surest counts, then the earliest. In the order of time."""
    found: dict[str, DrainRecord] = {}
    for record in sorted(records, key=_certainty):
        found.setdefault(record.spec.pod_uid, record)
    return tuple(sorted(found.values(), key=lambda one: (one.spec.at, one.spec.pod_uid)))


def _certainty(record: DrainRecord) -> tuple[int, datetime, str, str]:
    spec = record.spec
    return (_SUREST_FIRST.index(record.status.outcome), spec.at, spec.claim_uid, record.metadata.name)


def sums(records: Iterable[DrainRecord]) -> Sums:
    """Of records about different pods."""
    records = tuple(records)
    outcomes = [one.status.outcome for one in records]
    stopped = [one for one in records if one.status.outcome is Outcome.STOPPED]
    return Sums(
        evictions=len(stopped),
        jobs=len({(one.metadata.namespace, _READ[By.JOB](one)) for one in stopped}),
        cards=sum(one.spec.cards for one in stopped),
        lost_gpu_seconds=round(fsum(_losses(records)), 3),
        spared=outcomes.count(Outcome.SPARED),
        pending=outcomes.count(Outcome.PENDING),
    )


def _losses(records: Iterable[DrainRecord]) -> Iterator[float]:
    """A gang's loss stands with one of its pods. If just that one was spared and another was stopped, it counts too."""
    gangs: dict[tuple[str, str], list[DrainRecord]] = {}
    for record in records:
        gangs.setdefault((record.spec.claim_uid, record.spec.gang or record.spec.pod_uid), []).append(record)
    for some in gangs.values():
        stopped = [one.spec.lost_gpu_seconds for one in some if one.status.outcome is Outcome.STOPPED]
        spared = [one.spec.lost_gpu_seconds for one in some if one.status.outcome is Outcome.SPARED]
        yield fsum(stopped) or (max(spared, default=0.0) if stopped else 0.0)


def waits(claims: Iterable[WholeNodeClaim], since: datetime, until: datetime) -> tuple[Waits, ...]:
    """By namespace, of the claims that waited at some time from `since` to `until`. Previews wait for nothing."""
    found: dict[str, list[tuple[WholeNodeClaim, timedelta]]] = {}
    for claim in sorted(claims, key=age_key):
        created, end = claim.metadata.creation_timestamp, _waited_until(claim, until)
        if created is None or created > until or end < since or claim.spec.policy is Policy.PREVIEW:
            continue
        found.setdefault(claim.metadata.namespace, []).append((claim, max(timedelta(0), end - created)))
    return tuple(_waits(namespace, found[namespace]) for namespace in sorted(found))


def _waits(namespace: str, waited: list[tuple[WholeNodeClaim, timedelta]]) -> Waits:
    seconds = [span.total_seconds() for _, span in waited]
    return Waits(
        namespace,
        claims=len(waited),
        bound=sum(entered_at(claim.status, Phase.BOUND) is not None for claim, _ in waited),
        waiting=sum(claim.status.phase not in ENDED for claim, _ in waited),
        median_seconds=round(median(seconds), 3),
        longest_seconds=round(max(seconds), 3),
    )


def _waited_until(claim: WholeNodeClaim, now: datetime) -> datetime:
    """Until it was bound; if it never was, until it ended, or until now."""
    bound = entered_at(claim.status, Phase.BOUND)
    if bound is not None:
        return min(bound, now)
    ended = entered_at(claim.status, claim.status.phase) if claim.status.phase in ENDED else None
    return min(ended, now) if ended is not None else now
