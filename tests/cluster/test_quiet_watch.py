"""A kind of which nothing happens, on a real API server: bookmarks and ends of watches are signs of life."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from cluster import reflector
from cluster.client import connect
from cluster.errors import ClusterError
from cluster.reflector import Reflector
from fleet.objects import Pod
from kwok.admin import Admin, path_of
from kwok.controlplane import ControlPlane
from kwok.workloads import make_pod

_LIVES = 3


class Watched(Reflector[Pod]):
    """Remembers what it was sent, how many watches ended, and what it took for trouble."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[dict[str, Any]] = []
        self.lives: list[float] = []
        self.troubles: list[ClusterError] = []
        self.told_enough = asyncio.Event()

    def _take(self, line: bytes) -> None:
        self.seen.append(json.loads(line))
        super()._take(line)

    async def _watch(self) -> None:
        await super()._watch()
        self.lives.append(self.last_event_at)
        if len(self.lives) >= _LIVES and self.seen:
            self.told_enough.set()

    def _report(self, error: ClusterError) -> None:
        self.troubles.append(error)


async def test_a_quiet_watch_is_alive(
    control_plane: ControlPlane, admin: Admin, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "_WATCH_SECONDS", (4, 4))
    async with connect(str(control_plane.kubeconfig)) as api, asyncio.timeout(60):
        copy = Watched(api, f"/api/v1/namespaces/{namespace}/pods", Pod)
        task = asyncio.create_task(copy.run())
        await copy.synced.wait()
        # Elsewhere something happens to the kind, so that the server has a newer version to tell of.
        elsewhere = await admin.create(make_pod("elsewhere", scheduler_name="nobody"))
        await copy.told_enough.wait()
        await admin.delete(path_of(elsewhere), grace_seconds=0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert {one["type"] for one in copy.seen} == {"BOOKMARK"}
    assert all("name" not in one["object"]["metadata"] for one in copy.seen), "as every API server sends it"
    assert copy.troubles == []
    assert copy.lives == sorted(copy.lives)
    assert copy.last_event_at >= copy.lives[-1]
