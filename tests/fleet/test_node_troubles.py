"""Nodes that fall ill, vanish, change or are claimed twice while a claim holds them, in the simulated cluster."""

from fleet.names import CLAIM_KEY
from fleet.objects import Condition, NodeStatus
from fleet.reasons import Reason
from fleet.resources import Phase
from tests.fleet.builders import node, pool
from tests.fleet.scenes import all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace


def draining(scene: Simulation) -> bool:
    return in_phase(scene, Phase.DRAINING)


def evicting(scene: Simulation) -> bool:
    return bool(scene.evictions)


def test_n01_a_node_that_turns_not_ready_is_left_for_another() -> None:
    scene = busy(["n1", "n2"], each=2).add(small(1, "n2", prefix="more"), gang())
    scene.run(10, until=lambda: evicting(scene))
    sick = scene.nodes["n1"]
    scene.nodes["n1"] = replace(
        sick, status=NodeStatus(sick.status.allocatable, sick.status.capacity, (Condition("Ready", "Unknown"),))
    )
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]
    assert scene.marked() == []


def test_n02_a_node_deleted_during_the_drain_is_replaced() -> None:
    scene = busy(["n1", "n2"], each=2).add(small(1, "n2", prefix="more"), gang())
    scene.run(10, until=lambda: evicting(scene))
    del scene.nodes["n1"]
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]


def test_n03_a_namesake_of_the_held_node_is_not_the_held_node() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(10, until=lambda: evicting(scene))
    for uid in [uid for uid, one in scene.pods.items() if one.spec.node_name == "n1"]:
        del scene.pods[uid]
    scene.nodes["n1"] = node("n1", uid="second")
    scene.run(5)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.BLOCKED, Reason.NODE_GONE)
    assert scene.marked() == []


def test_n05_a_node_that_loses_a_card_is_not_whole() -> None:
    scene = busy(["n1", "n2"], each=2).add(small(1, "n2", prefix="more"), gang())
    scene.run(10, until=lambda: evicting(scene))
    scene.nodes["n1"] = replace(scene.nodes["n1"], status=node("n1", cards=7).status)
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]
    assert scene.marked() == []


def test_n09_a_held_node_that_leaves_its_pool_is_given_back() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(10, until=lambda: draining(scene))
    scene.change_node("n1", labels={CLAIM_KEY: "", "pool": "other"})
    scene.change_node("n1", labels={"pool": "other"})
    scene.run(20)
    assert scene.evictions == []
    assert scene.marked() == []


def test_p08_a_second_pool_over_a_held_node_ends_the_drain() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(10, until=lambda: draining(scene))
    scene.add(pool("other", labels={"pool": "big"}))
    scene.run(20)
    assert scene.evictions == []
    assert scene.marked() == []
