"""Nodes that one claim takes together: free ones first, then those that are emptied at the least harm."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fleet import choosing
from fleet.candidates import Candidate, shortfalls
from fleet.costs import GangLoss, each_lost, priced
from fleet.domains import Domain
from fleet.options import Fits, Hit, Option, Price, Terms
from fleet.readiness import Shortfall
from fleet.relocation import Homes
from fleet.resources import DrainAgreement, Victim
from fleet.spending import Overdraft, Spending, rough
from fleet.view import View

_UNITS = 1000
"""Costs are compared in thousandths of a GPU-second: whole numbers add up the same in every order."""

Rank = tuple[int, int, int, int, int, bool, int, int, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Nodes that can be taken together, and what that means; nobody is a victim on free ones.

    `victims` have each gang's loss once, `lost_gpu_seconds` is their sum, `cost` what was compared. `optimal`: no
    better set exists, for certain. `homeless` of the victims are not expected to find another place at once.
    """

    nodes: tuple[Candidate, ...]
    victims: tuple[Victim, ...] = ()
    lost_gpu_seconds: float = 0.0
    cost: float = 0.0
    optimal: bool = True
    homeless: int = 0
    rank: Rank = (0, 0, 0, 0, 0, False, 0, 0, "", ())


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why nodes that may be had one by one may not be had together; `ceiling`: in words, that they cost too much."""

    short: tuple[Shortfall, ...] = ()
    overdrafts: tuple[Overdraft, ...] = ()
    ceiling: str = ""


@dataclass(frozen=True, slots=True)
class Together:
    """What holds for all victims of one claim together.

    `vacated` are UIDs of pods that go for other claims, `agreements` those with budgets, `ceiling` the most GPU-seconds
    that may be thrown away; None for any number.
    """

    view: View
    homes: Homes
    spending: Spending
    vacated: Collection[str] = frozenset()
    agreements: Mapping[tuple[str, str], DrainAgreement] = field(default_factory=dict)
    ceiling: float | None = None

    def best(self, domain: Domain, count: int, *, stopping: bool) -> Chosen | None:
        """The best `count` nodes of the domain that can be taken now, `stopping` others or not; None without any."""
        usable = [one for one in domain.nodes if one.refused is None]
        free = [one for one in usable if not one.occupied][:count]
        occupied = [one for one in usable if one.occupied] if stopping else []
        if len(free) == count:
            return Chosen(tuple(free), rank=_rank(domain, free))
        if len(free) + len(occupied) < count:
            return None
        return self._emptied(domain, free, occupied, count - len(free))

    def _emptied(self, domain: Domain, free: list[Candidate], occupied: list[Candidate], count: int) -> Chosen | None:
        by_name = {one.node.metadata.name: one for one in occupied}
        prices: dict[str, Price] = {}
        for one in occupied:
            prices.update(self._prices(one))

        def nodes_of(options: Iterable[Option]) -> list[Candidate]:
            return [by_name[one.name] for one in options]

        terms = Terms(
            prices,
            {press.budget: press.allowed for one in occupied for press in one.presses},
            self._fitting(occupied, nodes_of),
            lambda options: self._all_housed(nodes_of(options), free),
        )
        found = choosing.best([_option(one) for one in occupied], count, terms)
        if found is None:
            return None
        emptied = sorted(nodes_of(found.options), key=lambda one: one.order)
        victims = self.victims(emptied)
        harm = (found.excess, found.priority, found.homeless, found.cost, found.gangs)
        return Chosen(
            (*free, *emptied),
            victims,
            sum(one.lost_gpu_seconds for one in victims),
            found.cost / _UNITS,
            found.optimal,
            self.homeless(emptied, free),
            _rank(domain, [*free, *emptied], harm),
        )

    def victims(self, nodes: Sequence[Candidate]) -> tuple[Victim, ...]:
        """All victims on the nodes, each gang's loss counted once."""
        losses = {gang.key: gang for one in nodes for gang in one.gangs}
        return priced(_all_victims(nodes), losses)

    def homeless(self, nodes: Sequence[Candidate], free: Sequence[Candidate] = ()) -> int:
        """How many of the victims would find no other place at once, once `free` nodes are taken too."""
        names = [one.node.metadata.name for one in nodes if one.occupants]
        return self.homes.homeless(names, [one.node.metadata.name for one in free])

    def _all_housed(self, nodes: Sequence[Candidate], free: Sequence[Candidate]) -> bool:
        if any(one.homeless for one in nodes):
            return False
        return (len(nodes) == 1 and not free) or not self.homeless(nodes, free)

    def _prices(self, one: Candidate) -> Mapping[str, Price]:
        """What the gangs on the node cost; the same for all claims of a pass."""
        memo, key = self.view.memo, ("prices", one.node.metadata.name, self.spending.now)
        if key not in memo:
            memo[key] = {gang.key: _price(gang) for gang in one.gangs}
        found: Mapping[str, Price] = memo[key]
        return found

    def _overdrafts(self, victims: Sequence[Victim], each: Sequence[float]) -> Mapping[str, Overdraft]:
        """For whom there is too little budget, where stopping all of them loses so much with `each`."""
        limited = [
            msgspec.structs.replace(one, lost_gpu_seconds=lost)
            for one, lost in zip(victims, each, strict=True)
            if (one.namespace, one.agreement) in self.agreements
        ]
        return self.spending.overdrafts(limited, self.agreements)

    def _fitting(
        self, occupied: Sequence[Candidate], nodes_of: Callable[[Iterable[Option]], list[Candidate]]
    ) -> Fits | None:
        """What to ask of sets; None where nothing that nodes share is scarce."""
        keeps = any(kept for one in occupied for _, kept in one.keeps)
        if not keeps and not _spends(occupied) and self.ceiling is None:
            return None
        return lambda options: self.hindrance(nodes_of(options)) is None

    def hindrance(self, nodes: Sequence[Candidate]) -> Hindrance | None:
        """Why the nodes may not be taken together; None if they may."""
        short = shortfalls(self.view, (keep for one in nodes for keep in one.keeps), self.vacated)
        if short:
            return Hindrance(short=tuple(short.values()))
        spends = _spends(nodes)
        if not spends and self.ceiling is None:
            return None
        victims = _all_victims(nodes)
        each = each_lost(victims, {gang.key: gang for one in nodes for gang in one.gangs})
        over = self._overdrafts(victims, each) if spends else {}
        if over:
            return Hindrance(overdrafts=tuple(over.values()))
        lost = sum(each)
        if self.ceiling is not None and lost > self.ceiling:
            text = f"stopping others would throw away {rough(lost)} GPU-seconds, more than the {self.ceiling:.0f}"
            return Hindrance(ceiling=f"{text} that its own expected run allows")
        return None


