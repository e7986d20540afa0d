"""The ledger read back: each pod and each gang's loss once, by whatever the rows are about, and the waits."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.accounts import PARTIES, By, account, each_pod_once
from fleet.resources import DrainRecord, Outcome, Phase, PhaseTime, Policy
from tests.fleet.books import record
from tests.fleet.builders import at, claim

WEEK = timedelta(days=7)
NOW = at(3600)


def book(*records: DrainRecord, by: tuple[By, ...] = PARTIES, **more: Any) -> Any:
    return account(records, more.pop("claims", ()), NOW - WEEK, NOW, by, **more)


def keys(found: Any) -> list[tuple[str, ...]]:
    return [row.key for row in found.rows]


def test_rows_are_victim_beneficiary_and_agreement_most_lost_first() -> None:
    found = book(
        record("a", 10.0),
        record("b", 30.0, ns="team-w"),
        record("c", 5.0),
        record("d", 1.0, agreement="other"),
        record("e", 7.0, to="team-c"),
    )
    assert keys(found) == [
        ("team-w", "team-b", "team-w/yes"),
        ("team-v", "team-b", "team-v/yes"),
        ("team-v", "team-c", "team-v/yes"),
        ("team-v", "team-b", "team-v/other"),
    ]
    assert [row.sums.lost_gpu_seconds for row in found.rows] == [30.0, 15.0, 7.0, 1.0]
    assert (found.total.evictions, found.total.lost_gpu_seconds, found.total.jobs) == (5, 53.0, 5)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (By.VICTIM, [("team-v",), ("team-w",)]),
        (By.BENEFICIARY, [("team-b",), ("team-c",)]),
        (By.AGREEMENT, [("team-v/yes",), ("team-w/yes",)]),
        (By.CLAIM, [("team-b/c",), ("team-c/d",)]),
        (By.JOB, [("Pod/team-v/a",), ("Pod/team-w/b",)]),
    ],
)
def test_rows_may_be_about_one_thing(by: By, expected: list[tuple[str, ...]]) -> None:
    found = book(record("a", 10.0), record("b", 3.0, ns="team-w", to="team-c", of="d"), by=(by,))
    assert keys(found) == expected


def test_a_pod_that_two_claims_wrote_down_counts_once_and_the_surest_of_them() -> None:
    """D14: the second record of the same pod UID says nothing new."""
    spared = record("a", 10.0, outcome=Outcome.SPARED)
    pending = record("a", 11.0, of="d", outcome=Outcome.PENDING, seconds=5)
    stopped = record("a", 12.0, of="e", seconds=9)
    again = record("a", 13.0, of="f", seconds=20)
    found = book(spared, pending, stopped, again)
    assert (found.total.evictions, found.total.lost_gpu_seconds) == (1, 12.0)
    assert (found.total.spared, found.total.pending) == (0, 0)
    assert book(spared, pending).total.pending == 1


def test_a_pod_made_anew_is_another_pod_of_the_same_job() -> None:
    one = record("a", 1.0)
    other = record("a2", 2.0, job="Pod/team-v/a", seconds=60)
    found = book(one, other)
    assert (found.total.evictions, found.total.jobs, found.total.lost_gpu_seconds) == (2, 1, 3.0)


def test_only_what_was_stopped_is_lost() -> None:
    found = book(record("a", 5.0, outcome=Outcome.PENDING), record("b", 6.0, outcome=Outcome.SPARED))
    (row,) = found.rows
    assert (row.sums.pending, row.sums.spared, row.sums.evictions, row.sums.lost_gpu_seconds) == (1, 1, 0, 0.0)


def test_a_gangs_loss_counts_although_just_the_pod_it_stands_with_was_spared() -> None:
    gang = {"gang": "team-v/Gang/g/", "job": "team-v/Gang/g/"}
    ended = record("g-0", 80.0, outcome=Outcome.SPARED, **gang)
    stopped = record("g-1", 0.0, seconds=1, **gang)
    assert book(ended, stopped).total.lost_gpu_seconds == 80.0
    assert book(record("g-0", 80.0, **gang), stopped).total.lost_gpu_seconds == 80.0
    assert book(record("g-0", 80.0, **gang), stopped).total.jobs == 1


def test_what_is_older_than_the_time_asked_for_is_left_out() -> None:
    old = record("a", 5.0, seconds=-7 * 86_400)
    assert book(old, record("b", 1.0)).total.lost_gpu_seconds == 1.0


def test_a_namespace_sees_what_its_own_pods_lost() -> None:
    found = book(record("a", 5.0), record("b", 6.0, ns="team-w"), namespace="team-w")
    assert (keys(found), found.total.lost_gpu_seconds) == ([("team-w", "team-b", "team-w/yes")], 6.0)


def entered(phase: Phase, seconds: float) -> dict[str, Any]:
    return {"phase": phase, "phases": (PhaseTime(Phase.PENDING, at(0)), PhaseTime(phase, at(seconds)))}


def test_waits_count_to_the_binding_or_to_now() -> None:
    claims = [
        claim("bound", **entered(Phase.BOUND, 100)),
        claim("failed", **entered(Phase.FAILED, 50)),
        claim("waits", created=3000),
        claim("other", ns="team-c", created=3590),
        claim("preview", policy=Policy.PREVIEW),
    ]
    first, second = book(claims=claims).waits
    assert (first.beneficiary, first.claims, first.bound, first.waiting) == ("team-b", 3, 1, 1)
    assert (first.median_seconds, first.longest_seconds) == (100.0, 600.0)
    assert (second.beneficiary, second.longest_seconds) == ("team-c", 10.0)


def test_a_claim_that_was_bound_before_the_time_asked_for_waited_in_another() -> None:
    bound = claim("bound", created=-8 * 86_400, **entered(Phase.BOUND, -7.5 * 86_400))
    assert book(claims=[bound]).waits == ()


def test_a_claim_that_was_released_waited_until_it_was_bound() -> None:
    phases = (PhaseTime(Phase.BOUND, at(40)), PhaseTime(Phase.RELEASED, at(3000)))
    (waits,) = book(claims=[claim("done", phase=Phase.RELEASED, phases=phases)]).waits
    assert (waits.longest_seconds, waits.bound, waits.waiting) == (40.0, 1, 0)


RECORDS = st.lists(
    st.builds(
        record,
        st.sampled_from("abcd"),
        st.integers(0, 100).map(float),
        ns=st.sampled_from(["team-v", "team-w"]),
        to=st.sampled_from(["team-b", "team-c"]),
        of=st.sampled_from("xyz"),
        outcome=st.sampled_from(list(Outcome)),
        seconds=st.integers(0, 60).map(float),
        agreement=st.sampled_from(["yes", "other", ""]),
    ),
    max_size=12,
    unique_by=lambda one: one.metadata.uid,
)


@settings(deadline=None)
@given(RECORDS, st.sampled_from([PARTIES, *((one,) for one in By)]), st.randoms())
def test_rows_add_up_to_the_total_and_the_order_of_records_does_not_matter(
    records: list[DrainRecord], by: tuple[By, ...], random: Any
) -> None:
    found = book(*records, by=by)
    assert len(each_pod_once(records)) == len({one.spec.pod_uid for one in records})
    for figure in ("evictions", "cards", "spared", "pending"):
        assert sum(getattr(row.sums, figure) for row in found.rows) == getattr(found.total, figure)
    assert sum(row.sums.lost_gpu_seconds for row in found.rows) == pytest.approx(found.total.lost_gpu_seconds)
    shuffled = list(records)
    random.shuffle(shuffled)
    assert book(*shuffled, by=by) == found
