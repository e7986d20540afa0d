"""HAMi's lock of a node: one pod at a time is bound there, from its binding until the device plugin has served it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Final

from fleet.errors import FleetError
from fleet.times import parse_time
from kwok.admin import CONFLICT, APIError, Object
from kwok.hami.calls import Calls
from kwok.hami.devices import LOCK
from kwok.hami.ledger import Ledger

_ATTEMPTS: Final = 5
_POLL_SECONDS: Final = 0.1


class LockedError(Exception):
    """Another pod holds the node."""


class Locks:
    """Takes and gives back the locks of nodes; a lock that has expired, or whose pod is gone, is taken over."""

    def __init__(self, calls: Calls, ledger: Ledger, expires_after: timedelta, retry_for: timedelta) -> None:
        """`retry_for`: how long a member of a pod group keeps asking; others fail at once."""
        self._calls = calls
        self._ledger = ledger
        self._expires_after = expires_after
        self._retry_for = retry_for
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, node: str, namespace: str, pod: str, *, patient: bool) -> None:
        """Lock the node for the pod. Raises LockedError while another has it, and APIError."""
        async with self._turns[node]:
            until = datetime.now(UTC) + self._retry_for
            while (holder := await self._holder(node)) is not None:
                if not patient or datetime.now(UTC) >= until:
                    raise LockedError(f"node {node} has been locked by {holder} within {self._expires_after}")
                await asyncio.sleep(_POLL_SECONDS)
            await self._calls.get(f"/api/v1/nodes/{node}")
            await self._write(node, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{namespace},{pod}")

    async def give_back(self, node: str, namespace: str, pod: str) -> None:
        """Take the pod's lock off the node; another's stays. Raises APIError."""
        held = lock_text(await self._calls.get(f"/api/v1/nodes/{node}"))
        if held.endswith(f",{namespace},{pod}"):
            await self._write(node, None)

    async def _holder(self, node: str) -> str | None:
        """Who holds the node; None if it may be taken: a lock that stands no longer is taken off."""
        held = lock_text(await self._calls.get(f"/api/v1/nodes/{node}"))
        if not held:
            return None
        taken_at, _, owner = held.partition(",")
        namespace, _, pod = owner.partition(",")
        if (namespace, pod) in self._ledger.alive and not self._expired(taken_at):
            return f"{namespace}/{pod}"
        await self._calls.get(f"/api/v1/nodes/{node}")
        await self._write(node, None)
        return None

    def _expired(self, taken_at: str) -> bool:
        try:
            return parse_time(taken_at) + self._expires_after <= datetime.now(UTC)
        except FleetError:
            return False

    async def _write(self, node: str, value: str | None) -> None:
        """With the version just read: a node that changed in between is read again."""
        for attempt in range(_ATTEMPTS):
            read = await self._calls.get(f"/api/v1/nodes/{node}")
            version = read["metadata"]["resourceVersion"]
            try:
                body = {"metadata": {"annotations": {LOCK: value}, "resourceVersion": version}}
                await self._calls.patch(f"/api/v1/nodes/{node}", body)
            except APIError as error:
                if error.status != CONFLICT or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return


def lock_text(node: Object) -> str:
    """The lock annotation, empty if there is none."""
    return str((node["metadata"].get("annotations") or {}).get(LOCK, ""))
