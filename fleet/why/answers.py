"""How one question about a wait is answered, and the words and times that answers are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fleet.cards import seat, terminating
from fleet.forecasts import expected_end
from fleet.objects import Pod
from fleet.requests import Request
from fleet.resources import WholeNodeClaim
from fleet.times import clock
from fleet.view import View
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


def ends_at(view: View, pod: Pod) -> datetime | None:
    """When the pod is expected to give its cards back: its deletion's time, what was declared, or what was learned."""
    end = expected_end(view, pod)
    return end.at if end else None


def blocker(view: View, pod: Pod, cards: int) -> Blocker:
    namespace, name, end = pod.metadata.namespace, pod.metadata.name, expected_end(view, pod)
    at, learned = (end.at, end.learned) if end else (None, False)
    return Blocker(namespace, name, seat(pod) or "", cards, at, terminating(pod), learned)


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
