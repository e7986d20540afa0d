"""How a drain ends when it goes wrong: nobody touched afterwards, another node taken, no wait without an end."""

from dataclasses import replace as changed
from datetime import datetime, timedelta

import pytest

from fleet.actions import (
    Action,
    Answer,
    Clear,
    Decision,
    Evict,
    EvictionAnswer,
    Hold,
    Look,
    LookAt,
    Open,
    Timing,
    WriteStatus,
)
from fleet.objects import BudgetSpec, Condition, DisruptionBudget, LabelSelector, Metadata, NodeStatus
from fleet.reasons import Reason
from fleet.resources import Budget, ClaimStatus, Outcome, Phase
from fleet.upkeep import Context
from tests.fleet.builders import agreement, at, node, owned, pod, view
from tests.fleet.scenes import all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace

BUDGET = Answer(EvictionAnswer.BUDGET, "not now")
QUICK = changed(Timing(), drain_timeout=timedelta(seconds=20), avoid_for=timedelta(seconds=300))
STUCK = ("example.com/upload",)


def set_ready(scene: Simulation, name: str, status: str) -> None:
    old = scene.nodes[name]
    conditions = (Condition("Ready", status),)
    scene.nodes[name] = replace(old, status=NodeStatus(old.status.allocatable, old.status.capacity, conditions))


def statuses(scene: Simulation) -> list[ClaimStatus]:
    return [one.status for one in scene.done if isinstance(one, WriteStatus)]


def told(scene: Simulation) -> list[str]:
    return [one.message for one in statuses(scene)]


def touched(scene: Simulation) -> list[Action]:
    """All writes to nodes and pods of others so far."""
    return [one for one in scene.done if isinstance(one, Hold | Open | Clear | Evict)]


# Given up: nobody else is stopped, and the node is as it was


def test_d01_after_the_deadline_who_was_spared_stays_spared_though_he_could_be_stopped_now() -> None:
    """One of three goes, two are refused until the deadline; then the refusals end, and still nobody is stopped."""
    scene = busy(["n1"], each=3).add(gang(deadline="15s"))
    scene.refusals = {"team-v.n1-1": BUDGET, "team-v.n1-2": BUDGET}
    before = scene.nodes["n1"]
    scene.run(15.5)
    scene.refusals = {}
    calls = len(scene.eviction_calls)
    scene.run(120)
    assert scene.the_claim().status.phase is Phase.FAILED
    assert len(scene.eviction_calls) == calls
    assert scene.evicted() == ["n1-0"]
    assert scene.where("n1-") == ["n1", "n1"]
    assert scene.nodes["n1"] == before


def test_d06_after_a_claim_was_deleted_its_marks_go_in_one_write_and_the_node_is_left_alone() -> None:
    scene = busy(["n1"], each=3).add(gang())
    before = scene.nodes["n1"]
    scene.refusals = {"team-v.n1-2": BUDGET}
    scene.run(5, until=lambda: bool(scene.evictions))
    for uid in [uid for uid, one in scene.pods.items() if one.metadata.namespace == "team-b"]:
        del scene.pods[uid]
    scene.claims.clear()
    sofar, scene.refusals = len(touched(scene)), {}
    scene.go_on(60)
    assert [type(one) for one in touched(scene)[sofar:]] == [Clear]
    assert scene.nodes["n1"] == before
    assert scene.where("n1-2") == ["n1"]


def test_a_gang_that_landed_elsewhere_stops_nobody_any_more() -> None:
    """P15: somebody binds it by hand to a node of its own while its node is being vacated."""
    scene = busy(["n1"], each=3).add(gang(), node("n9", cordoned=True))
    scene.refusals = {"team-v.n1-1": BUDGET, "team-v.n1-2": BUDGET}
    scene.run(10, until=lambda: bool(scene.evictions))
    scene.bind(scene.pods["team-b.train-0"], "n9")
    scene.refusals = {}
    scene.go_on(30)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.ROLLED_BACK, Reason.LANDED_ELSEWHERE)
    assert "n9" in made.status.message
    assert (scene.evicted(), scene.marked()) == (["n1-0"], [])


@pytest.mark.parametrize("ends", ["Succeeded", "Failed", "Succeeded and deleted"])
def test_a_victim_that_ends_by_itself_is_not_stopped_and_costs_its_owner_nothing(ends: str) -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.refusals = {f"team-v.n1-{index}": BUDGET for index in range(3)}
    scene.run(5)
    scene.end("team-v.n1-1", ends.split(maxsplit=1)[0])
    if "deleted" in ends:
        scene.go_on(0.5)
        del scene.pods["team-v.n1-1"]
    scene.refusals = {}
    scene.run(40, until=lambda: all_bound(scene))
    scene.go_on(1)
    assert scene.evicted() == ["n1-0", "n1-2"]
    made = scene.the_claim().status
    assert {one.name for one in made.victims} == {"n1-0", "n1-2"}
    assert {one.spec.pod: one.status.outcome for one in scene.records.values()}["n1-1"] is Outcome.SPARED
    stopped = [one.spec for one in scene.records.values() if one.status.outcome is Outcome.STOPPED]
    assert made.lost_gpu_seconds == pytest.approx(sum(one.lost_gpu_seconds for one in stopped), abs=0.01)
    written = {(one.name, one.evicted_at) for each in statuses(scene) for one in each.victims}
    assert len(written) == 3, "nobody is written down again who has ended"


