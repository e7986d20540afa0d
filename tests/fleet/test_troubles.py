"""Claims in trouble, in the simulated cluster: refusals, foreign hands, late arrivals, nodes that vanish."""

from collections.abc import Callable
from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import Action, Answer, Clear, EvictionAnswer, Hold, Open, Timing, WriteStatus
from fleet.agreements import Consent
from fleet.lifecycle import decide
from fleet.names import CLAIM_KEY, POLICY
from fleet.objects import Taint
from fleet.reasons import Reason
from fleet.resources import HeldNode, Phase, PhaseTime
from tests.fleet.builders import agreement, at, claim, job, members, node, owned, pod, view
from tests.fleet.scenes import EVICT, GATED, all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace

QUICK = changed(Timing(), drain_timeout=timedelta(seconds=20), landing_timeout=timedelta(seconds=15))
BUDGET = Answer(EvictionAnswer.BUDGET, "Cannot evict pod as it would violate the pod's disruption budget web")
REFUSED = Answer(EvictionAnswer.REFUSED, 'pods "n1-0" is forbidden: not allowed by webhook')


def draining(scene: Simulation) -> bool:
    return in_phase(scene, Phase.DRAINING)


def once(kind: type[Action], happen: Callable[[], object]) -> Callable[[Action], None]:
    """Have something happen right after the controller's first action of a kind."""
    left = [happen]

    def after(action: Action) -> None:
        if isinstance(action, kind) and left:
            left.pop()()

    return after


def evicting(scene: Simulation) -> bool:
    return bool(scene.evictions)


def test_d01_a_victim_that_cannot_be_evicted_gives_the_node_back_and_nobody_is_stopped_afterwards() -> None:
    scene = busy(["n1"], timing=QUICK).add(gang(deadline="40s"))
    scene.refusals = {"team-v.n1-0": BUDGET, "team-v.n1-1": BUDGET, "team-v.n1-2": BUDGET}
    before = scene.nodes["n1"]
    scene.run(10)
    assert scene.the_claim().status.reason == Reason.BUDGET
    assert "budget web" in scene.the_claim().status.message
    scene.run(30)
    assert scene.the_claim().status.phase in {Phase.BLOCKED, Phase.PENDING}
    assert (scene.the_claim().status.nodes, scene.the_claim().status.node_names) == ((), "")
    assert scene.nodes["n1"] == before
    scene.run(39)
    calls = len(scene.eviction_calls)
    scene.run(100)
    assert len(scene.eviction_calls) == calls
    assert scene.the_claim().status.phase is Phase.FAILED
    assert scene.the_claim().status.victims == (), "nobody was stopped, so nobody is counted"
    assert scene.the_claim().status.lost_gpu_seconds == 0
    assert scene.nodes["n1"] == before


def test_d22_a_refused_eviction_takes_another_node_and_says_why() -> None:
    scene = busy(["n1", "n2"], each=2).add(gang())
    scene.refusals = {"team-v.n1-0": REFUSED, "team-v.n1-1": REFUSED}
    said: list[str] = []
    scene.run(60, until=lambda: said.append(scene.the_claim().status.message) or all_bound(scene))
    assert any("not allowed by webhook" in text for text in said)
    assert scene.where("train") == ["n2"]
    assert scene.where("n1-") == ["n1", "n1"]
    assert scene.marked() == []


def test_d02_a_cordon_of_the_administrator_rules_a_node_out() -> None:
    scene = busy(["n1", "n2"], each=2).add(gang())
    scene.change_node("n1", unschedulable=True)
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]
    assert scene.nodes["n1"].spec.unschedulable is True


def test_d02_a_cordon_during_the_drain_ends_it_and_stays() -> None:
    scene = busy(["n1"]).add(gang())
    scene.later(1.0, lambda: scene.change_node("n1", unschedulable=True))
    scene.run(30)
    assert scene.the_claim().status.phase in {Phase.BLOCKED, Phase.PENDING}
    assert scene.nodes["n1"].spec.unschedulable is True
    assert scene.marked() == []


