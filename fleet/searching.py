"""One search for the set of options that does the least harm: a good one first, then the proof, or something better."""

from collections import Counter
from collections.abc import Sequence

from fleet.options import Fits, Option, Terms

_EXCESS = 1 << 80
"""One pod beyond a budget outweighs any cost, and one thousandth of a GPU-second any number of gangs."""
_COST = 1 << 20
_SEEDS = 6
_SHORTLIST = 64
_PAIR_WIDTH = 12


class Search:
    """All that the options share is kept here, so that a step costs only what it changes.

    The value of a set is one number: pods beyond budgets, then cost, then gangs hit. Sets of one value are told apart
    by name: each name is worth twice the next, so the sum over a set compares as the sorted names do.
    """

    def __init__(self, able: Sequence[Option], count: int, terms: Terms, housed: Fits | None, work: int) -> None:
        self.count, self.terms, self.housed, self.work = count, terms, housed, work
        self.options = [one for one in able if housed is None or housed((one,))]
        self.complete = True
        self.best: tuple[int, int] | None = None
        self.best_set: tuple[int, ...] = ()
        number = len(self.options)
        self.ties = [-(1 << (number - 1 - index)) for index in range(number)]
        self._share_out()
        self.stopped = [[0, 0] for _ in self.prices]
        self.pressed = [0] * len(self.room)
        self.chosen: list[int] = []
        self.value = self.tie = 0

    def _share_out(self) -> None:
        """Tell what only one option has, and adds to its own value, from what it shares with others."""
        hits = Counter(hit.gang for one in self.options for hit in one.hits)
        presses: Counter[str] = Counter()
        holders: Counter[str] = Counter()
        for one in self.options:
            for name, pods in one.presses:
                presses[name] += pods
                holders[name] += 1
        allowed = self.terms.allowed
        gangs = {gang: index for index, gang in enumerate(sorted(one for one in hits if hits[one] > 1))}
        tight = sorted(one for one in presses if holders[one] > 1 and presses[one] > allowed.get(one, 0))
        budgets = {name: index for index, name in enumerate(tight)}
        self.prices = [self.terms.prices[gang] for gang in gangs]
        self.holders = [hits[gang] for gang in gangs]
        self.room = [allowed.get(name, 0) for name in budgets]
        self.own: list[int] = []
        self.shared: list[list[tuple[int, int, int]]] = []
        self.presses: list[list[tuple[int, int]]] = []
        for one in self.options:
            alone = [hit for hit in one.hits if hit.gang not in gangs]
            cost = one.idle + sum(self.terms.prices[hit.gang].of(hit.members, hit.cards) for hit in alone)
            excess = sum(max(0, pods - allowed.get(name, 0)) for name, pods in one.presses if name not in budgets)
            self.own.append(excess * _EXCESS + cost * _COST + len(alone))
            self.shared.append([(gangs[hit.gang], hit.members, hit.cards) for hit in one.hits if hit.gang in gangs])
            self.presses.append([(budgets[name], pods) for name, pods in one.presses if name in budgets])

    def run(self) -> tuple[Option, ...] | None:
        """The best set that was found; `complete` is False if the work did not allow to be certain of it."""
        if len(self.options) < self.count:
            return None
        everything = list(range(len(self.options)))
        bounds = self._bounds(everything, self.count)
        order = sorted(everything, key=lambda one: (bounds[one], self.ties[one]))
        shortlist = order[: max(_SHORTLIST, 4 * self.count)]
        starts = self._starts(shortlist)
        self._greedily(shortlist, starts[:1])
        if self.best is None:
            self._greedily(shortlist, starts[-1:])
        self.complete = self._descend(order, self.count, self.work // 2)
        if not self.complete:
            self._greedily(shortlist, starts[1:])
            self._swap_pairs(shortlist)
        return None if self.best is None else tuple(self.options[index] for index in self.best_set)

    # What an option adds to the set chosen so far

    def _marginal(self, index: int) -> int:
        value = self.own[index]
        for gang, members, cards in self.shared[index]:
            price, (before, before_cards) = self.prices[gang], self.stopped[gang]
            if not before:
                value += price.of(members, cards) * _COST + 1
            elif before <= price.spare:
                more = price.of(before + members, before_cards + cards) - price.of(before, before_cards)
                value += more * _COST
        for budget, pods in self.presses[index]:
            over = self.pressed[budget] - self.room[budget]
            value += (max(0, over + pods) - max(0, over)) * _EXCESS
        return value

    def _bound(self, index: int, more: int) -> int:
        """The least that the option adds, whatever else is chosen: what gangs cost is shared by those who hit them."""
        value = self.own[index]
        for gang, _, cards in self.shared[index]:
            price, (before, before_cards) = self.prices[gang], self.stopped[gang]
            if before and before > price.spare:
                continue
            sharers = min(more, self.holders[gang])
            left = price.whole - price.of(before, before_cards) if before else price.whole
            share = left * _COST // sharers
            if price.spare:
                share = min(share, price.per_card * cards * _COST)
            value += share if before else share + (1 if sharers == 1 else 0)
        for budget, pods in self.presses[index]:
            over = self.pressed[budget] - self.room[budget]
            value += (max(0, over + pods) - max(0, over)) * _EXCESS
        return value

    def _bounds(self, some: Sequence[int], more: int) -> dict[int, int]:
        self.work -= len(some)
        if more == 1:
            return {index: self._marginal(index) for index in some}
        return {index: self._bound(index, more) for index in some}

    def _push(self, index: int, added: int | None = None) -> None:
        self.value += self._marginal(index) if added is None else added
        self.tie += self.ties[index]
        self.chosen.append(index)
        for gang, members, cards in self.shared[index]:
            self.stopped[gang][0] += members
            self.stopped[gang][1] += cards
        for budget, pods in self.presses[index]:
            self.pressed[budget] += pods

    def _pop(self, index: int) -> None:
        """Take an option out again, the latest or any other."""
        self.chosen.remove(index)
        for gang, members, cards in self.shared[index]:
            self.stopped[gang][0] -= members
            self.stopped[gang][1] -= cards
        for budget, pods in self.presses[index]:
            self.pressed[budget] -= pods
        self.tie -= self.ties[index]
        self.value -= self._marginal(index)

    def _fits(self, index: int) -> bool:
        """Whether the option may be had together with those chosen so far."""
        if self.terms.fits is None and self.housed is None:
            return True
        self.work -= len(self.chosen) + 1
        some = [self.options[one] for one in (*self.chosen, index)]
        return (self.terms.fits is None or self.terms.fits(some)) and (self.housed is None or self.housed(some))

    def _note(self) -> bool:
        """Keep the set chosen now if it is better than the best so far."""
        value = self.value, self.tie
        if self.best is not None and value >= self.best:
            return False
        self.best, self.best_set = value, tuple(self.chosen)
        return True

    # A good set first

    def _starts(self, shortlist: list[int]) -> list[tuple[int, bool]]:
        """Options to begin a set with: the cheapest; then, where sets may not fit, those that strain least."""
        starts = [(index, False) for index in shortlist[:_SEEDS]]
        if self.terms.fits is not None:
            sparing = sorted(shortlist, key=lambda one: (self.options[one].strain, self.own[one], self.ties[one]))
            starts += [(index, True) for index in reversed(sparing[:_SEEDS])]
        return starts

    def _greedily(self, shortlist: list[int], starts: list[tuple[int, bool]]) -> None:
        for seed, sparing_it in starts:
            if self.work < self.terms.work // 4 and self.best is not None:
                break
            if not self._fits(seed):
                continue
            self._push(seed)
            self._fill(shortlist, sparing=sparing_it)
            if len(self.chosen) == self.count:
                self._swap(shortlist)
                self._note()
            for index in list(self.chosen):
                self._pop(index)

    def _fill(self, shortlist: list[int], *, sparing: bool) -> None:
        """Add what adds least until there are enough, or nothing fits any more."""
        while len(self.chosen) < self.count:
            left = [one for one in shortlist if one not in self.chosen]
            added = {one: self._marginal(one) for one in left}
            self.work -= len(left)
            strain = {one: self.options[one].strain if sparing else 0 for one in left}
            left.sort(key=lambda one: (strain[one], added[one], self.ties[one]))
            following = next((one for one in left if self._fits(one)), None)
            if following is None:
                return
            self._push(following, added[following])

    def _swap(self, shortlist: list[int]) -> None:
        """Replace one option at a time as long as that helps."""
        better = True
        while better and self.work > self.terms.work // 4:
            better = False
            for index in sorted(self.chosen):
                before = self.value, self.tie
                self._pop(index)
                following = self._least(shortlist, before)
                self._push(index if following is None else following)
                better = better or following is not None

    def _least(self, shortlist: list[int], before: tuple[int, int]) -> int | None:
        """The option that makes the set better than `before`, the most of all."""
        left = [one for one in shortlist if one not in self.chosen]
        self.work -= len(left)
        added = sorted((self.value + self._marginal(one), self.tie + self.ties[one], one) for one in left)
        for value, tie, one in added:
            if (value, tie) >= before:
                return None
            if self._fits(one):
                return one
        return None

    def _swap_pairs(self, shortlist: list[int]) -> None:
        """Replace two options of the best set at a time as long as that helps, and the work allows it."""
        better = self.best is not None and self.count > 1
        while better:
            better = False
            start = self.best_set
            pairs = [(one, two) for place, one in enumerate(start) for two in start[place + 1 :]]
            for pair in pairs:
                if self.work < 0:
                    return
                for index in start:
                    if index not in pair:
                        self._push(index)
                better = self._refill(shortlist) or better
                for index in list(self.chosen):
                    self._pop(index)
                if better:
                    break

    def _refill(self, shortlist: list[int]) -> bool:
        """Add the two options that are best together, if that is the best set so far."""
        left = [one for one in shortlist if one not in self.chosen]
        self.work -= len(left)
        left.sort(key=lambda one: (self._marginal(one), self.ties[one]))
        better = False
        for first in left[:_PAIR_WIDTH]:
            if not self._fits(first):
                continue
            self._push(first)
            second = self._least(shortlist, self.best) if self.best is not None else None
            if second is not None:
                self._push(second)
                better = self._note() or better
                self._pop(second)
            self._pop(first)
        return better

    # Then the proof, or something better

    def _descend(self, some: list[int], more: int, reserve: int) -> bool:
        """Branch and bound: every set that could be better than the best so far. False if the work ran out."""
        bounds = self._bounds(some, more)
        order = sorted(some, key=lambda one: (bounds[one], self.ties[one]))
        least = self.value + sum(bounds[one] for one in order[: more - 1])
        for place, index in enumerate(order[: len(order) - more + 1]):
            least += bounds[order[place + more - 1]]
            if self._no_better(least, order, place, more):
                if self.best is not None and least > self.best[0]:
                    break
            elif self._fits(index):
                self._push(index, self._marginal(index) if more > 1 else bounds[index])
                done = True
                if more == 1:
                    self._note()
                else:
                    others = least - bounds[order[place + more - 1]]
                    following = [one for one in order[place + 1 :] if self._worth(others + bounds[one])]
                    done = self._descend(following, more - 1, reserve)
                self._pop(index)
                if not done:
                    return False
            if self.work < reserve:
                return False
            least -= bounds[index]
        return True

    def _worth(self, least: int) -> bool:
        return self.best is None or least <= self.best[0]

    def _no_better(self, least: int, order: list[int], place: int, more: int) -> bool:
        """Whether no set that takes the option at `place`, and later ones, can be better than the best so far."""
        if self.best is None or least < self.best[0]:
            return False
        if least > self.best[0]:
            return True
        rest = sorted(self.ties[one] for one in order[place + 1 :])[: more - 1]
        self.work -= len(order) - place
        return self.tie + self.ties[order[place]] + sum(rest) >= self.best[1]
