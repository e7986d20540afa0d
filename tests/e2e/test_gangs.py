"""Gangs and pools on one real control plane shared by the module: what only the real scheduler and controllers show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from kwok.admin import Admin, create_all
from kwok.controlplane import ControlPlane
from kwok.history import Change
from kwok.product import CONTROLLER, Product
from kwok.readings import node_of, phase, reason
from kwok.testing import Fleet
from kwok.workloads import make_job, make_pod
from tests.e2e.conftest import SETTINGS, running_plane, running_product
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE, Ground, new_ground
from tests.e2e.play import API, agreement

RACK = "example.com/rack"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it."""
    yield from running_product(plane)


@pytest.fixture
async def ground(admin: Admin, product: Product, fleet: Fleet, namespace: str) -> AsyncIterator[Ground]:
    """What one test stands on."""
    async with new_ground(admin, product, fleet, namespace) as ground:
        yield ground


async def test_g01_of_two_gangs_of_three_with_four_nodes_one_gets_three_and_the_other_none(ground: Ground) -> None:
    await ground.pool(4)
    pods = [
        ground._pod(f"{name}-{index}", gang=(name, 3), cards=8) for index in range(3) for name in ("red", "blue")
    ]  # their members arrive mixed
    await create_all(ground.admin, pods)

    def one_is_bound() -> bool:
        return sorted(phase(claim) for claim in ground.claims().values()) == ["Bound", "Pending"]

    await ground.until(one_is_bound)
    first, second = ("red", "blue") if phase(ground.claims()["red"]) == "Bound" else ("blue", "red")
    assert len(set(ground.bound(first).values())) == 3
    assert ground.bound(second) == {}
    assert not ground.claims()[second]["status"].get("nodes"), "the gang that waits holds nothing"

    await ground.delete(*ground.bound(first))
    await ground.until(lambda: len(set(ground.bound(second).values())) == 3)
    await ground.until(lambda: phase(ground.claims()[second]) == "Bound")
    await ground.never_broke_a_rule()


async def test_g03_of_a_gang_of_20_with_eight_nodes_no_pod_runs_and_it_is_in_nobodys_way(ground: Ground) -> None:
    await ground.pool(8)
    await ground.gang("huge", 20)
    await ground.until(lambda: ground.waits("huge", "MoreNodesThanPoolHas"))

    await ground.gang("fits", 2)

    await ground.until(lambda: len(ground.bound("fits")) == 2)
    assert ground.bound("huge") == {}
    assert ground.waits("huge", "MoreNodesThanPoolHas")
    assert "8" in ground.claims()["huge"]["status"]["message"]
    await ground.never_broke_a_rule()


async def test_g04_a_deleted_member_of_a_running_job_comes_back_to_its_node(ground: Ground) -> None:
    await ground.pool(3)
    job = make_job("train", ground.namespace, pods=3, cards=8, node_selector=ground.fleet.selector)
    told: list[str] = []
    ground.history.listeners.append(
        lambda change: told.append(reason(change.object)) if change.kind == "claims" else None
    )
    await ground.admin.create(job)
    await ground.until(lambda: len(ground.bound("train-1")) == 1 and phase(ground.claims()["train"]) == "Bound")
    ((old, node),) = ground.bound("train-1").items()
    others = {name: pod["metadata"]["uid"] for name, pod in ground.pods().items() if name != old}
    told.clear()

    await ground.delete(old)

    def another_is_bound() -> bool:
        return bool(ground.bound("train-1")) and old not in ground.pods()

    await ground.until(another_is_bound)
    ((new, again),) = ground.bound("train-1").items()
    assert new != old
    assert again == node
    assert {name: pod["metadata"]["uid"] for name, pod in ground.pods().items() if name != new} == others
    assert "GangIncomplete" not in told
    await ground.until(lambda: not ground.marked())
    await ground.never_broke_a_rule()


async def test_g07_one_card_pods_pouring_in_land_on_none_of_three_nodes_that_empty_one_after_the_other(
    ground: Ground,
) -> None:
    """Half of them tolerate every taint: only the extender keeps those out; the others the taint keeps out, too."""
    nodes = await ground.pool(3, overflow="Reclaimable", drain="Agreed")
    (home,) = await ground.pool(1, accepts="Small")
    await ground.admin.create(agreement(ground.namespace, (ground.namespace,)))
    for node, ends_in in zip(nodes, ("1s", "3s", "6s"), strict=True):
        await ground.pod(f"slow-{node}", node=node, cards=1, term_delay=ends_in, grace_seconds=30)
    await ground.until(lambda: len(ground.bound("slow-")) == 3)
    left: list[int] = []
    ground.history.listeners.append(lambda _: left.append(len(ground.pods("slow-"))))
    await ground.gang("train", 3, annotations=VACATE)
    await ground.until(lambda: reason(ground.claims().get("train", {})) == "WaitingForVictimsToEnd")

    async with ground.raining() as landed:
        await ground.until(lambda: phase(ground.claims()["train"]) == "Bound")

    assert {node for name, node in landed.items() if name.startswith("rain-")} == {home}
    assert {node for name, node in landed.items() if name.startswith("guest-")} == {home}
    assert {3, 2, 1, 0} <= set(left), "one node was empty while others still drained"
    assert sorted(ground.bound("train").values()) == sorted(nodes)
    await ground.never_broke_a_rule()


