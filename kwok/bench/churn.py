"""`python -m kwok.bench.churn KUBECONFIG HEARTBEATS_PER_S LABELS_PER_S PODS_PER_S`: a cluster that is never quiet.

A process of its own, for the one that measures must not do anything else.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kwok.admin import Admin
from kwok.scene import TEAMS

SEEN = "example.com/seen"


async def disturb(
    kubeconfig: Path, heartbeats_per_second: float, labels_per_second: float, pods_per_second: float
) -> None:
    """Refresh one node's status, set a label on another, and an annotation on a pod, over and over until killed."""
    async with Admin(kubeconfig) as admin, asyncio.TaskGroup() as group:
        nodes = [f"/api/v1/nodes/{one['metadata']['name']}" for one in await admin.list("/api/v1/nodes", limit="200")]
        pods = [
            f"/api/v1/namespaces/{TEAMS[0]}/pods/{one['metadata']['name']}"
            for one in await admin.list(f"/api/v1/namespaces/{TEAMS[0]}/pods", limit="500")
        ]
        beats = [f"{path}/status" for path in nodes]
        group.create_task(_patch(admin, itertools.cycle(beats), _heartbeat, heartbeats_per_second))
        group.create_task(_patch(admin, itertools.cycle(nodes), _label, labels_per_second))
        group.create_task(_patch(admin, itertools.cycle(pods), _annotation, pods_per_second))


def _heartbeat(_number: int) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now}]}}


def _label(number: int) -> dict[str, Any]:
    return {"metadata": {"labels": {SEEN: str(number)}}}


def _annotation(number: int) -> dict[str, Any]:
    return {"metadata": {"annotations": {SEEN: str(number)}}}


async def _patch(
    admin: Admin, paths: Iterator[str], change: Callable[[int], dict[str, Any]], per_second: float
) -> None:
    began = time.monotonic()
    for number, path in enumerate(paths):
        await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
        await admin.patch(path, change(number), "strategic")


if __name__ == "__main__":
    kubeconfig, *rates = sys.argv[1:]
    asyncio.run(disturb(Path(kubeconfig), *map(float, rates)))
