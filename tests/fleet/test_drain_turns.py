"""Drains broken off, put off or never begun: free nodes, pods that return, limits, soft vacates, bad starts."""

from collections.abc import Callable
from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import Action, Answer, Evict, EvictionAnswer, Hold, Timing
from fleet.cards import terminating
from fleet.names import EXPECTED_RUN
from fleet.reasons import Reason
from fleet.resources import HeldNode, Phase, PhaseTime, WholeNodeClaim
from tests.fleet.builders import agreement, at, claim, members, node, owned, pod
from tests.fleet.scenes import all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace

BUDGET = Answer(EvictionAnswer.BUDGET, "not now")


def held_nodes(scene: Simulation) -> list[str]:
    return [one.node.metadata.name for one in scene.done if isinstance(one, Hold)]


def reasons(scene: Simulation) -> set[str]:
    """Every reason that any claim ever gave."""
    return {one.status.reason for one in scene.done if hasattr(one, "status")}


# N10: a free node makes a drain needless


def test_n10_a_free_node_ends_a_drain_that_has_stopped_nobody() -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.run(5, until=lambda: in_phase(scene, Phase.DRAINING))
    scene.add(node("n2"))
    joined = scene.now
    scene.run(20, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]
    assert (scene.now - joined).total_seconds() < 5
    assert scene.evictions == []
    assert Reason.FREE_NODE in reasons(scene)
    scene.go_on(1)
    assert scene.marked() == []
    assert scene.the_claim().status.victims == ()


def test_n10_a_drain_that_is_refused_everybody_changes_over_too() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.refusals = {"team-v.n1-0": BUDGET, "team-v.n1-1": BUDGET}
    scene.run(10)
    assert scene.the_claim().status.victims != ()
    scene.add(node("n2"))
    scene.run(30, until=lambda: all_bound(scene))
    scene.go_on(2)
    assert scene.where("train") == ["n2"]
    assert scene.the_claim().status.victims == ()
    assert {str(one.status.outcome) for one in scene.records.values()} == {"Spared"}


def test_n10_once_somebody_was_stopped_the_drain_goes_on() -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.refusals = {"team-v.n1-2": BUDGET}
    scene.run(5, until=lambda: bool(scene.evictions))
    scene.add(node("n0"))
    scene.go_on(3)
    scene.refusals = {}
    scene.run(40, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]


def test_n10_one_free_node_is_not_enough_for_a_gang_of_two() -> None:
    scene = busy(["n1", "n2"], each=2).add(gang(2))
    scene.refusals = {f"team-v.n{index}-{other}": BUDGET for index in (1, 2) for other in (0, 1)}
    scene.run(6)
    scene.add(node("n3"))
    scene.run(12)
    assert held_nodes(scene) == ["n1", "n2"]
    scene.add(node("n4"))
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n3", "n4"]


def test_n10_a_node_it_has_emptied_already_is_kept() -> None:
    """Of two nodes one has become empty by itself: only the other one is exchanged."""
    scene = busy(["n1", "n2"], each=1).add(gang(2))
    scene.refusals = {"team-v.n1-0": BUDGET, "team-v.n2-0": BUDGET}
    scene.run(5)
    scene.end("team-v.n1-0")
    scene.run(6)
    scene.add(node("n3"))
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1", "n3"]
    assert scene.evictions == []


def test_n10_a_node_the_gang_cannot_use_changes_nothing() -> None:
    scene = busy(["n1"], each=1).add(gang())
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(5)
    scene.add(node("n2", cordoned=True), node("n3", cards=4), node("n4", ready=False))
    scene.run(10)
    assert held_nodes(scene) == ["n1"]
    assert in_phase(scene, Phase.DRAINING)


# D11: pods that return


def returning(scene: Simulation, **more: object) -> None:
    """A controller that puts its pod on n1 by name, and another one as soon as that is on its way out."""
    made = [0]

    def again() -> None:
        pinned = [one for one in scene.pods.values() if one.metadata.name.startswith("pinned")]
        running = [one for one in pinned if not terminating(one)]
        if not running:
            made[0] += 1
            one = pod(
                f"pinned-{made[0]}",
                grace=1,
                created=scene.seconds,
                owner=owned("ReplicaSet", "pinned"),
                **more,  # type: ignore[arg-type]
            )
            scene.bind(one, "n1")
        scene.later(scene.seconds + 0.2, again)

    again()


def test_d11_a_pod_that_comes_back_twice_has_its_node_given_up() -> None:
    scene = Simulation().add(node("n1"), agreement(), gang())
    returning(scene)
    scene.run(60, until=lambda: in_phase(scene, Phase.BLOCKED))
    made = scene.the_claim()
    assert made.status.reason == Reason.POD_RETURNS
    assert "again and again" in made.status.message
    assert [one.node for one in made.status.avoid] == ["n1"]
    assert len(scene.evictions) == 2, "the first, and its first return"
    scene.go_on(60)
    assert len(scene.evictions) == 2, "no endless loop"
    assert scene.marked() == []


