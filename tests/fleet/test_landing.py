"""The last stretch: gangs that land in part, restart a member, fail to start, or have no whole node to wait for."""

from collections.abc import Callable
from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import CreateClaim, Evict, Look, Open, Poke, Steer, Timing
from fleet.lifecycle import decide
from fleet.marks import taint
from fleet.names import CLAIM_KEY, JOB_COMPLETION_INDEX, POKE
from fleet.objects import Condition, Node, Pod, Toleration
from fleet.reasons import Reason
from fleet.resources import HeldNode, Phase, PhaseTime, WholeNodeClaim
from tests.fleet.builders import agreement, at, claim, job, members, node, owned, pod, view
from tests.fleet.scenes import EVICT, GATED, all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace

QUICK = changed(Timing(), landing_timeout=timedelta(seconds=15), avoid_for=timedelta(seconds=5))
Refuse = Callable[[Simulation, Pod], bool]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Refuse], None]:
    """Have kube-scheduler refuse some pods everywhere."""
    fits = Simulation._fits

    def install(refused: Refuse) -> None:
        def fits_now(scene: Simulation, one: Pod, on: Node) -> bool:
            return not refused(scene, one) and fits(scene, one, on)

        monkeypatch.setattr(Simulation, "_fits", fits_now)

    return install


def again(scene: Simulation, index: int, size: int, name: str) -> None:
    """The owner makes a member anew."""
    made = gang(size, created=scene.seconds)[index]
    scene.add(replace(made, metadata=replace(made.metadata, name=name, uid=f"team-b.{name}")))


def latest(scene: Simulation) -> WholeNodeClaim:
    return max(scene.claims.values(), key=lambda one: (one.metadata.creation_timestamp or at(0), one.metadata.name))


def test_g13_a_member_that_can_never_be_bound_ends_the_claim_after_some_tries(
    refuse: Callable[[Refuse], None],
) -> None:
    refuse(lambda _, one: one.metadata.name == "train-1")
    scene = busy(["n1", "n2", "n3", "n4"], each=2, timing=QUICK).add(gang(2))
    scene.run(20)
    stuck = next(one for one in scene.pods.values() if one.metadata.name == "train-1")
    said = Condition("PodScheduled", "False", "SchedulerError", "admission denied the binding: not on a Sunday")
    scene.add(replace(stuck, status=replace(stuck.status, conditions=(said,))))
    scene.run(300)
    made = scene.the_claim()
    assert "of pod train-1 the scheduler says: admission denied the binding: not on a Sunday" in made.status.message
    assert (made.status.phase, made.status.reason) == (Phase.FAILED, Reason.LANDING_TIMED_OUT)
    assert scene.phases().count("Landing") == QUICK.landing_tries
    assert len(scene.evictions) == 4, "no more victims than for the two nodes it asked for"
    assert scene.marked() == []


def test_after_a_partial_landing_only_the_rest_needs_a_node(refuse: Callable[[Refuse], None]) -> None:
    refuse(lambda scene, one: one.metadata.name == "train-1" and scene.seconds < 25)
    scene = Simulation(timing=QUICK).add([node(f"n{index}") for index in range(4)], agreement(), gang(2))
    scene.run(60, until=lambda: all_bound(scene))
    assert len(set(scene.where("train"))) == 2
    assert len(scene.the_claim().status.nodes) == 1
    assert Reason.LANDING_TIMED_OUT in {one.status.reason for one in scene.done if hasattr(one, "status")}


def test_two_recreated_members_land_together(refuse: Callable[[Refuse], None]) -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(6)], gang(4))
    scene.run(20, until=lambda: all_bound(scene))
    for index in (2, 3):
        scene.end(f"team-b.train-{index}", "Failed")
        again(scene, index, 4, f"train-{index}b")
    scene.go_on(20)
    assert len(set(scene.where("train"))) == 4
    assert (latest(scene).status.phase, len(latest(scene).status.nodes)) == (Phase.BOUND, 2)


def test_a_gang_that_grows_while_it_waits_gets_all_its_nodes() -> None:
    """Named gangs may leave their size out; then their pods come one by one."""
    scene = Simulation().add([node(f"n{index}") for index in range(4)])
    for index in range(3):
        one = pod(f"train-{index}", 8, ns="team-b", gang="train", gates=GATED, created=index * 0.1)
        scene.later(index * 0.1, lambda one=one: scene.add(one))
    scene.run(60)
    assert len(set(scene.where("train"))) == 3


