"""Wait or evict: the arithmetic of the courses by hand-computed cases, and what holds for all of them."""

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.forecasts import Event
from fleet.patience import Limits, Stake, weigh
from fleet.resources import Course, Weighing
from fleet.spending import rough
from tests.fleet.builders import T0, at

HOUR = 3600.0
NOW = Limits(T0, cards=8, hold_until=at(600))


def event(seconds: float, slack: float = 30) -> Event:
    return Event(at(seconds), at(seconds + slack))


def old(cards: int = 4, hours: float = 2, *, end: float | None = None, saves: tuple[float, ...] = ()) -> Stake:
    """A gang that has run, and saved nothing, for so many hours."""
    return Stake(
        "Job team-v/train-7",
        cards * hours * HOUR,
        cards,
        saves=tuple(event(one) for one in saves),
        end=event(end) if end is not None else None,
    )


def test_nobody_is_waited_for_whose_end_is_not_known() -> None:
    found = weigh([old(), old(1, 0.001, end=60)], NOW)
    assert (found.course, found.wait_until, found.wait_cost) == (Course.EVICT, None, None)
    assert found.note == "it is not known when all pods there end by themselves"


def test_break_even_is_where_the_cards_missed_are_worth_what_is_thrown_away() -> None:
    """4 cards for 2 h are 28,800 GPU-s; 8 cards are worth as much in 1 h."""
    found = weigh([old()], NOW)
    assert (found.evict_cost, found.break_even_at) == (28800, at(HOUR))
    early, late = weigh([old(end=3599)], NOW), weigh([old(end=3601)], NOW)
    assert (early.course, early.wait_cost, early.wait_until) == (Course.WAIT, 8 * 3599, at(3629))
    assert (late.course, late.wait_cost, late.wait_until) == (Course.EVICT, 8 * 3601, None)
    assert "would miss about 29000 GPU-s" in late.note
    assert weigh([old(end=3600)], NOW).course is Course.EVICT, "for the same cost nobody waits"


def test_the_last_of_several_ends_counts() -> None:
    both = [old(end=300), old(end=900)]
    found = weigh(both, NOW)
    assert (found.course, found.wait_cost, found.wait_until) == (Course.WAIT, 8 * 900, at(930))
    assert "all pods there are expected to have ended by themselves" in found.note


def test_it_may_pay_to_wait_for_some_and_stop_the_rest() -> None:
    """After 5 min (2,400 GPU-s) only the young gang is left, which then costs 1 card x 6 min."""
    found = weigh([old(end=300), replace(old(1, 1 / 60), name="young")], NOW)
    assert (found.course, found.wait_until, found.wait_cost) == (Course.WAIT, at(330), None)
    assert "stopping the rest is expected to cost about 360 instead of about 29000 GPU-s" in found.note


def test_nodes_whose_pods_end_soon_are_held_and_nobody_is_stopped() -> None:
    assert weigh([old(end=570)], NOW).course is Course.SOFT_VACATE
    assert weigh([old(end=571)], NOW).course is Course.WAIT, "held longer than a drain may take"
    assert weigh([old(end=60)], replace(NOW, hold_until=None)).course is Course.WAIT


def test_it_waits_for_the_checkpoint_after_which_little_is_lost() -> None:
    """In 12 min 8 cards miss 5,760 GPU-s; instead of 4 cards x 2 h only the restart (100 s x 4) is lost."""
    found = weigh([replace(old(saves=(720,)), loss=29200, floor=400)], NOW)
    assert (found.course, found.wait_until, found.wait_cost) == (Course.AWAIT_CHECKPOINT, at(750), None)
    assert found.note == (
        "in 12 min (2027-01-04T12:12:00Z) Job team-v/train-7 saves its work: the cost falls by 99 %, "
        "from about 29000 GPU-s"
    )


def test_a_checkpoint_that_comes_too_late_is_not_waited_for() -> None:
    """Just before break-even (1 h) it still pays, by a hair."""
    assert weigh([old(saves=(3599,))], NOW).course is Course.AWAIT_CHECKPOINT
    assert weigh([old(saves=(3601,))], NOW).course is Course.EVICT


def test_two_gangs_are_stopped_where_the_saw_teeth_are_lowest_together() -> None:
    """At 60 s one of two equal gangs has just saved; at 100 s both have, one of them 40 s ago."""
    pair = [old(4, 1, saves=(60, 660)), replace(old(4, 1, saves=(100, 700)), name="other")]
    found = weigh(pair, NOW)
    assert found.wait_until == at(130)
    assert "other saves its work: the cost falls by 99 %" in found.note


def test_a_moment_that_is_due_is_waited_for_as_long_as_it_is_believed_in() -> None:
    due = [replace(old(), end=event(-20))]
    assert weigh(due, NOW).wait_until == at(10)
    assert weigh(due, replace(NOW, now=at(10))).course is Course.EVICT


def test_nobody_waits_past_the_moment_from_which_the_deadline_could_not_be_met() -> None:
    assert weigh([old(end=600)], replace(NOW, latest=at(630))).course is Course.WAIT
    found = weigh([old(end=600)], replace(NOW, latest=at(629)))
    assert (found.course, found.note) == (
        Course.EVICT,
        "waiting for all pods there to end by themselves would miss about 4800 GPU-s",
    )
    found = weigh([old(end=700)], replace(NOW, latest=at(650)))
    assert found.note == "all pods there are expected to end too late for the deadline"


