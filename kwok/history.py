"""Everything that happens to several kinds of objects, from their watches, in the order in which it was stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp

from kwok.admin import Admin, APIError, Object
from kwok.readings import revision, uid

COLLECTIONS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "jobs": "/apis/batch/v1/jobs",
    "claims": "/apis/wholenode.io/v1alpha1/wholenodeclaims",
    "agreements": "/apis/wholenode.io/v1alpha1/drainagreements",
    "records": "/apis/wholenode.io/v1alpha1/drainrecords",
}
_CATCH_UP_SECONDS = 60.0
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Change:
    """One stored change: `kind` is a key of COLLECTIONS, `deleted` that the object is gone with it."""

    revision: int
    kind: str
    deleted: bool
    object: Object


class History:
    """Watches, the objects as last seen (`live`, by kind and UID), and the changes not taken yet. Use `record`."""

    def __init__(self, admin: Admin, *, gaps_allowed: bool = False) -> None:
        self.gaps = 0
        """How often a watch was lost and what happened meanwhile is known by its outcome only."""
        self.live: dict[str, dict[str, Object]] = {kind: {} for kind in COLLECTIONS}
        self.listeners: list[Callable[[Change], None]] = []
        self._admin = admin
        self._gaps_allowed = gaps_allowed
        self._gone: set[str] = set()
        self._changes: list[Change] = []
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait for a change after which `condition()` holds; False if there is none in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    self._watches_stand()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True

    async def catch_up(self) -> list[Change]:
        """All changes since the last call and up to now, in the order in which they were stored.

        The watches tell of each kind by itself. A list of each kind says what they must have told by now; up to the
        revision of the oldest list nothing is missing. Raises TimeoutError.
        """
        lists = {kind: await self._admin.request("GET", path) for kind, path in COLLECTIONS.items()}
        if not await self.until(lambda: all(self._has_seen(*one) for one in lists.items()), _CATCH_UP_SECONDS):
            raise TimeoutError(f"the watches are more than {_CATCH_UP_SECONDS:.0f} s behind the API server")
        upto = min(revision(one) for one in lists.values())
        due = sorted((one for one in self._changes if one.revision <= upto), key=lambda one: one.revision)
        self._changes = [one for one in self._changes if one.revision > upto]
        return due

    def _has_seen(self, kind: str, listed: Object) -> bool:
        live = self.live[kind]
        present = {uid(item): revision(item) for item in listed["items"]}
        at = revision(listed)
        told = all(one in self._gone or (one in live and revision(live[one]) >= at_) for one, at_ in present.items())
        return told and all(one in present or revision(item) > at for one, item in live.items())

    def _watches_stand(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError(f"{task.get_name()} has ended")

    async def _start(self) -> None:
        for kind, path in COLLECTIONS.items():
            listed = await self._admin.request("GET", path)
            for item in listed["items"]:
                self._take(kind, "ADDED", item)
            task = asyncio.create_task(self._follow(kind, path, listed["metadata"]["resourceVersion"]), name=path)
            self._tasks.append(task)

    async def _follow(self, kind: str, path: str, since: str) -> None:
        """A watch that the server ends is taken up where it ended; one that lost changes fails (APIError 410)."""
        while True:
            try:
                async for event, item in self._admin.watch(path, since):
                    self._take(kind, event, item)
                    since = item["metadata"]["resourceVersion"]
            except (APIError, aiohttp.ClientError, OSError):
                if not self._gaps_allowed:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
                since = await self._close_gap(kind, path, since)

    async def _close_gap(self, kind: str, path: str, since: str) -> str:
        """Take what a list says for what happened; one that cannot be had leaves everything to the next try."""
        try:
            listed = await self._admin.request("GET", path)
        except (APIError, aiohttp.ClientError, OSError):
            return since
        self.gaps += 1
        version = str(listed["metadata"]["resourceVersion"])
        present = {uid(item) for item in listed["items"]}
        for item in listed["items"]:
            known = self.live[kind].get(uid(item))
            if known is None or revision(known) < revision(item):
                self._take(kind, "MODIFIED", item)
        for item in [one for one in self.live[kind].values() if uid(one) not in present]:
            self._take(kind, "DELETED", {**item, "metadata": {**item["metadata"], "resourceVersion": version}})
        return version

    def _take(self, kind: str, event: str, item: Object) -> None:
        change = Change(revision(item), kind, event == "DELETED", item)
        if change.deleted:
            self.live[kind].pop(uid(item), None)
            self._gone.add(uid(item))
        else:
            self.live[kind][uid(item)] = item
        self._changes.append(change)
        for listener in self.listeners:
            listener(change)
        self._changed.set()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def record(admin: Admin, *, gaps_allowed: bool = False) -> AsyncIterator[History]:
    """Record from now on; the kinds of wholenode must be installed. `gaps_allowed`: a lost watch is taken up anew."""
    history = History(admin, gaps_allowed=gaps_allowed)
    try:
        await history._start()  # noqa: SLF001
        yield history
    finally:
        await history._stop()  # noqa: SLF001
