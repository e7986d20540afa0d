"""Gangs and pools on one real control plane shared by the module: what only the real scheduler and controllers show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest

from kwok.admin import Admin, Object, create_all, path_of
from kwok.controlplane import ControlPlane
from kwok.history import History, record
from kwok.invariants import Invariants
from kwok.product import Product
from kwok.readings import label, node_of, phase, reason, taints
from kwok.testing import Fleet
from kwok.workloads import Manifest, make_job, make_pod
from tests.e2e.conftest import running_plane
from tests.e2e.play import API, agreement, pool

HELD_OPEN_SECONDS = 60.0
"""How long a test waits for anything: far above what it takes, for no test is about speed."""
VACATE = {"wholenode.io/policy": "WaitThenEvict"}


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it."""
    product = Product(plane, {"WHOLENODE_LEASE_SECONDS": "4"})

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await product.install(admin)
            await product.start()

    asyncio.run(start())
    yield product
    product.stop()


class Ground:
    """Nodes, pools and a namespace of one test, and the record of what happens during it."""

    def __init__(self, admin: Admin, product: Product, history: History, fleet: Fleet, namespace: str) -> None:
        self.admin = admin
        self.history = history
        self.fleet = fleet
        self.namespace = namespace
        self.pools: list[Manifest] = []
        self._product = product

    async def pool(self, nodes: int, *, accepts: str = "WholeNode", cards: int = 8, **spec: Any) -> list[str]:
        """A pool with new nodes of its own; their names. New whole-node pods are gated from now on."""
        name = f"{self.fleet.name}-{len(self.pools)}"
        self.pools.append(pool(name, cards, accepts=accepts, **spec))
        await self.admin.create(self.pools[-1])
        names = await self.fleet.add(nodes, cards, labels={"pool": name}, suffix=f"p{len(self.pools)}") if nodes else []
        if accepts == "WholeNode":
            await self._product.gate_active(self.admin, cards, self.namespace)
        return names

    def bound(self, of: str = "") -> dict[str, str]:
        """Node of each bound pod whose name begins with `of`."""
        return {name: node_of(pod) for name, pod in self.pods(of).items() if node_of(pod)}

    def pods(self, of: str = "") -> dict[str, Object]:
        """Pods of the namespace whose names begin with `of`."""
        mine = (one for one in self.history.live["pods"].values() if one["metadata"]["namespace"] == self.namespace)
        return {one["metadata"]["name"]: one for one in mine if one["metadata"]["name"].startswith(of)}

    def claims(self) -> dict[str, Object]:
        """The namespace's claims by the name of their gang."""
        mine = (one for one in self.history.live["claims"].values() if one["metadata"]["namespace"] == self.namespace)
        return {one["spec"]["gang"]["name"]: one for one in mine}

    def waits(self, gang: str, why: str) -> bool:
        """Whether the gang's claim waits for this reason."""
        claim = self.claims().get(gang)
        return claim is not None and (phase(claim), reason(claim)) == ("Pending", why)

    def refused(self, name: str, text: str) -> bool:
        """Whether kube-scheduler tried the pod and was told this text."""
        conditions = self.pods().get(name, {}).get("status", {}).get("conditions") or ()
        return any(one.get("reason") == "Unschedulable" and text in one.get("message", "") for one in conditions)

    def marked(self) -> list[str]:
        """Nodes with a taint or label of ours."""
        nodes = self.history.live["nodes"].values()
        return [node["metadata"]["name"] for node in nodes if taints(node) or label(node)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it; fail with what is there."""
        if not await self.history.until(condition, HELD_OPEN_SECONDS):
            told = {name: (phase(one), reason(one)) for name, one in self.claims().items()}
            pytest.fail(f"not so after {HELD_OPEN_SECONDS:.0f} s; claims {told}, bound {self.bound()}, {self.marked()}")

    async def gang(self, name: str, size: int, cards: int = 8, **pod: Any) -> list[Manifest]:
        """A gang of bare pods, made at once."""
        pods = [self._pod(f"{name}-{index}", gang=(name, size), cards=cards, **pod) for index in range(size)]
        return await create_all(self.admin, pods)

    async def pod(self, name: str, *, node: str = "", **rest: Any) -> Manifest:
        """A pod; with `node`, placed there by hand."""
        pod = self._pod(name, **rest)
        if node:
            pod["spec"]["nodeName"] = node
        return await self.admin.create(pod)

    def _pod(self, name: str, **rest: Any) -> Manifest:
        pod = make_pod(name, self.namespace, **rest)
        pod["spec"].setdefault("nodeSelector", {}).update(self.fleet.selector)
        return pod

    async def delete(self, *names: str) -> None:
        """Delete pods of the namespace."""
        for name in names:
            await self.admin.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    async def never_broke_a_rule(self) -> None:
        """Look at everything that was stored during the test."""
        invariants = Invariants(self.pools)
        invariants.take(await self.history.catch_up())
        assert invariants.violations == []
        assert invariants.tally["changes"]


@pytest.fixture
async def ground(admin: Admin, product: Product, fleet: Fleet, namespace: str) -> AsyncIterator[Ground]:
    """What one test stands on; taken away afterwards, pools last."""
    async with record(admin) as history:
        ground = Ground(admin, product, history, fleet, namespace)
        yield ground
        for kind in ("/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods"):
            options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
            await admin.request("DELETE", kind.format(namespace), options)
        await ground.until(lambda: not ground.pods() and not ground.marked())
        for one in ground.pools:
            await admin.delete(path_of(one))


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