def test_d03_our_taint_taken_off_by_hand_is_not_put_on_again() -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.refusals = {"team-v.n1-2": BUDGET}
    scene.run(10, until=lambda: evicting(scene))
    assert scene.marked() == ["n1"]
    scene.change_node("n1", taints=None)
    held = sum(isinstance(one, Hold) for one in scene.done)
    before, calls = scene.now, len(scene.eviction_calls)
    scene.run(20, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert (scene.now - before).total_seconds() < 2
    assert scene.the_claim().status.reason == Reason.TAINT_REMOVED
    scene.run(60)
    assert sum(isinstance(one, Hold) for one in scene.done) == held
    assert len(scene.eviction_calls) == calls


def test_d04_other_taints_and_labels_stay_in_their_order() -> None:
    taints = tuple(Taint(key, "PreferNoSchedule") for key in ("c", "a", "b"))
    scene = Simulation().add(node("n1", taints=taints, labels={"rack": "r1"}), small(2, "n1"), agreement(), gang())
    before = scene.nodes["n1"]
    scene.run(60, until=lambda: all_bound(scene))
    scene.run(90)
    assert scene.nodes["n1"].spec == before.spec
    scene.delete("team-b.train-0")
    scene.run(120)
    assert scene.nodes["n1"] == before, "with the gang the label goes too"


def test_d06_a_claim_deleted_while_draining_stops_nobody_any_more() -> None:
    scene = busy(["n1"], each=3).add(gang(notes={POLICY: "Wait"}))
    scene.run(2)
    made = scene.the_claim()
    scene.claims[made.metadata.uid] = replace(
        made, spec=replace(made.spec, policy=made.spec.policy.__class__.WAIT_THEN_EVICT)
    )
    scene.refusals = {"team-v.n1-1": BUDGET, "team-v.n1-2": BUDGET}
    scene.run(30, until=lambda: evicting(scene))
    del scene.claims[made.metadata.uid]
    scene.refusals = {}
    scene.run(60)
    assert scene.evicted() == ["n1-0"]
    assert scene.marked() == []
    assert scene.the_claim().metadata.uid != made.metadata.uid, "the gang still waits, by a claim of its own policy"
    assert scene.the_claim().status.phase is Phase.PENDING


def test_d07_the_gang_deleted_after_three_of_seven_leaves_four_running() -> None:
    scene = busy(["n1"], each=7).add(gang())
    scene.refusals = {f"team-v.n1-{index}": BUDGET for index in range(3, 7)}
    scene.run(30, until=lambda: len(scene.evictions) == 3)
    scene.delete("team-b.train-0")
    scene.refusals = {}
    scene.run(40)
    assert scene.evicted() == ["n1-0", "n1-1", "n1-2"]
    assert scene.where("n1-") == ["n1"] * 4
    assert scene.marked() == []
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.ROLLED_BACK, Reason.BENEFICIARY_GONE)
    assert [one.name for one in made.status.victims] == ["n1-0", "n1-1", "n1-2"], "only the stopped ones are counted"


def test_a_suspended_job_gives_its_node_back() -> None:
    owner = owned("Job", "train")
    member = pod("train-0", 8, ns="team-b", owner=owner, notes=EVICT, gates=GATED)
    scene = busy(["n1"]).add(job("train", parallelism=1), member)
    scene.run(30, until=lambda: evicting(scene))
    scene.delete(member.metadata.uid)
    scene.run(32)
    assert in_phase(scene, Phase.DRAINING) or in_phase(scene, Phase.PROVING_EMPTY), "the Job may make its pod again"
    scene.add(job("train", parallelism=1, suspend=True))
    scene.run(40)
    assert scene.the_claim().status.reason == Reason.BENEFICIARY_GONE
    assert scene.marked() == []


