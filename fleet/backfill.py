"""Who comes first: the nodes that claims ahead hold or wait for, and the ends they declared (decision 0011)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fleet.errors import FleetError
from fleet.resources import Phase, Policy, WholeNodeClaim
from fleet.statuses import entered_at
from fleet.times import parse_duration

START_MARGIN = timedelta(minutes=1)
"""From choosing free nodes to the start of the gang's pods on them; one that needs longer is not let ahead any more."""


@dataclass(slots=True)
class Ahead:
    """What is known in one pass about the nodes of other claims.

    `kept`: node an older claim waits for -> when that claim could start, None if that is not known.
    `ends`: node a claim holds -> when the holder has promised to be done with it.
    """

    kept: dict[str, datetime | None] = field(default_factory=dict)
    ends: dict[str, datetime] = field(default_factory=dict)

    def keep(self, names: Iterable[str], start_at: datetime | None) -> None:
        """Keep nodes for a claim that could start at `start_at`; of several claims the strictest counts."""
        for name in names:
            before = self.kept.get(name, start_at)
            self.kept[name] = min(before, start_at) if before is not None and start_at is not None else None

    def hold(self, names: Iterable[str], until: datetime | None) -> None:
        """Note nodes that a claim has taken, if it said when it is done with them."""
        if until is not None:
            self.ends.update(dict.fromkeys(names, until))


def expected_run(claim: WholeNodeClaim) -> timedelta | None:
    """How long the claim's gang says it will run; None if it does not, or nobody can read it."""
    try:
        return parse_duration(claim.spec.expected_run) if claim.spec.expected_run else None
    except FleetError:
        return None


def end_if_taken(claim: WholeNodeClaim, now: datetime) -> datetime | None:
    """When the claim would be done with free nodes that it takes now."""
    run = expected_run(claim)
    return None if run is None else now + START_MARGIN + run


def promised_end(claim: WholeNodeClaim) -> datetime | None:
    """When a claim that has taken nodes has promised to be done with them."""
    since = entered_at(claim.status, Phase.PLANNED)
    return None if since is None or claim.spec.policy is Policy.PREVIEW else end_if_taken(claim, since)


def start_limit(claim: WholeNodeClaim) -> datetime | None:
    """Until when a claim that has taken nodes must be on them to keep its promise."""
    since = entered_at(claim.status, Phase.PLANNED)
    return None if since is None or expected_run(claim) is None else since + START_MARGIN
