"""What a test with Kueue does and asks: queues and jobs of its own, and all that was stored of its Workloads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kwok.admin import Object, path_of
from kwok.kueue import Kueue
from kwok.queues import API_VERSION, CHECK, cluster_queue, flavor, local_queue, queued_job
from kwok.readings import node_of, uid
from kwok.workloads import Manifest
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE, Ground

CLAIM = "wholenode.io/claim"
STOPPED_FOR = "wholenode.io/deactivated-for"
WORKLOADS = f"/apis/{API_VERSION}/namespaces/{{}}/workloads"


def holds(workload: Object, condition: str) -> bool:
    """Whether the condition of that type is True."""
    conditions = workload.get("status", {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def entry(workload: Object, check: str = CHECK) -> Object:
    """The Workload's entry of our check; empty if it has none."""
    checks = workload.get("status", {}).get("admissionChecks") or ()
    return next((one for one in checks if one["name"] == check), {})


def selector_of(workload: Object) -> str:
    """UID of the claim that the entry of our check pins the Workload's pods to, "" if it does not."""
    updates = entry(workload).get("podSetUpdates") or ()
    return next((str(one["nodeSelector"][CLAIM]) for one in updates if CLAIM in one.get("nodeSelector", {})), "")


class Desk:
    """Queues in front of the test's nodes; what was stored of each Workload is in `story`, oldest first."""

    def __init__(self, ground: Ground, kueue: Kueue) -> None:
        self.ground = ground
        self.admin = ground.admin
        self.kueue = kueue
        self.story: list[Object] = []
        self.gone: set[str] = set()
        """UIDs of Workloads that were deleted."""
        self.queues: list[str] = []
        self._changed = asyncio.Event()
        self._flavors: list[str] = []

    async def flavor(self, name: str = "cards", **rest: Any) -> str:
        """A flavor of the test's nodes; its name."""
        made = flavor(f"{self.ground.namespace}-{name}", rest.pop("node_labels", self.ground.fleet.selector), **rest)
        if made["metadata"]["name"] not in self._flavors:
            await self.admin.create(made)
            self._flavors.append(made["metadata"]["name"])
        return str(made["metadata"]["name"])

    async def queue(self, name: str, cards: int, *, flavor: str = "", checked: bool = False, **rest: Any) -> None:
        """A queue with so many cards, with our check or without; jobs name it by `name`."""
        flavor = flavor or await self.flavor()
        if checked:
            rest["checks"] = (CHECK, *rest.get("checks", ()))
        made = cluster_queue(f"{self.ground.namespace}-{name}", flavor, cards, **rest)
        await self.admin.create(made)
        self.queues.append(made["metadata"]["name"])
        await self.admin.create(local_queue(self.ground.namespace, made["metadata"]["name"], name))

    async def job(self, name: str, queue: str, *, node: str = "", **rest: Any) -> Object:
        """A Job in a queue; with `node`, for that node only."""
        if node:
            rest["node_selector"] = {**rest.get("node_selector", {}), "kubernetes.io/hostname": node}
        return await self.admin.create(queued_job(name, self.ground.namespace, queue=queue, **rest))

    async def big(self, name: str, queue: str, pods: int = 1, **rest: Any) -> Object:
        """A Job of whole-node pods whose owner lets agreements be used at once."""
        annotations = {**VACATE, **rest.pop("annotations", {})}
        return await self.job(name, queue, pods=pods, cards=8, annotations=annotations, **rest)

    def of(self, name: str) -> list[Object]:
        """All that was stored of the Workloads of the job, pod or pod group of that name, oldest first."""
        return [one for one in self.story if _named(one, name)]

    def now(self, name: str) -> Object:
        """Its Workload as it was seen last; empty if there is none."""
        return next((one for one in reversed(self.story) if _named(one, name)), {})

    def is_(self, name: str, condition: str) -> bool:
        """Whether the condition of its Workload is True."""
        return holds(self.now(name), condition)

    def pods_of(self, name: str) -> dict[str, Object]:
        """The pods of the job, by name."""
        pods = self.ground.pods(f"{name}-")
        return {key: pod for key, pod in pods.items() if pod["metadata"].get("labels", {}).get("job-name") == name}

    def nodes_of(self, name: str) -> set[str]:
        """The nodes on which pods of the job run."""
        running = (pod for pod in self.pods_of(name).values() if pod["status"].get("phase") == "Running")
        return {node_of(pod) for pod in running}

    async def runs(self, name: str, pods: int = 1) -> set[str]:
        """Wait until so many pods of the job run; their nodes."""
        await self.ground.until(
            lambda: sum(one["status"].get("phase") == "Running" for one in self.pods_of(name).values()) >= pods
        )
        return self.nodes_of(name)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something about Workloads; fail with what is there."""
        try:
            async with asyncio.timeout(HELD_OPEN_SECONDS):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if not condition():
                last = {one["metadata"]["name"]: one.get("status") for one in self.story}
                pytest.fail(f"not so after {HELD_OPEN_SECONDS:.0f} s: {last}; bound {self.ground.bound()}")

    async def patch(self, name: str, body: Manifest) -> None:
        """Change its Workload."""
        await self.admin.patch(f"{WORKLOADS.format(self.ground.namespace)}/{self.now(name)['metadata']['name']}", body)

    async def delete(self, name: str) -> None:
        """Delete a job."""
        await self.admin.delete(f"/apis/batch/v1/namespaces/{self.ground.namespace}/jobs/{name}")

    def take(self, kind: str, workload: Object) -> None:
        """Note a change of a Workload."""
        if kind == "DELETED":
            self.gone.add(uid(workload))
        else:
            self.story.append(workload)
        self._changed.set()

    async def clear(self) -> None:
        """Delete the queues and flavors, and all that is in them: a group of plain pods does not end by itself."""
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        for kind in ("/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods", WORKLOADS):
            if kind != WORKLOADS or self.kueue.running:
                await self.admin.request("DELETE", kind.format(self.ground.namespace), options)
        for one in self.queues:
            await self.admin.delete(path_of(cluster_queue(one, "", 0)))
        for one in self._flavors:
            await self.admin.delete(path_of(flavor(one)))


def _named(workload: Object, name: str) -> bool:
    owners = {one["name"] for one in workload["metadata"].get("ownerReferences") or ()}
    return name in owners or workload["metadata"]["name"] == name


@contextlib.asynccontextmanager
async def new_desk(ground: Ground, kueue: Kueue) -> AsyncIterator[Desk]:
    """A new desk; its queues are cleared afterwards."""
    desk = Desk(ground, kueue)

    async def follow() -> None:
        since = "0"
        while True:
            async for kind, item in ground.admin.watch(WORKLOADS.format(ground.namespace), since):
                since = item["metadata"]["resourceVersion"]
                desk.take(kind, item)

    task = asyncio.create_task(follow())
    try:
        yield desk
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await desk.clear()