def test_a_wait_ends_at_the_break_even_of_its_beginning_whatever_is_promised_then() -> None:
    first = weigh([old(end=3000)], NOW)
    later = replace(NOW, now=at(3500), before=first)
    assert weigh([old(end=3590)], later).course is Course.WAIT
    assert weigh([old(end=3700)], later).course is Course.EVICT, "a new wait of 200 s alone would be cheaper"
    over = weigh([old(end=3610)], replace(later, now=at(3600)))
    assert (over.course, over.break_even_at) == (Course.EVICT, at(3600))
    assert over.note == "waiting has cost as much by now as stopping others would have at first"


def test_a_wait_that_was_decided_is_not_broken_off_for_a_small_gain() -> None:
    """8 cards for 500 s are 4,000 GPU-s; stopping others must get cheaper than 3,600."""
    before = Weighing(Course.WAIT, 5000, break_even_at=at(HOUR))
    waiting = replace(NOW, before=before)

    def course(loss: float, limits: Limits) -> Course:
        return weigh([Stake("x", loss, end=event(500))], limits).course

    assert course(3700, NOW) is Course.EVICT
    assert course(3700, waiting) is Course.SOFT_VACATE
    assert course(3600, waiting) is Course.EVICT
    assert course(3700, replace(NOW, before=Weighing(Course.EVICT, 5000, break_even_at=at(HOUR)))) is Course.EVICT


def test_nothing_to_lose_is_no_reason_to_wait() -> None:
    assert weigh([Stake("x", 0, end=event(5))], NOW).course is Course.EVICT


@pytest.mark.parametrize(("figure", "text"), [(0, "about 0"), (96.4, "about 96"), (28800, "about 29000")])
def test_figures_in_texts_are_rough(figure: float, text: str) -> None:
    assert rough(figure) == text


seconds = st.integers(-40, 20000)
stakes = st.lists(
    st.builds(
        lambda loss, growth, floor, saves, end: Stake(
            "x",
            max(loss, floor),
            growth,
            floor,
            tuple(event(one) for one in saves),
            None if end is None else event(end),
        ),
        st.integers(0, 10**6),
        st.integers(0, 16),
        st.integers(0, 5000),
        st.lists(seconds, max_size=3).map(sorted),
        st.none() | seconds,
    ),
    min_size=1,
    max_size=5,
)
limits = st.builds(
    lambda cards, hold, latest: Limits(
        T0, cards, None if hold is None else at(hold), None if latest is None else at(latest)
    ),
    st.integers(1, 64),
    st.none() | st.integers(0, 3600),
    st.none() | st.integers(-100, 20000),
)


def cost(found: Weighing, some: list[Stake], terms: Limits) -> float:
    """What the course costs, worked out apart from the code: the cheapest moment up to the one it waits for."""
    if found.course is Course.EVICT:
        return found.evict_cost
    moments = [one for stake in some for one in (*stake.saves, stake.end) if one and one.until == found.wait_until]
    return min(total(max(one.at, terms.now), some, terms) for one in moments)


def total(moment: datetime, some: list[Stake], terms: Limits) -> float:
    missed = terms.cards * (moment - terms.now) / timedelta(seconds=1)
    return missed + sum(stake.at(moment, terms.now) for stake in some)


@given(stakes, limits)
def test_the_course_is_the_cheapest_of_all_that_may_be_taken(some: list[Stake], terms: Limits) -> None:
    found = weigh(some, terms)
    assert weigh(list(reversed(some)), terms) == replace_note(found, weigh(list(reversed(some)), terms))
    assert cost(found, some, terms) == pytest.approx(found.cost, abs=0.01)
    assert found.cost <= found.evict_cost
    for one in (one for stake in some for one in (*stake.saves, stake.end) if one and one.until > terms.now):
        if terms.latest is None or one.until <= terms.latest:
            assert cost(found, some, terms) <= total(max(one.at, terms.now), some, terms) + 0.01


def replace_note(one: Weighing, other: Weighing) -> Weighing:
    """Which of several gangs is named in the text may depend on their order; nothing else does."""
    return msgspec.structs.replace(one, note=other.note)


@given(stakes, limits)
def test_it_never_waits_past_the_deadline_nor_past_break_even(some: list[Stake], terms: Limits) -> None:
    found = weigh(some, terms)
    assert found.break_even_at is not None
    if found.course is Course.EVICT:
        assert found.wait_until is None
        return
    assert found.wait_until is not None
    assert found.wait_until > terms.now
    assert terms.latest is None or found.wait_until <= terms.latest
    assert found.wait_until <= found.break_even_at + timedelta(seconds=30)
    if found.course is Course.SOFT_VACATE:
        assert terms.hold_until is not None
        assert found.wait_until <= terms.hold_until


@given(stakes, limits, st.integers(1, 10**6))
def test_what_costs_more_to_stop_is_never_stopped_sooner(some: list[Stake], terms: Limits, more: int) -> None:
    dearer = [replace(some[0], loss=some[0].loss + more), *some[1:]]
    if weigh(some, terms).course is not Course.EVICT:
        assert weigh(dearer, terms).course is not Course.EVICT


@given(stakes, limits, st.integers(1, 64))
def test_who_wants_more_cards_never_waits_longer(some: list[Stake], terms: Limits, more: int) -> None:
    few, many = weigh(some, terms), weigh(some, replace(terms, cards=terms.cards + more))
    assert (few.wait_until or T0) >= (many.wait_until or T0)
