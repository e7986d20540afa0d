"""What stopping pods costs: gangs whole, elastic ones by the member, services their warm-up; who weighs more."""

from typing import Any

import msgspec
import pytest

from fleet.costs import gang_loss, victims_of, weights
from fleet.names import CHECKPOINT_EVERY, GANG_MIN_SIZE, LAST_CHECKPOINT, RESTART_COST
from fleet.objects import Condition, Pod
from fleet.planning import choose
from fleet.resources import Outcome, Victim
from fleet.times import format_time
from fleet.view import View
from tests.fleet.books import record as row
from tests.fleet.builders import agreement, at, claim, coscheduling_group, members, node, owned, pod, record, view

NOW = at(1000)


def lost(seen: View, *pods: Pod) -> list[float]:
    return [one.lost_gpu_seconds for one in victims_of(seen, pods, {}, NOW)]


def elastic(count: int, minimum: str, **more: Any) -> list[Pod]:
    """Members of a gang that goes on with `minimum`, two cards each, one on each node, running for 100 s."""
    notes = {GANG_MIN_SIZE: minimum}
    return [
        pod(f"e-{index}", 2, on=f"n{index}", gang="e", size=count, started=900, notes=notes, **more)
        for index in range(count)
    ]


def test_a_gang_that_goes_on_without_some_loses_only_those() -> None:
    gang = elastic(4, "2")
    seen = view([node(f"n{index}") for index in range(4)], gang)
    assert lost(seen, *gang[:1]) == [200]
    assert lost(seen, *gang[:2]) == [200, 200]
    assert lost(seen, *gang[:3]) == [200, 200, 400], "the third ends it: all of it is lost, once"
    assert lost(seen, *gang) == [200, 200, 400, 0]


@pytest.mark.parametrize(
    ("outcome", "left"),
    [(Outcome.STOPPED, 4 * 60), (Outcome.PENDING, 4 * 60), (Outcome.SPARED, 4 * 100)],
    ids=["stopped", "on its way", "spared"],
)
def test_what_a_gang_lost_when_it_was_stopped_before_is_not_lost_again(outcome: Outcome, left: float) -> None:
    gang = elastic(3, "")[:2]
    hit = row("e-2", 600, gang="team-v/Gang/e/", seconds=940, outcome=outcome)
    assert lost(view(node("n0"), node("n1"), gang, hit), *gang) == [left, 0]


def test_an_elastic_gang_that_went_on_without_one_still_has_the_work_of_the_others_to_lose() -> None:
    gang = elastic(4, "2")
    hits = [row(f"e-{index}", 80, gang="team-v/Gang/e/", seconds=940) for index in (2, 3)]
    nodes = [node(f"n{index}") for index in range(4)]
    assert lost(view(nodes, gang[:2], hits), *gang[:2]) == [400, 0]
    ended = row("e-1", 200, gang="team-v/Gang/e/", seconds=940, ends_gang=True)
    assert lost(view(nodes, gang[:1], hits, ended), gang[0]) == [120], "that left too few: all of it was lost"


@pytest.mark.parametrize("text", ["", "none", "0", "4", "9"])
def test_a_gang_that_needs_all_of_its_members_is_lost_with_the_first(text: str) -> None:
    gang = elastic(4, text)
    seen = view([node(f"n{index}") for index in range(4)], gang)
    assert lost(seen, gang[0]) == [800]


def test_the_minimum_of_a_pod_group_is_what_it_goes_on_with() -> None:
    gang = [
        pod(f"m-{index}", 2, on="n1", started=900, labels={"scheduling.x-k8s.io/pod-group": "pg"}) for index in range(3)
    ]
    assert lost(view(node("n1"), gang, coscheduling_group("pg", 2, ns="team-v")), gang[0]) == [200]
    assert lost(view(node("n1"), gang, coscheduling_group("pg", 3, ns="team-v")), gang[0]) == [600]
    assert lost(view(node("n1"), gang), gang[0]) == [600], "without its group nothing is known"


def test_the_planner_pays_an_elastic_gang_by_the_member_across_nodes() -> None:
    gang = elastic(4, "2")
    nodes = [node(f"n{index}") for index in range(4)]
    for count, paid in ((1, 200), (2, 400), (3, 800)):
        found = choose(view(nodes, gang, agreement(), members(count)), claim(nodes=count), {}, NOW)
        assert found.plan is not None
        assert (len(found.taken), found.plan.lost_gpu_seconds) == (count, paid)


def ready_since(one: Pod, seconds: float) -> Pod:
    status = msgspec.structs.replace(
        one.status, conditions=(Condition("Ready", "True", last_transition_time=at(seconds)),)
    )
    return msgspec.structs.replace(one, status=status)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "ReplicationController"])
def test_a_service_loses_its_warm_up_not_its_age(kind: str) -> None:
    replicas = [
        ready_since(pod(f"s-{index}", 2, on="n1", started=0, owner=owned(kind, "s")), seconds)
        for index, seconds in enumerate((40, 30, 900))
    ]
    seen = view(node("n1"), replicas)
    assert lost(seen, *replicas) == [60, 60, 60], "the shortest start that was seen, two cards each"
    declared = pod("s-3", 2, on="n1", started=0, owner=owned(kind, "s"), notes={RESTART_COST: "5s"})
    assert lost(view(node("n1"), declared), declared) == [10]
    unseen = pod("s-4", 2, on="n1", started=0, owner=owned(kind, "s"))
    assert lost(view(node("n1"), unseen), unseen) == [0]


