"""Nodes that fall silent, come back, lose a card or join while a claim wants them, on the real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kwok.admin import Admin, Object
from kwok.controlplane import ControlPlane
from kwok.nodes import GPU
from kwok.product import Product
from kwok.readings import chosen_nodes, uid
from kwok.stages import NODE_DOWN, STUCK
from tests.e2e.behind import controller_behind
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.drains import DEAR, Protected, evictions, going, lent, node_of_name, residents, state
from tests.e2e.ground import VACATE, Ground

UNREACHABLE = "node.kubernetes.io/unreachable"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it; a claim that gave its nodes back looks for others soon, but avoids those for long."""
    yield from running_product(plane, {"WHOLENODE_RETRY_AFTER_SECONDS": "1"})


async def take_down(admin: Admin, node: str) -> None:
    """Its kubelet is heard no more."""
    await admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {NODE_DOWN: "yes"}}})
    down = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no word"}
    await admin.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [down]}}, "strategic")


async def bring_back(admin: Admin, node: str) -> None:
    """Its kubelet is back."""
    await admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {NODE_DOWN: None}}})


def shunned(node: Object) -> bool:
    """Whether the node controller has tainted it as silent."""
    return any(one["key"] == UNREACHABLE for one in node["spec"].get("taints") or ())


async def test_n01_a_node_that_falls_silent_with_a_victim_hanging_is_left_for_another_and_nobody_is_forced(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    cheap, other = await lent(ground, 2)
    await residents(ground, cheap, "hangs", term_delay=STUCK, grace_seconds=2)
    await residents(ground, other, "victim", annotations=DEAR)
    hanging = uid(ground.pods()["hangs"])
    async with controller_behind(plane, product) as between:
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: going(ground))

        await take_down(ground.admin, cheap)

        await ground.until(lambda: ground.bound("train") == {"train-0": other})
        await ground.until(lambda: not ground.marked())
        assert [one for one in between.calls if one.method == "DELETE" and "/pods/" in one.path] == []
        assert [one.evicted_uid for one in evictions(between) if one.stored].count(hanging) == 1
        assert uid(ground.pods()["hangs"]) == hanging
    await ground.never_broke_a_rule()


async def test_n04_pods_that_wait_for_a_node_that_is_not_ready_have_it_once_it_is_without_help(ground: Ground) -> None:
    """A gang for a whole node, and a small pod: kube-scheduler has tried and refused it before."""
    (whole,), (small,) = await ground.pool(1), await ground.pool(1, accepts="Small")
    for node in (whole, small):
        await take_down(ground.admin, node)
    # kube-scheduler goes by the taint, which follows the condition.
    await ground.until(lambda: all(shunned(node_of_name(ground, node)) for node in (whole, small)))
    await ground.pod("waits", cards=1)
    await ground.gang("train", 1)
    await ground.until(lambda: ground.waits("train", "NoUsableNode"))
    await ground.until(lambda: ground.refused("waits", ""))

    for node in (whole, small):
        await bring_back(ground.admin, node)

    await ground.until(lambda: ground.bound() == {"train-0": whole, "waits": small})
    await ground.until(lambda: state(ground)[0] == "Bound")


async def test_n05_a_node_that_loses_a_card_is_left_for_another_and_its_pool_says_so(ground: Ground) -> None:
    worn, other = await lent(ground, 2)
    await residents(ground, worn, "slow", term_delay="2s", grace_seconds=10)
    await residents(ground, other, "victim", annotations=DEAR)
    await ground.gang("train", 1, annotations=VACATE)
    await ground.until(lambda: going(ground))
    assert [one["name"] for one in chosen_nodes(ground.claims()["train"])] == [worn]

    await ground.admin.patch(f"/api/v1/nodes/{worn}/status", {"status": {"allocatable": {GPU: "7"}}})

    await ground.until(lambda: ground.bound("train") == {"train-0": other})
    await ground.until(lambda: not ground.marked())
    path = f"/apis/wholenode.io/v1alpha1/gpupools/{ground.pools[0]['metadata']['name']}"

    def said(pool: Object | None) -> bool:
        told = (pool or {}).get("status", {})
        return (told.get("cardsFree"), told.get("wholeNodesFree"), told.get("largestGang")) == (7, 0, 0)

    await ground.admin.wait_for(path, said)


async def test_n10_a_node_that_joins_ends_a_drain_that_has_stopped_nobody(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    await residents(ground, node, "kept")
    async with controller_behind(plane, product) as between:
        between.fault = Protected("kept")
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: state(ground) == ("Draining", "PodDisruptionBudget"))

        (joined,) = await ground.fleet.add(1, labels={"pool": ground.pools[0]["metadata"]["name"]}, suffix="new")

        await ground.until(lambda: ground.bound("train") == {"train-0": joined})
        await ground.until(lambda: state(ground)[0] == "Bound" and not ground.marked())
        assert not [one for one in evictions(between) if one.stored]
    assert ground.runs("kept")
    await ground.never_broke_a_rule()
