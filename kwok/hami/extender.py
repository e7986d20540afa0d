"""The two verbs of HAMi's scheduler extender: filter chooses and books one node, bind locks it and binds the pod."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp

from kwok.admin import NOT_FOUND, APIError, Object
from kwok.hami.calls import Calls
from kwok.hami.devices import (
    ALLOCATED,
    BIND_PHASE,
    BIND_TIME,
    BOOKED_AT,
    BOOKED_NODE,
    TO_ALLOCATE,
    Ask,
    Segments,
    asks,
    encode,
)
from kwok.hami.ledger import Ledger
from kwok.hami.locks import LockedError, Locks
from kwok.hami.rules import Choice, Outcome, best, node_score, place

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Policies:
    """What the flags say where the pod does not."""

    node: str
    card: str


class Extender:
    """Answers kube-scheduler, as HAMi 2.10 does; one filter at a time, binds beside each other."""

    def __init__(
        self,
        ledger: Ledger,
        calls: Calls,
        locks: Locks,
        policies: Policies,
        source: random.Random,
        filter_seconds: float = 0.0,
    ) -> None:
        """`ledger` must be kept up to date by the caller, who sets `synced` once it knows all nodes and pods.

        `filter_seconds`: how long each question takes beside its call.
        """
        self.synced = asyncio.Event()
        self._ledger = ledger
        self._calls = calls
        self._locks = locks
        self._policies = policies
        self._source = source
        self._filter_seconds = filter_seconds
        self._events: set[asyncio.Task[None]] = set()

    async def filter(self, asked: Mapping[str, Any]) -> Answer:
        """One node that has the cards, booked for the pod; a pod that asks for none may have every node."""
        pod = asked["Pod"]
        before, together = asks(pod)
        if not any((*before, *together)):
            return {"Nodes": asked.get("Nodes"), "NodeNames": asked.get("NodeNames"), "FailedNodes": {}, "Error": ""}
        await self.synced.wait()
        await asyncio.sleep(self._filter_seconds)
        names = asked.get("NodeNames")
        if names is None:
            return self._simulated(pod, asked.get("Nodes") or {}, before, together)
        self._ledger.release(pod["metadata"]["uid"])
        choice = Choice.of(pod, self._policies.node, self._policies.card)
        found, failed = self._look(names, before, together, choice)
        if not found:
            self._tell(pod, "FilteringFailed", "no available node, " + ", ".join(sorted(set(failed.values()))))
            return {"NodeNames": None, "FailedNodes": failed, "Error": ""}
        scored = {name: node_score(self._ledger.nodes[name].devices, self._ledger.usage(name)) for name in found}
        node = best(scored, choice.node_policy, self._source)
        self._ledger.book(pod, node, found[node])
        try:
            await self._calls.patch(_path(pod), _booked(node, encode(found[node])))
        except (APIError, aiohttp.ClientError) as error:
            if isinstance(error, APIError) and error.status == NOT_FOUND:
                self._ledger.release(pod["metadata"]["uid"])
            return {"NodeNames": None, "FailedNodes": {}, "Error": f"cannot annotate the pod: {error}"}
        note = f"find fit node({node}), {len(failed)} nodes not fit, {len(found)} nodes fit"
        self._tell(pod, "FilteringSucceed", note)
        return {"NodeNames": [node], "FailedNodes": {}, "Error": ""}

    def _look(
        self, names: list[str], before: tuple[Ask | None, ...], together: tuple[Ask | None, ...], choice: Choice
    ) -> tuple[dict[str, Segments], dict[str, str]]:
        found: dict[str, Segments] = {}
        failed: dict[str, str] = {}
        for name in names:
            seen = self._ledger.nodes.get(name)
            if seen is None or not seen.devices:
                failed[name] = "node unregistered"
                continue
            outcome: Outcome = place(
                before, together, seen.devices, self._ledger.usage(name), choice, seen.cordoned
            )  # fmt: skip
            if outcome.segments is None:
                failed[name] = outcome.message(len(seen.devices))
            else:
                found[name] = outcome.segments
        return found, failed

    def _simulated(
        self, pod: Object, nodes: Mapping[str, Any], before: tuple[Ask | None, ...], together: tuple[Ask | None, ...]
    ) -> Answer:
        """Whole nodes in the question: HAMi takes all their cards for free and books nothing."""
        choice = Choice.of(pod, self._policies.node, self._policies.card)
        kept, failed = [], {}
        for node in nodes.get("items") or ():
            name = node["metadata"]["name"]
            seen = self._ledger.nodes.get(name)
            if seen is not None and place(before, together, seen.devices, {}, choice).segments is not None:
                kept.append(node)
            else:
                failed[name] = "node does not fit"
        return {"Nodes": {"metadata": {}, "items": kept}, "NodeNames": None, "FailedNodes": failed, "Error": ""}

    async def bind(self, asked: Mapping[str, Any]) -> Answer:
        """Lock the node, mark the pod, bind it; what was booked stays booked if that fails."""
        namespace, name, node = asked["PodNamespace"], asked["PodName"], asked["Node"]
        pod: Object = {"metadata": {"namespace": namespace, "name": name, "uid": asked["PodUID"]}}
        try:
            await self._locks.take(node, namespace, name, patient=asked["PodUID"] in self._ledger.grouped)
        except (LockedError, APIError, aiohttp.ClientError) as error:
            self._tell(pod, "BindingFailed", str(error))
            return {"Error": f"node lock: {error}"}
        try:
            await self._calls.patch(_path(pod), _marked("allocating"))
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": pod["metadata"], "target": target}
            await self._calls.call("POST", f"{_path(pod)}/binding", binding)
        except (APIError, aiohttp.ClientError) as error:
            await self._undo(pod, node, error)
            self._tell(pod, "BindingFailed", str(error))
            return {"Error": f"cannot bind {namespace}/{name}: {error}"}
        self._tell(pod, "BindingSucceed", f"Successfully binding node [{node}] to {namespace}/{name}")
        return {"Error": ""}

    async def told(self) -> None:
        """Wait until all events so far are sent."""
        await asyncio.gather(*self._events)

    async def _undo(self, pod: Object, node: str, error: Exception) -> None:
        if isinstance(error, APIError) and error.status == NOT_FOUND:
            self._ledger.release(pod["metadata"]["uid"])
        for step in (
            self._calls.patch(_path(pod), _marked("failed")),
            self._locks.give_back(node, pod["metadata"]["namespace"], pod["metadata"]["name"]),
        ):
            try:
                await step
            except (APIError, aiohttp.ClientError):
                continue

    def _tell(self, pod: Object, reason: str, note: str) -> None:
        """An event, sent beside everything else but out of the same tokens."""
        task = asyncio.create_task(self._send(pod, reason, note))
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _send(self, pod: Object, reason: str, note: str) -> None:
        metadata, now = pod["metadata"], datetime.now(UTC)
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod",
                "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            },
            "reason": reason,
            "message": note[:1024],
            "type": "Normal" if reason.endswith("Succeed") else "Warning",
            "source": {"component": "hami-scheduler"},
            "firstTimestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "lastTimestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "count": 1,
        }  # fmt: skip
        try:
            await self._calls.call("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", event)
        except (APIError, aiohttp.ClientError):
            return


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _booked(node: str, devices: str) -> Object:
    notes = {BOOKED_NODE: node, BOOKED_AT: str(int(time.time())), TO_ALLOCATE: devices, ALLOCATED: devices}
    return {"metadata": {"annotations": notes, "labels": {BOOKED_NODE: node}}}


def _marked(phase: str) -> Object:
    return {"metadata": {"annotations": {BIND_PHASE: phase, BIND_TIME: str(int(time.time()))}}}
