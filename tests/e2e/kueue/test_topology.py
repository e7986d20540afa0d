"""Flavors with topology, where Kueue itself chooses the nodes: what it pins we neither hold nor count as held."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kwok.admin import Admin, path_of
from kwok.kueue import Kueue
from kwok.queues import HOSTNAME, topology
from kwok.readings import phase, reason
from tests.e2e.desk import Desk


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
    await desk.big("train", "pinned", topology=HOSTNAME)
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


@pytest.mark.xfail(run=False, reason="Kueue fails the pod that it placed on a node as soon as that node has our taint")
async def test_a_whole_node_job_that_kueue_placed_by_topology_runs_where_it_says(desk: Desk, hosts: str) -> None:
    ground = desk.ground
    nodes = await ground.pool(2)
    flavor = await desk.flavor("placed", topology=hosts)
    await desk.queue("big", 16, flavor=flavor)
    await desk.big("train", "big", pods=2, topology=HOSTNAME)
    await desk.until(lambda: bool(desk.now("train").get("status", {}).get("conditions")))
    assert not desk.is_("train", "Admitted")  # both pods on one node: there is none
    await desk.delete("train")
    await desk.big("other", "big", topology=HOSTNAME)
    (node,) = await desk.runs("other")
    assert node in nodes
    assert node in str(desk.now("other")["status"]["admission"])
    await ground.never_broke_a_rule()


def _pool(desk: Desk, number: int) -> str:
    """The label of the nodes of the test's pool."""
    return str(desk.ground.pools[number]["metadata"]["name"])
