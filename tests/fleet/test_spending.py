"""What is spent of budgets: each pod once, over the last 24 hours and 60 minutes, whatever order it is read in."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.resources import Budget, DrainRecord, Outcome, Phase, Victim
from fleet.spending import DAY, HOUR, KEPT, Overdraft, Spending
from tests.fleet.builders import agreement, at, claim, record

KEY = ("team-v", "yes")
NOW = at(100_000)


def victim(name: str = "w", *, lost: float = 0, job: str | None = None, since: float | None = None) -> Victim:
    """A pod that is to be stopped; `since`: when that was decided and written down, if it was."""
    return Victim(
        "team-v",
        name,
        f"team-v.{name}",
        "n1",
        1,
        agreement="yes",
        lost_gpu_seconds=lost,
        job=job or f"Pod/team-v/{name}",
        evicted_at=at(since) if since is not None else None,
    )


def spent(*records: DrainRecord, now: float = 100_000) -> Spending:
    return Spending.of(records, (), at(now))


def overdrafts(spending: Spending, *wanted: Victim, **budget: Any) -> dict[str, Overdraft]:
    return dict(spending.overdrafts(wanted, {KEY: agreement(budget=Budget(**budget))}, "uid-team-b-c"))


# What counts


def test_a_pod_counts_once_however_many_wrote_it_down() -> None:
    several = [
        record("a", stopped=99_000, lost=10, claim="one"),
        record("a", stopped=99_100, lost=70, claim="two"),
        record("a", stopped=99_050, lost=30, claim="three", outcome=Outcome.PENDING),
    ]
    assert spent(*several).lost_under(*KEY) == 10
    assert spent(*several).stopped_under(*KEY) == 1


def test_what_is_open_counts_and_what_was_spared_does_not() -> None:
    assert spent(record(stopped=99_000, lost=5, outcome=Outcome.PENDING)).lost_under(*KEY) == 5
    assert spent(record(stopped=99_000, lost=5, outcome=Outcome.SPARED)).stops == {}


def test_an_intention_in_a_claim_counts_before_its_record_is_written_and_once_after() -> None:
    intended = claim(phase=Phase.DRAINING, victims=(victim("a", lost=7, since=99_000), victim("planned", lost=9)))
    alone = Spending.of((), (intended,), NOW)
    both = Spending.of((record("a", stopped=99_000, lost=7),), (intended,), NOW)
    assert alone.lost_under(*KEY) == both.lost_under(*KEY) == 7


def test_an_intention_that_was_spared_does_not_count_and_a_later_one_does() -> None:
    spared = record("a", stopped=99_000, outcome=Outcome.SPARED)
    first = claim(phase=Phase.BLOCKED, victims=(victim("a", lost=7, since=99_000),))
    again = claim(phase=Phase.DRAINING, victims=(victim("a", lost=8, since=99_500),))
    assert Spending.of((spared,), (first,), NOW).stops == {}
    assert Spending.of((spared,), (again,), NOW).lost_under(*KEY) == 8


@pytest.mark.parametrize(("age", "counts"), [(86_399.999, True), (86_400, False), (86_401, False)])
def test_a_day_is_the_last_24_hours(age: float, counts: bool) -> None:
    assert (spent(record(stopped=100_000 - age, lost=5)).lost_under(*KEY) == 5) is counts


@pytest.mark.parametrize(("age", "counts"), [(3599.999, True), (3600, False)])
def test_an_hour_is_the_last_60_minutes(age: float, counts: bool) -> None:
    assert (spent(record(stopped=100_000 - age)).stopped_under(*KEY) == 1) is counts


def test_other_agreements_and_namespaces_have_budgets_of_their_own() -> None:
    others = [record("a", stopped=99_000, under="other", lost=5), record("b", stopped=99_000, ns="team-w", lost=6)]
    assert overdrafts(spent(*others), victim(lost=1), gpu_seconds_per_day=1, evictions_per_hour=1) == {}
    assert spent(*others).lost_by_namespace(at(0)) == {"team-v": 5, "team-w": 6}
    assert spent(*others).lost_since("team-v", at(99_001)) == 0


def test_the_last_stop_of_a_job_is_known_and_another_claims_alone_if_wished() -> None:
    spending = spent(record("a", stopped=10, job="j", claim="one"), record("b", stopped=20, job="j", claim="two"))
    assert spending.stopped_at("j") == at(20)
    assert spending.stopped_at("j", but_for="two") == at(10)
    assert spending.stopped_at("k") is None


# Overdrafts


def test_d37_a_node_that_needs_more_evictions_than_are_left_costs_nobody_anything() -> None:
    """Budget `evictionsPerHour: 2`, both spent, three more wanted: none of the three may be stopped."""
    spending = spent(record("a", stopped=98_000), record("b", stopped=99_000))
    found = overdrafts(spending, victim("x"), victim("y"), victim("z"), evictions_per_hour=2)
    assert set(found) == {"team-v.x", "team-v.y", "team-v.z"}
    assert found["team-v.x"].from_ is None, "three never fit into two"
    assert found["team-v.x"].text == (
        "agreement team-v/yes: 2 of 2 evictions in 60 minutes are used, 3 more would be needed; that alone is too much"
    )
    four = overdrafts(spending, victim("x"), victim("y"), victim("z"), evictions_per_hour=4)
    assert {one.from_ for one in four.values()} == {at(98_000) + HOUR}
    assert len(four) == 3, "room for two is none for three"
    assert overdrafts(spending, victim("x"), evictions_per_hour=2)["team-v.x"].from_ == at(98_000) + HOUR
    assert overdrafts(spending, victim("x"), evictions_per_hour=3) == {}


def test_d38_a_job_that_was_stopped_often_enough_is_protected_under_any_name() -> None:
    """`evictionsPerJobPerDay: 2`: its pods come back with new names and UIDs, and are the same job."""
    spending = spent(record("j-1", stopped=50_000, job="j"), record("j-2", stopped=60_000, job="j", claim="two"))
    found = overdrafts(spending, victim("j-3", job="j"), victim("k-1", job="k"), evictions_per_job_per_day=2)
    assert set(found) == {"team-v.j-3"}
    assert found["team-v.j-3"].from_ == at(50_000) + DAY
    assert overdrafts(spending, victim("j-3", job="j"), evictions_per_job_per_day=3) == {}


def test_all_pods_of_a_job_stopped_at_one_moment_are_one_hit() -> None:
    hit = [record(f"j-{index}", stopped=50_000, job="j") for index in range(8)]
    gang = [victim(f"again-{index}", job="j") for index in range(8)]
    assert overdrafts(spent(*hit), *gang, evictions_per_job_per_day=2) == {}
    assert len(overdrafts(spent(*hit), *gang, evictions_per_job_per_day=1)) == 8
    rest = victim("j-9", job="j", since=50_000)
    assert overdrafts(spent(*hit), rest, evictions_per_job_per_day=1) == {}, "the rest of the gang that is hit already"
    other = spent(*(record(f"j-{index}", stopped=50_000, job="j", claim="two") for index in range(8)))
    assert set(overdrafts(other, rest, evictions_per_job_per_day=1)) == {rest.uid}, "hit by another claim, by chance"


def test_of_hits_that_are_asked_for_together_the_earlier_go_first() -> None:
    """A claim has written down one pod of a job; before it is stopped another one slips in on the node."""
    known, new, last = (victim(f"j-{n}", job="j", since=since) for n, since in enumerate((50_000, 60_000, 70_000)))
    assert set(overdrafts(spent(), new, known, last, evictions_per_job_per_day=1)) == {new.uid, last.uid}
    found = overdrafts(spent(), new, known, last, evictions_per_job_per_day=2)
    assert set(found) == {last.uid}
    assert found[last.uid].from_ == at(50_000) + DAY
    assert set(overdrafts(spent(), known, new, evictions_per_job_per_day=0)) == {known.uid, new.uid}


def test_a_figure_that_grows_every_second_does_not_make_a_new_text_every_second() -> None:
    texts = {
        overdrafts(spent(), victim(lost=2_510 + seconds), gpu_seconds_per_day=100)["team-v.w"].text
        for seconds in range(30)
    }
    assert len(texts) == 1


def test_lost_work_is_summed_over_all_that_are_wanted_together() -> None:
    spending = spent(record("a", stopped=50_000, lost=60))
    assert overdrafts(spending, victim("x", lost=20), victim("y", lost=20), gpu_seconds_per_day=100) == {}
    found = overdrafts(spending, victim("x", lost=21), victim("y", lost=20), gpu_seconds_per_day=100)
    assert found["team-v.x"].from_ == found["team-v.y"].from_ == at(50_000) + DAY


def test_a_budget_of_nothing_lets_those_go_who_lose_nothing() -> None:
    assert overdrafts(spent(), victim(lost=0), gpu_seconds_per_day=0) == {}
    assert overdrafts(spent(), victim(lost=0.001), gpu_seconds_per_day=0)["team-v.w"].from_ is None
    assert overdrafts(spent(), victim(), evictions_per_hour=0)["team-v.w"].from_ is None


def test_who_is_counted_already_costs_nothing_more_unless_asked_anew() -> None:
    spending = spent(record("a", stopped=99_999, outcome=Outcome.PENDING))
    pending = victim("a", since=99_999)
    assert overdrafts(spending, pending, evictions_per_hour=1) == {}
    anew = spending.without([pending.uid])
    assert overdrafts(anew, pending, evictions_per_hour=1) == {}
    assert set(overdrafts(anew, pending, evictions_per_hour=0)) == {pending.uid}, "the budget was cut meanwhile"


def test_what_is_being_written_counts_too() -> None:
    spending = spent().including([victim("a", since=100_000), victim("planned")], "one")
    assert set(overdrafts(spending, victim("x"), evictions_per_hour=1)) == {"team-v.x"}
    assert overdrafts(spending, victim("x"), evictions_per_hour=2) == {}


def test_several_limits_at_once_end_with_the_last() -> None:
    spending = spent(record("a", stopped=99_000, lost=100))
    found = overdrafts(spending, victim(lost=1), gpu_seconds_per_day=100, evictions_per_hour=1)
    assert found["team-v.w"].from_ == at(99_000) + DAY


# Properties

stops = st.builds(
    record,
    st.sampled_from(["a", "b", "c", "d"]),
    stopped=st.integers(100_000 - 3 * 86_400, 100_000),
    lost=st.floats(0, 1000, allow_subnormal=False),
    job=st.sampled_from(["j", "k"]),
    under=st.sampled_from(["yes", "no"]),
    claim=st.sampled_from(["one", "two"]),
    outcome=st.sampled_from(list(Outcome)),
)
budgets = st.builds(
    Budget,
    st.none() | st.integers(0, 3000),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 3),
)


@given(st.lists(stops, max_size=12), st.randoms(use_true_random=False))
def test_the_order_in_which_records_are_read_changes_nothing(records: list[DrainRecord], chance: random.Random) -> None:
    other = list(records)
    chance.shuffle(other)
    assert spent(*records).stops == spent(*other).stops
    first, second = (overdrafts(spent(*some), victim(lost=500), gpu_seconds_per_day=900) for some in (records, other))
    assert first == second


@given(st.lists(stops, max_size=12))
def test_a_record_read_twice_changes_nothing(records: list[DrainRecord]) -> None:
    assert spent(*records).stops == spent(*records, *records).stops


@given(
    st.lists(st.tuples(st.integers(0, 7200), st.floats(0, 500, allow_subnormal=False), st.sampled_from("jkl"))),
    budgets,
)
def test_whoever_asks_first_never_overdraws(attempts: list[tuple[int, float, str]], budget: Budget) -> None:
    """Stop after stop, each asked for first: no window of 24 hours or 60 minutes holds more than was agreed."""
    agreed = {KEY: agreement(budget=budget)}
    done: list[DrainRecord] = []
    seconds = 0
    for number, (pause, lost, job) in enumerate(attempts):
        seconds += pause
        wanted = victim(f"p{number}", lost=lost, job=job)
        if not spent(*done, now=seconds).overdrafts([wanted], agreed):
            done.append(record(f"p{number}", stopped=seconds, lost=lost, job=job, claim=f"c{number}"))
    for one in done:
        window = [other for other in done if one.spec.at - DAY < other.spec.at <= one.spec.at]
        if budget.gpu_seconds_per_day is not None:
            assert sum(other.spec.lost_gpu_seconds for other in window) <= budget.gpu_seconds_per_day + 1e-6
        if budget.evictions_per_job_per_day is not None:
            assert sum(other.spec.job == one.spec.job for other in window) <= budget.evictions_per_job_per_day
        if budget.evictions_per_hour is not None:
            assert sum(other.spec.at > one.spec.at - HOUR for other in window) <= budget.evictions_per_hour


@given(st.lists(stops, max_size=12), budgets, st.floats(0, 500, allow_subnormal=False))
def test_the_promised_moment_is_the_first_at_which_there_is_enough(
    records: list[DrainRecord], budget: Budget, lost: float
) -> None:
    agreed, wanted = {KEY: agreement(budget=budget)}, victim(lost=lost, job="j")
    for overdraft in spent(*records).overdrafts([wanted], agreed).values():
        if overdraft.from_ is None:
            assert Spending(NOW + KEPT).overdrafts([wanted], agreed)
            continue
        spending = spent(*records)
        assert not replace(spending, now=overdraft.from_).overdrafts([wanted], agreed)
        assert replace(spending, now=overdraft.from_ - timedelta(microseconds=1)).overdrafts([wanted], agreed)