def test_d11_several_replacements_that_slip_in_together_are_one_return() -> None:
    web = owned("ReplicaSet", "web")
    scene = Simulation().add(node("n1"), small(3, "n1", owner=web), agreement(), gang())
    for index in range(3):
        moment = 1.2 + index * 0.3
        scene.later(moment, lambda i=index, m=moment: scene.bind(pod(f"w-{i}", created=1.1, owner=web, grace=1), "n1"))
    scene.run(40, until=lambda: all_bound(scene))
    assert len(scene.evictions) == 6


# N07: a kubelet that refuses


@pytest.mark.parametrize("reason", ["TopologyAffinityError", "UnexpectedAdmissionError"])
@pytest.mark.parametrize("bound", [False, True], ids=["while landing", "once bound"])
def test_n07_a_node_whose_kubelet_refused_the_gang_is_not_tried_again(reason: str, bound: bool) -> None:
    size = 1 if bound else 2
    others = [node("n2", cordoned=True)] if bound else [node("n2"), node("n3")]
    scene = Simulation().add(node("n1"), others, gang(size))

    def refuse(action: Action | None = None) -> None:
        first = scene.pods.get("team-b.train-0")
        if first is None or first.spec.node_name != "n1" or first.status.phase == "Failed":
            return
        failed = replace(first.status, phase="Failed", reason=reason, message="Resources cannot be allocated")
        scene.pods["team-b.train-0"] = replace(first, status=failed)
        again = gang(size, created=scene.seconds)[0]
        scene.add(replace(again, metadata=replace(again.metadata, name="train-0b", uid="team-b.train-0b")))

    if bound:
        scene.run(20, until=lambda: all_bound(scene))
        refuse()
        scene.go_on(1)
        del scene.pods["team-b.train-0"]
    else:
        scene.after = refuse
    scene.go_on(10)
    if bound:
        assert scene.where("train-0b") == [], "rather waits than to start there again"
        scene.change_node("n2", unschedulable=None)
    scene.go_on(60, until=lambda: scene.where("train-0b"))
    assert scene.where("train-0b")[0] in {"n2", "n3"}
    told = [one.status.message for one in scene.done if hasattr(one, "status")]
    assert any(f"could not start: {reason}: Resources cannot be allocated" in text for text in told)
    scene.pods.pop("team-b.train-0", None)
    avoided = {one.node: one.reason for each in scene.claims.values() for one in each.status.avoid}
    assert avoided == {"n1": Reason.START_FAILED}


# The limit of draining nodes


def draining(scene: Simulation) -> set[str]:
    return {
        held.name
        for one in scene.claims.values()
        if one.status.phase in {Phase.CORDONING, Phase.DRAINING}
        for held in one.status.nodes
        if scene.card_holders(held.name)
    }


def watch_most(scene: Simulation) -> list[int]:
    most = [0]

    def after(_: Action) -> None:
        most[0] = max(most[0], len(draining(scene)))

    scene.after = after
    return most


def test_no_more_nodes_are_drained_at_once_than_the_limit_says_oldest_first() -> None:
    scene = busy(["n1", "n2", "n3", "n4"], each=2, timing=changed(Timing(), most_draining=2))
    most = watch_most(scene)
    for index, name in enumerate("abcd"):
        scene.add(gang(1, name, created=index))
    scene.run(3)
    waiting = [one for one in scene.claims.values() if one.status.reason == Reason.DRAIN_LIMIT]
    assert sorted(one.spec.gang.name for one in waiting if one.spec.gang) == ["c", "d"]
    assert "no more than 2" in waiting[0].status.message
    scene.run(60, until=lambda: len(scene.claims) == 4 and all_bound(scene))
    assert most == [2]
    assert len(scene.evictions) == 8


def test_a_claim_larger_than_the_limit_goes_alone_and_no_younger_one_before_it() -> None:
    scene = busy(["n1", "n2", "n3", "n4", "n5"], each=2, timing=changed(Timing(), most_draining=2))
    for index, (name, size) in enumerate([("first", 1), ("large", 3), ("last", 1)]):
        scene.add(gang(size, name, created=index))
    order: list[str] = []

    def after(action: Action) -> None:
        if isinstance(action, Evict) and action.claim.spec.gang and action.claim.spec.gang.name not in order:
            order.append(action.claim.spec.gang.name)

    scene.after = after
    scene.run(90, until=lambda: len(scene.claims) == 3 and all_bound(scene))
    assert order == ["first", "large", "last"]


