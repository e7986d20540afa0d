"""What the extender knows: copies of nodes, GPU pods and our resources, and the board made from them."""

import asyncio
import gc
import time
from datetime import UTC, datetime
from typing import Any

from cluster.claims import collection_path
from cluster.client import Api
from cluster.reflector import Reflector
from fleet.cards import holds_node
from fleet.fitness import usable_cards, whole
from fleet.objects import Node, Pod
from fleet.placement import Board
from fleet.pools import Membership
from fleet.requests import Classifier, RequestClass
from fleet.resources import DrainAgreement, GPUPool, WholeNodeClaim

_SILENT_SECONDS = 140.0
_BOARD_SECONDS = 30.0
"""The board is made anew at least so often: agreements expire by themselves."""


def asks_for_devices(pod: Pod) -> bool:
    """Whether the pod asks for anything but the ordinary resources: only such pods can hold cards."""
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        if container.resources:
            for side in (container.resources.requests, container.resources.limits):
                if any("/" in name for name in side or ()):
                    return True
    return False


class State:
    """Caches and what follows from them; `board` and `cards_used` are kept as changes come, not per question."""

    def __init__(self, api: Api) -> None:
        self.nodes = Reflector(api, "/api/v1/nodes", Node)
        self.pods = Reflector(api, "/api/v1/pods", Pod, accept=asks_for_devices)
        self.pools = Reflector(api, collection_path(GPUPool), GPUPool)
        self.agreements = Reflector(api, collection_path(DrainAgreement), DrainAgreement)
        self.claims = Reflector(api, collection_path(WholeNodeClaim), WholeNodeClaim)
        self._all: tuple[Reflector[Any], ...] = (self.nodes, self.pods, self.pools, self.agreements, self.claims)
        self.cards_used: dict[str, int] = {}
        self._board: Board | None = None
        self._made_at = 0.0
        self.classifier = Classifier.of(())
        self.nodes.listeners.append(self._node_changed)
        self.pools.listeners.append(self._pool_changed)
        self.agreements.listeners.append(lambda _old, _new: self._stale())
        self.claims.listeners.append(self._claim_changed)
        self.pods.listeners.append(self._pod_changed)

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._all:
                group.create_task(reflector.run(), name=f"follow {reflector.path}")
            group.create_task(self._freeze())

    def not_ready(self) -> str | None:
        """What keeps the answers from being trusted, or None."""
        now = time.monotonic()
        for reflector in self._all:
            if not reflector.synced.is_set():
                return f"{reflector.path} has not been listed yet"
            if now - reflector.last_event_at > _SILENT_SECONDS:
                return f"the watch of {reflector.path} has been silent for {_SILENT_SECONDS:.0f} s"
        return None

    def board(self) -> Board:
        """The board as of now; made anew only if something it goes by has changed."""
        now = time.monotonic()
        if self._board is None or now - self._made_at > _BOARD_SECONDS:
            self._board = Board.of(
                self.pools.store.values(),
                self.nodes.store.values(),
                self.claims.store.values(),
                self.agreements.store.values(),
                datetime.now(UTC),
            )
            self._made_at = now
        return self._board

    def free(self) -> dict[str, tuple[int, int]]:
        """Free cards and untouched whole nodes of each pool, for the metrics."""
        pools = tuple(self.pools.store.values())
        membership = Membership.of(pools, self.nodes.store.values())
        found = {pool.metadata.name: (0, 0) for pool in pools}
        for node in self.nodes.store.values():
            pool = membership.pool_of(node.metadata.name)
            if pool is None or node.spec.unschedulable:
                continue
            used = self.cards_used.get(node.metadata.name, 0)
            cards, wholes = found[pool.metadata.name]
            cards += max(0, usable_cards(node, pool.spec.resource_name) - used)
            found[pool.metadata.name] = (cards, wholes + (used == 0 and whole(node, pool)))
        return found

    def waiting(self) -> dict[str, int]:
        """GPU pods without a node, by request class."""
        found = dict.fromkeys((str(RequestClass.SMALL), str(RequestClass.WHOLE_NODE), str(RequestClass.IMPOSSIBLE)), 0)
        for pod in self.pods.store.values():
            if not pod.spec.node_name and pod.status.phase in {None, "Pending"}:
                request = self.classifier.classify(pod)
                if request.request_class is not RequestClass.NONE:
                    found[str(request.request_class)] += 1
        return found

    def _stale(self) -> None:
        self._board = None

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Heartbeats change conditions only, which placement does not go by."""
        if (
            old is None
            or new is None
            or (old.spec, old.metadata.labels, old.metadata.uid) != (new.spec, new.metadata.labels, new.metadata.uid)
        ):
            self._stale()

    def _claim_changed(self, old: WholeNodeClaim | None, new: WholeNodeClaim | None) -> None:
        if old is None or new is None or old.status.phase is not new.status.phase or old.spec != new.spec:
            self._stale()

    def _pool_changed(self, old: GPUPool | None, new: GPUPool | None) -> None:
        if old is not None and new is not None and old.spec == new.spec:
            return
        self._stale()
        self.classifier = Classifier.of(self.pools.store.values())
        self.cards_used.clear()
        for pod in self.pods.store.values():
            self._count(pod, 1)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, 1)

    def _count(self, pod: Pod, sign: int) -> None:
        node = pod.spec.node_name
        if node and holds_node(pod):
            used = self.cards_used.get(node, 0) + sign * self.classifier.classify(pod).cards
            if used > 0:
                self.cards_used[node] = used
            else:
                self.cards_used.pop(node, None)

    async def _freeze(self) -> None:
        """Take what was loaded out of the garbage collector's rounds: they would stall answers."""
        for reflector in self._all:
            await reflector.synced.wait()
        gc.collect()
        gc.freeze()
