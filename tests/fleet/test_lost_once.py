"""Every second that a card was worked on is lost once at most: replaced members, split losses, checkpoints."""

from dataclasses import replace as changed
from datetime import timedelta
from typing import Any

import pytest

from fleet.actions import Action, Answer, Evict, EvictionAnswer, Timing
from fleet.costs import victims_of
from fleet.names import GANG_MIN_SIZE, LAST_CHECKPOINT, RESTART_COST
from fleet.objects import BudgetSpec, DisruptionBudget, LabelSelector, Metadata, Pod
from fleet.planning import choose
from fleet.resources import Outcome
from fleet.times import format_time
from fleet.view import View
from tests.fleet.books import record
from tests.fleet.builders import agreement, at, claim, members, node, pod, view
from tests.fleet.scenes import gang
from tests.fleet.simulation import Simulation

AT_ONCE = changed(Timing(), cool_down=timedelta(0))
KEY = "team-v/Gang/e/"
BUDGET = Answer(EvictionAnswer.BUDGET, "not now")


def member(index: int, on: str, minimum: int, start: float, **more: Any) -> Pod:
    """A member of a gang that goes on with `minimum` others; 0 if it needs all."""
    notes = {GANG_MIN_SIZE: str(minimum)} if minimum else {}
    return pod(f"e-{index}", on=on, gang="e", grace=1, started=start, notes=notes, **{"size": 4, **more})


def lost(seen: View, *pods: Pod, now: float) -> float:
    return sum(one.lost_gpu_seconds for one in victims_of(seen, pods, {}, at(now)))


def stopped(scene: Simulation) -> dict[str, float]:
    """What is booked with each pod that was stopped."""
    records = (one for one in scene.records.values() if one.status.outcome is Outcome.STOPPED)
    return {one.spec.pod: one.spec.lost_gpu_seconds for one in records}


# Members that are replaced


def test_a_gang_whose_members_are_replaced_one_by_one_keeps_the_time_of_those_that_are_left() -> None:
    """Three claims, one after the other; a gang of three that goes on with two; each stop is made good."""
    scene = Simulation(timing=AT_ONCE).add([node(f"n{index}") for index in range(3)], agreement())
    scene.add([member(index, f"n{index}", 2, -10_000, size=3) for index in range(3)])
    for turn, place in enumerate((2, 1, 0)):
        for index in range(3):
            scene.change_node(f"n{index}", unschedulable=index != place or None)
        waiting = gang(1, f"g{turn}", created=scene.seconds)
        scene.add(waiting).go_on(20)
        scene.pods.pop(waiting[0].metadata.uid)
        scene.go_on(5)
        notes = {GANG_MIN_SIZE: "2"}
        scene.bind(pod(f"e-{3 + turn}", gang="e", size=3, grace=1, notes=notes, created=scene.seconds), f"n{place}")
        scene.now += timedelta(seconds=5000)
        scene.go_on(2)
    got = stopped(scene)
    assert list(got) == ["e-2", "e-1", "e-0"]
    assert got["e-0"] >= 20_000


def test_a_successor_is_not_booked_for_the_time_before_it_came() -> None:
    """One of a pair is stopped at 1000; its successor comes at 80,000, and ten seconds later both are stopped."""
    live = [member(1, "n1", 0, 0.001, size=2), member(2, "n2", 0, 80_000, size=2)]
    seen = view(node("n1"), node("n2"), live, record("e-0", 2000, gang=KEY, seconds=1000, ends_gang=True))
    assert lost(seen, *live, now=80_010) == pytest.approx(79_010 + 10)


def test_a_successor_that_the_cache_does_not_know_yet_is_booked_for_its_own_time() -> None:
    scene = Simulation(timing=AT_ONCE, lag_seconds=0.5)
    scene.add(node("n1"), node("n2", cordoned=True), agreement(), gang(1, "a"))
    scene.add(member(0, "n1", 1, -10_000), member(1, "n2", 1, -10_000))
    scene.run(60, until=lambda: scene.evictions)
    new = pod("e-9", gang="e", size=4, grace=1, notes={GANG_MIN_SIZE: "1"})
    scene.later(scene.seconds + 0.7, lambda: scene.bind(new, "n1"))
    scene.go_on(30)
    assert stopped(scene)["e-9"] <= 40


def test_the_planner_pays_a_successor_what_the_ledger_books() -> None:
    """On one node a member that came 10 s ago, on the other a bare pod of 500 s."""
    team = [member(index, f"n{index + 3}", 2, 0.001, size=3) for index in range(2)]
    objects = [*team, member(2, "n1", 2, 990, size=3), pod("bare", on="n2", started=500, grace=1)]
    nodes = [node("n1"), node("n2"), node("n3", cordoned=True), node("n4", cordoned=True)]
    plan = choose(view(nodes, objects, agreement(), members(1)), claim(), {}, at(1000)).plan
    assert plan.lost_gpu_seconds == 10
    assert plan.weighing is not None
    assert plan.weighing.evict_cost == 10