def test_d08_marks_without_a_claim_are_cleaned_and_only_ours() -> None:
    foreign = Taint("example.com/maintenance", "NoSchedule", "x")
    scene = Simulation().add(node("n1", taints=(Taint(CLAIM_KEY, "NoSchedule", "nobody"), foreign)))
    scene.add(node("n2", labels={CLAIM_KEY: "nobody"}))
    scene.run(2)
    assert scene.marked() == []
    assert scene.nodes["n1"].spec.taints == (foreign,)
    assert [type(one) for one in scene.done] == [Clear, Clear]


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.1, 1.7, 2.3, 2.9, 3.4])
def test_d09_an_agreed_pod_that_slips_in_is_stopped_too(after: float) -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(10, until=scene.marked)
    late_at = scene.seconds + after
    scene.later(late_at, lambda: scene.bind(pod("late", created=late_at), "n1"))
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert "late" in scene.evicted()
    proved = scene.the_claim().status.nodes[0].proved_empty_at
    assert proved is not None
    names = {one.name for one in scene.the_claim().status.victims}
    assert names == {"n1-0", "n1-1", "late"}


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.1, 1.7, 2.3, 2.9])
def test_d09_a_protected_pod_that_slips_in_gives_the_node_back(after: float) -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(10, until=scene.marked)
    late_at = scene.seconds + after
    scene.later(late_at, lambda: scene.bind(pod("late", ns="team-w", created=late_at), "n1"))
    scene.run(30)
    made = scene.the_claim()
    assert made.status.phase in {Phase.BLOCKED, Phase.PENDING}
    assert "late" not in scene.evicted()
    assert scene.where("late") == ["n1"]
    assert scene.marked() == []


