"""A full fleet with Kueue: single-card jobs of random age and place, and what sends whole-node jobs to it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from kwok.admin import Admin, create_all
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.hami.devices import CORES, GPU
from kwok.hami.nodes import shared_nodes
from kwok.hami.run import Hami
from kwok.kueue import Kueue
from kwok.landings import PodWatch, Seen, follow
from kwok.nodes import is_ready, make_nodes
from kwok.product import Product
from kwok.queues import (
    CHECK,
    HOSTNAME,
    admission_check,
    cluster_queue,
    flavor,
    local_queue,
    queued_job,
    topology,
)
from kwok.scene import API
from kwok.workloads import Manifest, make_pod

OWNERS, VICTIMS = "team-a", "team-b"
Arm = Literal["reclaim", "topology", "packed", "stop", "wholenode"]
"""Kueue's reclaim alone, Kueue's topology-aware scheduling, or wholenode behind Kueue's quota.

`stop` has no whole-node jobs: an administrator has Kueue stop the jobs on as many nodes, and nothing else goes on.

`packed` is topology with victims whose places Kueue chose itself: it fills node after node, so the newest, which it
stops first, sit together. Elsewhere victims are of random age and place.
"""
Kind = Literal["borrowing", "nominal", "outside"]
"""Victims that borrow their quota, that are inside their own, or that are pods that Kueue knows nothing of."""

TOPOLOGY = frozenset({"topology", "packed"})

_NODES, _CARDS = 50, 8
_FILL_SECONDS = 300.0
_REST_SECONDS, _QUIET_WRITES = 60, 10
"""A fleet is at rest once there are fewer writes than that in a second; it is waited for so long at most."""


@dataclass
class Fleet:
    """A full fleet, everything on it running and at rest; `watch` sees all pods with cards."""

    arm: Arm
    plane: ControlPlane
    admin: Admin
    watch: PodWatch
    kueue: Kueue
    product: Product | None
    hami: Hami | None = None
    """Who shares out the cards and binds, where HAMi is part of it."""
    submitted: dict[str, float] = field(default_factory=dict)
    """When each whole-node job was sent, by name."""

    async def submit(self, name: str) -> None:
        """Send a whole-node job of the owners."""
        job = queued_job(
            name,
            OWNERS,
            cards=_CARDS,
            resources=whole_cards(_CARDS) if self.hami is not None else None,
            annotations={"wholenode.io/policy": "WaitThenEvict"},
            topology=HOSTNAME if self.arm in TOPOLOGY else None,
        )
        self.submitted[name] = time.monotonic()
        await self.admin.create(job)

    def pod_of(self, job: str) -> Seen | None:
        """The job's newest pod."""
        mine = [one for one in self.watch.pods.values() if one.namespace == OWNERS and one.name.startswith(f"{job}-0-")]
        return mine[-1] if mine else None

    def runs(self, job: str) -> bool:
        """Whether the job's pod runs."""
        pod = self.pod_of(job)
        return pod is not None and pod.running_at is not None and pod.gone_at is None

    def stopped(self) -> list[Seen]:
        """Pods of the victims that were told to go, or are gone."""
        return [one for one in self.watch.pods.values() if one.namespace == VICTIMS and one.deleting_at is not None]

    async def claims(self) -> list[dict[str, Any]]:
        """The owners' claims; none where wholenode does not run."""
        if self.product is None:
            return []
        return await self.admin.list(f"/apis/{API}/namespaces/{OWNERS}/wholenodeclaims")


def queues(arm: Arm, kind: Kind) -> list[Manifest]:
    """Kueue's objects: the owners have 160 cards of their own, the victims 240 and the rest on loan, or all 400."""
    hosts = "hosts" if arm in TOPOLOGY else None
    made = [flavor("cards", topology=hosts)]
    if hosts is not None:
        made.insert(0, topology(hosts))
    checks: tuple[str, ...] = ()
    if arm == "wholenode":
        made.append(admission_check())
        checks = (CHECK,)
    made.append(cluster_queue(OWNERS, "cards", 160, cohort="fleet", reclaim="Any", checks=checks))
    made.append(local_queue(OWNERS, OWNERS))
    if kind != "outside":
        own = 240 if kind == "borrowing" else _NODES * _CARDS
        made += [cluster_queue(VICTIMS, "cards", own, cohort="fleet"), local_queue(VICTIMS, VICTIMS)]
    return made


def whole_cards(cards: int) -> dict[str, str]:
    """How a container asks HAMi for cards that it shares with nobody."""
    return {GPU: str(cards), CORES: "100"}


