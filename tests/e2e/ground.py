"""What one test of many on a shared control plane stands on: nodes, pools, a namespace, the record of what happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kwok.admin import Admin, APIError, Object, create_all, path_of
from kwok.history import Change, History, record
from kwok.invariants import Invariants
from kwok.product import Product
from kwok.readings import node_of, phase, reason, stray_marks
from kwok.testing import Fleet
from kwok.workloads import Manifest, make_pod
from tests.e2e.play import pool

HELD_OPEN_SECONDS = 60.0
"""How long a test waits for anything: far above what it takes, for no test is about speed."""
REFUSES = "this pod is never to be bound"
VACATE = {"wholenode.io/policy": "WaitThenEvict"}


class Ground:
    """Nodes, pools and a namespace of one test, and the record of what happens during it."""

    def __init__(self, admin: Admin, product: Product, history: History, fleet: Fleet, namespace: str) -> None:
        self.admin = admin
        self.history = history
        self.fleet = fleet
        self.namespace = namespace
        self.pools: list[Manifest] = []
        self.cleanup: list[str] = []
        """Paths of what else is to be deleted after the test."""
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

    def runs(self, name: str) -> bool:
        """Whether the pod has started."""
        return bool(self.pods().get(name, {}).get("status", {}).get("phase") == "Running")

    def marked(self) -> list[str]:
        """Nodes with a taint of ours, or with a label that no pod there needs."""
        return stray_marks(self.history.live["nodes"].values(), self.history.live["pods"].values())

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

    async def delete_at_once(self, name: str) -> None:
        """Delete a pod, or have one that is already going be gone, without its grace."""
        await self.admin.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}", grace_seconds=0)

    @contextlib.asynccontextmanager
    async def raining(self) -> AsyncIterator[dict[str, str]]:
        """Ten one-card pods a second that run for half a second each; gives the node of each that was bound, by name.

        `rain-0`, `rain-2`, … are ordinary; `guest-1`, `guest-3`, … tolerate every taint.
        """
        landed: dict[str, str] = {}

        def note(change: Change) -> None:
            metadata = change.object["metadata"]
            mine = change.kind == "pods" and metadata["namespace"] == self.namespace
            if mine and metadata["name"].startswith(("rain-", "guest-")) and node_of(change.object):
                landed[metadata["name"]] = node_of(change.object)

        async def rain() -> None:
            for number in itertools.count():
                name, tolerations = (
                    (f"guest-{number}", [{"operator": "Exists"}]) if number % 2 else (f"rain-{number}", None)
                )
                await self.pod(name, cards=1, duration_seconds=0.5, tolerations=tolerations)
                await asyncio.sleep(0.1)

        self.history.listeners.append(note)
        task = asyncio.create_task(rain())
        try:
            yield landed
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def refuse_bindings(self, pod: str) -> None:
        """Have the API server refuse every binding of the pod from now on, until the test is over."""
        name = f"{self.namespace}-no-binding"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        policy = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
            "validations": [{"expression": f"object.metadata.name != '{pod}'", "message": REFUSES}],
        }
        binding = {"policyName": name, "validationActions": ["Deny"]}
        for kind, spec in (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)):
            api = "admissionregistration.k8s.io/v1"
            made = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
            await self.admin.create(made)
            self.cleanup.append(path_of(made))
        await self._until_refused(pod)

    async def _until_refused(self, pod: str) -> None:
        """The API server takes a moment to see a new policy; it is asked about a pod that does not exist."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "none"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/binding"
        async with asyncio.timeout(HELD_OPEN_SECONDS):
            while True:
                try:
                    await self.admin.request("POST", path, binding)
                except APIError as error:
                    if REFUSES in str(error):
                        return
                await asyncio.sleep(0.05)

    async def never_broke_a_rule(self) -> None:
        """Look at everything that was stored during the test."""
        invariants = Invariants(self.pools)
        invariants.take(await self.history.catch_up())
        assert invariants.violations == []
        assert invariants.tally["changes"]


@contextlib.asynccontextmanager
async def new_ground(admin: Admin, product: Product, fleet: Fleet, namespace: str) -> AsyncIterator[Ground]:
    """New ground; cleared afterwards, pools last."""
    async with record(admin) as history:
        ground = Ground(admin, product, history, fleet, namespace)
        yield ground
        for kind in ("/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods"):
            options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
            await admin.request("DELETE", kind.format(namespace), options)
        await ground.until(lambda: not ground.pods() and not ground.marked())
        for path in (*ground.cleanup, *map(path_of, ground.pools)):
            await admin.delete(path)
