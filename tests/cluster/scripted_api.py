"""An API server in memory for the reflector: versions, pages, watches, and every way they are known to fail."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from cluster.errors import Expired, Unavailable

PAGE = 3


class _Watcher:
    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()


def _line(type_: str, item: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": type_, "object": item}).encode()


class ScriptedApi:
    """Stands in for `cluster.client.Api` (get and stream). `truth` holds the objects that exist, by name."""

    def __init__(self) -> None:
        self.truth: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.lists = 0
        self.failing_lists = 0
        self.compacts_between_pages = False
        self._serial = 0
        self._history: list[tuple[int, bytes]] = []
        self._oldest = 0
        self._gone_within_stream = False
        self._watchers: list[_Watcher] = []
        self._snapshots: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    # What happens in the cluster

    def create(self, name: str) -> dict[str, Any]:
        self._serial += 1
        self.truth[name] = {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{self._serial}"}}
        return self._emit("ADDED", self.truth[name])

    def update(self, name: str) -> dict[str, Any]:
        return self._emit("MODIFIED", self.truth[name])

    def delete(self, name: str) -> None:
        self._emit("DELETED", self.truth.pop(name))

    def recreate(self, name: str) -> dict[str, Any]:
        """Deleted and made anew, seen by watchers as one change of the same name."""
        self._serial += 1
        self.version += 1
        self.truth[name] = {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{self._serial}"}}
        return self._emit("MODIFIED", self.truth[name])

    def _emit(self, type_: str, item: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        line = _line(type_, item)
        self._history.append((self.version, line))
        self._send(line)
        return copy.deepcopy(item)

    # What happens to connections and to the server's memory

    def cut(self) -> None:
        self._send(Unavailable("cut"))

    def end(self) -> None:
        self._send(None)

    def compact(self, *, within_stream: bool) -> None:
        """Forget the past; watches from before are told so by HTTP 410, or by an ERROR event."""
        self._oldest = self.version
        self._gone_within_stream = within_stream
        self.cut()

    def say_gone(self) -> None:
        """Tell the open watches 410 in the stream; their place is kept, though."""
        self._send(_line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))

    def repeat_last(self) -> None:
        if self._history:
            self._send(self._history[-1][1])

    def bookmark(self) -> None:
        place = {"resourceVersion": str(self.version), "creationTimestamp": None}
        self._send(
            _line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": place, "spec": {"containers": None}})
        )

    def _send(self, what: bytes | Exception | None) -> None:
        for watcher in self._watchers:
            watcher.lines.put_nowait(what)

    # What the reflector asks

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        await asyncio.sleep(0)
        if self.failing_lists:
            self.failing_lists -= 1
            raise Unavailable(f"GET {path}: no")
        query = query or {}
        token = query.get("continue", "")
        if token:
            if self.compacts_between_pages:
                self.compacts_between_pages = False
                raise Expired(f"GET {path}: the continue token is too old")
            key, _, offset = token.partition("/")
            start = int(offset)
        else:
            self.lists += 1
            key, start = str(self.lists), 0
            self._snapshots[key] = (self.version, copy.deepcopy(list(self.truth.values())))
        version, items = self._snapshots[key]
        metadata = {"resourceVersion": str(version)}
        if start + PAGE < len(items):
            metadata["continue"] = f"{key}/{start + PAGE}"
        return json.dumps({"metadata": metadata, "items": items[start : start + PAGE]}).encode()

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0)
        since = int(query["resourceVersion"])
        if since < self._oldest:
            if not self._gone_within_stream:
                raise Expired(f"watch {path}: too old")
            yield _line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
            return
        watcher = _Watcher()
        for version, line in self._history:
            if version > since:
                watcher.lines.put_nowait(line)
        self._watchers.append(watcher)
        try:
            while True:
                line = await watcher.lines.get()
                if line is None:
                    return
                if isinstance(line, Exception):
                    raise line
                yield line
        finally:
            self._watchers.remove(watcher)
