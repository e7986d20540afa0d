"""Watches a burst of whole-node jobs: who was bound where and when, and whether that node was vacated for it."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kwok.admin import Admin, APIError
from kwok.nodes import GPU

_NO_LONGER_HOLDING = frozenset({"Succeeded", "Failed"})


@dataclass
class Seen:
    """What was seen of one pod; times are this process's monotonic seconds."""

    name: str
    namespace: str
    uid: str
    cards: int
    node: str = ""
    bound_at: float | None = None
    running_at: float | None = None
    deleting_at: float | None = None
    gone_at: float | None = None


@dataclass
class PodWatch:
    """Everything that happens to pods with cards while it runs, by UID. Use `follow`."""

    pods: dict[str, Seen] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    _newest: dict[tuple[str, str], Seen] = field(default_factory=dict)

    def of(self, namespace: str, name: str) -> Seen | None:
        """The newest pod of that name."""
        return self._newest.get((namespace, name))

    def forget_gone(self) -> None:
        """Forget pods that are gone, so that a long run's looks stay quick; to be called between two bursts."""
        for uid in [uid for uid, one in self.pods.items() if one.gone_at is not None]:
            gone = self.pods.pop(uid)
            if self._newest.get((gone.namespace, gone.name)) is gone:
                del self._newest[(gone.namespace, gone.name)]

    def holders(self, node: str, at: float) -> list[Seen]:
        """Pods that held cards of the node at that moment."""
        return [
            one
            for one in self.pods.values()
            if one.node == node
            and one.bound_at is not None
            and one.bound_at <= at
            and (one.gone_at is None or one.gone_at > at)
        ]

    async def until(self, condition: Any, timeout_seconds: float) -> bool:
        """Wait until `condition()` holds; False if it does not in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return bool(condition())
        return True

    def _take(self, kind: str, pod: Mapping[str, Any], now: float) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        cards = sum(int(c.get("resources", {}).get("limits", {}).get(GPU, 0)) for c in spec["containers"])
        if not cards:
            return
        uid = metadata["uid"]
        known = self.pods.get(uid)
        seen = known or self.pods.setdefault(uid, Seen(metadata["name"], metadata["namespace"], uid, cards))
        if known is None:
            self._newest[(seen.namespace, seen.name)] = seen
        if spec.get("nodeName") and seen.bound_at is None:
            seen.node, seen.bound_at = spec["nodeName"], now
        if pod.get("status", {}).get("phase") == "Running" and seen.running_at is None:
            seen.running_at = now
        if metadata.get("deletionTimestamp") and seen.deleting_at is None:
            seen.deleting_at = now
        ended = pod.get("status", {}).get("phase") in _NO_LONGER_HOLDING
        if (kind == "DELETED" or ended) and seen.gone_at is None:
            seen.gone_at = now
        self.changed.set()


@contextlib.asynccontextmanager
async def follow(admin: Admin) -> AsyncIterator[PodWatch]:
    """Follow all pods with cards from now on."""
    watch = PodWatch()
    task = asyncio.create_task(_follow(admin, watch))
    await watch.caught_up.wait()
    try:
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _follow(admin: Admin, watch: PodWatch) -> None:
    while True:
        answer = await admin.request("GET", "/api/v1/pods")
        now = time.monotonic()
        present = {item["metadata"]["uid"] for item in answer["items"]}
        for item in answer["items"]:
            watch._take("ADDED", item, now)  # noqa: SLF001
        for seen in watch.pods.values():
            if seen.uid not in present and seen.gone_at is None:
                seen.gone_at = now
        watch.caught_up.set()
        with contextlib.suppress(APIError):
            async for kind, item in admin.watch("/api/v1/pods", answer["metadata"]["resourceVersion"]):
                watch._take(kind, item, time.monotonic())  # noqa: SLF001


@dataclass(frozen=True)
class Landing:
    """How one whole-node job fared. `vacated` are the nodes that were vacated for it."""

    job: str
    node: str
    vacated: tuple[str, ...]
    wait_seconds: float | None
    victims: int
    lost_gpu_seconds: float
    shared_with: int = 0
    """Pods of others that held cards of the node when the job was bound to it."""

    @property
    def right(self) -> bool:
        """Landed on a node that was vacated for exactly this job, and alone there."""
        return bool(self.node) and self.node in self.vacated and self.shared_with == 0


@dataclass(frozen=True)
class Report:
    """The figures of one burst."""

    landings: tuple[Landing, ...]

    @property
    def landed(self) -> int:
        return sum(bool(one.node) for one in self.landings)

    @property
    def wrong(self) -> tuple[Landing, ...]:
        """Jobs that landed on a node that was not vacated for them, or beside somebody."""
        return tuple(one for one in self.landings if one.node and not one.right)

    @property
    def waits_seconds(self) -> list[float]:
        return [round(one.wait_seconds, 3) for one in self.landings if one.wait_seconds is not None]

    @property
    def median_wait_seconds(self) -> float:
        return statistics.median(self.waits_seconds) if self.waits_seconds else float("nan")

    @property
    def victims(self) -> int:
        return sum(one.victims for one in self.landings)

    @property
    def lost_gpu_seconds(self) -> float:
        return round(sum(one.lost_gpu_seconds for one in self.landings), 1)


def report(watch: PodWatch, submitted: Mapping[tuple[str, str], float], claims: Iterable[Mapping[str, Any]]) -> Report:
    """`submitted`: (namespace, pod name) -> when; `claims` as the API server has them. One pod a job."""
    by_gang = {}
    for claim in claims:
        gang = claim["spec"].get("gang", {})
        by_gang[gang.get("uid", "")] = claim
    found = []
    for (namespace, name), at in submitted.items():
        seen = watch.of(namespace, name)
        claim = by_gang.get(seen.uid, {}) if seen else {}
        status = claim.get("status", {})
        others = []
        if seen and seen.bound_at is not None:
            others = [one for one in watch.holders(seen.node, seen.bound_at) if one.uid != seen.uid]
        found.append(
            Landing(
                job=f"{namespace}/{name}",
                node=seen.node if seen else "",
                vacated=tuple(node["name"] for node in status.get("nodes", [])),
                wait_seconds=seen.bound_at - at if seen and seen.bound_at is not None else None,
                victims=len(status.get("victims", [])),
                lost_gpu_seconds=float(status.get("lostGpuSeconds", 0.0)),
                shared_with=len(others),
            )
        )
    return Report(tuple(found))