async def test_g11_a_gang_of_one_rack_waits_for_a_third_node_there_though_four_are_free(ground: Ground) -> None:
    nodes = await ground.pool(5)
    for number, node in enumerate(nodes):
        label = {"metadata": {"labels": {RACK: "a" if number < 2 else "b"}}}
        await ground.admin.patch(f"/api/v1/nodes/{node}", label)
    rack_b = nodes[2:]
    await ground.pod("in-the-way", node=rack_b[2], cards=1)
    await ground.until(lambda: len(ground.bound()) == 1)

    await ground.gang("train", 3, annotations={"wholenode.io/topology-key": RACK})
    await ground.until(lambda: ground.waits("train", "TopologyFragmented"))
    assert RACK in ground.claims()["train"]["status"]["message"]
    assert ground.bound("train") == {}
    assert ground.marked() == []

    await ground.delete("in-the-way")
    await ground.until(lambda: len(ground.bound("train")) == 3)
    assert sorted(ground.bound("train").values()) == rack_b
    await ground.never_broke_a_rule()


@pytest.fixture
async def hurried(plane: ControlPlane, product: Product) -> AsyncIterator[None]:
    """The controller gives a gang that cannot land up after seconds."""
    quick = Product(plane, {**SETTINGS, "WHOLENODE_LANDING_TIMEOUT_SECONDS": "1", "WHOLENODE_RETRY_AFTER_SECONDS": "0"})
    for one in (quick, product):
        await asyncio.to_thread(plane.stop_component, CONTROLLER)
        one.launch(CONTROLLER)
        await one.ready(CONTROLLER)
        if one is quick:
            yield


async def test_g13_a_gang_whose_bindings_are_refused_for_ever_fails_after_a_few_tries_and_is_in_nobodys_way(
    ground: Ground, hurried: None
) -> None:
    """What its first member got it keeps: nobody stops a pod that runs."""
    await ground.pool(3)
    await ground.refuse_bindings("never-1")
    lives: list[str] = []

    def note(change: Change) -> None:
        if change.kind == "claims" and change.object["spec"]["gang"]["name"] == "never":
            lives.append(phase(change.object))

    ground.history.listeners.append(note)
    await ground.gang("never", 2)
    await ground.until(lambda: "Landing" in lives)
    await ground.gang("meanwhile", 1)
    await ground.until(lambda: len(ground.bound("meanwhile")) == 1)
    assert "Failed" not in lives

    await ground.until(lambda: "Failed" in lives)
    status = ground.claims()["never"]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "LandingTimedOut")
    assert "something else keeps them from starting" in status["message"]
    assert [one["phase"] for one in status["phases"]].count("Landing") == 3
    await ground.until(lambda: not ground.marked())
    await ground.gang("afterwards", 1)
    await ground.until(lambda: len(ground.bound("afterwards")) == 1)
    assert ground.bound("never") == {"never-0": ground.bound("never")["never-0"]}
    assert lives[-1] == "Failed", "it is not tried again"
    await ground.never_broke_a_rule()


async def test_g12_nodes_held_for_a_gang_that_is_deleted_are_open_again(ground: Ground) -> None:
    nodes = await ground.pool(2, overflow="Reclaimable", drain="Agreed")
    await ground.admin.create(agreement(ground.namespace, (ground.namespace,)))
    for node in nodes:  # they take long to end, so that the nodes stay held
        await ground.pod(f"slow-{node}", node=node, cards=1, term_delay="60s", grace_seconds=60)
    await ground.gang("gone", 2, annotations=VACATE)
    await ground.until(lambda: bool(ground.claims()) and reason(ground.claims()["gone"]) == "WaitingForVictimsToEnd")
    assert sorted(ground.marked()) == sorted(nodes)

    await ground.delete("gone-0", "gone-1")

    await ground.until(lambda: not ground.marked())
    assert phase(ground.claims()["gone"]) == "RolledBack"
    await ground.pod("small", cards=7)
    await ground.until(lambda: "small" in ground.bound())
    await ground.never_broke_a_rule()


