"""Handed cases of draining and restart that the pure core decides, in the simulated cluster; named by their ids."""

from collections.abc import Callable
from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import (
    Action,
    Answer,
    Clear,
    CreateClaim,
    Evict,
    EvictionAnswer,
    Hold,
    Open,
    Steer,
    Timing,
    WriteStatus,
)
from fleet.names import POLICY
from fleet.objects import BudgetSpec, Condition, DisruptionBudget, LabelSelector, Metadata
from fleet.reasons import Reason
from fleet.resources import Budget, Outcome, Phase
from tests.fleet.builders import agreement, at, claim, members, node, owned, pod, ref
from tests.fleet.scenes import all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace

QUICK = changed(Timing(), drain_timeout=timedelta(seconds=20), avoid_for=timedelta(seconds=30))
BUDGET = Answer(EvictionAnswer.BUDGET, "Cannot evict pod as it would violate the pod's disruption budget.")


def pdb(name: str = "web", *, ns: str = "team-v") -> DisruptionBudget:
    return DisruptionBudget(Metadata(name, ns, uid=name), BudgetSpec(LabelSelector()))


def texts(scene: Simulation) -> list[str]:
    return [one.status.message for one in scene.done if isinstance(one, WriteStatus)]


# Budgets of disruption, with their real bookkeeping


def test_d14_two_budgets_that_appear_late_give_the_node_up_at_once_and_are_both_named() -> None:
    scene = busy(["n1", "n2"], each=1).add(gang())
    scene.run(5, until=lambda: in_phase(scene, Phase.DRAINING))
    taken = scene.the_claim().status.node_names
    scene.kept += [(pdb("web"), 0), (pdb("batch"), 0)]
    scene.run(20)
    assert len(scene.eviction_calls) == 1
    assert any("PodDisruptionBudget team-v/batch and team-v/web was refused" in text for text in texts(scene))
    assert Reason.EVICTION_REFUSED in {one.status.reason for one in scene.done if isinstance(one, WriteStatus)}
    assert scene.evictions == []
    assert [one.node for one in scene.the_claim().status.avoid] == [taken]


def test_d15_a_budget_that_allows_nothing_is_seen_before_any_taint() -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.kept.append((pdb(), 3))
    scene.run(10)
    assert scene.the_claim().status.reason == Reason.BUDGET
    assert [one for one in scene.done if isinstance(one, Hold)] == []


def test_d16_one_after_the_other_and_never_more_missing_than_allowed() -> None:
    """Four replicas, three must be there; each comes back on another node as soon as it is gone."""
    web = owned("StatefulSet", "web")
    scene = Simulation(recreate=True).add(node("n1"), node("s", "other"), agreement(), gang())
    scene.add(small(4, "n1", owner=web, grace=1))
    scene.kept.append((pdb(), 3))
    fewest = [9]
    scene.after = lambda _: fewest.append(scene.healthy(pdb()))
    for index in range(60):
        scene.later(index * 0.5, lambda: come_back(scene))
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert len(scene.evictions) == 4
    assert min(fewest) == 3


def come_back(scene: Simulation) -> None:
    for one in [one for one in scene.pods.values() if "-again" in one.metadata.name and not one.spec.node_name]:
        scene.bind(one, "s")


def test_d18_a_budget_that_stays_shut_is_named_and_the_deadline_is_kept() -> None:
    scene = busy(["n1"], each=2).add(gang(deadline="90s"))
    scene.run(5, until=lambda: in_phase(scene, Phase.DRAINING))
    scene.kept.append((pdb(), 2))
    scene.go_on(30)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.DRAINING, Reason.BUDGET)
    assert "under PodDisruptionBudget team-v/web may not go yet: Cannot evict pod" in made.status.message
    scene.run(95)
    assert scene.the_claim().status.phase is Phase.FAILED
    assert scene.the_claim().status.reason == Reason.DEADLINE
    assert scene.evictions == []
    assert scene.marked() == []


def test_d19_a_victim_that_is_never_ready_gets_advice_for_its_budget() -> None:
    crashing = replace(
        small(1, "n1")[0], status=replace(small(1, "n1")[0].status, conditions=(Condition("Ready", "False"),))
    )
    scene = Simulation(timing=QUICK).add(node("n1"), crashing, agreement(), gang())
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(10)
    assert "unhealthyPodEvictionPolicy: AlwaysAllow" in scene.the_claim().status.message


def test_d20_a_preview_writes_nothing_but_its_own_status() -> None:
    scene = busy(["n1", "n2"]).add(members(1), claim(gang=ref(), policy=claim().spec.policy.__class__.PREVIEW))
    scene.run(20)
    assert {type(one) for one in scene.done} == {WriteStatus, CreateClaim}
    assert scene.records == {}
    assert scene.eviction_calls == []


# Ends


