"""What is old enough to be deleted: resolved drain records, and ended claims whose gang is gone."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.marks import ENDED
from fleet.resources import DrainRecord, Outcome, WholeNodeClaim
from fleet.view import View


@dataclass(frozen=True, slots=True)
class Keep:
    """How long each kind is kept after its end; None for ever."""

    records: timedelta | None
    claims: timedelta | None

    @classmethod
    def of_days(cls, record_days: int, claim_days: int) -> "Keep":
        """Days of both; 0 means for ever."""
        return cls(*(timedelta(days=days) if days else None for days in (record_days, claim_days)))


def outdated(view: View, now: datetime, keep: Keep) -> Iterator[DrainRecord | WholeNodeClaim]:
    """Everything that has been kept long enough, in a fixed order: claims first, each kind by age."""
    if keep.claims is not None:
        yield from sorted(
            _claims(view, now - keep.claims), key=lambda one: (one.status.phases[-1].at, one.metadata.uid)
        )
    if keep.records is not None:
        yield from sorted(_records(view, now - keep.records), key=lambda one: (one.spec.at, one.metadata.uid))


def _claims(view: View, until: datetime) -> Iterator[WholeNodeClaim]:
    """A claim that failed for good keeps its pods from getting a new one, so it stays as long as there are any."""
    for claim in view.claims.values():
        status = claim.status
        if status.phase in ENDED and status.phases and status.phases[-1].at < until and view.gang_of(claim) is None:
            yield claim


def _records(view: View, until: datetime) -> Iterator[DrainRecord]:
    for record in view.records.values():
        if record.status.outcome is not Outcome.PENDING and record.spec.at < until:
            yield record