async def test_p14_a_pod_of_another_scheduler_and_one_placed_by_hand_both_count(ground: Ground) -> None:
    nodes = await ground.pool(2)
    await ground.pod("by-hand", node=nodes[0], cards=1)
    await ground.pod("by-another", cards=1, scheduler_name="another")
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "by-another", "namespace": ground.namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": nodes[1]},
    }
    await ground.admin.request("POST", f"/api/v1/namespaces/{ground.namespace}/pods/by-another/binding", binding)
    await ground.until(lambda: len(ground.bound()) == 2)

    await ground.pod("whole", cards=8)

    await ground.until(lambda: ground.waits("whole", "DrainDisabled"))
    status = ground.claims()["whole"]["status"]
    assert [(one["reason"], one["nodes"]) for one in status["plan"]["refused"]] == [("DrainDisabled", 2)]
    assert "whole" not in ground.bound()
    await ground.delete("by-another")
    await ground.until(lambda: ground.bound("whole") == {"whole": nodes[1]})
    await ground.never_broke_a_rule()


async def test_p14_in_a_small_pool_too(ground: Ground) -> None:
    (node,) = await ground.pool(1, accepts="Small")
    await ground.pod("by-hand", node=node, cards=6)
    await ground.until(lambda: len(ground.bound()) == 1)

    await ground.pod("three", cards=3)
    await ground.pod("two", cards=2)

    await ground.until(lambda: "two" in ground.bound())
    await ground.until(lambda: ground.refused("three", "Insufficient"))
    assert "three" not in ground.bound()
    await ground.never_broke_a_rule()


async def test_p08_a_node_of_two_pools_takes_no_new_gpu_pod_and_both_pools_name_it(ground: Ground) -> None:
    (node,) = await ground.pool(1)
    await ground.pod("before", node=node, cards=1)
    await ground.pool(0, accepts="Small", nodeSelector={"matchLabels": ground.fleet.selector})
    ready = {}
    for name in (one["metadata"]["name"] for one in ground.pools):
        ready[name] = await ground.admin.wait_for(f"/apis/{API}/gpupools/{name}", _not_ready, HELD_OPEN_SECONDS)

    await ground.pod("small", cards=1)
    await ground.pod("whole", cards=8)

    await ground.until(lambda: ground.refused("small", "wholenode: node is in several pools"))
    await ground.until(lambda: ground.waits("whole", "NoUsableNode"))
    for found in ready.values():
        (condition,) = (found or {})["status"]["conditions"]
        assert condition["reason"] == "NodesInSeveralPools"
        assert node in condition["message"]
    assert ground.bound() == {"before": node}, "who runs there stays"
    assert ground.pods()["before"]["status"]["phase"] == "Running"

    await ground.admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"pool": None}}})
    await ground.until(lambda: ground.bound().get("small") == node)


def _not_ready(found: Mapping[str, Any] | None) -> bool:
    conditions = (found or {}).get("status", {}).get("conditions") or ()
    return any(one["reason"] == "NodesInSeveralPools" for one in conditions)


async def test_p15_only_a_namespace_that_agreed_may_use_an_idle_whole_node(ground: Ground, admin: Admin) -> None:
    (node,) = await ground.pool(1, overflow="Reclaimable", drain="Agreed")
    agreed = f"{ground.namespace}-agreed"
    await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": agreed}})
    await admin.create(agreement(agreed, (ground.namespace,)))

    await ground.pod("without", cards=1)
    await admin.create(make_pod("with", agreed, cards=1, node_selector=ground.fleet.selector))

    with_path = f"/api/v1/namespaces/{agreed}/pods/with"
    await admin.wait_for(with_path, lambda pod: node_of(pod or {"spec": {}}) == node, HELD_OPEN_SECONDS)
    await ground.until(lambda: ground.refused("without", "idle whole nodes are lent only to namespaces with"))
    assert ground.bound() == {}
    await ground.never_broke_a_rule()
    await admin.delete(with_path, grace_seconds=0)
    await admin.delete(f"/api/v1/namespaces/{agreed}")


async def test_p16_a_limit_of_zero_cards_is_no_gpu_pod(ground: Ground) -> None:
    """It passes onto a node that no GPU pod may have, and no claim ever stops it: it has agreed to nothing."""
    (node,) = await ground.pool(1, overflow="Never", drain="Agreed")

    await ground.pod("zero", resources={"nvidia.com/gpu": "0"})
    await ground.until(lambda: ground.bound() == {"zero": node})
    await ground.pod("whole", cards=8, annotations=VACATE)

    await ground.until(lambda: ground.bound("whole") == {"whole": node})
    zero = ground.pods()["zero"]
    assert "deletionTimestamp" not in zero["metadata"]
    assert zero["status"]["phase"] == "Running"
    assert "zero" not in ground.claims()
    assert not ground.claims()["whole"]["status"].get("victims")
    await ground.never_broke_a_rule()