def test_d23_d24_a_victim_that_is_made_anew_elsewhere_counts_as_gone_and_its_namesake_is_not_touched() -> None:
    web = owned("StatefulSet", "web")
    scene = Simulation().add(node("n1"), node("n2", cordoned=True), agreement(), gang())
    scene.add(pod("web-0", on="n1", uid="old", owner=web, grace=30))

    def after(action: Action) -> None:
        if isinstance(action, Evict) and "old" in scene.pods:
            del scene.pods["old"]
            scene.bind(pod("web-0", uid="new", owner=web), "n2")

    scene.after = after
    scene.run(20, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert scene.eviction_calls == ["old"]
    assert "new" in scene.pods


def test_d30_nobody_is_stopped_after_the_deadline_has_passed_in_the_middle() -> None:
    scene = busy(["n1"], each=4, timing=QUICK).add(gang(deadline="10s"))
    scene.refusals = {f"team-v.n1-{index}": BUDGET for index in (1, 2, 3)}
    scene.run(10.5)
    assert len(scene.evictions) == 1
    scene.refusals = {}
    calls = len(scene.eviction_calls)
    scene.run(60)
    assert len(scene.eviction_calls) == calls
    assert scene.marked() == []
    assert {one.spec.pod: one.status.outcome for one in scene.records.values()} == {
        "n1-0": Outcome.STOPPED,
        **{f"n1-{index}": Outcome.SPARED for index in (1, 2, 3)},
    }


@pytest.mark.parametrize("how", ["deleted", "deadline"])
def test_d31_a_claim_that_came_to_nothing_never_looks_like_success(how: str) -> None:
    scene = busy(["n1"], each=1).add(gang(deadline="8s"))
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(5)
    if how == "deleted":
        scene.delete("team-b.train-0")
    scene.run(20)
    made = scene.the_claim().status
    assert made.phase is (Phase.ROLLED_BACK if how == "deleted" else Phase.FAILED)
    assert made.reason == (Reason.BENEFICIARY_GONE if how == "deleted" else Reason.DEADLINE)
    conditions = {one.type: one.status for one in made.conditions}
    assert conditions == {"NodesHeld": "False", "Bound": "False", "Failed": "False" if how == "deleted" else "True"}
    assert made.nodes == ()


def test_d32_the_end_of_one_claim_touches_nothing_of_the_next_on_the_same_node() -> None:
    scene = busy(["n1"], each=2).add(gang(1, "first"), gang(1, "second", created=1))
    scene.run(5, until=lambda: bool(scene.evictions))
    first = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "first")
    scene.delete("team-b.first-0")
    scene.run(40, until=lambda: bool(scene.where("second")))
    second = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "second")
    cleared = [one.claim_uid for one in scene.done if isinstance(one, Clear)]
    assert cleared == [first.metadata.uid, second.metadata.uid]
    held = [one.claim_uid for one in scene.done if isinstance(one, Hold)]
    assert held == [first.metadata.uid, second.metadata.uid]


# Who may be stopped, asked again at the moment


@pytest.mark.parametrize(
    ("ident", "now"),
    [
        ("d33 no agreement any more", []),
        ("d34 for somebody else now", [agreement(to=("team-x",))]),
        ("d35 void now", [agreement(select=LabelSelector())]),
        ("d36 not run long enough", [agreement(min_runtime="10m")]),
        ("d37 nothing left", [agreement(budget=Budget(evictions_per_hour=0))]),
        ("d39 above the ceiling", [agreement(max_priority=-1)]),
    ],
)
def test_d33_d34_d35_d36_d37_d39_terms_that_change_protect_at_once(ident: str, now: list[object]) -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(5, until=lambda: in_phase(scene, Phase.DRAINING))
    scene.agreements.clear()
    scene.add(now)
    scene.run(6, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert in_phase(scene, Phase.BLOCKED), ident
    scene.go_on(3)
    assert (scene.evictions, scene.marked()) == ([], []), ident


def test_d42_a_node_the_gang_could_not_start_on_is_not_vacated() -> None:
    scene = Simulation().add(node("n1", cpu="4"), small(1, "n1"), agreement())
    scene.add(pod("train-0", 8, ns="team-b", gang="train", size=1, cpu="64", notes={POLICY: "WaitThenEvict"}))
    scene.run(20)
    assert scene.the_claim().status.reason == Reason.NO_USABLE_NODE
    assert scene.eviction_calls == []
    assert scene.marked() == []


def test_d43_two_claims_and_one_node_that_can_be_drained() -> None:
    scene = busy(["n1"], each=1).add(gang(1, "a"), gang(1, "b", created=1))
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(10)
    waiting = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "b")
    assert "HeldForAnotherClaim" in waiting.status.message
    assert {one.claim_uid for one in scene.done if isinstance(one, Hold)} == {
        one.metadata.uid for one in scene.claims.values() if one is not waiting
    }


# In order of regret


