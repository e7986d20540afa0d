"""`python -m kwok.hami.plugin`: the half of HAMi on every node, without which its lock stays: the device plugin.

A pod that HAMi is binding there gets its devices after a moment, its phase becomes `success`, and the lock goes.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from kwok.admin import NOT_FOUND, Admin, APIError, Object
from kwok.hami.calls import Calls, follow
from kwok.hami.devices import BIND_PHASE, LOCK, TO_ALLOCATE, containers
from kwok.hami.locks import lock_text

ALLOCATE_SECONDS = 0.02
"""What a real one takes between kubelet's call and its answer."""


class Plugin:
    """Plays the device plugins of all nodes; each has a client of its own, so no rate limit counts here."""

    def __init__(self, calls: Calls, allocate_seconds: float = ALLOCATE_SECONDS) -> None:
        """`allocate_seconds`: how long it takes to serve one pod."""
        self._calls = calls
        self._allocate_seconds = allocate_seconds
        self._serving: dict[str, asyncio.Task[None]] = {}

    def see(self, kind: str, pod: Object) -> None:
        """A pod of any node appears or changes."""
        uid = pod["metadata"]["uid"]
        notes = pod["metadata"].get("annotations") or {}
        binding = notes.get(BIND_PHASE) == "allocating" and pod["spec"].get("nodeName")
        if kind != "DELETED" and binding and uid not in self._serving:
            task = asyncio.create_task(self._serve(pod))
            self._serving[uid] = task
            task.add_done_callback(lambda _: self._serving.pop(uid, None))

    async def idle(self) -> None:
        """Wait until all pods seen so far are served."""
        await asyncio.gather(*self._serving.values())

    async def _serve(self, pod: Object) -> None:
        await asyncio.sleep(self._allocate_seconds)
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        before, together = containers(pod)
        notes = {TO_ALLOCATE: ";" * (len(before) + len(together)), BIND_PHASE: "success"}
        try:
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            await self._calls.patch(path, {"metadata": {"annotations": notes, "uid": metadata["uid"]}})
        except APIError as error:
            if error.status != NOT_FOUND:
                raise
        where = f"/api/v1/nodes/{node}"
        if lock_text(await self._calls.get(where)).endswith(f",{metadata['namespace']},{metadata['name']}"):
            await self._calls.patch(where, {"metadata": {"annotations": {LOCK: None}}})


async def run(kubeconfig: Path, allocate_seconds: float) -> None:
    """Serve pods until cancelled."""
    async with Admin(kubeconfig) as admin:
        plugin = Plugin(Calls(admin), allocate_seconds)
        await follow(admin, "/api/v1/pods", plugin.see, lambda: None)


def main() -> None:
    """Serve pods until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m kwok.hami.plugin", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--allocate-seconds", type=float, default=ALLOCATE_SECONDS)
    options = parser.parse_args()
    asyncio.run(run(options.kubeconfig, options.allocate_seconds))


if __name__ == "__main__":
    main()
