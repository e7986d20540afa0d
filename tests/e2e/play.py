"""Plays decks of workloads on a real control plane: makes them, deals out their fates, sees the cluster at rest."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from kwok.admin import Admin, Object, create_all, path_of
from kwok.controlplane import ControlPlane
from kwok.history import Change, History, record
from kwok.invariants import Invariants
from kwok.nodes import GPU, make_nodes
from kwok.product import Product
from kwok.readings import allocatable, chosen_nodes, node_of, phase, shown
from kwok.settled import Rest
from kwok.workloads import Manifest, make_pod
from tests.e2e.decks import CONSENTS, NAMESPACES, OTHER_GPU, WORKLOAD, Fate, Workload

API = "wholenode.io/v1alpha1"
SETTINGS = {
    "WHOLENODE_LEASE_SECONDS": "4",
    "WHOLENODE_RETRY_AFTER_SECONDS": "1",
    "WHOLENODE_AVOID_FOR_SECONDS": "2",
    "WHOLENODE_DRAIN_TIMEOUT_SECONDS": "8",
    "WHOLENODE_LANDING_TIMEOUT_SECONDS": "8",
}
"""Shorter waits where a claim gives something up; the settling times, which keep nodes safe, are the usual ones."""
REST_SECONDS = 90.0
RESTED_SECONDS = 1.0
"""Several passes of the controller."""
_KINDS = {
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "pods": "/api/v1/namespaces/{}/pods",
    "claims": f"/apis/{API}/namespaces/{{}}/wholenodeclaims",
}


def pool(name: str, cards: int, **spec: Any) -> Manifest:
    selector = {"matchLabels": {"pool": name}}
    spec = {"nodeSelector": selector, "cardsPerNode": cards, **spec}
    return {"apiVersion": API, "kind": "GPUPool", "metadata": {"name": name}, "spec": spec}


def agreement(namespace: str, beneficiaries: tuple[str, ...]) -> Manifest:
    spec = {"beneficiaries": [{"namespace": one} for one in beneficiaries]}
    return {
        "apiVersion": API,
        "kind": "DrainAgreement",
        "metadata": {"name": "lend", "namespace": namespace},
        "spec": spec,
    }


def mixed_fleet() -> tuple[list[Manifest], list[Manifest]]:
    """(nodes, pools): 8 and 4 cards, 7 of 8, none; two kinds of cards; nodes of no pool; overflow of both kinds."""
    pools = [
        pool("big", 8, accepts="WholeNode", overflow="Reclaimable", drain="Agreed"),
        pool("kept", 8, accepts="WholeNode", overflow="Never", drain="Agreed"),
        pool("quad", 4, accepts="WholeNode", overflow="Never"),
        pool("small", 8, accepts="Small"),
        pool("other", 8, accepts="WholeNode", resourceName=OTHER_GPU, overflow="Reclaimable", drain="Agreed"),
    ]
    nodes = [
        *make_nodes(4, 8, "big", {"pool": "big"}),
        *make_nodes(1, 7, "worn", {"pool": "big"}),
        *make_nodes(2, 8, "kept", {"pool": "kept"}),
        *make_nodes(3, 4, "quad", {"pool": "quad"}),
        *make_nodes(2, 8, "small", {"pool": "small"}),
        *make_nodes(1, 8, "loose"),
        *make_nodes(1, 0, "plain"),
    ]
    others = make_nodes(2, 0, "other", {"pool": "other"})
    for node in others:
        for side in ("capacity", "allocatable"):
            node["status"][side][OTHER_GPU] = "8"
    return [*nodes, *others], pools


class Play:
    """A control plane with wholenode and the mixed fleet, and everything that happens there on record."""

    def __init__(self, admin: Admin, history: History, nodes: list[Manifest], pools: list[Manifest]) -> None:
        self.invariants = Invariants(pools)
        self.workloads = 0
        self._admin = admin
        self._history = history
        self._nodes = nodes
        self._rest = Rest(history.live, pools)
        self._fates: dict[str, Workload] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        history.listeners.append(self._happened)

    async def deck(self, deck: list[Workload]) -> None:
        """Play all workloads of the deck, look at everything that happened, and clear the table.

        A failure stands: hypothesis, which asks again, gets the same one, and nothing is played over.
        """
        if self._failure is None:
            try:
                await self._play(deck)
            except (AssertionError, TimeoutError) as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    async def _play(self, deck: list[Workload]) -> None:
        named = {f"w{self.workloads + index:03d}": workload for index, workload in enumerate(deck)}
        self.workloads += len(deck)
        self._fates = dict(named)
        await self._place_by_hand({name: one for name, one in named.items() if one.by_hand is not None})
        for name, workload in named.items():
            if workload.by_hand is None:
                for manifest in workload.objects(name):
                    await self._admin.create(manifest)
                if workload.fate is Fate.DELETED_AT_ONCE:
                    self._do(self._delete(name, workload))
        await self._come_to_rest()
        await self._clear()

    async def _come_to_rest(self) -> None:
        """Between two passes of the controller everything may look settled for a moment: rest is what lasts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                while not await self._rests():
                    await asyncio.gather(*self._tasks)
        self.invariants.take(await self._history.catch_up())
        unsettled = list(self._rest.unsettled())
        assert not self.invariants.violations, "\n".join(self.invariants.violations)
        assert not unsettled, "not at rest:\n" + "\n".join(unsettled)
        partly = self.invariants.partly_bound()
        assert not partly, "\n".join(partly)

    async def _rests(self) -> bool:
        await self._history.until(self._rest.reached, REST_SECONDS)
        disturbed = await self._history.until(lambda: not self._rest.reached(), RESTED_SECONDS)
        return not disturbed and not self._tasks

    async def _place_by_hand(self, named: dict[str, Workload]) -> None:
        """On the idle fleet, where they fit; before all else, so that kube-scheduler knows of them first."""
        free = {node["metadata"]["name"]: allocatable(node, GPU) for node in self._nodes}
        for name, workload in named.items():
            fitting = [node for node, cards in free.items() if cards >= workload.cards]
            node = fitting[(workload.by_hand or 0) % len(fitting)]
            free[node] -= workload.cards
            (pod,) = workload.objects(name)
            pod["spec"]["nodeName"] = node
            await self._admin.create(pod)

    def _happened(self, change: Change) -> None:
        if change.deleted:
            return
        if change.kind == "pods" and node_of(change.object):
            name = (change.object["metadata"].get("labels") or {}).get(WORKLOAD, "")
            self._deal(name, Fate.DELETED_WHEN_BOUND, Fate.MEMBER_RECREATED)
        elif change.kind == "claims" and phase(change.object) in {"Draining", "Landing"}:
            name = str(change.object["spec"]["gang"]["name"])
            if phase(change.object) == "Landing":
                self._deal(name, Fate.GUEST_WHEN_OPEN, claim=change.object)
            else:
                self._deal(name, Fate.DELETED_WHEN_HELD, Fate.MEMBER_LOST, Fate.GUEST_WHEN_HELD, claim=change.object)

    def _deal(self, name: str, *fates: Fate, claim: Object | None = None) -> None:
        workload = self._fates.get(name)
        if workload is None or workload.fate not in fates:
            return
        del self._fates[name]
        if claim is not None and "somebody" in workload.fate:
            self._do(self._send_guest(name, workload, chosen_nodes(claim)[0]["name"]))
        elif workload.fate is Fate.MEMBER_RECREATED or workload.fate is Fate.MEMBER_LOST:
            self._do(self._lose_member(name, workload, again=workload.fate is Fate.MEMBER_RECREATED))
        else:
            self._do(self._delete(name, workload))

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, name: str, workload: Workload) -> None:
        for manifest in workload.objects(name):
            await self._admin.delete(path_of(manifest))

    async def _send_guest(self, name: str, workload: Workload, node: str) -> None:
        guest = make_pod(f"{name}-guest", workload.guest, duration_seconds=1.5)
        guest["spec"]["nodeName"] = node
        await self._admin.create(guest)

    async def _lose_member(self, name: str, workload: Workload, *, again: bool) -> None:
        """Of a Job, its controller makes the member anew."""
        if workload.kind == "job":
            pods = [one for one in self._history.live["pods"].values() if _is_of(one, name)]
            await self._admin.delete(path_of({**pods[0], "apiVersion": "v1", "kind": "Pod"}))
            return
        member = workload.objects(name)[0]
        await self._admin.delete(path_of(member))
        if again:
            pods_now = self._history.live["pods"]
            gone = await self._history.until(
                lambda: all(shown(one) != shown(member) for one in pods_now.values()), REST_SECONDS
            )
            assert gone, f"{shown(member)} was deleted and is still there"
            await self._admin.create(member)

    async def _clear(self) -> None:
        """Delete every workload with its pods and claims; what is ours on nodes must go, too."""
        self._fates = {}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        for kind, path in _KINDS.items():
            for namespace in NAMESPACES:
                await self._admin.request("DELETE", path.format(namespace), {**options, "gracePeriodSeconds": 0})
            none = functools.partial(_none, self._history.live, kind)
            assert await self._history.until(none, REST_SECONDS), f"{kind} do not go"
        assert await self._history.until(self._rest.reached, REST_SECONDS), list(self._rest.unsettled())


def _none(live: dict[str, dict[str, Object]], kind: str) -> bool:
    return not live[kind]


def _is_of(pod: Object, name: str) -> bool:
    return (pod["metadata"].get("labels") or {}).get(WORKLOAD) == name


@contextlib.asynccontextmanager
async def table(plane: ControlPlane) -> AsyncIterator[Play]:
    """Everything ready for decks, on a control plane without nodes."""
    nodes, pools = mixed_fleet()
    product = Product(plane, SETTINGS)
    async with Admin(plane.kubeconfig) as admin:
        await product.install(admin)
        await create_all(admin, nodes)
        for namespace in NAMESPACES:
            await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for one in (*pools, *(agreement(*pair) for pair in CONSENTS.items())):
            await admin.create(one)
        manages = f"managedResources:\n  - ignoredByScheduler: false\n    name: {OTHER_GPU}"
        product.scheduler_config = product.scheduler_config.replace("managedResources:", manages)
        assert OTHER_GPU in product.scheduler_config
        await product.start()
        await product.gate_active(admin, 8, NAMESPACES[0])
        async with record(admin) as history:
            yield Play(admin, history, nodes, pools)
        product.stop()
