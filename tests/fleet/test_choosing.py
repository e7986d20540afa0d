"""The choice of several nodes: the true optimum of the order, whatever they share, and of nothing else."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.choosing import best
from fleet.options import MOST_WORK, Found, Hit, Option, Price, Terms
from kwok.bench.planner import compare, small_fleet

GANGS = [f"g{index}" for index in range(5)]
BUDGETS = ["p", "q"]


def prices() -> st.SearchStrategy[dict[str, Price]]:
    one = st.builds(
        lambda seconds, cards, spare: Price(seconds * cards, seconds, spare),
        st.integers(1, 40),
        st.integers(8, 16),
        st.sampled_from([0, 0, 1, 2]),
    )
    return st.fixed_dictionaries(dict.fromkeys(GANGS, one))


def hits() -> st.SearchStrategy[tuple[Hit, ...]]:
    one = st.builds(Hit, st.sampled_from(GANGS), st.just(1), st.integers(1, 4))
    return st.lists(one, max_size=3, unique_by=lambda hit: hit.gang).map(tuple)


def options(most: int = 8) -> st.SearchStrategy[list[Option]]:
    presses = st.dictionaries(st.sampled_from(BUDGETS), st.integers(1, 2), max_size=2).map(
        lambda pods: tuple(sorted(pods.items()))
    )
    one = st.builds(Option, st.just(""), st.integers(0, 60), hits(), st.sampled_from([0, 0, 5]), presses)
    return st.lists(one, min_size=1, max_size=most).map(
        lambda some: [replace(option, name=f"n{index}") for index, option in enumerate(some)]
    )


def allowed() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(dict.fromkeys(BUDGETS, st.integers(0, 3)))


def rank(some: Sequence[Option], terms: Terms) -> tuple[Any, ...]:
    """The order, written down once more in the plainest way."""
    over = sum(
        max(0, sum(pods for one in some for name, pods in one.presses if name == budget) - terms.allowed[budget])
        for budget in BUDGETS
    )
    cost = sum(one.idle for one in some)
    gangs = {hit.gang for one in some for hit in one.hits}
    for gang in gangs:
        members = sum(hit.members for one in some for hit in one.hits if hit.gang == gang)
        cards = sum(hit.cards for one in some for hit in one.hits if hit.gang == gang)
        price = terms.prices[gang]
        cost += price.whole if members > price.spare else min(price.whole, cards * price.per_card)
    homeless = terms.housed is not None and not terms.housed(some)
    names = tuple(sorted(one.name for one in some))
    return over, max(one.priority for one in some), homeless, cost, len(gangs), names


def by_hand(some: Sequence[Option], count: int, terms: Terms) -> tuple[Any, ...] | None:
    sets = itertools.combinations(some, count)
    return min((rank(one, terms) for one in sets if terms.fits is None or terms.fits(one)), default=None)


@given(options(), prices(), allowed(), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9), st.randoms())
def test_the_set_is_the_first_in_the_order_whatever_the_order_of_the_nodes(
    some: list[Option],
    cost: dict[str, Price],
    pods: dict[str, int],
    count: int,
    fitting: int,
    room: int,
    chance: random.Random,
) -> None:
    def fits(chosen: Sequence[Option]) -> bool:
        return sum(len(one.hits) for one in chosen) <= fitting

    def housed(chosen: Sequence[Option]) -> bool:
        return sum(hit.cards for one in chosen for hit in one.hits) <= room

    terms = Terms(cost, pods, fits, housed)
    expected = by_hand(some, count, terms)
    chance.shuffle(some)
    found = best(some, count, terms)
    assert (found and found.rank) == expected
    assert found is None or found.optimal


@given(options(), prices(), allowed(), st.integers(1, 3), st.data())
def test_a_node_that_was_not_chosen_may_become_dearer_or_go(
    some: list[Option], cost: dict[str, Price], pods: dict[str, int], count: int, data: st.DataObject
) -> None:
    terms = Terms(cost, pods)
    found = best(some, count, terms)
    if found is None:
        return
    chosen = {one.name for one in found.options}
    others = [one for one in some if one.name not in chosen]
    if not others:
        return
    other = data.draw(st.sampled_from(others))
    dearer = [replace(one, idle=one.idle + 7) if one is other else one for one in some]
    assert names(best(dearer, count, terms)) == chosen
    assert names(best([one for one in some if one is not other], count, terms)) == chosen


@given(st.lists(st.tuples(st.sampled_from([0, 10]), hits()), min_size=4, max_size=9), st.integers(2, 4), st.randoms())
def test_of_sets_that_cost_the_same_the_first_by_name_is_proved_to_be_it(
    some: list[tuple[int, tuple[Hit, ...]]], count: int, chance: random.Random
) -> None:
    terms = Terms({gang: Price(10, 5, spare) for spare, gang in enumerate(GANGS)}, dict.fromkeys(BUDGETS, 0))
    every = [Option(f"n{index}", idle, hit) for index, (idle, hit) in enumerate(some)]
    expected = by_hand(every, count, terms)
    chance.shuffle(every)
    found = best(every, count, terms)
    assert found is not None
    assert (found.rank, found.optimal) == (expected, True)


def test_the_first_by_name_is_found_where_the_search_begins_with_another_that_costs_the_same() -> None:
    """a, c, d is what taking the cheapest leads to; nothing of it can be had together with b or e."""
    some = [Option(name, idle) for name, idle in (("a", 0), ("b", 6), ("c", 3), ("d", 7), ("e", 4))]

    def fits(chosen: Sequence[Option]) -> bool:
        taken = {one.name for one in chosen}
        return not (taken & {"b", "e"} and taken & {"c", "d"})

    assert names(best(some, 3, Terms({}, fits=fits))) == {"a", "b", "e"}


def test_of_equal_sets_the_first_by_name_is_taken_whatever_the_order_of_the_nodes() -> None:
    some = [Option(f"n{index}", 5) for index in range(5)]
    for order in itertools.permutations(some):
        assert names(best(order, 2, Terms({}))) == {"n0", "n1"}


def names(found: Found | None) -> set[str]:
    return {one.name for one in found.options} if found else set()


def test_a_gang_that_is_lost_anyway_makes_its_other_nodes_cheap() -> None:
    """Alone each of a, b costs 100; together they cost 100 too, and c and d 60 each."""
    gang = (Hit("g", 1, 4),)
    some = [Option("a", hits=gang), Option("b", hits=gang), Option("c", idle=60), Option("d", idle=60)]
    terms = Terms({"g": Price(100, 12)})
    assert names(best(some, 1, terms)) == {"c"}
    assert names(best(some, 2, terms)) == {"a", "b"}


def test_members_that_can_be_spared_cost_only_themselves() -> None:
    some = [Option(name, hits=(Hit("g", 1, 4),)) for name in "abc"] + [Option("d", idle=90)]
    terms = Terms({"g": Price(120, 10, spare=2)})
    found = best(some, 2, terms)
    assert found is not None
    assert (names(found), found.cost) == ({"a", "b"}, 80)
    whole = best(some, 3, terms)
    assert whole is not None
    assert (names(whole), whole.cost) == ({"a", "b", "c"}, 120), "all three end the gang, for less than two and d"


def test_what_is_cheapest_one_by_one_may_not_fit_together_and_is_repaired() -> None:
    """Nine cheap nodes use up a budget of 3 at once, each with 2; the three dear ones use 1 each."""
    cheap = [Option(f"cheap-{index}", idle=1, strain=2) for index in range(9)]
    dear = [Option(f"dear-{index}", idle=50, strain=1) for index in range(3)]

    def fits(chosen: Sequence[Option]) -> bool:
        return sum(one.strain for one in chosen) <= 3

    assert names(best([*cheap, *dear], 3, Terms({}, fits=fits))) == {"dear-0", "dear-1", "dear-2"}
    assert names(best([*cheap, *dear], 2, Terms({}, fits=fits))) == {"cheap-0", "dear-0"}


def test_a_lower_priority_outweighs_any_cost_but_not_more_pods_beyond_a_budget() -> None:
    low, high = Option("low", idle=10**9), Option("high", priority=5)
    assert names(best([low, high], 1, Terms({}))) == {"low"}
    assert names(best([replace(low, presses=(("p", 2),)), high], 1, Terms({}, {"p": 1}))) == {"high"}
    assert names(best([replace(low, presses=(("p", 2),)), high], 1, Terms({}, {"p": 2}))) == {"low"}


def test_one_dear_priority_that_is_needed_anyway_frees_the_choice_of_the_rest() -> None:
    """Two of three nodes have priority 5: one of them must be taken, so both may be."""
    some = [Option("a", idle=100), Option("b", idle=1, priority=5), Option("c", idle=2, priority=5)]
    assert names(best(some, 2, Terms({}))) == {"b", "c"}


def test_sets_whose_victims_have_another_place_come_first() -> None:
    some = [Option("a", idle=1), Option("b", idle=90)]
    assert names(best(some, 1, Terms({}, housed=lambda chosen: "a" not in names_of(chosen)))) == {"b"}
    assert names(best(some, 1, Terms({}, housed=lambda chosen: False))) == {"a"}


def names_of(chosen: Sequence[Option]) -> set[str]:
    return {one.name for one in chosen}


def test_where_the_work_runs_out_there_is_an_answer_and_it_says_that_it_may_not_be_the_best() -> None:
    chance = random.Random(5)
    some, cost = [], {}
    for index in range(120):
        hit = tuple(Hit(f"g{chance.randrange(60)}-{place}", 1, 2) for place in range(3))
        cost |= {one.gang: Price(chance.randint(900, 1100), 1) for one in hit if one.gang not in cost}
        some.append(Option(f"n{index:03d}", hits=hit))
    short = best(some, 8, Terms(cost, work=3000))
    assert short is not None
    assert not short.optimal
    again = best(list(reversed(some)), 8, Terms(cost, work=3000))
    assert again is not None
    assert again.rank == short.rank
    assert short.cost >= greatest_likeness(some, cost, short)


def greatest_likeness(some: list[Option], cost: dict[str, Price], short: Found) -> int:
    """The cost with all the work that may be done, which is no higher."""
    long = best(some, 8, Terms(cost, work=MOST_WORK))
    assert long is not None
    assert long.cost <= short.cost
    return long.cost


def test_too_few_nodes_are_none() -> None:
    assert best([Option("a")], 2, Terms({})) is None
    assert best([Option("a"), Option("b")], 2, Terms({}, fits=lambda chosen: len(chosen) < 2)) is None


@pytest.mark.parametrize("seed", range(4))
def test_the_planner_finds_what_an_exact_solver_finds(seed: int) -> None:
    """Made-up fleets with shared gangs, both kinds of budgets and services; `make bench` does 1,000 of them."""
    chance = random.Random(seed)
    found = [compare(small_fleet(chance)) for _ in range(15)]
    assert not any(one.missed or one.riskier or one.invented for one in found)
    ratios = [one.ratio for one in found if one.ratio is not None]
    assert len(ratios) > 3
    assert max(ratios) <= 1.05
    assert sorted(ratios)[len(ratios) // 2] == 1.0
