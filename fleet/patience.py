"""Wait or evict: what stopping others now costs, against waiting until they save their work or end by themselves.

Everything is in GPU-seconds. Waiting costs the cards wanted x the time they are missed; stopping a gang at some moment
costs the work that is thrown away then, which grows until the gang saves its work, and is nothing once it has ended.
The moments worth looking at are therefore now, just after each expected save, and each expected end (decision 0016).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.forecasts import Event
from fleet.resources import Course, Weighing
from fleet.spending import rough
from fleet.times import clock, later

_WORTH_A_CHANGE = 0.9
"""A wait that was decided is broken off for a course that costs less than this share of it, not for less gain."""


@dataclass(frozen=True, slots=True)
class Stake:
    """One gang that would be stopped.

    `loss`: what stopping it now throws away, growing by `growth` a second; `floor`: what it is just after a save, the
    restart alone. `saves` are expected from now on, `end` is when the last of its pods here is expected to end.
    """

    name: str
    loss: float
    growth: float = 0.0
    floor: float = 0.0
    saves: tuple[Event, ...] = ()
    end: Event | None = None

    def at(self, moment: datetime, now: datetime) -> float:
        """What stopping the gang at `moment` throws away, if all comes as expected."""
        if self.end is not None and self.end.at <= moment:
            return 0.0
        saved = max((one.at for one in self.saves if one.at <= moment), default=None)
        if saved is None:
            return self.loss + self.growth * (moment - now).total_seconds()
        return self.floor + self.growth * (moment - saved).total_seconds()


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a wait: `cards` are missed meanwhile.

    `hold_until`: nodes may be held, and nobody stopped, until then; None if they may not be held without stopping.
    `latest`: whoever stops others later than this is too late for the claim's deadline; None if it has none.
    `before`: the weighing that has the claim wait already; None if this is the first.
    `may_stop`: whether the agreements apply at a moment.
    """

    now: datetime
    cards: int
    hold_until: datetime | None = None
    latest: datetime | None = None
    before: Weighing | None = None
    may_stop: Callable[[datetime], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class _Wait:
    """Waiting for one event, which comes `at` that moment or now, if it is due already.

    `cost` is all that it costs; `left` is what is thrown away then, and None if all have ended and nobody is stopped.
    """

    event: Event
    at: datetime
    course: Course
    cost: float
    left: float | None
    saves: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[float, datetime, datetime]:
        return self.cost, self.at, self.event.until


def weigh(stakes: Sequence[Stake], limits: Limits) -> Weighing:
    """The cheapest course: stop the gangs now, or wait for one of the moments that are known; the earlier on a tie.

    A wait lasts until its break-even moment at most, however the expectations change meanwhile: the cards missed in
    it are never worth more than what stopping others at its beginning would have thrown away.
    """
    now, cards = limits.now, limits.cards
    evict = sum(stake.loss for stake in stakes)
    before = limits.before if limits.before and limits.before.course is not Course.EVICT else None
    break_even = (before and before.break_even_at) or later(now, evict / cards)
    ends = [stake.end for stake in stakes]
    known = [end.at for end in ends if end is not None]
    end_at = max(known) if known and len(known) == len(ends) else None
    waits = [wait for wait in _waits(stakes, limits, end_at) if wait.at < break_even]
    best = min(waits, key=lambda one: one.rank, default=None)
    if best is not None and evict <= best.cost and not (before and evict > _WORTH_A_CHANGE * best.cost):
        best = None
    return Weighing(
        course=best.course if best else Course.EVICT,
        evict_cost=round(evict, 3),
        wait_cost=round(_missed(end_at, limits), 3) if end_at else None,
        wait_until=best.event.until if best else None,
        break_even_at=break_even,
        cost=round(best.cost if best else evict, 3),
        note=_why_wait(best, evict, now) if best else _why_now(evict, end_at, limits, break_even),
    )


def _waits(stakes: Sequence[Stake], limits: Limits, end_at: datetime | None) -> Iterator[_Wait]:
    """Waiting for each of the moments that are still believed in, and early enough for deadline and agreements."""
    events = {event for stake in stakes for event in (*stake.saves, stake.end) if event is not None}
    for event in events:
        if event.until <= limits.now or (limits.latest is not None and event.until > limits.latest):
            continue
        at = max(event.at, limits.now)
        missed = _missed(at, limits)
        if end_at is not None and end_at <= at:
            held = limits.hold_until is not None and event.until <= limits.hold_until
            yield _Wait(event, at, Course.SOFT_VACATE if held else Course.WAIT, missed, None)
        elif limits.may_stop(event.until):
            left = sum(stake.at(at, limits.now) for stake in stakes)
            saves = tuple(stake.name for stake in stakes if event in stake.saves)
            yield _Wait(event, at, Course.AWAIT_CHECKPOINT if saves else Course.WAIT, left + missed, left, saves)


def _missed(moment: datetime, limits: Limits) -> float:
    """What the cards wanted are worth from now to the moment."""
    return limits.cards * max(0.0, (moment - limits.now).total_seconds())


def _why_wait(wait: _Wait, evict: float, now: datetime) -> str:
    when = f"{_in(wait.event.at - now)} ({clock(wait.event.at)})"
    if wait.left is None:
        spared = "all pods there are expected to have ended by themselves"
        return f"{when} {spared}; stopping them now would throw away {rough(evict)} GPU-s"
    if wait.course is Course.AWAIT_CHECKPOINT:
        fall = 100 * (evict - wait.left) / evict
        return f"{when} {_named(wait.saves)} its work: the cost falls by {fall:.0f} %, from {rough(evict)} GPU-s"
    return f"{when} stopping the rest is expected to cost {rough(wait.left)} instead of {rough(evict)} GPU-s"


def _why_now(evict: float, end_at: datetime | None, limits: Limits, break_even: datetime) -> str:
    if limits.before and limits.now >= break_even:
        return "waiting has cost as much by now as stopping others would have at first"
    if end_at is None or end_at <= limits.now:
        return "it is not known when all pods there end by themselves"
    if limits.latest is not None and end_at > limits.latest:
        return "all pods there are expected to end too late for the deadline"
    return f"waiting for all pods there to end by themselves would miss {rough(_missed(end_at, limits))} GPU-s"


def _named(names: Sequence[str]) -> str:
    return f"{names[0]} saves" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more save"


def _in(span: timedelta) -> str:
    if span <= timedelta(0):
        return "at any moment"
    minutes = round(span.total_seconds() / 60)
    if minutes < 1:
        return "in less than a minute"
    return f"in {minutes} min" if minutes < 2 * 60 else f"in {round(minutes / 60)} h"