# Losses that are split over several members


def test_the_rest_goes_over_to_another_when_the_one_that_carries_it_ends_by_itself() -> None:
    scene = Simulation(timing=AT_ONCE).add(node("n1"), agreement(), gang(1))
    scene.add([member(index, "n1", 2, -1000) for index in range(4)])
    scene.refusals = {"team-v.e-0": BUDGET}
    scene.later(5, lambda: scene.end("team-v.e-2"))
    scene.later(8, scene.refusals.clear)
    scene.run(60)
    got = stopped(scene)
    assert set(got) == {"e-0", "e-1", "e-3"}
    assert sum(got.values()) >= 3 * 1000


def test_a_member_under_another_agreement_since_has_its_gang_written_down_anew() -> None:
    labels = [{"k": "a" if index == 0 else "b"} for index in range(4)]
    waiting = gang(1)
    scene = Simulation(timing=AT_ONCE).add(node("n1"), waiting)
    scene.add([member(index, "n1", 2, -1000, labels=labels[index]) for index in range(4)])
    scene.add(agreement("a1", select=LabelSelector({"k": "a"})), agreement("b1", select=LabelSelector({"k": "b"})))
    scene.refusals = {"team-v.e-0": BUDGET}

    def swap() -> None:
        scene.agreements[0] = agreement("a2", select=LabelSelector({"k": "a"}))
        scene.refusals.clear()

    def cancel(action: Action) -> None:
        if isinstance(action, Evict) and len(scene.evictions) == 2:
            scene.pods.pop(waiting[0].metadata.uid, None)

    scene.later(5, swap)
    scene.after = cancel
    scene.run(60)
    got = stopped(scene)
    assert len(got) == 2
    assert sum(got.values()) <= 2 * 1100


def test_a_member_that_ends_before_the_evictions_takes_nobodys_time_with_it() -> None:
    """Two of four are stopped, and one fails by itself meanwhile: what the last has done is lost with it later."""
    scene = Simulation(timing=AT_ONCE).add(node("n1"), node("n2", cordoned=True), agreement(), gang(1, "a"))
    scene.add([member(index, f"n{1 + index // 2}", 2, -1000) for index in range(4)])
    scene.refusals = {"team-v.e-0": BUDGET}
    scene.later(5, lambda: scene.delete("team-v.e-3"))
    scene.later(8, scene.refusals.clear)
    scene.run(60)
    assert len(stopped(scene)) == 2
    scene.change_node("n2", unschedulable=None)
    scene.change_node("n1", unschedulable=True)
    scene.add(gang(1, "b", created=60))
    scene.run(120)
    assert sum(stopped(scene).values()) >= 3 * 1000


def test_a_disruption_budget_made_meanwhile_lets_nobody_go_before_who_carries_the_loss() -> None:
    waiting = gang(1)
    scene = Simulation(timing=AT_ONCE).add(node("n1"), agreement(), waiting)
    scene.add([member(index, "n1", 0, -1000, size=2, labels={"k": str(index)}) for index in range(2)])
    scene.refusals = {"team-v.e-0": BUDGET}
    made = DisruptionBudget(Metadata("p", "team-v", uid="p"), BudgetSpec(LabelSelector({"k": "1"})))
    scene.later(5, lambda: scene.kept.append((made, 0)))

    def cancel(action: Action) -> None:
        if isinstance(action, Evict) and scene.evictions:
            scene.pods.pop(waiting[0].metadata.uid, None)

    scene.after = cancel
    scene.run(30)
    assert stopped(scene) == {}


# Checkpoints and restarts


def test_a_checkpoint_after_a_stop_brings_no_restart_back_that_has_not_been() -> None:
    notes = {RESTART_COST: "10m", LAST_CHECKPOINT: format_time(at(950))}
    left = pod("g-0", on="n0", gang="e", size=2, started=0.001, notes=notes)
    hit = record("g-1", 3000, gang=KEY, seconds=900, ends_gang=True)
    assert lost(view(node("n0"), left, hit), left, now=1000) == 50


def test_a_checkpoint_that_a_stopped_member_had_told_of_counts_for_the_others() -> None:
    live = [member(index, f"n{index}", 1, 0.001) for index in (1, 2)]
    hit = record("e-0", 100, gang=KEY, seconds=1000, saved_at=at(900))
    seen = view([node(f"n{index}") for index in range(4)], live, hit)
    assert lost(seen, live[0], now=1001) == pytest.approx(101)
