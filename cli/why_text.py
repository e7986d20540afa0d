"""An explanation as a few lines for people, readable in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from fleet.times import format_duration
from fleet.why.answers import counted
from fleet.why.explanations import Explanation, Kind, Stage

_WIDTH = 80
_LABEL = 11
_WORDS = {
    Kind.NOT_ATTEMPTED: "waits, not attempted yet",
    Kind.NO_PLACE: "waits, attempted, no place",
    Kind.START_FAILED: "was placed, start failed",
    Kind.NOT_WAITING: "does not wait",
    Kind.NOT_OURS: "is not ours",
}


def told(answer: Explanation, now: datetime) -> str:
    """Kind and stage first, then the sentence, figures, how it ends, since when, and what the scheduler said."""
    stage = f" | stage {answer.stage}" if answer.stage else ""
    head = f"{answer.namespace}/{answer.pod} {_WORDS[answer.kind]}{stage} | {answer.reason}"
    lines = [*_wrap(head, _WIDTH), *_wrap(answer.text, _WIDTH, "  ")]
    for label, text in _rows(answer, now):
        wrapped = _wrap(text, _WIDTH - 2 - _LABEL) or [""]
        lines.append(f"  {label:<{_LABEL}}{wrapped[0]}")
        lines.extend(" " * (2 + _LABEL) + more for more in wrapped[1:])
    return "\n".join(lines)


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _rows(answer: Explanation, now: datetime) -> Iterator[tuple[str, str]]:
    if answer.stage is not None and answer.stage is not Stage.START:
        yield "figures", _figures(answer.numbers)
    if answer.ends is not None:
        yield "ends", answer.ends.how + (f"; expected {_when(answer.ends.at, now)}" if answer.ends.at else "")
    if answer.since is not None:
        yield "since", _when(answer.since, now)
    if answer.claim is not None:
        claim = answer.claim
        at = f" on {', '.join(claim.nodes)}" if claim.nodes else ""
        yield (
            "claim",
            f"{claim.namespace}/{claim.name}: {claim.phase}{at}" + (f", {claim.reason}" if claim.reason else ""),
        )
    if answer.kind in {Kind.NOT_ATTEMPTED, Kind.NO_PLACE}:
        yield "scheduler", _scheduler(answer)
    for what in answer.unread:
        yield "not read", what


def _figures(numbers: dict[str, int]) -> str:
    """The numbers as one line; those of a gang, and of nodes held for others, only where there are any."""
    nodes, whole = numbers.get("nodesNeeded", 1), numbers.get("wholeNodesFree")
    parts = [
        f"{counted(numbers.get('cardsNeeded', 0), 'card')} needed on {counted(nodes, 'node')}",
        f"{numbers.get('cardsFree', 0)} free",
        f"{numbers.get('bestNodeFree', 0)} on the best node",
    ]
    if whole is not None:
        parts.append(f"{counted(whole, 'whole node')} free")
    parts.append(f"{numbers.get('nodesUsable', 0)} of {counted(numbers.get('nodes', 0), 'node')} usable")
    if held := numbers.get("cardsFreeOnHeldNodes"):
        parts.append(f"{held} of the free on nodes held for others")
    if (size := numbers.get("gangSize", 1)) > 1:
        parts.append(f"{numbers.get('gangPresent', 0)} of {size} pods of the gang")
    return ", ".join(parts)


def _scheduler(answer: Explanation) -> str:
    said = answer.scheduler
    if said is None:
        return "has said nothing yet"
    return said.message or (said.event.message if said.event else "") or "has said nothing yet"


def _when(moment: datetime, now: datetime) -> str:
    """`12m3s ago (2027-01-04 11:48:00Z)`, `in 5m (…)`."""
    span = timedelta(seconds=round((moment - now).total_seconds()))
    relative = f"in {format_duration(span)}" if span > timedelta(0) else f"{format_duration(-span)} ago"
    return f"{relative} ({moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ})"