@pytest.mark.parametrize("notes", [{CHECKPOINT_EVERY: "10m"}, {LAST_CHECKPOINT: format_time(at(600))}])
def test_who_saves_work_has_work_to_lose_whatever_its_owner(notes: dict[str, str]) -> None:
    one = pod("s", 1, on="n1", started=0, owner=owned("StatefulSet", "s"), notes=notes)
    assert lost(view(node("n1"), one), one) == [400 if LAST_CHECKPOINT in notes else 1000]


def test_a_victim_says_its_job_and_what_its_loss_counts_from() -> None:
    notes = {LAST_CHECKPOINT: format_time(at(600))}
    pods = [
        pod("bare", on="n1", notes=notes),
        pod("owned", on="n1", owner=owned("Job", "j")),
        pod("one", on="n1", gang="g", size=1),
    ]
    bare, of_job, of_gang = victims_of(view(node("n1"), pods), pods, {"team-v.bare": "yes"}, NOW)
    assert (bare.job, bare.saved_at, bare.agreement) == ("Pod/team-v/bare", at(600), "yes")
    assert (of_job.job, of_job.saved_at) == ("Job/team-v/j/job-j", None)
    assert of_gang.job == of_gang.gang == gang_loss(view(node("n1"), pods), pods[2], NOW).key


def test_a_gang_whose_loss_stands_with_another_member_adds_only_what_it_did_since() -> None:
    gang = [pod(f"g-{index}", on="n1", gang="g", size=3, started=900) for index in range(3)]
    seen = view(node("n1"), gang)
    first: tuple[Victim, ...] = victims_of(seen, gang[:1], {}, at(950))
    then = victims_of(seen, gang[1:], {}, NOW, before=first)
    assert [one.lost_gpu_seconds for one in (*first, *then)] == [150, 150, 0]


def test_a_gang_that_goes_on_has_each_loss_with_the_member_that_it_is_lost_with() -> None:
    gang = elastic(4, "2")
    seen = view([node(f"n{index}") for index in range(4)], gang)
    first = victims_of(seen, gang[:1], {}, NOW)
    assert [one.lost_gpu_seconds for one in victims_of(seen, gang[1:2], {}, NOW, before=first)] == [200]
    assert [one.lost_gpu_seconds for one in victims_of(seen, gang[1:], {}, NOW, before=first)] == [200, 400, 0]


def test_of_a_gang_that_goes_on_a_successor_has_lost_its_own_time_only() -> None:
    gang = [*elastic(3, "2")[:2], pod("e-9", 2, on="n2", gang="e", size=3, started=990, notes={GANG_MIN_SIZE: "2"})]
    seen = view([node(f"n{index}") for index in range(3)], gang)
    assert lost(seen, gang[2]) == [20]
    assert lost(seen, *gang) == [200, 220, 0], "of 200, 200 and 20 the second carries all that is left"


def test_a_restart_that_has_not_been_is_not_lost_once_more() -> None:
    gang = [pod("g-0", on="n0", gang="g", size=2, started=0, notes={RESTART_COST: "10m"})]
    hit = row("g-1", 3000, gang="team-v/Gang/g/", seconds=900)
    assert lost(view(node("n0"), gang, hit), *gang) == [100]
    anew = pod("g-2", on="n1", gang="g", size=2, started=950, notes={RESTART_COST: "10m"})
    assert lost(view(node("n0"), node("n1"), gang, anew, hit), *gang) == [100 + 50 + 2 * 600]


def test_who_lost_much_lately_weighs_more_but_no_loss_is_booked_higher() -> None:
    """Of two nodes that cost nearly the same, the one of the team that has lost nothing this week is taken."""
    nodes, agreements = [node("n1"), node("n2")], [agreement(), agreement(ns="team-w")]
    pods = [pod("v", on="n1", started=100), pod("w", on="n2", ns="team-w", started=0)]
    week = [record("old", stopped=-3600, lost=300), record("older", ns="team-w", stopped=-3600, lost=100)]
    spared = record("spared", ns="team-w", stopped=-60, lost=10**6, outcome=Outcome.SPARED)
    past = record("past", ns="team-w", stopped=-8 * 86400, lost=10**6)

    def taken(*records: Any) -> tuple[str, float]:
        found = choose(view(nodes, pods, agreements, members(1), *records), claim(), {}, NOW)
        assert found.plan is not None
        return found.taken[0].node.metadata.name, found.plan.lost_gpu_seconds

    assert taken() == ("n1", 900)
    assert taken(week, spared, past) == ("n2", 1000)
    assert weights(view(week, spared, past), NOW) == {"team-v": 1.75, "team-w": 1.25}
    assert weights(view(), NOW) == {}


def test_cards_that_stand_idle_while_the_slowest_ends_count() -> None:
    quick, slow = pod("q", on="n1", started=0, grace=1), pod("s", on="n2", started=100, grace=300)
    found = choose(view(node("n1"), node("n2"), quick, slow, agreement(), members(1)), claim(), {}, NOW)
    assert found.taken[0].node.metadata.name == "n1"
    assert found.plan is not None
    assert (found.plan.lost_gpu_seconds, found.plan.cost) == (1000, 1000 + 8 * 1)
    assert [(one.node, one.cost) for one in found.plan.runners_up] == [("n2", 900 + 8 * 300)]