def test_a_pod_that_slips_in_and_would_come_straight_back_gives_the_node_back() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.later(0.3, lambda: scene.bind(pod("agent", owner=owned("DaemonSet", "agent")), "n1"))
    scene.run(10, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert scene.the_claim().status.reason == Reason.PROTECTED_POD
    assert scene.eviction_calls == []


def test_a_stranger_on_an_open_node_is_stopped_before_the_gang_lands() -> None:
    scene = busy(["n1", "n2"], each=1).add(gang(2))
    scene.after = once(Open, lambda: scene.bind(pod("late"), "n1"))
    scene.run(60, until=lambda: all_bound(scene))
    assert "late" in scene.evicted()
    assert scene.where("train") == ["n1", "n2"]


def test_an_agreement_withdrawn_during_the_drain_protects_at_once() -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.run(10, until=lambda: draining(scene))
    scene.agreements.clear()
    scene.run(10, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert scene.the_claim().status.reason == Reason.PROTECTED_POD
    assert str(Consent.MISSING) in scene.the_claim().status.message
    scene.run(30)
    assert scene.evictions == []
    assert scene.marked() == []


def test_an_agreement_that_expires_during_the_drain_protects_at_once() -> None:
    scene = Simulation().add(node("n1"), small(3, "n1"), agreement(expires=0.3), gang())
    scene.run(30)
    assert scene.eviction_calls == []
    assert scene.marked() == []


def test_d21_d25_a_finalizer_is_named_and_never_removed() -> None:
    scene = busy(["n1"], each=1, timing=QUICK).add(gang(deadline="60s"))
    scene.add(small(1, "n1", prefix="stuck", finalizers=("example.com/upload",)))
    scene.run(12)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.DRAINING, Reason.TERMINATING)
    assert "example.com/upload" in made.status.message
    scene.run(59)
    assert scene.marked() == []
    scene.run(70)
    assert scene.the_claim().status.phase is Phase.FAILED
    assert scene.pods["team-v.stuck-0"].metadata.finalizers == ("example.com/upload",)
    assert scene.eviction_calls.count("team-v.stuck-0") == 1


def test_d13_the_replacement_of_a_victim_never_lands_on_the_held_node() -> None:
    scene = Simulation(recreate=True).add(
        node("n1"), small(3, "n1", owner=owned("ReplicaSet", "web")), agreement(), gang()
    )
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert len(scene.evictions) == 3
    assert len([one for one in scene.pods.values() if "-again" in one.metadata.name and not one.spec.node_name]) == 3


def test_d26_d12_pods_that_come_straight_back_rule_the_node_out() -> None:
    scene = Simulation().add(node("n1"), agreement(), gang())
    scene.add(pod("agent", on="n1", owner=owned("DaemonSet", "agent")))
    scene.run(10)
    assert scene.the_claim().status.reason == Reason.UNEVICTABLE
    assert scene.marked() == []


def test_d27_d28_cpu_pods_and_failed_pods_are_left_alone() -> None:
    scene = busy(["n1"], each=1).add(gang())
    scene.add(pod("web", 0, on="n1", ns="team-w"), pod("dead", 8, on="n1", ns="team-w", phase="Failed"))
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.evicted() == ["n1-0"]
    assert "team-w.web" in scene.pods


def test_d29_nodes_are_not_tainted_for_ever_when_one_of_them_cannot_be() -> None:
    phases = (PhaseTime(Phase.CORDONING, at(0)),)
    stuck = claim(nodes=2, phase=Phase.CORDONING, held=[HeldNode("n1", "node-n1"), HeldNode("n2", "node-n2")])
    stuck = replace(stuck, status=replace(stuck.status, phases=phases))
    taint = Taint(CLAIM_KEY, "NoSchedule", stuck.metadata.uid)
    seen = view(node("n1", taints=(taint,)), node("n2"), members(2), stuck)
    early = decide(seen, {}, {}, at(599), Timing()).actions
    assert [type(one) for one in early] == [Hold]
    late = decide(seen, {}, {}, at(600), Timing()).actions
    assert [one.status.reason for one in late if isinstance(one, WriteStatus)] == [Reason.DRAIN_TIMED_OUT]


def test_a_gang_that_lost_a_member_during_the_drain_opens_nothing() -> None:
    scene = busy(["n1", "n2"], each=1, timing=QUICK).add(gang(2))
    scene.run(10, until=lambda: evicting(scene))
    scene.delete("team-b.train-1")
    scene.run(15)
    assert scene.where("train") == []
    assert scene.the_claim().status.reason == Reason.GANG_INCOMPLETE
    assert {type(one) for one in scene.done} & {Open} == set()
    scene.run(60)
    assert scene.where("train") == []


def test_a_gang_that_lost_a_member_when_its_nodes_opened_starts_nothing() -> None:
    scene = busy(["n1", "n2"], each=1, timing=QUICK).add(gang(2))
    scene.after = once(Open, lambda: scene.delete("team-b.train-1"))
    scene.run(60)
    assert scene.where("train") == []
    assert scene.marked() == []


def test_a_node_where_a_member_of_the_same_gang_runs_is_not_taken_for_another() -> None:
    scene = Simulation().add(node("n1"), node("n2"), agreement(ns="team-b"), gang(2))
    scene.run(20, until=lambda: all_bound(scene))
    scene.end("team-b.train-1", "Failed")
    again = gang(2, created=21)[1]
    scene.add(replace(again, metadata=replace(again.metadata, name="train-1b", uid="team-b.train-1b")))
    scene.add(small(1, scene.where("train-1")[0] if scene.where("train-1") else "n2"))
    scene.change_node("n2", unschedulable=True)
    scene.run(60)
    assert scene.eviction_calls == []
    assert scene.where("train-1b") == []
    waiting = next(one for one in scene.claims.values() if one.status.phase is Phase.PENDING)
    assert "OwnGangRunsThere" in waiting.status.message


def test_a_member_that_is_going_holds_its_node_until_it_is_gone() -> None:
    scene = Simulation().add(node("n1"), agreement(), gang())
    scene.run(20, until=lambda: all_bound(scene))
    scene.pods["team-b.train-0"] = replace(
        scene.pods["team-b.train-0"],
        spec=replace(scene.pods["team-b.train-0"].spec, termination_grace_period_seconds=30),
    )
    gone_at = scene.now + timedelta(seconds=30)
    scene.delete("team-b.train-0")
    again = gang(1)[0]
    scene.add(replace(again, metadata=replace(again.metadata, name="train-0b", uid="team-b.train-0b")))
    scene.run(80, until=lambda: scene.where("train-0b"))
    second = next(one for one in scene.claims.values() if one.status.phase is not Phase.RELEASED)
    proved = second.status.nodes[0].proved_empty_at
    assert proved is not None
    assert proved >= gone_at