def test_no_pod_is_sent_to_a_claim_that_has_no_node_for_it() -> None:
    scene = Simulation().add(node("n1"), node("n2"), gang(1, size=None))
    extra = gang(2, size=None)[1]
    scene.after = lambda action: scene.add(extra) if isinstance(action, Open) else None
    scene.run(60)
    pinned = (scene.pods[extra.metadata.uid].spec.node_selector or {}).get(CLAIM_KEY)
    assert pinned is None or pinned in {one.metadata.uid for one in scene.claims.values() if one.status.nodes}
    assert len(set(scene.where("train"))) == 2


def test_g04_the_last_member_of_a_job_is_restarted_alone() -> None:
    owner = owned("Job", "t", "job-t")

    def member(index: int, name: str = "") -> Pod:
        notes = {**EVICT, JOB_COMPLETION_INDEX: str(index)}
        return pod(name or f"t-{index}", 8, ns="team-b", owner=owner, notes=notes, gates=GATED)

    scene = Simulation().add([node(f"n{index}") for index in range(4)], [member(index) for index in range(4)])
    scene.add(job("t", parallelism=4, completions=4, uid="job-t"))
    scene.run(20, until=lambda: all_bound(scene))
    for index in range(3):
        scene.end(f"team-b.t-{index}")
    scene.end("team-b.t-3", "Failed")
    scene.add(job("t", parallelism=4, completions=4, succeeded=3, uid="job-t"), member(3, "t-3b"))
    scene.go_on(20)
    assert scene.where("t-3b")
    assert len(latest(scene).status.nodes) == 1


def test_ended_pods_of_an_earlier_run_do_not_stand_for_members_of_this_one() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(3)], gang(3))
    scene.run(20, until=lambda: all_bound(scene))
    for index in range(3):
        scene.end(f"team-b.train-{index}")
    scene.go_on(2)
    again(scene, 0, 3, "second-0")
    scene.go_on(20)
    assert scene.where("second") == []
    assert latest(scene).status.reason == Reason.GANG_INCOMPLETE


def test_a_member_that_is_done_before_the_others_land_has_landed(refuse: Callable[[Refuse], None]) -> None:
    refuse(lambda scene, one: one.metadata.name != "train-0" and scene.seconds < 8)
    scene = Simulation().add([node(f"n{index}") for index in range(3)], gang(3))
    scene.later(6, lambda: scene.end("team-b.train-0"))
    scene.run(15)
    assert len(scene.where("train")) == 2
    assert scene.the_claim().status.phase is Phase.BOUND
    assert scene.marked() == []


def test_n06_a_pod_that_the_kubelet_refuses_is_placed_but_not_started() -> None:
    scene = Simulation().add(node("n1"), gang())

    def kubelet(_: object) -> None:
        one = scene.pods["team-b.train-0"]
        if one.spec.node_name and one.status.phase == "Running":
            status = replace(one.status, phase="Failed", reason="UnexpectedAdmissionError", message="no cards")
            scene.pods["team-b.train-0"] = replace(one, status=status)

    schedule = scene._schedule
    scene._schedule = lambda: (schedule(), kubelet(None))[0]  # type: ignore[method-assign, func-returns-value]
    scene.run(20)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.FAILED, Reason.START_FAILED)
    assert "UnexpectedAdmissionError: no cards" in made.status.message
    assert scene.marked() == []


def test_a_pod_pinned_to_a_deleted_claim_says_so_and_costs_nobody_anything() -> None:
    pinned = gang(gates=(), selector={CLAIM_KEY: "a claim that is gone"})
    scene = busy(["n1"]).add(pinned)
    scene.run(20)
    assert scene.the_claim().status.reason == Reason.PINNED
    assert "train-0" in scene.the_claim().status.message
    assert scene.eviction_calls == []


def test_a_gate_without_a_pool_behind_it_is_lifted() -> None:
    scene = Simulation(pools=[]).add(node("n1"), gang(), pod("cpu", 0, gates=GATED), pod("one", 1, gates=(*GATED, "x")))
    scene.run(2)
    left = {one.metadata.name: one.spec.scheduling_gates for one in scene.pods.values()}
    assert left["train-0"] is None
    assert left["cpu"] is None
    assert [gate.name for gate in left["one"] or ()] == ["x"]


def test_the_gate_of_a_whole_node_pod_stays_until_its_nodes_are_open() -> None:
    scene = Simulation().add(node("n1", cordoned=True), gang())
    scene.run(5)
    assert scene.pods["team-b.train-0"].spec.scheduling_gates is not None


def test_e18_a_steered_pod_is_poked_until_it_is_bound(refuse: Callable[[Refuse], None]) -> None:
    refuse(lambda scene, one: one.metadata.annotation(POKE) is None)
    scene = Simulation().add(node("n1"), gang())
    scene.run(20, until=lambda: all_bound(scene))
    landing = next(one.at for one in scene.the_claim().status.phases if one.phase is Phase.LANDING)
    assert (scene.now - landing).total_seconds() < 5
    assert sum(isinstance(one, Poke) for one in scene.done) == 1


