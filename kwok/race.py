"""The race: whole-node jobs on a busy fleet while single-card pods keep arriving; with wholenode, and naively."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kwok.admin import Admin, APIError, create_all
from kwok.errors import LabError
from kwok.landings import Landing, PodWatch, Report, report
from kwok.scene import BENEFICIARY, LONG_JOB, SHORT_JOB, Scene

CLAIMS = "/apis/wholenode.io/v1alpha1/wholenodeclaims"
_SETTLE_SECONDS = 60.0
_NAIVE_SECONDS = 10.0


@dataclass
class Arrivals:
    """What the flood of single-card pods came to; filled in when it ends."""

    created: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.created / self.seconds if self.seconds else 0.0


@contextlib.asynccontextmanager
async def flood(
    admin: Admin, scene: Scene, per_second: float, run_seconds: float, arrivals: Arrivals | None = None
) -> AsyncIterator[Arrivals]:
    """Single-card pods that arrive at a steady rate and run for `run_seconds` each, as long as the block runs.

    `arrivals` of an earlier flood are added to.
    """
    arrivals = arrivals or Arrivals()
    before = arrivals.created
    began = time.monotonic()

    async def keep_coming() -> None:
        pending: set[asyncio.Task[object]] = set()
        while True:
            due = before + int((time.monotonic() - began) * per_second)
            missing = max(0, due - arrivals.created)
            for pod in scene.background(arrivals.created, missing, run_seconds, SHORT_JOB):
                task: asyncio.Task[object] = asyncio.create_task(admin.create(pod))
                pending.add(task)
                task.add_done_callback(pending.discard)
                arrivals.created += 1
            await asyncio.sleep(0.02)

    task = asyncio.create_task(keep_coming())
    try:
        yield arrivals
    finally:
        arrivals.seconds += time.monotonic() - began
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@dataclass
class Race:
    """Bursts of `jobs` whole-node jobs, run after run, on the fleet of `scene`."""

    admin: Admin
    watch: PodWatch
    scene: Scene
    jobs: int = 5
    seconds: float = 60.0
    _topped_up: int = field(default=0, init=False)

    async def burst(self, run: int) -> Report:
        """Submit the jobs, wait until all are bound (or time is up), report."""
        submitted = await self._submit(run)
        await self.watch.until(lambda: self._all_bound(submitted), self.seconds)
        await self._claims_settled()
        return report(self.watch, submitted, await self.admin.list(CLAIMS))

    async def naive_burst(self, run: int, per_second: float, run_seconds: float, arrivals: Arrivals) -> Report:
        """The same burst without us: list a node's pods, stop them one by one, leave the rest to the scheduler.

        This is the first thing one would write. It lets new pods slip in between list and stop, and lets any job
        have any node that happens to be free. The flood ends once the listed pods are gone, so that the jobs land at
        all: while it goes on, it takes every card that is given back.
        """
        chosen = self._fewest_pods(self.jobs)
        listed = {node: self.watch.holders(node, time.monotonic()) for node in chosen}
        async with flood(self.admin, self.scene, per_second, run_seconds, arrivals):
            submitted = await self._submit(run)
            stopped = [pod for pods in listed.values() for pod in pods]
            for pod in stopped:
                with contextlib.suppress(APIError):
                    await self.admin.evict(pod.namespace, pod.name)
            await self.watch.until(lambda: all(pod.gone_at is not None for pod in stopped), self.seconds)
        await self.watch.until(lambda: self._all_bound(submitted), _NAIVE_SECONDS)
        found = []
        for (key, at), node in zip(submitted.items(), chosen, strict=True):
            seen = self.watch.of(*key)
            bound_at = seen.bound_at if seen else None
            landed = seen.node if seen else ""
            found.append(
                Landing(
                    job="/".join(key),
                    node=landed,
                    vacated=(node,),
                    wait_seconds=bound_at - at if bound_at is not None else None,
                    victims=len(listed[node]),
                    lost_gpu_seconds=0.0,
                )
            )
        return Report(tuple(found))

    async def outranking_burst(self, run: int, priority_class: str) -> list[float]:
        """The burst as pods of a higher priority, for kube-scheduler's own preemption: the waits, in seconds."""
        submitted = await self._submit(run, priority_class)
        await self.watch.until(lambda: self._all_bound(submitted), self.seconds)
        found = [(self.watch.of(*key), at) for key, at in submitted.items()]
        return [seen.bound_at - at for seen, at in found if seen is not None and seen.bound_at is not None]

    async def clear(self, run: int) -> None:
        """Delete the burst's jobs and make every node busy again, so that the next burst must vacate nodes too."""
        for index in range(self.jobs):
            path = f"/api/v1/namespaces/{BENEFICIARY}/pods/{self._name(run, index)}"
            await self.admin.delete(path, grace_seconds=0)
        await self.watch.until(lambda: not self._holding(BENEFICIARY), _SETTLE_SECONDS)
        await self._released()
        for node in self._idle_nodes():
            pods = self.scene.background(self.scene.busy_cards + self._topped_up, 5)
            self._topped_up += 5
            for pod in pods:
                pod["spec"]["nodeName"] = node
            await create_all(self.admin, pods)
        if not await self.watch.until(lambda: not self._idle_nodes(), _SETTLE_SECONDS):
            raise LabError(f"nodes stayed idle: {self._idle_nodes()}")

    async def _submit(self, run: int, priority_class: str | None = None) -> dict[tuple[str, str], float]:
        submitted: dict[tuple[str, str], float] = {}
        for index in range(self.jobs):
            name = self._name(run, index)
            job = self.scene.whole_node_job(name)
            if priority_class is not None:
                job["spec"]["priorityClassName"] = priority_class
            submitted[(BENEFICIARY, name)] = time.monotonic()
            await self.admin.create(job)
        return submitted

    @staticmethod
    def _name(run: int, index: int) -> str:
        return f"big-{run}-{index}"

    def _all_bound(self, keys: Sequence[tuple[str, str]] | dict[tuple[str, str], float]) -> bool:
        return all((seen := self.watch.of(*key)) is not None and seen.node for key in keys)

    def _holding(self, namespace: str) -> list[str]:
        return [
            one.name
            for one in self.watch.pods.values()
            if one.namespace == namespace and one.bound_at is not None and one.gone_at is None
        ]

    @cached_property
    def _names(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.scene.fleet()]

    def _idle_nodes(self) -> list[str]:
        """Nodes without a long-running job: what the flood leaves there ends by itself. Asked at every event."""
        busy = {
            one.node
            for one in self.watch.pods.values()
            if one.bound_at is not None and one.gone_at is None and one.name.startswith(f"{LONG_JOB}-")
        }
        return [node for node in self._names if node not in busy]

    def _fewest_pods(self, count: int) -> list[str]:
        now = time.monotonic()
        return sorted(self._names, key=lambda node: (len(self.watch.holders(node, now)), node))[:count]

    async def _claims_settled(self) -> None:
        await self.admin.wait_for_all(
            f"/apis/wholenode.io/v1alpha1/namespaces/{BENEFICIARY}/wholenodeclaims",
            lambda claims: all(one.get("status", {}).get("phase") in {"Bound", "Released"} for one in claims.values()),
            self.seconds,
        )

    async def _released(self) -> None:
        with contextlib.suppress(APIError):
            await self.admin.wait_for_all(
                f"/apis/wholenode.io/v1alpha1/namespaces/{BENEFICIARY}/wholenodeclaims",
                lambda claims: all(one.get("status", {}).get("phase") == "Released" for one in claims.values()),
                _SETTLE_SECONDS,
            )


async def prepare(admin: Admin, watch: PodWatch, scene: Scene) -> None:
    """Make the fleet, the teams and their long-running jobs, and wait until all of them are bound."""
    for objects in (scene.fleet(), scene.namespaces(), scene.busy()):
        await create_all(admin, objects)

    def all_bound() -> bool:
        return sum(one.bound_at is not None for one in watch.pods.values()) >= scene.busy_cards

    if not await watch.until(all_bound, _SETTLE_SECONDS):
        raise LabError(f"not all of the {scene.busy_cards} single-card jobs were bound")
