"""What a choice of nodes is made from, and what comes of it: options with the gangs and budgets they touch, prices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Fits = Callable[[Sequence["Option"]], bool]
"""Whether options may be taken together. What does not fit must not do so with one option more either."""

MOST_WORK = 60_000
"""Options looked at for one choice, about a microsecond or two each. Counted, not timed: the answer must not depend
on the machine."""


@dataclass(frozen=True, slots=True)
class Price:
    """What stopping members of one gang costs: per card while no more than `spare` are stopped, else `whole`.

    Where members are not worth the same, `per_card` is 1 and a hit's cards are what they cost.
    """

    whole: int
    per_card: int = 0
    spare: int = 0

    def of(self, members: int, cards: int) -> int:
        return self.whole if members > self.spare else min(self.whole, self.per_card * cards)


@dataclass(frozen=True, slots=True)
class Hit:
    """So many members of a gang, with so many cards, would be stopped; `missed`: GPU-seconds that these came later."""

    gang: str
    members: int
    cards: int
    missed: float = 0.0


@dataclass(frozen=True, slots=True)
class Option:
    """One node. `idle` is what emptying it costs beside the gangs; `presses`: pods on each budget; `strain`: how much
    of what is scarce it takes, in any unit, for the case that the cheapest options do not fit together.
    """

    name: str
    idle: int = 0
    hits: tuple[Hit, ...] = ()
    priority: int = 0
    presses: tuple[tuple[str, int], ...] = ()
    strain: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the options are judged by: prices by gang, pods that may go by budget, and what must fit together.

    `housed` says whether everybody who is stopped has another place; sets for which it holds come first.
    """

    prices: Mapping[str, Price]
    allowed: Mapping[str, int] = field(default_factory=dict)
    fits: Fits | None = None
    housed: Fits | None = None
    work: int = MOST_WORK


@dataclass(frozen=True, slots=True)
class Found:
    """The options chosen, by name. `optimal`: no set that comes before it in the order exists, for certain."""

    options: tuple[Option, ...]
    excess: int
    priority: int
    homeless: bool
    cost: int
    gangs: int
    optimal: bool

    @property
    def rank(self) -> tuple[int, int, bool, int, int, tuple[str, ...]]:
        """Sorts sets: pods beyond budgets, highest priority, anybody without a place, cost, gangs hit, names."""
        names = tuple(one.name for one in self.options)
        return self.excess, self.priority, self.homeless, self.cost, self.gangs, names
