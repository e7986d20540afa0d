"""One drain of three nodes as it is played again and again: its objects, its end, and what must be true then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp

from kwok.admin import Admin, APIError, Object, create_all, path_of
from kwok.history import Change, History
from kwok.readings import chosen_nodes, label, node_of, phase, reason, shown, taints, terminating, uid
from kwok.testing import Fleet, remove_namespace
from kwok.workloads import Manifest, make_pod

API = "wholenode.io/v1alpha1"
CARDS = 8
GANG, GANG_SIZE = "train", 3
GRACE_SECONDS = 1
UNTIL_END_SECONDS = 90.0
"""Far above what a run takes, restarts and five-second pauses included."""
_RAIN_PER_SECOND = 4.0
_RAIN_RUN_SECONDS = 0.4
_OUTCOMES = ("Pending", "Stopped", "Spared")
_ENDED = frozenset({"Released", "RolledBack", "Failed"})
_EVICTED = "EvictionByEvictionAPI"


class Ending(StrEnum):
    """How a run ends: the gang lands and ends, or it is deleted once its first victim is told to go."""

    LANDED = "landed"
    GIVEN_UP = "given up"


@dataclass
class Story:
    """One run's objects on a control plane that others used before and use afterwards: all are named after `name`."""

    admin: Admin
    history: History
    name: str
    until_end_seconds: float = UNTIL_END_SECONDS
    fleet: Fleet = field(init=False)
    nodes: list[str] = field(default_factory=list)
    before: dict[str, Object] = field(default_factory=dict)
    """The nodes as they were before the gang came."""
    evicted: set[str] = field(default_factory=set)
    """UIDs of pods that were told to go by the Eviction API."""
    double_claims: int = 0
    """How often a second live claim of one gang was seen."""

    def __post_init__(self) -> None:
        """Listen from the start."""
        self.fleet = Fleet(self.admin, self.name)
        self.victims, self.savers, self.others = f"{self.name}-v", f"{self.name}-w", f"{self.name}-x"
        self.history.listeners.append(self._happened)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The beneficiary's, those of teams that agreed, and one of a team that did not."""
        return (self.name, self.victims, self.savers, self.others)

    @property
    def pool(self) -> Manifest:
        """The run's pool."""
        spec = {
            "nodeSelector": {"matchLabels": self.fleet.selector}, "cardsPerNode": CARDS, "accepts": "WholeNode",
            "overflow": "Reclaimable", "drain": "Agreed",
        }  # fmt: skip
        return {"apiVersion": API, "kind": "GPUPool", "metadata": {"name": self.name}, "spec": spec}

    async def prepare(self) -> None:
        """Four nodes, three of which can be vacated, and whoever is on them; returns when all run."""
        for name in self.namespaces:
            await self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.nodes = await self.fleet.add(4, CARDS)
        await self.admin.create(self.pool)
        for one in self._agreements():
            await self.admin.create(one)
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "svc"}}}
        meta = {"name": "svc", "namespace": self.victims}
        kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
        await self.admin.request(
            "POST",
            f"/apis/policy/v1/namespaces/{self.victims}/poddisruptionbudgets",
            {**kind, "metadata": meta, "spec": budget},
        )
        await create_all(self.admin, self._residents())
        await self._until_ready()
        self.before = {name: self._node(name) for name in self.nodes}

    def _agreements(self) -> Iterator[Manifest]:
        budget = {"gpuSecondsPerDay": 1_000_000, "evictionsPerHour": 50, "evictionsPerJobPerDay": 2}
        checkpoint = {"request": True, "timeout": "1s"}
        for namespace, more in ((self.victims, {"budget": budget}), (self.savers, {"checkpoint": checkpoint})):
            spec = {"beneficiaries": [{"namespace": self.name}], "victims": {"maxPriority": 0}, **more}
            meta = {"name": "lend", "namespace": namespace}
            yield {"apiVersion": API, "kind": "DrainAgreement", "metadata": meta, "spec": spec}

    def _residents(self) -> Iterator[Manifest]:
        """A gang over two nodes, a service under a budget over three, one alone, one that is asked to save first."""
        first, second, third, kept = self.nodes
        v, w, x = self.victims, self.savers, self.others
        yield self._resident("pair-0", v, first, cards=2, gang=("pair", 2))
        yield self._resident("pair-1", v, second, cards=2, gang=("pair", 2))
        yield self._resident("single", v, first)
        for index, node in enumerate((second, third, kept)):
            yield self._resident(f"svc-{index}", v, node, labels={"app": "svc"})
        yield self._resident("saver", w, third, cards=2)
        yield self._resident("keeper", x, kept, cards=4)

    def _resident(self, name: str, namespace: str, node: str, **rest: Any) -> Manifest:
        pod = make_pod(name, namespace, grace_seconds=GRACE_SECONDS, term_delay="600ms", **rest)
        pod["spec"]["nodeName"] = node
        return pod

    async def _until_ready(self) -> None:
        def all_run(count: int) -> Any:
            return lambda found: [one["status"].get("phase") for one in found.values()] == ["Running"] * count

        for namespace, count in ((self.victims, 6), (self.savers, 1), (self.others, 1)):
            await self.admin.wait_for_all(f"/api/v1/namespaces/{namespace}/pods", all_run(count))
        await self.admin.wait_for(
            f"/apis/policy/v1/namespaces/{self.victims}/poddisruptionbudgets/svc",
            lambda found: (found or {}).get("status", {}).get("disruptionsAllowed") == 2,  # noqa: PLR2004
        )

    async def submit(self) -> None:
        """The gang comes."""
        for index in range(GANG_SIZE):
            pod = make_pod(
                f"{GANG}-{index}", self.name, cards=CARDS, grace_seconds=GRACE_SECONDS, gang=(GANG, GANG_SIZE),
                node_selector=self.fleet.selector, annotations={"wholenode.io/policy": "WaitThenEvict"},
            )  # fmt: skip
            await self.admin.create(pod)

    async def withdraw(self) -> None:
        """The gang goes."""
        for index in range(GANG_SIZE):
            await patiently(self.admin.delete(f"/api/v1/namespaces/{self.name}/pods/{GANG}-{index}"))

    @contextlib.asynccontextmanager
    async def raining(self) -> AsyncIterator[None]:
        """Small pods keep coming to the run's nodes while these are held; a team's that agreed, short-lived."""

        async def rain() -> None:
            await self.history.until(lambda: bool(self.marked()), self.until_end_seconds)
            for number in itertools.count():
                pod = make_pod(
                    f"rain-{number}", self.victims, duration_seconds=_RAIN_RUN_SECONDS, grace_seconds=GRACE_SECONDS,
                    node_selector=self.fleet.selector,
                )  # fmt: skip
                with contextlib.suppress(aiohttp.ClientError, OSError, APIError):
                    await self.admin.create(pod)
                await asyncio.sleep(1 / _RAIN_PER_SECOND)

        task = asyncio.create_task(rain())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_bound(self) -> bool:
        """Wait until the gang has landed, everything that was written about it included."""
        return await self.history.until(self._landed, self.until_end_seconds)

    async def until_evicting(self) -> bool:
        """Wait until the first victim was told to go."""
        return await self.history.until(lambda: bool(self.evicted), self.until_end_seconds)

    async def until_over(self) -> bool:
        """Wait until the claim has ended and nothing of ours is on the nodes."""
        return await self.history.until(self._over, self.until_end_seconds)

    def claims(self) -> list[Object]:
        """The run's claims."""
        return self._all("claims", self.name)

    def records(self) -> list[Object]:
        """What was written down about pods that were to be stopped."""
        return [one for namespace in self.namespaces for one in self._all("records", namespace)]

    def bound(self) -> dict[str, str]:
        """Node of each member of the gang that is bound."""
        return {shown(pod): node_of(pod) for pod in self._all("pods", self.name) if node_of(pod)}

    def marked(self) -> list[str]:
        """Nodes with a taint or label of ours."""
        return [name for name in self.nodes if taints(self._node(name)) or label(self._node(name))]

    def told(self) -> str:
        """Where everything is, for people."""
        claims = [_claim_told(one) for one in self.claims()]
        pending = [shown(one) for one in self.records() if outcome(one) == "Pending"]
        return f"claims {claims}, bound {self.bound()}, marked {self.marked()}, records pending {pending}"

    def _landed(self) -> bool:
        return (
            len(set(self.bound().values())) == GANG_SIZE
            and [phase(one) for one in self.claims()] == ["Bound"]
            and not any(taints(self._node(name)) for name in self.nodes)
            and self._accounted()
        )

    def _over(self) -> bool:
        ended = all(phase(one) in _ENDED for one in self.claims())
        return ended and not self._all_marks() and self._accounted() and not self._all("pods", self.name)

    def _accounted(self) -> bool:
        dying = any(terminating(pod) for namespace in (self.victims, self.savers) for pod in self._victims(namespace))
        said = {kind: {one["spec"]["podUid"] for one in self.records() if outcome(one) == kind} for kind in _OUTCOMES}
        named = {one["uid"] for claim in self.claims() for one in claim.get("status", {}).get("victims") or ()}
        struck_off = named.isdisjoint(said["Spared"] - said["Stopped"])
        return not dying and not said["Pending"] and struck_off

    def _all_marks(self) -> list[str]:
        """Nodes that are not as they were before."""
        return [name for name in self.nodes if _own(self._node(name)) != _own(self.before[name])]

    def changed(self) -> dict[str, list[str]]:
        """What on the run's nodes is not as it was before, by node."""
        return {
            name: [
                f"{key}: {was.get(key)} is now {now.get(key)}" for key in {*was, *now} if was.get(key) != now.get(key)
            ]
            for name, was, now in ((one, _own(self.before[one]), _own(self._node(one))) for one in self._all_marks())
        }

    def _victims(self, namespace: str) -> list[Object]:
        return [pod for pod in self._all("pods", namespace) if not pod["metadata"]["name"].startswith("rain-")]

    def _all(self, kind: str, namespace: str) -> list[Object]:
        return [one for one in self.history.live[kind].values() if one["metadata"].get("namespace") == namespace]

    def _node(self, name: str) -> Object:
        return next(one for one in self.history.live["nodes"].values() if one["metadata"]["name"] == name)

    def _happened(self, change: Change) -> None:
        if change.kind == "pods" and change.object["metadata"]["namespace"] in self.namespaces:
            conditions = change.object.get("status", {}).get("conditions") or ()
            if any(one["type"] == "DisruptionTarget" and one["reason"] == _EVICTED for one in conditions):
                self.evicted.add(uid(change.object))
        elif change.kind == "claims" and change.object["metadata"]["namespace"] == self.name:
            self.double_claims += sum(phase(one) not in _ENDED for one in self.claims()) > 1

    async def clear(self) -> None:
        """Leave nothing behind, pool last."""
        self.history.listeners.remove(self._happened)
        await asyncio.gather(*(remove_namespace(self.admin, name) for name in self.namespaces))
        await self.fleet.remove()
        await self.admin.delete(path_of(self.pool))


def _claim_told(claim: Object) -> str:
    nodes = [node["name"] for node in chosen_nodes(claim)]
    return f"{phase(claim)}/{reason(claim)} on {nodes}: {claim.get('status', {}).get('message')}"


def outcome(record: Object) -> str:
    """What became of the intention to stop a pod."""
    return str(record.get("status", {}).get("outcome") or "Pending")


def _own(node: Object) -> dict[str, Any]:
    """Everything on a node that somebody could have left there, by what it is."""
    metadata = node["metadata"]
    found: dict[str, Any] = {"taints": node["spec"].get("taints") or []}
    for kind in ("labels", "annotations"):
        found |= {f"{kind}/{key}": value for key, value in (metadata.get(kind) or {}).items()}
    return found


async def patiently(doing: Any) -> None:
    """Await it; what an unreachable API server makes of it is none of the run's business."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        await doing