def _all_victims(nodes: Iterable[Candidate]) -> list[Victim]:
    """Each pod once: a job that Kueue stops as a whole may have pods on several of the nodes."""
    found: dict[str, Victim] = {}
    for node in nodes:
        for one in node.victims:
            found.setdefault(one.uid, one)
    return list(found.values())


def _spends(nodes: Iterable[Candidate]) -> bool:
    return any(one.budgeted for one in nodes)


def _price(gang: GangLoss) -> Price:
    return Price(round(gang.whole * gang.weight * _UNITS), 1, gang.spare)


def _own(hit: Hit, gang: GangLoss) -> Hit:
    """The hit with what its members lose if the others go on, in place of their cards."""
    own = max(0.0, gang.seconds * hit.cards - hit.missed)
    return Hit(hit.gang, hit.members, round(own * gang.weight * _UNITS))


def _option(one: Candidate) -> Option:
    gangs = {gang.key: gang for gang in one.gangs}
    return Option(
        one.node.metadata.name,
        round(one.idle * _UNITS),
        tuple([_own(hit, gangs[hit.gang]) for hit in one.hits]),
        one.top_priority,
        tuple([(press.budget, press.pods) for press in one.presses]),
        one.budgeted + sum([1 for _, kept in one.keeps if kept]),
    )


def _rank(
    domain: Domain, nodes: Sequence[Candidate], harm: tuple[int, int, bool, int, int] = (0, 0, False, 0, 0)
) -> Rank:
    return (
        sum(one.occupied for one in nodes),
        sum(one.leaving for one in nodes if not one.occupied),
        sum(one.kept for one in nodes),
        *harm,
        domain.name,
        tuple(one.node.metadata.name for one in nodes),
    )
