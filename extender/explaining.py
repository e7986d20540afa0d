"""`GET /v1/explain/{namespace}/{pod}`, and how many pods wait for what: beside the filter, never in its way."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Response
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cluster.errors import ClusterError, NotFound
from cluster.facts import PodFacts, pod_facts
from extender.state import State
from fleet.objects import Pod
from fleet.requests import RequestClass
from fleet.view import View
from fleet.why.explain import explain_on, kind_and_reason
from fleet.why.explanations import Explanation, Told
from fleet.why.supply import Ground

_JSON: Final = "application/json"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_READ_SECONDS: Final = 8.0
_SECONDS: Final = 20.0
_GROUND_SECONDS: Final = 1.0
"""One look at the fleet serves all questions of so long."""
_MAX_WAITING: Final = 16
_REST: Final = 9
"""After a count that took its time, rest for so many times as long."""
_QUICK_SECONDS: Final = 0.05


class Failure(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="Status"):
    """An error, in the form the API server gives its own: its service proxy passes it on as it is."""

    message: str
    reason: str
    code: int
    api_version: str = "v1"
    status: str = "Failure"


class Explainer:
    """Answers why pods wait, one at a time in a thread of its own, from the extender's caches and fresh facts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._turn = asyncio.Lock()
        self._asked = 0
        self._ground: Ground | None = None
        self._ground_at = 0.0

    async def answer(self, namespace: str, name: str) -> Explanation | Failure:
        """The explanation, or why there is none; within 20 s."""
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            return Failure("wholenode: not the names of a namespace and a pod", "BadRequest", 400)
        trouble = self._state.not_ready()
        if trouble is not None:
            return _unavailable(f"the extender has not seen the whole cluster yet: {trouble}")
        if self._asked >= _MAX_WAITING:
            return _unavailable("too many questions at once, ask again")
        self._asked += 1
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._answer(namespace, name)
        except TimeoutError:
            return _unavailable(f"no answer within {_SECONDS:.0f} s, ask again")
        finally:
            self._asked -= 1

    async def _answer(self, namespace: str, name: str) -> Explanation | Failure:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                facts = await pod_facts(self._state.api, namespace, name)
        except NotFound:
            return Failure(f"wholenode: there is no pod {namespace}/{name}", "NotFound", 404)
        except (ClusterError, msgspec.DecodeError, TimeoutError) as error:
            why = str(error) or f"no answer within {_READ_SECONDS:.0f} s"
            cached = self._state.pods.find(namespace, name)
            if cached is None:
                return _unavailable(f"pod {namespace}/{name} cannot be read: {why}")
            facts = PodFacts(cached, Told(unread=(f"the pod, taken from the cache: {why}",)))
        async with self._turn:
            return await asyncio.to_thread(self._explain, self._fresh_ground(), facts)

    def _fresh_ground(self) -> Ground:
        """A copy of the caches, not older than a second: made in the event loop, where they change."""
        now = time.monotonic()
        if self._ground is None or now - self._ground_at > _GROUND_SECONDS:
            self._ground, self._ground_at = Ground(_view(self._state, self._state.pods.store)), now
        return self._ground

    @staticmethod
    def _explain(ground: Ground, facts: PodFacts) -> Explanation:
        pod, view = facts.pod, ground.view
        if facts.jobs or facts.groups or pod.metadata.uid not in view.pods:
            pods = view.pods if pod.metadata.uid in view.pods else {**view.pods, pod.metadata.uid: pod}
            jobs = {job.metadata.uid: job for job in facts.jobs}
            ground = Ground(replace(view, pods=pods, jobs=jobs, pod_groups=facts.groups))
        return explain_on(ground, pod, facts.told, datetime.now(UTC))


def _view(state: State, pods: dict[str, Pod]) -> View:
    return View(
        nodes={node.metadata.name: node for node in state.nodes.store.values()},
        pods=dict(pods),
        jobs={},
        pools=tuple(state.pools.store.values()),
        agreements=tuple(state.agreements.store.values()),
        claims=dict(state.claims.store),
        device_claims=tuple(state.device_claims.store.values()),
    )


def _unavailable(text: str) -> Failure:
    return Failure(f"wholenode: {text}", "ServiceUnavailable", 503)


def add_explaining(app: FastAPI, explainer: Explainer, responses: dict[int | str, dict[str, Any]]) -> None:
    """Serve the route on an application, the main one or the plain one beside a TLS one."""

    @app.get("/v1/explain/{namespace}/{pod}", response_class=Response, responses=responses)
    async def explain_pod(namespace: str, pod: str) -> Response:
        answer = await explainer.answer(namespace, pod)
        status = answer.code if isinstance(answer, Failure) else 200
        return Response(msgspec.json.encode(answer), status_code=status, media_type=_JSON)


class WaitingPods(Collector):
    """A gauge of waiting GPU pods by kind and reason, as of the last `refresh`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._counts: Counter[tuple[str, str]] = Counter()
        self._turn = asyncio.Lock()
        self._fresh_until = 0.0
        self._waiting: dict[str, Pod] = {}
        for pod in state.pods.store.values():
            self._changed(None, pod)
        state.pods.listeners.append(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._waiting.pop(old.metadata.uid, None)
        elif new.spec.node_name and new.status.phase != "Failed":
            self._waiting.pop(new.metadata.uid, None)
        else:
            self._waiting[new.metadata.uid] = new

    async def refresh(self) -> Counter[tuple[str, str]]:
        """Count anew, in a thread: thousands of waiting pods would keep the scheduler's questions waiting.

        One count at a time, and none while the last one is fresh: whoever scrapes often must not keep us busy.
        """
        async with self._turn:
            if self._state.not_ready() is not None:
                self._counts = Counter()
            elif time.monotonic() >= self._fresh_until:
                started = time.monotonic()
                self._counts = await self._count()
                took = time.monotonic() - started
                self._fresh_until = started + took + _REST * took if took > _QUICK_SECONDS else 0.0
        return self._counts

    async def _count(self) -> Counter[tuple[str, str]]:
        waiting = dict(self._waiting)
        ground = Ground(_view(self._state, waiting), self._state.tally, gangs_known=False)
        return await asyncio.to_thread(_count, ground, waiting)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        found = GaugeMetricFamily(
            "wholenode_waiting_pods_by_reason", "GPU pods that wait, or failed to start.", labels=["kind", "reason"]
        )
        for (kind, reason), number in sorted(self._counts.items()):
            found.add_metric([kind, reason], number)
        yield found


def _count(ground: Ground, pods: dict[str, Pod]) -> Counter[tuple[str, str]]:
    """How many pods wait, by kind and reason; both words are of short, fixed lists."""
    now = datetime.now(UTC)
    found: Counter[tuple[str, str]] = Counter()
    for pod in pods.values():
        if ground.view.classify(pod).request_class is RequestClass.NONE:
            continue
        kind, reason = kind_and_reason(ground, pod, now)
        ground.let_go()
        if kind.waits:
            found[str(kind), reason] += 1
    return found