def test_cheap_gangs_go_before_dear_ones_and_those_only_when_the_cheap_ones_are_accepted() -> None:
    """Six single pods on two nodes; the two that have run longest carry more than half of the loss."""
    scene = Simulation().add(node("n1"), node("n2"), agreement(), gang(2))
    ages = {"a": 1000, "b": 900, "c": 30, "d": 20, "e": 10, "f": 5}
    scene.add([pod(name, on=f"n{1 + index % 2}", started=-age) for index, (name, age) in enumerate(ages.items())])
    scene.refusals = {"team-v.d": BUDGET}
    scene.run(8)
    assert [one.name for one in scene.evictions] == ["f", "e", "c", "b"]
    assert "a" not in scene.evicted(), "the dearest is untouched while a cheap one is refused"
    scene.delete("team-b.train-0")
    scene.delete("team-b.train-1")
    scene.run(20)
    assert "a" not in scene.evicted()


def test_pods_under_a_budget_are_asked_for_first_whatever_they_cost() -> None:
    scene = Simulation().add(node("n1"), agreement(), gang())
    scene.add(pod("old", on="n1", started=-1000, labels={"app": "web"}), pod("young", on="n1", started=-5))
    budget = pdb()
    scene.kept.append((replace(budget, spec=BudgetSpec(LabelSelector({"app": "web"}))), 0))
    scene.run(20, until=lambda: all_bound(scene))
    assert [one.name for one in scene.evictions] == ["old", "young"]


# Killed and started again


def play(make: Callable[[], Simulation], kill: Callable[[Action], bool]) -> Simulation:
    """Run to the end, the controller being killed right after the first action that `kill` picks."""
    scene = make()
    left = [True]

    def after(action: Action) -> None:
        if left and kill(action):
            left.pop()
            scene.kill_after = scene.writes + 1

    scene.after = after
    scene.run(60, until=lambda: all_bound(scene))
    scene.go_on(2)
    assert scene.kills == 1
    return scene


def test_c01_killed_after_the_taint_no_second_node_is_taken() -> None:
    scene = play(lambda: busy(["n1", "n2"]).add(gang()), lambda one: isinstance(one, Hold))
    assert len({one.node.metadata.name for one in scene.done if isinstance(one, Hold)}) == 1
    assert all_bound(scene)


def test_c02_killed_around_the_eviction_everybody_is_stopped_and_booked_once() -> None:
    def intention(one: Action) -> bool:
        return isinstance(one, WriteStatus) and bool(one.status.victims)

    for kill in (intention, lambda one: isinstance(one, Evict)):
        scene = play(lambda: busy(["n1"]).add(gang()), kill)
        assert len(scene.evictions) == 3
        assert len(scene.records) == 3
        assert {one.status.outcome for one in scene.records.values()} == {Outcome.STOPPED}
        booked = sum(one.spec.lost_gpu_seconds for one in scene.records.values())
        assert booked == pytest.approx(scene.the_claim().status.lost_gpu_seconds, abs=0.01)


def test_c03_killed_between_ready_and_the_labels_it_is_completed() -> None:
    def ready(one: Action) -> bool:
        return isinstance(one, WriteStatus) and one.status.phase is Phase.READY

    for kill in (ready, lambda one: isinstance(one, Open), lambda one: isinstance(one, Steer)):
        scene = play(lambda: busy(["n1", "n2"], each=1).add(gang(2)), kill)
        assert len(set(scene.where("train"))) == 2
        assert scene.marked() == []


def test_c04_killed_while_rolling_back_no_taint_is_left() -> None:
    scene = busy(["n1", "n2"], each=2).add(gang(2))
    scene.refusals = {f"team-v.n{index}-{other}": BUDGET for index in (1, 2) for other in (0, 1)}
    scene.run(5)
    scene.delete("team-b.train-0")
    scene.delete("team-b.train-1")
    scene.kill_always = True
    scene.go_on(3)
    assert scene.kills > 2
    assert scene.marked() == []
    assert scene.the_claim().status.phase is Phase.ROLLED_BACK


def test_c14_an_answer_about_an_older_claim_of_the_gang_does_not_release_the_new_one() -> None:
    """The gang is made anew under its old name; the old claim ends, the new one keeps its nodes."""
    scene = busy(["n1", "n2"], each=1).add(gang())
    scene.run(30, until=lambda: all_bound(scene))
    old = scene.the_claim()
    scene.delete("team-b.train-0")
    again = gang(1, created=scene.seconds)[0]
    scene.add(replace(again, metadata=replace(again.metadata, uid="second")))
    scene.go_on(40, until=lambda: in_phase(scene, Phase.BOUND) and in_phase(scene, Phase.RELEASED))
    new = max(scene.claims.values(), key=lambda one: one.metadata.creation_timestamp or at(0))
    assert new.metadata.uid != old.metadata.uid
    assert (scene.claims[old.metadata.uid].status.phase, new.status.phase) == (Phase.RELEASED, Phase.BOUND)