def test_free_nodes_are_not_limited() -> None:
    scene = busy(["n1"], each=1, timing=changed(Timing(), most_draining=1))
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.add(gang(1, "a"))
    scene.run(5)
    assert draining(scene) == {"n1"}
    scene.add(node("n2"), node("n3"), gang(2, "b", created=5))
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(20)
    assert scene.where("a") or len(scene.where("b")) == 2


# Soft vacates


def vacating(*pods: object, until: float = 30) -> Simulation:
    """A claim that holds n1 and stops nobody for a while, as the patience policy has decided."""
    held = HeldNode("n1", "node-n1")
    made = claim(gang=None, phase=Phase.PLANNED, held=[held], stop_nobody_until=at(until))
    made = replace(made, status=replace(made.status, phases=(PhaseTime(Phase.PLANNED, at(0)),), reason="x"))
    return Simulation().add(node("n1"), list(pods), made, members(1, gates=("wholenode.io/claim",)))


def ending(name: str, run: str, **more: object) -> object:
    return pod(name, on="n1", notes={EXPECTED_RUN: run}, **more)  # type: ignore[arg-type]


def test_nobody_is_stopped_while_pods_are_expected_to_end_by_themselves() -> None:
    scene = vacating(ending("a", "15s"), ending("b", "20s"), agreement())
    scene.later(15, lambda: scene.end("team-v.a"))
    scene.later(20, lambda: scene.end("team-v.b"))
    scene.run(5)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.DRAINING, Reason.SOFT_VACATE)
    assert made.status.drained_by == at(20)
    assert scene.marked() == ["n1"]
    scene.run(40, until=lambda: all_bound(scene))
    assert scene.seconds < 23
    assert scene.evictions == []
    assert scene.records == {}
    assert (scene.the_claim().status.stop_nobody_until, scene.the_claim().status.drained_by) == (None, None)


def test_who_has_not_ended_by_then_is_stopped_under_its_agreement() -> None:
    scene = vacating(ending("a", "15s", grace=1), agreement())
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert 30 <= (scene.evictions[0].at - at(0)).total_seconds() < 32


def test_a_protected_pod_that_nobody_expected_ends_the_soft_vacate() -> None:
    scene = vacating(ending("a", "15s"), agreement())
    scene.later(3, lambda: scene.bind(pod("late", ns="team-w", created=3), "n1"))
    scene.run(10, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert scene.the_claim().status.reason == Reason.PROTECTED_POD
    assert scene.marked() == []
    assert scene.evictions == []


def test_the_time_to_stop_begins_when_the_soft_vacate_is_over() -> None:
    scene = vacating(ending("a", "15s", grace=15), agreement())
    scene.timing = changed(Timing(), drain_timeout=timedelta(seconds=20))
    scene.run(80, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert (scene.now - at(0)).total_seconds() > 45


# The moment it is over, told while it lasts


def test_d21_the_time_left_is_told_and_ready_comes_only_after_it() -> None:
    scene = busy(["n1"], each=0).add(small(1, "n1", grace=60), gang())
    scene.run(10, until=lambda: scene.the_claim().status.reason == Reason.TERMINATING)
    made = scene.the_claim()
    assert "1 of 1 card holder(s) left are terminating, 60 s left" in made.status.message
    gone = scene.pods["team-v.n1-0"].metadata.deletion_timestamp
    assert gone is not None
    assert made.status.drained_by is not None
    assert abs(made.status.drained_by - gone) < timedelta(seconds=1)
    before = scene.writes
    scene.go_on(45)
    assert "20 s left" in scene.the_claim().status.message
    assert scene.writes - before <= 6, "a write each ten seconds"
    scene.go_on(60, until=lambda: in_phase(scene, Phase.READY) or in_phase(scene, Phase.LANDING))
    assert scene.now >= gone
    assert scene.the_claim().status.drained_by is None


Play = Callable[[], Simulation]


def changing_over() -> Simulation:
    scene = busy(["n1"], each=2).add(gang())
    scene.later(0.3, lambda: scene.add(node("n2")))
    return scene


def soft() -> Simulation:
    scene = vacating(ending("a", "5s"), ending("b", "30s", grace=1), agreement(), until=8)
    scene.later(5, lambda: scene.end("team-v.a"))
    return scene


def returns() -> Simulation:
    scene = Simulation().add(node("n1"), agreement(), gang())
    returning(scene)
    return scene


@pytest.mark.parametrize("make", [changing_over, soft, returns])
def test_killed_after_any_write_it_ends_the_same(make: Play) -> None:
    def end(scene: Simulation) -> tuple[object, ...]:
        scene.run(20)
        made: WholeNodeClaim = scene.the_claim()
        return made.status.phase, made.status.node_names, len(scene.evictions), scene.marked()

    whole = make()
    wanted = end(whole)
    for last in range(1, whole.writes + 1):
        scene = make()
        scene.kill_after = last
        assert end(scene) == wanted, f"killed after write {last}"
