"""What one pod event costs the extender: real watch lines, recorded once, given to its own caches again and again."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.client import Api, connect
from extender.state import State
from kwok.admin import Admin
from kwok.bench.bigfleet import cpu_pod, small_pod
from kwok.bench.figures import Figures, spread
from kwok.errors import LabError
from kwok.scene import TEAMS

NAMESPACE = TEAMS[0]
_PODS_PATH = "/api/v1/pods"
_PARALLEL = 16
_CARD_PART = 0.7
_READY_SECONDS, _LOOK_SECONDS, _SETTLE_SECONDS = 60.0, 0.05, 1.0
_RECORD_SECONDS = 120.0


async def record(admin: Admin, nodes: Sequence[str], lives: int) -> list[bytes]:
    """The watch lines of `lives` pods, from their making to their end, as the API server sends them: six each."""
    listed = await admin.request("GET", _PODS_PATH, params={"limit": "1"})
    query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"], "allowWatchBookmarks": "true"}
    lines: list[bytes] = []

    async def watch() -> None:
        ended, pending = 0, b""
        async with admin.session.get(_PODS_PATH, params=query) as response:
            async for chunk in response.content.iter_any():
                *some, pending = (pending + chunk).split(b"\n")
                lines.extend(line for line in some if not line.startswith(b'{"type":"BOOKMARK"'))
                ended += sum(line.startswith(b'{"type":"DELETED"') for line in some)
                if ended >= lives:
                    return

    async with asyncio.timeout(_RECORD_SECONDS):
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            numbers = iter(range(lives))
            for _ in range(_PARALLEL):
                group.create_task(_live(admin, numbers, nodes, lives))
    return lines


async def _live(admin: Admin, numbers: Any, nodes: Sequence[str], lives: int) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for number in numbers:
        make = small_pod if number < lives * _CARD_PART else cpu_pod
        pod = make(f"event-{number:05d}", NAMESPACE)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        await admin.create(pod)
        target = {"apiVersion": "v1", "kind": "Node", "name": nodes[number % len(nodes)]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
        await admin.request("POST", f"{path}/binding", {**binding, "target": target})
        for phase in ("Running", "Succeeded"):
            ready = {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": now}
            status = {"phase": phase, "startTime": now, "podIP": "10.1.2.3", "conditions": [ready]}
            await admin.patch(f"{path}/status", {"status": status})
        await admin.delete(path, grace_seconds=0)


class _Replay(Api):
    """Lists of the real API server; its pods' watch is the recording, over and over, every other watch is silent."""

    def __init__(self, api: Api, lines: Sequence[bytes], rounds: int) -> None:
        self._real = api
        self._lines = lines
        self._rounds = rounds
        self.start = asyncio.Event()
        self.ended = asyncio.Event()
        self.seconds: list[float] = []

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        return await self._real.get(path, query)

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        if path == _PODS_PATH:
            await self.start.wait()
            for _ in range(self._rounds):
                began = time.perf_counter()
                for line in self._lines:
                    yield line
                self.seconds.append(time.perf_counter() - began)
            self.ended.set()
        await asyncio.Event().wait()
        yield b""


async def cost(kubeconfig: Path, lines: Sequence[bytes], rounds: int) -> Figures:
    """Microseconds from a watch line to the counts that follow from it, beside everything the API server lists.

    The first round warms up and does not count.
    """
    async with connect(str(kubeconfig)) as api:
        replay = _Replay(api, lines, rounds + 1)
        state = State(replay)
        following = asyncio.create_task(state.run())
        try:
            await _ready(state)
            replay.start.set()
            ended = asyncio.create_task(replay.ended.wait())
            await asyncio.wait([ended, following], return_when=asyncio.FIRST_COMPLETED)
            if not replay.ended.is_set():
                following.result()
        finally:
            following.cancel()
            await asyncio.wait([following])
            gc.unfreeze()
    each = [1e6 * seconds / len(lines) for seconds in replay.seconds[1:]]
    return {"us": spread(each, 1), "events": rounds * len(lines), "recorded": len(lines), "rounds": rounds}


async def _ready(state: State) -> None:
    for _ in range(int(_READY_SECONDS / _LOOK_SECONDS)):
        if state.not_ready() is None:
            await asyncio.sleep(_SETTLE_SECONDS)  # what is done once after the lists is no part of an event
            return
        await asyncio.sleep(_LOOK_SECONDS)
    raise LabError(f"the caches were not filled after {_READY_SECONDS:.0f} s: {state.not_ready()}")
