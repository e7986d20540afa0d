"""Kubernetes Events (events.k8s.io/v1) about what we do: repeats are counted, floods cut, callers never fail."""

import asyncio
import logging
import uuid
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from cluster.client import Api
from cluster.errors import ClusterError, NotFound
from fleet.kueue.objects import API_VERSION as KUEUE
from fleet.kueue.objects import Workload
from fleet.names import API_VERSION
from fleet.objects import Job, Node, Pod
from fleet.resources import DrainAgreement, GPUPool, WholeNodeClaim
from fleet.times import format_time

_MAX_NOTE: Final = 1024
_QUEUE: Final = 1000
_REMEMBERED: Final = 4096
_SERIES_SECONDS: Final = 360.0
"""An event of the same words is a repetition, not a new one, for so long after the last."""
_REPEAT_EVERY_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.05
"""Between two events: nothing waits for them, and what they tell of has more to write."""
_OBJECT_BURST: Final = 25.0
_OBJECT_REFILL_PER_SECOND: Final = 1 / 60
_LOG: Final = logging.getLogger("wholenode.events")


class Reference(NamedTuple):
    """The object an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


def reference(item: Pod | Node | Job | GPUPool | DrainAgreement | WholeNodeClaim | Workload) -> Reference:
    metadata = item.metadata
    version = {Pod: "v1", Node: "v1", Job: "batch/v1", Workload: KUEUE}.get(type(item), API_VERSION)
    return Reference(version, type(item).__name__, metadata.namespace, metadata.name, metadata.uid)


class _Key(NamedTuple):
    regarding: Reference
    reason: str
    note: str
    type_: str
    action: str


class _Series:
    """What was written about one event, and how often it happened since."""

    __slots__ = ("count", "last_at", "path", "written_at", "written_count")

    def __init__(self, now: float) -> None:
        self.count = 0
        self.last_at = now
        self.path = ""
        self.written_at = now
        self.written_count = 0


class EventWriter:
    """`record` puts an event aside, `run` writes them. `component` and `instance` name the sender."""

    def __init__(self, api: Api, component: str, instance: str) -> None:
        self._api = api
        self._component = component
        self._instance = instance
        self._queue: asyncio.Queue[tuple[_Key, datetime]] = asyncio.Queue(_QUEUE)
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._allowance: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def record(
        self, regarding: Reference, reason: str, note: str, type_: Literal["Normal", "Warning"], action: str
    ) -> None:
        """Never blocks and never raises; when far too many events come, the newest are dropped."""
        try:
            self._queue.put_nowait((_Key(regarding, reason, note[:_MAX_NOTE], type_, action), datetime.now(UTC)))
        except asyncio.QueueFull:
            _LOG.debug("an event was dropped, too many wait", extra={"reason": reason})

    async def run(self) -> None:
        """Write events until cancelled; those that cannot be written are logged and forgotten."""
        while True:
            key, at = await self._queue.get()
            try:
                await self._write(key, at)
            except ClusterError as error:
                _LOG.debug("an event could not be written", extra={"reason": str(error)})
            finally:
                self._queue.task_done()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def drain(self) -> None:
        """Wait until everything recorded so far is written or given up; `run` must be running."""
        await self._queue.join()

    async def _write(self, key: _Key, at: datetime) -> None:
        now = asyncio.get_running_loop().time()
        series = self._series.get(key)
        if series is None or now - series.last_at > _SERIES_SECONDS:
            if self._allowed(key.regarding.uid, now):
                await self._first(key, at, now)
            return
        series.count += 1
        series.last_at = now
        if series.written_count < 2 or now - series.written_at >= _REPEAT_EVERY_SECONDS:  # noqa: PLR2004
            await self._again(key, series, at, now)

    async def _first(self, key: _Key, at: datetime, now: float) -> None:
        namespace = key.regarding.namespace or "default"
        name = f"{key.regarding.name[:200]}.{uuid.uuid4().hex[:16]}"
        collection = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        await self._api.create(collection, self._body(key, namespace, name, at))
        series = _Series(now)
        series.count = series.written_count = 1
        series.path = f"{collection}/{name}"
        self._series[key] = series
        self._series.move_to_end(key)
        if len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)

    async def _again(self, key: _Key, series: _Series, at: datetime, now: float) -> None:
        patch = {"series": {"count": series.count, "lastObservedTime": format_time(at)}}
        try:
            await self._api.patch(series.path, patch, "merge")
        except NotFound:
            await self._first(key, at, now)  # the first one has expired
            return
        series.written_at, series.written_count = now, series.count

    def _allowed(self, uid: str, now: float) -> bool:
        tokens, filled_at = self._allowance.pop(uid, (_OBJECT_BURST, now))
        tokens = min(_OBJECT_BURST, tokens + (now - filled_at) * _OBJECT_REFILL_PER_SECOND)
        allowed = tokens >= 1
        self._allowance[uid] = (tokens - 1 if allowed else tokens, now)
        if len(self._allowance) > _REMEMBERED:
            self._allowance.popitem(last=False)
        return allowed

    def _body(self, key: _Key, namespace: str, name: str, at: datetime) -> dict[str, Any]:
        regarding = {
            "apiVersion": key.regarding.api_version,
            "kind": key.regarding.kind,
            "name": key.regarding.name,
            "uid": key.regarding.uid,
        }
        if key.regarding.namespace:
            regarding["namespace"] = key.regarding.namespace
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": format_time(at),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": key.action,
            "reason": key.reason,
            "note": key.note,
            "type": key.type_,
            "regarding": regarding,
        }