def test_when_a_drain_is_over_time_the_next_node_is_chosen() -> None:
    """A deadline of the drain, not of the claim: the first node is given back whole, the second one vacated."""
    scene = Simulation(timing=QUICK).add(node("n1"), node("n2"), agreement(), gang())
    scene.add(small(1, "n1", finalizers=STUCK), small(3, "n2"))
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]
    assert any("not empty within 20 s" in text and STUCK[0] in text for text in told(scene))
    assert Reason.DRAIN_TIMED_OUT in {one.reason for one in statuses(scene)}
    assert [one.node for one in scene.the_claim().status.avoid] == ["n1"]
    assert scene.marked() == []
    assert scene.pods["team-v.n1-0"].metadata.finalizers == STUCK


def test_d29_without_a_deadline_a_pod_that_never_ends_holds_nothing_for_longer_than_a_drain_may_last() -> None:
    """Neither the claim nor anybody else sets a time: the default ends it."""
    scene = Simulation().add(node("n1"), small(2, "n1", finalizers=STUCK), agreement(), gang())
    assert scene.timing.drain_timeout == timedelta(minutes=10)
    scene.run(590)
    assert (scene.the_claim().status.phase, scene.marked()) == (Phase.DRAINING, ["n1"])
    scene.run(605)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.BLOCKED, Reason.DRAIN_TIMED_OUT)
    assert "not empty within" in made.status.message
    assert "example.com/upload" in made.status.message
    assert scene.marked() == []
    assert sorted(scene.eviction_calls) == ["team-v.n1-0", "team-v.n1-1"]


def test_a_pod_that_terminates_past_its_grace_is_said_to_and_never_forced() -> None:
    """P12, P13: its kubelet does not let go of it; nothing but waiting is left."""
    scene = busy(["n1"], each=1, timing=QUICK).add(gang())
    scene.after = lambda action: hang(scene, "team-v.n1-0") if isinstance(action, Evict) else None
    scene.run(12)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.DRAINING, Reason.TERMINATING)
    assert made.status.message == "1 of 1 card holder(s) left are terminating, their grace is over"
    scene.run(40)
    assert scene.eviction_calls == ["team-v.n1-0"]
    assert "team-v.n1-0" in scene.pods
    assert scene.marked() == []


def hang(scene: Simulation, uid: str) -> None:
    """Its end is never reported: the simulated kubelet does not act on it."""
    known = scene._ends, scene._happen

    def happen() -> None:
        one = scene.pods.pop(uid)
        known[1]()
        scene.pods[uid] = one

    scene._ends = lambda: [one for one in known[0]() if one > scene.now]  # type: ignore[method-assign]
    scene._happen = happen  # type: ignore[method-assign]


# Refused: another node


@pytest.mark.parametrize("another", [True, False])
def test_d19_a_victim_that_is_never_ready_under_a_budget_rules_its_node_out(another: bool) -> None:
    """It crashes for ever: without it the budget is not met, so the Eviction API would refuse it. The gang waits."""
    unready = (Condition("Ready", "False"),)
    crashing = [
        replace(one, status=replace(one.status, conditions=unready)) for one in small(1, "n1", labels={"app": "web"})
    ]
    scene = Simulation().add(node("n1"), crashing, agreement(), gang(deadline="60s"))
    scene.add([node("n2"), small(4, "n2")] if another else [])
    covered = BudgetSpec(LabelSelector({"app": "web"}))
    scene.kept.append((DisruptionBudget(Metadata("web", "team-v", uid="web"), covered), 1))
    scene.run(30)
    made = scene.the_claim().status
    if another:
        assert (made.phase, scene.where("train")) == (Phase.BOUND, ["n2"])
    else:
        assert (made.phase, made.reason) == (Phase.PENDING, Reason.BUDGET)
        assert "budget team-v/web allows no disruption now" in made.message
        assert "unhealthyPodEvictionPolicy: AlwaysAllow" in made.message
        scene.run(65)
        assert (scene.the_claim().status.phase, scene.the_claim().status.reason) == (Phase.FAILED, Reason.DEADLINE)
    assert "team-v.n1-0" not in scene.eviction_calls
    assert "n1" not in {one.node.metadata.name for one in scene.done if isinstance(one, Hold)}


def test_d37_with_two_of_two_evictions_spent_a_node_that_needs_three_is_not_chosen() -> None:
    terms = agreement(budget=Budget(evictions_per_hour=2))
    scene = Simulation().add(node("n1"), node("n2"), small(2, "n1"), small(3, "n2"), terms, gang(1, "first"))
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("first") == ["n1"]
    scene.add(gang(1, "second", created=scene.seconds))
    scene.go_on(60)
    waiting = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "second")
    assert (waiting.status.phase, waiting.status.reason) == (Phase.PENDING, Reason.AGREEMENT_BUDGET)
    assert "2 of 2 evictions in 60 minutes are used" in waiting.status.message
    assert scene.where("n2-") == ["n2"] * 3
    assert {one.node.metadata.name for one in scene.done if isinstance(one, Hold)} == {"n1"}


