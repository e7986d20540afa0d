"""How one question about a wait is answered, and the words and times that answers are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.cards import seat, terminating
from fleet.errors import FleetError
from fleet.names import EXPECTED_RUN
from fleet.objects import Pod
from fleet.requests import Request
from fleet.resources import WholeNodeClaim
from fleet.times import parse_duration
from fleet.why.explanations import Blocker, Check, Ends, Holder, Result, Stage
from fleet.why.supply import Supply

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Yes:
    """Nothing stands in the way here. `seen` is False if nobody could tell."""

    text: str
    seen: bool = True


@dataclass(frozen=True, slots=True)
class No:
    """This is what the pod waits for: one word, a sentence, how it ends and when, if that is known.

    `passed_on` leaves the decision to the next question: what is missing here can be mended there.
    """

    reason: str
    text: str
    how: str
    at: datetime | None = None
    passed_on: bool = False


Answer = Yes | No
Question = Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Finding:
    """The first No, and every question that was asked on the way to it."""

    stage: Stage
    no: No
    checks: tuple[Check, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    supply: Supply | None = None
    claim: WholeNodeClaim | None = None
    holders: tuple[Holder, ...] = ()

    @property
    def ends(self) -> Ends:
        return Ends(self.no.how, self.no.at)


def first_no(
    questions: Sequence[tuple[Stage, Question]], last: Callable[[], tuple[Stage, No]]
) -> tuple[Stage, No, tuple[Check, ...]]:
    """Ask in order until the answer is No; what comes after it is unknown. `last` decides if nothing else did."""
    checks: list[Check] = []
    decided: tuple[Stage, No] | None = None
    for stage, question in questions:
        if decided is not None:
            checks.append(Check(stage, Result.UNKNOWN))
            continue
        answer = question()
        if isinstance(answer, No):
            checks.append(Check(stage, Result.NOT_OK, answer.text))
            decided = None if answer.passed_on else (stage, answer)
        else:
            checks.append(Check(stage, Result.OK if answer.seen else Result.UNKNOWN, answer.text))
    if decided is None:
        decided = last()
        checks.append(Check(decided[0], Result.NOT_OK, decided[1].text))
    return (*decided, tuple(checks))


def ends_at(pod: Pod) -> datetime | None:
    """When the pod is expected to give its cards back: its deletion's time, or what its owner declared."""
    if terminating(pod):
        return pod.metadata.deletion_timestamp
    declared, started = pod.metadata.annotation(EXPECTED_RUN), pod.status.start_time
    try:
        return started + parse_duration(declared) if declared and started is not None else None
    except (FleetError, OverflowError):
        return None


def blocker(pod: Pod, cards: int) -> Blocker:
    namespace, name = pod.metadata.namespace, pod.metadata.name
    return Blocker(namespace, name, seat(pod) or "", cards, ends_at(pod), terminating(pod))


def clock(moment: datetime) -> str:
    """A time for a sentence: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def until(moment: datetime | None) -> str:
    return f" until {clock(moment)}" if moment is not None else ""


def listed(names: Iterable[str], shown: int = _SHOWN) -> str:
    """The first few names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - shown} more" if len(every) > shown else ""
    return ", ".join(every[:shown]) + more


def counted(number: int, one: str, several: str | None = None) -> str:
    """`1 card`, `2 cards`."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def beside(request: Request) -> str:
    """The cards of other resources that a request wants too: a part of a sentence, or nothing."""
    return f" and {counted(request.extra, 'card')} of other resources" if request.extra else ""


def only_free(supply: Supply) -> str:
    """How few cards are free, for a sentence."""
    number = supply.cards_free
    free = f"only {counted(number, 'is', 'are')}" if number else "none is"
    return f"{free} free on {counted(len(supply.seats), 'node')} {supply.where}"


def left_out(supply: Supply) -> str:
    """The nodes that were not counted, and why: a half sentence, or nothing."""
    if not supply.shut:
        return ""
    figures = sorted(supply.shut.items(), key=lambda kv: (-kv[1], kv[0]))
    return "; not counted: " + ", ".join(f"{number} {why}" for why, number in figures)