def victims(arm: Arm, kind: Kind, seed: int, grace_seconds: int, *, hami: bool = False) -> list[Manifest]:
    """Single-card jobs or pods that fill every node, in a drawn order: so age says nothing of place."""
    places = [f"node-{index:03d}" for index in range(_NODES)] * _CARDS
    random.Random(seed).shuffle(places)
    common: dict[str, Any] = {"cards": 1, "grace_seconds": grace_seconds, "term_delay": f"{grace_seconds}s"}
    common["resources"] = whole_cards(1) if hami else None
    made = []
    for number, node in enumerate(places):
        name, selector = f"small-{number:03d}", {} if arm == "packed" else {HOSTNAME: node}
        if kind == "outside":
            made.append(make_pod(name, VICTIMS, node_selector=selector, **common))
        else:
            made.append(queued_job(name, VICTIMS, node_selector=selector, **common))
    return made


@contextlib.asynccontextmanager
async def full_fleet(
    arm: Arm, kind: Kind, seed: int, grace_seconds: int, *, with_hami: bool = False
) -> AsyncIterator[Fleet]:
    """A control plane of its own with the fleet, full of running victims; everything ends with the context.

    with_hami: HAMi shares out the cards and binds, behind wholenode's extender; Kueue counts cards all the same.
    """
    plane = ControlPlane()
    async with plane, Admin(plane.kubeconfig) as admin:
        hami = Hami(plane) if with_hami else None
        if hami is not None:
            await hami.start()
        kueue = Kueue(plane, transformations=[{"input": CORES, "strategy": "Replace", "outputs": {}}] if hami else ())
        await kueue.install(admin)
        await kueue.start()
        make = shared_nodes if hami else make_nodes
        await create_all(admin, make(_NODES, _CARDS, "node", {"pool": "fleet"}))
        await admin.wait_for_all("/api/v1/nodes", lambda found: all(map(is_ready, found.values())), 180)
        for name in (OWNERS, VICTIMS):
            await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        product = await _with_product(plane, admin, hami) if arm == "wholenode" else None
        for one in queues(arm, kind):
            await admin.create(one)
        async with follow(admin) as watch:
            fleet = Fleet(arm, plane, admin, watch, kueue, product, hami)
            await create_all(admin, victims(arm, kind, seed, grace_seconds, hami=hami is not None), rate_per_second=40)
            full = _NODES * _CARDS
            if not await watch.until(lambda: _running(watch) == full, _FILL_SECONDS):
                raise LabError(f"only {_running(watch)} of {full} pods run after {_FILL_SECONDS:.0f} s (load?)")
            await _at_rest(admin)
            yield fleet
        if product is not None:
            await asyncio.to_thread(product.stop)
        if hami is not None:
            await asyncio.to_thread(hami.stop)


async def _with_product(plane: ControlPlane, admin: Admin, hami: Hami | None) -> Product:
    """wholenode with one pool of all nodes, on loan to whoever agrees; the victims agree to make way for the owners."""
    product = Product(plane, chart_values=hami.chart_values() if hami else None)
    await product.install(admin)
    spec = {"nodeSelector": {"matchLabels": {"pool": "fleet"}}, "cardsPerNode": _CARDS}
    spec |= {"accepts": "WholeNode", "overflow": "Reclaimable", "drain": "Agreed"}
    await admin.create({"apiVersion": API, "kind": "GPUPool", "metadata": {"name": "fleet"}, "spec": spec})
    consent = {"beneficiaries": [{"namespace": OWNERS}]}
    meta = {"name": "lend", "namespace": VICTIMS}
    await admin.create({"apiVersion": API, "kind": "DrainAgreement", "metadata": meta, "spec": consent})
    await product.start()
    await product.gate_active(admin, _CARDS, OWNERS)
    return product


async def _at_rest(admin: Admin) -> None:
    """Wait until hardly anything is written any more: of jobs that have just started there is still much to tell."""
    before = await _revision(admin)
    for _ in range(_REST_SECONDS):
        await asyncio.sleep(1)
        now = await _revision(admin)
        if now - before < _QUIET_WRITES:
            return
        before = now


async def _revision(admin: Admin) -> int:
    """How many writes there have been, of whatever kind."""
    found = await admin.request("GET", "/api/v1/namespaces", params={"limit": "1"})
    return int(found["metadata"]["resourceVersion"])


def _running(watch: PodWatch) -> int:
    return sum(one.running_at is not None and one.gone_at is None for one in watch.pods.values())
