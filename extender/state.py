"""What the extender knows: copies of nodes, GPU pods and our resources, and the board made from them."""

import asyncio
import gc
import time
from datetime import UTC, datetime
from typing import Any

from cluster.claims import collection_path
from cluster.client import Api
from cluster.reflector import Reflector
from fleet.agreements import next_expiry
from fleet.board import Board
from fleet.devices import CLAIMS_PATH, users
from fleet.fitness import closed, whole
from fleet.hami import cards_of
from fleet.objects import Node, Pod, ResourceClaim
from fleet.pools import Membership
from fleet.requests import Classifier, RequestClass
from fleet.resources import DrainAgreement, GPUPool, WholeNodeClaim
from fleet.tally import Tally, free_cards

_SILENT_SECONDS = 140.0


def asks_for_devices(pod: Pod) -> bool:
    """Whether the pod asks for anything but the ordinary resources: only such pods can hold cards."""
    if pod.spec.resource_claims:
        return True
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        if container.resources:
            for side in (container.resources.requests, container.resources.limits):
                if any("/" in name for name in side or ()):
                    return True
    return False


def _placed_by(node: Node) -> tuple[object, ...]:
    return node.spec, node.metadata.labels, node.metadata.uid, cards_of(node)


def _acts(claim: WholeNodeClaim) -> tuple[object, ...]:
    status = claim.status
    return claim.spec, status.phase, status.drained_by, [held.name for held in status.nodes]


class State:
    """Caches and what follows from them; `board` and `tally` are kept as changes come, not per question."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.nodes = Reflector(api, "/api/v1/nodes", Node)
        self.pods = Reflector(api, "/api/v1/pods", Pod, accept=asks_for_devices)
        self.pools = Reflector(api, collection_path(GPUPool), GPUPool)
        self.agreements = Reflector(api, collection_path(DrainAgreement), DrainAgreement)
        self.claims = Reflector(api, collection_path(WholeNodeClaim), WholeNodeClaim)
        self.device_claims = Reflector(api, CLAIMS_PATH, ResourceClaim, optional=True)
        self._all: tuple[Reflector[Any], ...] = (
            self.nodes,
            self.pods,
            self.pools,
            self.agreements,
            self.claims,
            self.device_claims,
        )
        self.tally = Tally()
        self._device_claims: dict[tuple[str, str], ResourceClaim] = {}
        self.classifier = Classifier.of((), self._device_claims)
        self._board = Board(self.classifier)
        self._claims_changed = self._agreements_changed = True
        self._next_expiry: datetime | None = None
        self.nodes.listeners.append(self._node_changed)
        self.pools.listeners.append(self._pool_changed)
        self.device_claims.listeners.append(self._device_claim_changed)
        self.agreements.listeners.append(self._agreement_changed)
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
        """The board as of now. Nodes are on it as they change; claims and agreements are read anew when they have."""
        if self._claims_changed:
            self._board.set_claims(self.claims.store.values())
            self._claims_changed = False
        now = datetime.now(UTC)
        if self._agreements_changed or (self._next_expiry is not None and now >= self._next_expiry):
            self._board.set_agreements(self.agreements.store.values(), now)
            self._next_expiry = next_expiry(self.agreements.store.values(), now)
            self._agreements_changed = False
        return self._board

    def free(self) -> dict[str, tuple[int, int]]:
        """Free cards and untouched whole nodes of each pool, for the metrics."""
        pools = self.classifier.pools
        membership = Membership.of(pools, self.nodes.store.values())
        found = {pool.metadata.name: (0, 0) for pool in pools}
        for node in self.nodes.store.values():
            pool = membership.pool_of(node.metadata.name)
            if pool is None or closed(node):
                continue
            use = self.tally.on(node.metadata.name)
            cards, wholes = found[pool.metadata.name]
            cards += free_cards(node, pool.spec.resource_name, use)
            found[pool.metadata.name] = (cards, wholes + (use.touched == 0 and whole(node, pool)))
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

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Heartbeats change conditions only, which placement does not go by; nor does it by most annotations."""
        if new is None:
            if old is not None:
                self._board.drop(old.metadata.name)
                self.tally.rank(old.metadata.name, None)
        elif old is None or _placed_by(old) != _placed_by(new):
            self._board.put(new)
            self.tally.rank(new.metadata.name, self._board.ranks[new.metadata.name])

    def _claim_changed(self, old: WholeNodeClaim | None, new: WholeNodeClaim | None) -> None:
        if old is None or new is None or _acts(old) != _acts(new):
            self._claims_changed = True

    def _agreement_changed(self, _old: DrainAgreement | None, _new: DrainAgreement | None) -> None:
        self._agreements_changed = True

    def _pool_changed(self, old: GPUPool | None, new: GPUPool | None) -> None:
        """Every node may be in another pool now, and every pod of another class."""
        if old is not None and new is not None and old.spec == new.spec:
            return
        self.classifier = Classifier.of(self.pools.store.values(), self._device_claims)
        self._board = Board(self.classifier)
        self.tally = Tally((pod, self.classifier.classify(pod)) for pod in self.pods.store.values())
        for node in self.nodes.store.values():
            self._node_changed(None, node)
        self._claims_changed = self._agreements_changed = True

    def _device_claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Its pods are counted anew; the order in which pods and claims arrive says nothing."""
        for claim in (old, new):
            if claim is not None:
                self._device_claims.pop((claim.metadata.namespace, claim.metadata.name), None)
        if new is not None:
            self._device_claims[new.metadata.namespace, new.metadata.name] = new
        for uid in {uid for claim in (old, new) if claim is not None for uid in users(claim)}:
            pod = self.pods.store.get(uid)
            if pod is not None:
                self.tally.put(pod, self.classifier.classify(pod))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self.tally.put(new, self.classifier.classify(new))
        elif old is not None:
            self.tally.drop(old.metadata.uid)

    async def _freeze(self) -> None:
        """Take what was loaded out of the garbage collector's rounds: they would stall answers."""
        for reflector in self._all:
            await reflector.synced.wait()
        gc.collect()
        gc.freeze()
