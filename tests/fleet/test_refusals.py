"""What rules a node or a set of nodes out although everybody agreed: budgets, cool-downs, checkpoints, the ceiling."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.marks import taint
from fleet.names import LAST_CHECKPOINT
from fleet.objects import BudgetSpec, BudgetStatus, DisruptionBudget, LabelSelector, Metadata, Pod, Taint
from fleet.planning import Choice, choose
from fleet.reasons import Reason
from fleet.resources import Budget, Checkpoint, Outcome, Victim, WholeNodeClaim
from fleet.times import format_time
from fleet.view import View
from tests.fleet.builders import agreement, at, claim, members, node, owned, pod, record, ref, view
from tests.fleet.scenes import small

NOW = at(10_000)
COOL = timedelta(minutes=30)


def chosen(seen: View, one: WholeNodeClaim | None = None, **terms: Any) -> Choice:
    return choose(seen, one or claim(), {}, NOW, cool_down=COOL, **terms)


def names(found: Choice) -> list[str]:
    return [one.node.metadata.name for one in found.taken]


def refused(found: Choice) -> dict[str, str]:
    return {one.node.metadata.name: str(one.refused) for one in found.every if one.refused}


def moments(found: Choice) -> set[datetime | None]:
    return {one.from_ for one in found.every if one.refused}


# Budgets


def test_a_node_whose_victims_would_overdraw_a_budget_waits_until_enough_has_aged_out() -> None:
    terms = agreement(budget=Budget(evictions_per_hour=3))
    seen = view(node("n1"), small(2, "n1"), terms, members(1), [record(f"x{i}", stopped=9000 + i) for i in range(2)])
    found = chosen(seen)
    assert (found.taken, found.reason, refused(found)) == ((), Reason.AGREEMENT_BUDGET, {"n1": "AgreementBudgetSpent"})
    assert moments(found) == {at(9000 + 3600)}
    assert found.wake_at == at(9000 + 3600)
    assert "2 of 3 evictions in 60 minutes are used" in found.message
    assert names(choose(seen, claim(), {}, at(9000 + 3600 + 1))) == ["n1"]


def test_what_alone_is_too_much_for_a_budget_has_no_moment() -> None:
    terms = agreement(budget=Budget(gpu_seconds_per_day=100))
    found = chosen(view(node("n1"), small(1, "n1"), terms, members(1)))
    assert (found.reason, moments(found)) == (Reason.AGREEMENT_BUDGET, {None})


def test_nodes_that_overdraw_a_budget_only_together_are_not_taken_together() -> None:
    """Two cheap nodes of one team would take 4 evictions where 3 are allowed; a dearer one of another makes it two."""
    terms = [agreement(budget=Budget(evictions_per_hour=3)), agreement(ns="team-w")]
    cheap = [small(2, f"n{index}", started=9900) for index in range(2)]
    dear = pod("w", 2, on="n2", ns="team-w", started=0)
    nodes = [node(f"n{index}") for index in range(3)]
    assert names(chosen(view(nodes, cheap, dear, terms, members(2)), claim(nodes=2))) == ["n0", "n2"]
    found = chosen(view(nodes[:2], cheap, terms, members(2)), claim(nodes=2))
    assert (found.taken, found.reason) == ((), Reason.AGREEMENT_BUDGET)
    assert "4 more would be needed" in found.message


def test_one_gang_on_two_nodes_is_paid_for_once_in_a_budget_too() -> None:
    gang = [pod(f"g-{index}", 4, on=f"n{index}", gang="g", size=2, started=9000) for index in range(2)]
    nodes = [node("n0"), node("n1")]
    for limit, expected in ((8000, ["n0", "n1"]), (7999, [])):
        terms = agreement(budget=Budget(gpu_seconds_per_day=limit))
        assert names(chosen(view(nodes, gang, terms, members(2)), claim(nodes=2))) == expected


def test_d16_pods_beyond_a_disruption_budget_are_a_risk_that_comes_before_any_cost() -> None:
    """Both nodes can be had; on the cheaper one more pods are covered than the budget lets go at a time."""
    labels = {"app": "web"}
    web = [pod(f"w{index}", on="n1", started=9990, labels=labels) for index in range(2)]
    pdb = DisruptionBudget(Metadata("pdb", "team-v"), BudgetSpec(LabelSelector(labels)), BudgetStatus(1))
    made = view(node("n1"), node("n2"), web, pod("dear", on="n2", started=0), agreement(), members(1))
    seen = View(made.nodes, made.pods, made.jobs, made.pools, made.agreements, made.claims, (pdb,))
    assert names(chosen(made)) == ["n1"]
    assert names(chosen(seen)) == ["n2"]
    alone = [one for uid, one in made.pods.items() if uid != "team-v.dear"]
    with_free = view(node("n1"), alone, agreement(), members(1))
    only = View(with_free.nodes, with_free.pods, {}, with_free.pools, with_free.agreements, {}, (pdb,))
    assert names(chosen(only)) == ["n1"], "a risk, no obstacle"


# No thrashing


def test_a_job_that_was_stopped_lately_is_left_alone_under_whatever_name_its_pods_come_back() -> None:
    again = pod("j-2", on="n1", owner=owned("Job", "j"), started=9990)
    other = pod("dear", 8, on="n2", started=0)
    stopped = record("j-1", stopped=9000, job="Job/team-v/j/job-j", claim="uid-other")
    nodes, terms = [node("n1"), node("n2")], agreement()
    assert names(chosen(view(nodes, again, other, terms, members(1)))) == ["n1"]
    assert names(chosen(view(nodes, again, other, terms, members(1), stopped))) == ["n2"], "not the cheapest again"
    found = chosen(view(node("n1"), again, terms, members(1), stopped))
    assert (found.reason, found.wake_at) == (Reason.COOL_DOWN, at(9000) + COOL)
    assert "Job/team-v/j/job-j was stopped less than 30m ago" in found.message
    assert names(choose(view(node("n1"), again, terms, members(1), stopped), claim(), {}, at(9000) + COOL)) == ["n1"]
    spared = record("j-1", stopped=9000, job="Job/team-v/j/job-j", claim="uid-other", outcome=Outcome.SPARED)
    assert names(chosen(view(node("n1"), again, terms, members(1), spared))) == ["n1"]


def test_nobody_pays_back_at_once() -> None:
    """Gang b was given a node that gang a was stopped for; a, waiting again, does not stop b within the cool-down."""
    running = pod("b-0", 8, on="n1", ns="team-b", gang="b", size=1, started=9000)
    terms = agreement(ns="team-b", to=("team-a",))
    wants = members(1, gang="a", ns="team-a")
    one = claim("a", ns="team-a", gang=ref("a"))
    before = record("a-0", ns="team-a", stopped=9000, job="team-a/Gang/a/", by="team-b/Gang/b/", claim="uid-b")
    assert names(chosen(view(node("n1"), running, terms, wants), one)) == ["n1"]
    found = chosen(view(node("n1"), running, terms, wants, before), one)
    assert (found.reason, found.wake_at) == (Reason.COOL_DOWN, at(9000) + COOL)
    later = choose(view(node("n1"), running, terms, wants, before), one, {}, at(9000) + COOL, cool_down=COOL)
    assert names(later) == ["n1"]
    spared = record("a-0", ns="team-a", stopped=9000, job="team-a/Gang/a/", by="team-b/Gang/b/", outcome=Outcome.SPARED)
    assert names(chosen(view(node("n1"), running, terms, wants, spared), one)) == ["n1"], "nobody was stopped for b"


def test_a_stop_that_only_a_claim_tells_of_counts_as_well() -> None:
    running = pod("b-0", 8, on="n1", ns="team-b", gang="b", size=1, started=9000)
    terms = agreement(ns="team-b", to=("team-a",))
    told = Victim("team-a", "a-0", "gone", "n1", 8, job="team-a/Gang/a/", evicted_at=at(9000))
    other = claim("b", gang=ref("b"), victims=(told,))
    seen = view(node("n1"), running, terms, members(1, gang="a", ns="team-a"), other)
    assert chosen(seen, claim("a", ns="team-a", gang=ref("a"))).reason is Reason.COOL_DOWN


def test_a_held_node_is_open_to_the_claim_that_holds_it_whoever_asked_before() -> None:
    mine, other = claim("a", ns="team-a", gang=ref("a")), claim("b", gang=ref("b"))
    wants = [members(1, gang="a", ns="team-a"), members(1, gang="b")]
    seen = view(node("n1", taints=(taint(mine.metadata.uid),)), wants, mine, other)
    assert [names(chosen(seen, one)) for one in (other, mine, other)] == [[], ["n1"], []]


# Checkpoints


def test_who_has_saved_nothing_is_refused_where_a_checkpoint_is_required() -> None:
    terms = agreement(checkpoint=Checkpoint(required=True))
    found = chosen(view(node("n1"), small(1, "n1"), terms, members(1)))
    assert (found.taken, found.reason, refused(found)) == ((), Reason.CHECKPOINT_MISSING, {"n1": "NoCheckpoint"})
    saved = pod("s", on="n1", notes={LAST_CHECKPOINT: format_time(at(9000))})
    assert names(chosen(view(node("n1"), saved, terms, members(1)))) == ["n1"]


def test_the_checkpoint_of_any_member_is_the_gangs() -> None:
    terms = agreement(checkpoint=Checkpoint(required=True))
    notes = {LAST_CHECKPOINT: format_time(at(9000))}
    gang = [pod("g-0", on="n1", gang="g", size=2), pod("g-1", on="n9", gang="g", size=2, notes=notes)]
    assert names(chosen(view(node("n1"), node("n9", ""), gang, terms, members(1)))) == ["n1"]


# The ceiling


def test_no_more_is_thrown_away_than_the_gangs_own_run_is_worth() -> None:
    """8 cards for 10 minutes are 4,800 GPU-seconds; the pod on n1 has done 9,000."""
    seen = view(node("n1"), pod("a", on="n1", started=1000), agreement(), members(1))
    found = chosen(seen, claim(run="10m"), cost_ceiling=1.0)
    assert (found.taken, found.reason) == ((), Reason.COST_CEILING)
    assert (
        "would throw away about 9000 GPU-seconds, more than the 4800 that its own expected run allows" in found.message
    )
    assert names(chosen(seen, claim(run="10m"), cost_ceiling=2.0)) == ["n1"]
    assert names(chosen(seen, claim(run="10m"), cost_ceiling=0.0)) == ["n1"], "0 is no ceiling"
    assert names(chosen(seen, claim(), cost_ceiling=1.0)) == ["n1"], "nobody said what the run is worth"
    cheaper = view(seen.pods.values(), node("n1"), node("n2"), pod("b", on="n2", started=8000, priority=0), agreement())
    assert names(chosen(cheaper, claim(run="10m"), cost_ceiling=1.0)) == ["n2"]


def test_below_the_ceiling_a_higher_priority_may_have_to_do() -> None:
    low, high = pod("low", on="n1", started=0), pod("high", on="n2", started=9000, priority=5)
    seen = view(node("n1"), node("n2"), low, high, agreement(max_priority=9), members(1))
    assert names(chosen(seen, claim(run="10m"))) == ["n1"]
    assert names(chosen(seen, claim(run="10m"), cost_ceiling=1.0)) == ["n2"]


# By their ids


def test_d36_a_pod_that_runs_for_too_short_a_time_is_refused_until_it_may_be_stopped() -> None:
    found = chosen(view(node("n1"), pod("a", on="n1", started=9820), agreement(min_runtime="10m"), members(1)))
    assert (found.reason, found.wake_at) == (Reason.AGREEMENT_TIME, at(9820 + 600))


def test_d41_seven_young_pods_are_cheaper_than_one_of_a_large_old_gang() -> None:
    gang = [pod(f"g-{index}", 8, on=f"n{index}", gang="g", size=2, started=0) for index in (1, 9)]
    young = small(7, "n2", started=9940)
    found = chosen(view(node("n1"), node("n2"), node("n9", ""), gang, young, agreement(), members(1)))
    assert names(found) == ["n2"]
    assert found.plan is not None
    assert found.plan.lost_gpu_seconds == 7 * 60


@pytest.mark.parametrize("lacks", ["cpu", "selector", "taint"])
def test_d42_a_node_the_gang_could_not_start_on_is_never_vacated_for_it(lacks: str) -> None:
    more: dict[str, Any] = {"cpu": {"cpu": "256"}, "selector": {"selector": {"disk": "fast"}}, "taint": {}}[lacks]
    made = node("n1", taints=(Taint("x", "NoSchedule"),) if lacks == "taint" else ())
    found = chosen(view(made, small(1, "n1"), agreement(), members(1, **more)))
    assert found.taken == ()
    assert found.plan is None or found.plan.victims == ()


def test_n05_a_node_that_lost_a_card_is_not_vacated_for_a_gang_that_needs_all() -> None:
    seen = view(node("n1", cards=7), node("n2"), small(1, "n1"), small(3, "n2"), agreement(), members(1))
    found = chosen(seen)
    assert names(found) == ["n2"]
    assert refused(found) == {"n1": "CardsMissing"}


# What the answer may depend on


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 8), st.sampled_from(["team-v", "team-w"])), min_size=3),
    st.integers(1, 3),
    st.randoms(),
)
def test_a_node_that_is_out_of_the_question_changes_nothing(
    shape: list[tuple[int, int, str]], count: int, chance: Any
) -> None:
    nodes = [node(f"n{index}") for index in range(len(shape))]
    pods: list[Pod] = [
        pod(f"p{index}", cards, on=f"n{index}", ns=ns, started=started)
        for index, (started, cards, ns) in enumerate(shape)
    ]
    terms = [agreement(), agreement(ns="team-w", budget=Budget(evictions_per_hour=1))]
    everything: list[Any] = [*nodes, *pods, *terms, *members(count)]
    found = chosen(view(everything), claim(nodes=count))
    chance.shuffle(everything)
    out = [node("a", cordoned=True), node("b"), pod("silent", 8, on="b", ns="team-x", started=9999)]
    again = chosen(view(everything, out), claim(nodes=count))
    assert names(again) == names(found)
    assert (again.plan and again.plan.cost) == (found.plan and found.plan.cost)