def test_d38_a_job_stopped_twice_today_is_protected_also_as_a_new_pod() -> None:
    terms = agreement(budget=Budget(evictions_per_job_per_day=2))
    no_rest = changed(Timing(), cool_down=timedelta(0))
    scene = Simulation(timing=no_rest).add(node("n1"), terms)
    for index in range(3):
        one = pod(f"web-{index}", owner=owned("ReplicaSet", "web"), created=scene.seconds, grace=1)
        scene.bind(one, "n1")
        scene.add(gang(1, f"g{index}", created=scene.seconds))
        scene.go_on(30, until=lambda index=index: bool(scene.where(f"g{index}")))
        if index < 2:
            assert scene.where(f"g{index}") == ["n1"]
            scene.end(f"team-b.g{index}-0")
            scene.go_on(2)
    assert scene.evicted() == ["web-0", "web-1"]
    assert scene.where("web-2") == ["n1"]
    waiting = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "g2")
    assert waiting.status.reason == Reason.AGREEMENT_BUDGET
    assert "agreement team-v/yes: its job was stopped 2 time(s) in 24 hours, 2 are allowed" in waiting.status.message


def test_d33_who_would_have_to_consent_is_named_and_nobody_is_stopped() -> None:
    scene = Simulation().add(node("n1"), small(1, "n1"), small(1, "n1", prefix="x", ns="team-x"), agreement(), gang())
    scene.run(30)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.PENDING, Reason.AGREEMENT_MISSING)
    assert "would have to consent: team-x" in made.status.message
    assert made.status.plan is not None
    assert made.status.plan.consent_missing == ("team-x",)
    assert (scene.eviction_calls, scene.marked()) == ([], [])


# Nodes that fall ill


def test_n01_a_node_that_turns_not_ready_with_a_victim_hanging_on_it_is_left_and_nobody_is_forced_out() -> None:
    scene = Simulation().add(node("n1"), node("n2"), agreement(), gang())
    scene.add(small(2, "n1", finalizers=STUCK), small(3, "n2"))
    scene.run(10, until=lambda: len(scene.evictions) == 2)
    set_ready(scene, "n1", "Unknown")
    left = scene.now
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]
    assert (scene.now - left).total_seconds() < 40
    assert sorted(scene.eviction_calls).count("team-v.n1-0") == 1
    assert {"team-v.n1-0", "team-v.n1-1"} <= set(scene.pods), "their kubelet has not let go of them"
    assert scene.marked() == []


def test_n04_a_node_that_is_ready_again_after_three_minutes_is_used_without_help() -> None:
    """Both kinds of waiting: for the only node, and for enough of them."""
    scene = Simulation().add(node("n1"), node("n2"), gang(2))
    set_ready(scene, "n1", "False")
    scene.run(180)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.PENDING, Reason.NO_USABLE_NODE)
    assert "1 NotReady" in made.status.message
    set_ready(scene, "n1", "True")
    scene.run(190, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1", "n2"]
    assert scene.seconds < 185


def test_n04_a_node_that_is_given_up_as_not_ready_and_comes_back_is_taken_again() -> None:
    scene = busy(["n1"], each=1, timing=QUICK).add(gang())
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    set_ready(scene, "n1", "False")
    scene.run(180)
    assert scene.where("train") == []
    assert scene.marked() == []
    set_ready(scene, "n1", "True")
    scene.run(400, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]


# Who arrives late is seen before the node is called empty


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.1, 1.7, 2.3, 2.9, 3.4])
def test_d09_a_node_is_never_called_empty_while_a_pod_that_slipped_in_is_there(after: float) -> None:
    """The controller's cache is 300 ms old, the late pod takes 7 s to go."""
    scene = busy(["n1"], each=2, lag_seconds=0.3).add(gang())
    scene.run(10, until=scene.marked)
    late_at = scene.seconds + after
    scene.later(late_at, lambda: scene.bind(pod("late", created=late_at, grace=7), "n1"))

    def look(action: Action) -> None:
        empty = isinstance(action, WriteStatus) and action.status.phase is Phase.READY
        if empty or isinstance(action, Open):
            assert scene.card_holders("n1") == [], "called empty"

    scene.after = look
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert "late" in scene.evicted()


def test_a_look_that_the_cache_has_overtaken_is_taken_again_a_moment_later_and_not_after_a_second() -> None:
    """Seen: the last pod's end came within 20 ms of a look, and the node counted as occupied for a second."""
    there = pod("v", on="n1", uid="v-1")
    looks = {"n1": Look(at(10), (there,))}

    def asked(now: float) -> tuple[list[Action], datetime | None]:
        decision = Decision()
        Context(view(node("n1")), looks, {}, at(now), Timing(), decision).look("n1", at(0))
        return decision.actions, decision.wake_at

    assert asked(10.01) == ([], at(10.02))
    assert asked(10.02)[0] == [LookAt("n1")]
