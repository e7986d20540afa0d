"""The cluster of the simulation, without a controller: its objects, clock, kubelet and kube-scheduler."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from fleet.board import Board
from fleet.cards import cards, finished, seat, terminating, waiting
from fleet.marks import labelled_for, tainted_for
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Job, Node, Pod
from fleet.placement import judge
from fleet.requests import Classifier
from fleet.resources import DrainAgreement, GPUPool, WholeNodeClaim
from fleet.selectors import node_wanted, tolerates
from tests.fleet.builders import T0, at, flat, pool

replace = msgspec.structs.replace


@dataclass
class World:
    """Everything in the cluster; nodes by name, pods, jobs and claims by UID."""

    now: datetime = T0
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    pools: list[GPUPool] = field(default_factory=lambda: [pool()])
    agreements: list[DrainAgreement] = field(default_factory=list)
    claims: dict[str, WholeNodeClaim] = field(default_factory=dict)
    recreate: bool = False
    """Whether a pod with a controller that was deleted comes back at once, unbound, under another UID."""
    starts: dict[str, datetime] = field(default_factory=dict)
    _events: list[tuple[datetime, int, Callable[[], None]]] = field(default_factory=list)
    _made: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since T0."""
        return (self.now - T0).total_seconds()

    # What the outside world does

    def add(self, *objects: Any) -> Self:
        """Put objects (or lists of them) into the cluster now."""
        for one in flat(objects):
            if isinstance(one, Node):
                self.nodes[one.metadata.name] = one
            elif isinstance(one, Pod):
                self.pods[one.metadata.uid] = one
            elif isinstance(one, Job):
                self.jobs[one.metadata.uid] = one
            elif isinstance(one, DrainAgreement):
                self.agreements.append(one)
            elif isinstance(one, GPUPool):
                self.pools.append(one)
            else:
                self.claims[one.metadata.uid] = one
        return self

    def later(self, seconds: float, happen: Callable[[], object]) -> None:
        """Have something happen `seconds` after T0."""
        self._made += 1
        heapq.heappush(self._events, (at(seconds), self._made, lambda: happen() and None))

    def bind(self, pod: Pod, node_name: str) -> None:
        """A scheduler binds the pod, whatever the node's taints say; it runs at once."""
        self.starts.setdefault(pod.metadata.uid, self.now)
        self.pods[pod.metadata.uid] = replace(
            pod,
            spec=replace(pod.spec, node_name=node_name),
            status=replace(pod.status, phase="Running", start_time=self.now),
        )

    def delete(self, uid: str) -> None:
        """Delete a pod as its owner does: with its grace."""
        pod = self.pods.get(uid)
        if pod is None or terminating(pod):
            return
        if not pod.spec.node_name:
            del self.pods[uid]
            return
        grace = timedelta(seconds=pod.spec.termination_grace_period_seconds or 0)
        self.pods[uid] = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=self.now + grace))

    def end(self, uid: str, phase: str = "Succeeded") -> None:
        """The pod ends by itself."""
        if uid in self.pods:
            self.pods[uid] = replace(self.pods[uid], status=replace(self.pods[uid].status, phase=phase))

    def change_node(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Somebody changes a node's labels or spec."""
        node = self.nodes[name]
        if labels is not None:
            node = replace(node, metadata=replace(node.metadata, labels=labels))
        self.nodes[name] = replace(node, spec=replace(node.spec, **spec))

    # What happens by itself

    def _ends(self) -> Iterable[datetime]:
        return (
            pod.metadata.deletion_timestamp
            for pod in self.pods.values()
            if pod.metadata.deletion_timestamp and not pod.metadata.finalizers
        )

    def _happen(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        for uid, pod in list(self.pods.items()):
            gone_at = pod.metadata.deletion_timestamp
            if gone_at is not None and gone_at <= self.now and not pod.metadata.finalizers:
                del self.pods[uid]
                if self.recreate and pod.metadata.controller():
                    self._return(pod)
        self._schedule()

    def _return(self, pod: Pod) -> None:
        self._made += 1
        metadata = replace(
            pod.metadata,
            name=f"{pod.metadata.name}-again{self._made}",
            uid=f"{pod.metadata.uid}-again{self._made}",
            deletion_timestamp=None,
            creation_timestamp=self.now,
        )
        self.add(
            replace(
                pod,
                metadata=metadata,
                spec=replace(pod.spec, node_name=None),
                status=replace(pod.status, phase="Pending"),
            )
        )

    def _schedule(self) -> None:
        """A toy kube-scheduler: taints, selectors, cards, then the extender's word; the first name wins."""
        pending = [pod for pod in self.pods.values() if waiting(pod) and not pod.spec.scheduling_gates]
        if not pending:
            return
        classifier = Classifier.of(self.pools)
        board = Board.of(classifier, self.nodes.values(), self.claims.values(), self.agreements, self.now)
        for pod in sorted(pending, key=lambda one: (one.metadata.creation_timestamp or T0, one.key)):
            fitting = [name for name in sorted(self.nodes) if self._fits(pod, self.nodes[name])]
            passed = judge(pod, fitting, board).passed
            if passed:
                self.bind(pod, passed[0])

    def _fits(self, pod: Pod, node: Node) -> bool:
        hard = [one for one in node.spec.taints or () if one.effect in {"NoSchedule", "NoExecute"}]
        used = sum(cards(one, DEFAULT_RESOURCE) for one in self.pods.values() if seat(one) == node.metadata.name)
        free = int((node.status.allocatable or {}).get(DEFAULT_RESOURCE, 0)) - used
        return (
            not node.spec.unschedulable
            and any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
            and all(tolerates(pod.spec.tolerations, one) for one in hard)
            and node_wanted(pod.spec, node, "")
            and cards(pod, DEFAULT_RESOURCE) <= free
        )

    # What tests ask

    def card_holders(self, node_name: str) -> list[Pod]:
        """Pods that hold cards of a node, terminating ones included."""
        return [
            pod
            for pod in self.pods.values()
            if pod.spec.node_name == node_name and not finished(pod) and cards(pod, DEFAULT_RESOURCE)
        ]

    def marked(self) -> list[str]:
        """Nodes that carry a mark of ours."""
        return sorted(
            name for name, node in self.nodes.items() if (tainted_for(node), labelled_for(node)) != (None, None)
        )

    def where(self, prefix: str) -> list[str]:
        """Where the bound pods whose name starts so are."""
        return sorted(
            pod.spec.node_name
            for pod in self.pods.values()
            if pod.metadata.name.startswith(prefix) and pod.spec.node_name and not finished(pod)
        )