def test_pokes_become_rare(refuse: Callable[[Refuse], None]) -> None:
    refuse(lambda _, one: one.metadata.name == "train-0")
    scene = Simulation().add(node("n1"), gang())
    scene.run(60)
    pokes = [one.at for one in scene.done if isinstance(one, Poke)]
    assert 10 < len(pokes) < 30
    assert (pokes[-1] - pokes[-2]).total_seconds() >= 5
    assert sum(isinstance(one, Steer) for one in scene.done) == 1, "steered once"


def test_a_gang_stopped_on_two_nodes_is_lost_once() -> None:
    spread = [pod(f"v-{index}", on=f"n{index + 1}", gang="v", size=3, grace=2) for index in range(2)]
    scene = busy(["n1", "n2"], each=0).add(spread, gang(2))
    scene.later(1.2, lambda: scene.bind(pod("v-2", gang="v", size=3, created=1.2, grace=1), "n1"))
    scene.run(60, until=lambda: all_bound(scene))
    victims = scene.the_claim().status.victims
    assert len(victims) == 3
    done = max(one.evicted_at or scene.now for one in victims) - at(0)
    assert 0 < sum(one.lost_gpu_seconds for one in victims) <= 3 * done.total_seconds() + 0.01
    plan = scene.the_claim().status.plan
    assert plan is not None
    assert plan.victim_count == 2
    assert plan.lost_gpu_seconds == pytest.approx(0, abs=0.1), "2 cards for the moment they had run"


def test_a_gang_stopped_in_two_tries_is_lost_twice() -> None:
    owner = owned("Job", "v", "job-v")

    def victim(name: str) -> Pod:
        notes = {JOB_COMPLETION_INDEX: "0"}
        return pod(name, 8, owner=owner, notes=notes, grace=0, created=scene.seconds)

    scene = Simulation(timing=QUICK).add(node("n1"), agreement(), job("v", ns="team-v", parallelism=1, uid="job-v"))
    scene.bind(victim("v-a"), "n1")
    scene.add(gang())
    scene.run(10, until=lambda: scene.evictions)
    scene.bind(pod("protected", ns="team-w"), "n1")
    scene.run(10, until=lambda: in_phase(scene, Phase.BLOCKED))
    del scene.pods["team-w.protected"]
    scene.bind(victim("v-b"), "n1")
    scene.run(60, until=lambda: all_bound(scene))
    lost = {one.name: one.lost_gpu_seconds for one in scene.the_claim().status.victims}
    assert lost["v-b"] > 0
    assert scene.the_claim().status.lost_gpu_seconds == pytest.approx(sum(lost.values()))


def test_a_landing_that_times_out_gives_the_nodes_to_others(refuse: Callable[[Refuse], None]) -> None:
    refuse(lambda _, one: one.metadata.name == "train-0")
    scene = Simulation(timing=QUICK).add(node("n1"), gang(), agreement(), small(0, "n1"))
    scene.run(18)
    assert in_phase(scene, Phase.BLOCKED)
    assert scene.marked() == []
    assert not [one for one in scene.done if isinstance(one, Evict)]


