"""Flavors with topology, where Kueue itself chooses the nodes: what it pins we neither hold nor count as held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kwok.admin import Admin, path_of
from kwok.controlplane import ControlPlane
from kwok.kueue import Kueue
from kwok.product import Product
from kwok.queues import HOSTNAME, topology
from kwok.readings import phase, reason
from tests.e2e.behind import controller_behind
from tests.e2e.desk import CLAIM, Desk

TOLERATED = [{"key": CLAIM, "operator": "Exists"}]
"""What a pod template needs where Kueue's topology chooses the node."""


@pytest.fixture
async def hosts(admin: Admin, kueue: Kueue, namespace: str) -> AsyncIterator[str]:
    """A topology of single nodes; Kueue lets it go when the test's flavors are gone."""
    assert kueue.running
    made = await admin.create(topology(f"{namespace}-hosts"))
    yield made["metadata"]["name"]
    await admin.delete(path_of(made))


async def test_k16_a_job_that_kueue_pinned_to_a_node_of_the_wrong_pool_is_told_so_and_holds_nothing(
    desk: Desk, hosts: str
) -> None:
    ground = desk.ground
    small = await ground.pool(1, accepts="Small")
    await ground.pool(1)
    flavor = await desk.flavor("pinned", topology=hosts, node_labels={**ground.fleet.selector, "pool": _pool(desk, 0)})
    await desk.queue("pinned", 8, flavor=flavor)
    await desk.queue("small", 8)
    await desk.big("train", "pinned", topology=HOSTNAME, tolerations=TOLERATED)
    await desk.until(lambda: desk.is_("train", "Admitted"))
    await ground.until(lambda: [reason(one) for one in ground.claims().values()] == ["NoUsableNode"])

    # The node is not reserved for it: others go on using it, and the reason stays what it is.
    for number in range(8):
        await desk.job(f"small-{number}", "small", node=small[0], cards=1)
    for number in range(8):
        assert await desk.runs(f"small-{number}") == {small[0]}
    (claim,) = ground.claims().values()
    assert (phase(claim), reason(claim)) == ("Pending", "NoUsableNode")
    assert not ground.marked()
    assert not desk.nodes_of("train")
    await ground.never_broke_a_rule()


async def test_k16_a_whole_node_job_that_tolerates_our_taint_runs_where_kueue_s_topology_says(
    desk: Desk, hosts: str
) -> None:
    ground = desk.ground
    nodes = await ground.pool(2)
    flavor = await desk.flavor("placed", topology=hosts)
    await desk.queue("plain", 8, flavor=flavor)
    await desk.queue("checked", 8, flavor=flavor, checked=True)
    await desk.big("train", "plain", topology=HOSTNAME, tolerations=TOLERATED)
    (first,) = await desk.runs("train")
    await desk.big("other", "checked", topology=HOSTNAME, tolerations=TOLERATED)
    (second,) = await desk.runs("other")
    assert {first, second} == set(nodes)
    for name, node in (("train", first), ("other", second)):
        assert node in str(desk.now(name)["status"]["admission"])
        assert len(desk.pods_of(name)) == 1, "none was failed and made anew"
    await ground.never_broke_a_rule()


async def test_k16_one_whose_template_does_not_is_told_so_and_kueue_has_no_taint_to_fail_its_pod_for(
    desk: Desk, hosts: str, plane: ControlPlane, product: Product
) -> None:
    ground = desk.ground
    await ground.pool(1)
    flavor = await desk.flavor("placed", topology=hosts)
    await desk.queue("big", 8, flavor=flavor)
    async with controller_behind(plane, product) as between:
        await desk.big("train", "big", topology=HOSTNAME)
        await ground.until(lambda: ground.waits("train", "TopologyNeedsToleration"))
        told = len(between.writes())
        await desk.big("later", "big", topology=HOSTNAME)  # the controller has looked at everything once more
        await desk.until(lambda: bool(desk.now("later")))
        await asyncio.sleep(2)
        assert len([one for one in between.writes()[told:] if "/leases/" not in one.path]) == 0
    assert not ground.marked()
    (pod,) = desk.pods_of("train").values()
    assert pod["status"]["phase"] == "Pending"


def _pool(desk: Desk, number: int) -> str:
    """The label of the nodes of the test's pool."""
    return str(desk.ground.pools[number]["metadata"]["name"])
