"""A local copy of one kind of object that follows the API server: list, then watch, for ever.

Resource versions are compared as numbers: within one kind they only grow, and a watch delivers changes in their
order. So once the watch has reached version V, anything older than V that reaches us another way is already known.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from cluster.client import Api
from cluster.errors import ClusterError, Expired, Forbidden, NotFound, ServerStatus, Throttled, Unavailable, from_status
from cluster.listing import Described, ObjectDecoder, decoded, list_all
from cluster.pacing import backoff, between
from fleet.objects import Metadata

T = TypeVar("T", bound=Described)
Listener = Callable[[T | None, T | None], None]

_WATCH_SECONDS: Final = (40, 50)
"""How long the server is asked to keep a watch: its end is the one sign of life that a quiet kind is sure to give.

Bookmarks come only when the server knows of a newer version, and it must be less than the client's inactivity limit.
"""
_BASE_SECONDS: Final = 0.2
_CAP_SECONDS: Final = 5.0
_RELIST_AFTER_FAILURES: Final = 5
_SHORT_WATCH_SECONDS: Final = 1.0
_ASK_AGAIN_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("wholenode.reflector")


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Place(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    """How far the watch has come; an object of the kind without name or content."""

    metadata: _Place


_EVENT_DECODER = msgspec.json.Decoder(_Event)
_BOOKMARK_DECODER = msgspec.json.Decoder(_Bookmark)
_STATUS_DECODER = msgspec.json.Decoder(ServerStatus)


class Reflector(Generic[T]):
    """Objects under `path` for which `accept` says yes, by UID.

    `listeners` are called with (old, new) at every change, within the event loop, after `store` shows it; None stands
    for "not there". A listener that raises is a bug and ends `run`. Nobody but the reflector writes to `store`.

    `optional`: the cluster need not serve the kind. While it does not, the copy is empty and counts as synced; it is
    asked for again every ten seconds.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        type_: type[T],
        query: Mapping[str, str] | None = None,
        accept: Callable[[T], bool] | None = None,
        *,
        optional: bool = False,
    ) -> None:
        self.path = path
        self.store: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.last_event_at = time.monotonic()
        """Monotonic time of the last sign of life: a list, an event, a bookmark, or a watch that the server ended."""
        self.listeners: list[Listener[T]] = []
        self._api = api
        self._decoder = ObjectDecoder(type_)
        self._query = dict(query or {})
        self._accept = accept
        self._optional = optional
        self._uids: dict[tuple[str, str], str] = {}
        self._reached = 0
        self._failures = 0

    def find(self, namespace: str, name: str) -> T | None:
        """The object of that name (`namespace` is "" for cluster-wide kinds)."""
        uid = self._uids.get((namespace, name))
        return None if uid is None else self.store.get(uid)

    def apply(self, item: T) -> None:
        """Take over the API server's answer to a write of our own before the watch brings it.

        Ignored when the watch is already at, or past, that version: it may have seen a deletion since.
        """
        version = item.metadata.revision
        if version > self._reached and not self._is_older_than_known(item.metadata, version):
            self._put(item)

    async def run(self) -> None:
        """Follow the server until cancelled. Every trouble of the server is waited out.

        Raises Forbidden only before the first list: a server that has just been restarted refuses whom it allows again
        a moment later, and a right that was really taken away shows as a silent watch.
        """
        relist = True
        while True:
            try:
                if relist:
                    await self._list()
                    relist = False
                started = time.monotonic()
                await self._watch()
                self._failures = 0
                self.last_event_at = time.monotonic()
                if time.monotonic() - started < _SHORT_WATCH_SECONDS:
                    await asyncio.sleep(backoff(1, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS))
            except ClusterError as error:
                if isinstance(error, Forbidden) and not self.synced.is_set():
                    raise
                if self._optional and isinstance(error, NotFound):
                    relist = True
                    await self._stay_empty()
                    continue
                self._failures += 1
                relist = relist or isinstance(error, Expired) or self._failures >= _RELIST_AFTER_FAILURES
                if not isinstance(error, Expired) or self._failures > 1:
                    self._report(error)
                    await self._pause(error)

    async def _stay_empty(self) -> None:
        """The kind is not served, so nothing of it exists: an answer, not a failure."""
        self._failures = 0
        for uid in list(self.store):
            self._drop(uid)
        self.last_event_at = time.monotonic()
        self.synced.set()
        await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def _list(self) -> None:
        items, version = await list_all(self._api, self.path, self._decoder, self._query)
        # A consistent list cannot be older than what we know, unless the server's data was restored from a backup.
        restored = version < self._reached
        self._reached = version
        present = {item.metadata.uid for item in items}
        for uid, known in list(self.store.items()):
            made_since = known.metadata.revision > version and not restored
            if uid not in present and not made_since:
                self._drop(uid)
        for item in items:
            if restored or not self._is_older_than_known(item.metadata, item.metadata.revision):
                self._put(item)
        self.last_event_at = time.monotonic()
        self.synced.set()

    async def _watch(self) -> None:
        """One watch, until the server ends it."""
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._reached),
            "timeoutSeconds": str(round(between(*_WATCH_SECONDS))),
        }
        async with contextlib.aclosing(self._api.stream(self.path, query)) as lines:
            async for line in lines:
                try:
                    self._take(line)
                except msgspec.DecodeError as error:
                    raise Unavailable(f"watch {self.path}: a line is not a watch event ({error})") from error
                self.last_event_at = time.monotonic()
                self._failures = 0

    def _take(self, line: bytes) -> None:
        event = decoded(_EVENT_DECODER, line)
        if event.type == "ERROR":
            status = _STATUS_DECODER.decode(event.object)
            raise from_status(status.code or 500, status, what=f"watch {self.path}")
        if event.type == "BOOKMARK":
            self._reached = max(self._reached, int(_BOOKMARK_DECODER.decode(event.object).metadata.resource_version))
            return
        metadata, item = self._decoder.decode(event.object)
        version = metadata.revision
        if not self._is_older_than_known(metadata, version):
            if event.type == "DELETED" or item is None:
                self._drop(metadata.uid)
            else:
                self._put(item)
        self._reached = max(self._reached, version)

    def _is_older_than_known(self, metadata: Metadata, version: int) -> bool:
        known = self.store.get(metadata.uid)
        return known is not None and known.metadata.revision > version

    def _put(self, item: T) -> None:
        metadata = item.metadata
        name = (metadata.namespace, metadata.name)
        namesake = self._uids.get(name)
        if namesake is not None and namesake != metadata.uid:
            self._drop(namesake)  # its deletion and the new one's creation came as one change
        if self._accept is not None and not self._accept(item):
            self._drop(metadata.uid)
            return
        old = self.store.get(metadata.uid)
        if old is not None and old.metadata.resource_version == metadata.resource_version:
            return
        self.store[metadata.uid] = item
        self._uids[name] = metadata.uid
        self._tell(old, item)

    def _drop(self, uid: str) -> None:
        old = self.store.pop(uid, None)
        if old is None:
            return
        name = (old.metadata.namespace, old.metadata.name)
        if self._uids.get(name) == uid:
            del self._uids[name]
        self._tell(old, None)

    def _tell(self, old: T | None, new: T | None) -> None:
        for listener in self.listeners:
            listener(old, new)

    def _report(self, error: ClusterError) -> None:
        if isinstance(error, NotFound):
            _LOG.warning("the API server does not know this kind: are the CRDs installed?", extra={"path": self.path})
        elif self._failures >= _RELIST_AFTER_FAILURES:
            _LOG.warning("the API server cannot be followed", extra={"path": self.path, "reason": str(error)})

    async def _pause(self, error: ClusterError) -> None:
        pause = backoff(self._failures, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS)
        if isinstance(error, Throttled):
            pause = max(pause, error.retry_after_seconds)
        await asyncio.sleep(pause)