def test_a_protected_pod_put_by_hand_onto_an_open_node_does_not_leave_half_a_gang(
    refuse: Callable[[Refuse], None],
) -> None:
    waits = {"train-1"}
    refuse(lambda _, one: one.metadata.name in waits)
    scene = Simulation().add(node("n1"), node("n2"), gang(2))
    scene.run(20, until=lambda: scene.where("train-0") == ["n1"])
    by_hand = pod("by-hand", 1, ns="team-x")
    scene.add(by_hand).bind(by_hand, "n2")
    scene.run(10)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.LANDING, Reason.PROTECTED_POD)
    assert "team-x/by-hand" in made.status.message
    assert scene.marked() == ["n1", "n2"]
    scene.delete(by_hand.metadata.uid)
    waits.clear()
    scene.run(20, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1", "n2"]


def test_a_protected_pod_put_by_hand_before_anybody_landed_gives_all_nodes_back(
    refuse: Callable[[Refuse], None],
) -> None:
    refuse(lambda _, one: one.metadata.name.startswith("train"))
    scene = Simulation().add(node("n1"), node("n2"), gang(2))
    scene.run(20, until=lambda: in_phase(scene, Phase.LANDING))
    by_hand = pod("by-hand", 1, ns="team-x")
    scene.add(by_hand).bind(by_hand, "n2")
    scene.run(5)
    assert (scene.the_claim().status.phase, scene.marked()) == (Phase.BLOCKED, [])


def test_no_member_is_sent_before_all_nodes_are_open() -> None:
    held = [HeldNode(name, f"node-{name}", at(0), at(3)) for name in ("n1", "n2")]
    ready = claim(nodes=2, phase=Phase.READY, held=held)
    uid = ready.metadata.uid
    seen = view(
        node("n1", taints=(taint(uid),), labels={CLAIM_KEY: uid}), node("n2", taints=(taint(uid),)), members(2), ready
    )
    actions = decide(seen, {}, {}, at(4), Timing()).actions
    assert [(type(one), one.node.metadata.name) for one in actions if isinstance(one, Open)] == [(Open, "n2")]
    assert len(actions) == 1, "the next phase is not written before every node was seen open"


@pytest.mark.parametrize("there", [True, False])
def test_no_member_is_sent_while_a_stranger_is_still_going(there: bool) -> None:
    landing = claim(phase=Phase.LANDING, held=[HeldNode("n1", "node-n1", at(0), at(3))])
    uid = landing.metadata.uid
    stranger = [pod("late", on="n1", going=9)] if there else []
    seen = view(node("n1", taints=(taint(uid),), labels={CLAIM_KEY: uid}), stranger, members(1), landing)
    looks = {"n1": Look(at(4), tuple(stranger))}
    actions = decide(seen, looks, {}, at(4.1), Timing()).actions
    assert [type(one) for one in actions] == ([] if there else [Steer])


def test_a_member_that_was_sent_keeps_its_place() -> None:
    held = [HeldNode("n1", "node-n1", at(0), at(3))]
    landing = claim(phase=Phase.LANDING, held=held, phases=(PhaseTime(Phase.LANDING, at(3)),))
    uid = landing.metadata.uid
    sent = pod("b", 8, ns="team-b", gang="train", created=1, tolerations=(Toleration(CLAIM_KEY, "Equal", uid),))
    other = pod("a", 8, ns="team-b", gang="train")
    seen = view(node("n1", taints=(taint(uid),), labels={CLAIM_KEY: uid}), sent, other, landing)
    assert decide(seen, {"n1": Look(at(4), ())}, {}, at(4.1), Timing()).actions == [Poke(sent, at(4.1))]


def test_a_launcher_with_one_card_in_the_gang_takes_no_node_and_none_is_vacated_for_it() -> None:
    """The usual shape of MPI and Ray jobs: workers that need whole nodes, and a head that does not."""
    head = pod("head", 1, ns="team-b", gang="mpi", size=3)
    seen = view(node("n1"), node("n2"), node("n3"), members(2, gang="mpi", size=3), head)
    (made,) = [one for one in decide(seen, {}, {}, at(0), Timing()).actions if isinstance(one, CreateClaim)]
    assert made.spec.nodes == 2


def test_a_gang_that_grows_while_its_nodes_are_vacated_still_starts_whole() -> None:
    """Pods of a gang without a declared size come one after the other: none starts before the last ones have nodes."""
    scene = busy(["n1", "n2", "n3"], each=2, timing=QUICK)
    first, second = gang(2, "late", size=None)
    scene.add(first)
    scene.run(3)
    scene.add(second)
    scene.run(60)
    bound = [one for one in scene.pods.values() if one.metadata.namespace == "team-b" and one.spec.node_name]
    assert len(bound) == 2
    assert [one.status.phase for one in scene.claims.values()] == [Phase.BOUND]


@pytest.mark.parametrize("deadline_seconds", range(3, 12))
def test_g06_a_deadline_between_two_bindings_does_not_leave_part_of_a_gang(
    deadline_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind, bound_at = Simulation.bind, [-99.0]

    def slowly(scene: Simulation, one: Pod, where: str) -> None:
        """One binding every two seconds."""
        if scene.seconds - bound_at[-1] >= 2:
            bound_at.append(scene.seconds)
            bind(scene, one, where)

    monkeypatch.setattr(Simulation, "bind", slowly)
    scene = Simulation().add(*(node(f"n{index}") for index in range(3)))
    scene.add(gang(3, deadline=f"{deadline_seconds}s"))
    scene.run(60)
    assert len(scene.where("train")) in {0, 3}


def test_h16_while_nothing_can_be_scheduled_a_claim_tries_its_free_node_again_and_stops_nobody(
    refuse: Callable[[Refuse], None],
) -> None:
    """HAMi's extender is down, say: the next node is no better, whoever would have to be stopped for it."""
    refuse(lambda *_: True)
    scene = busy(["n1", "n2"], each=2, timing=QUICK).add(node("n0"), gang(1))
    scene.run(300)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.FAILED, Reason.LANDING_TIMED_OUT)
    assert scene.phases().count("Landing") == QUICK.landing_tries
    assert scene.evictions == []
