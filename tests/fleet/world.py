"""The cluster of the simulation, without a controller: its objects, clock, kubelet and kube-scheduler."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from fleet.actions import Answer, EvictionAnswer
from fleet.board import Board
from fleet.budgets import matching
from fleet.cards import cards, finished, seat, terminating, waiting
from fleet.kueue.objects import Workload
from fleet.marks import labelled_for, tainted_for
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE
from fleet.objects import BudgetStatus, DisruptionBudget, Job, Node, Pod
from fleet.placement import judge
from fleet.requests import Classifier
from fleet.resources import DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim
from fleet.selectors import node_wanted, tolerates
from fleet.shields import shielded_for
from tests.fleet.builders import T0, at, flat, pool

replace = msgspec.structs.replace


def annotated(pod: Pod, key: str, value: str) -> Pod:
    """The pod with one more annotation."""
    notes = {**(pod.metadata.annotations or {}), key: value}
    return replace(pod, metadata=replace(pod.metadata, annotations=notes))


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
    records: dict[str, DrainRecord] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    """Kueue's, by UID; `tests.fleet.kueue` brings them to life."""
    kueue: Any = None
    kept: list[tuple[DisruptionBudget, int]] = field(default_factory=list)
    """PodDisruptionBudgets with their minAvailable: the API server of this world keeps them."""
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
            elif isinstance(one, Workload):
                self.workloads[one.metadata.uid] = one
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

    def change_node(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Somebody changes a node's labels, annotations or spec."""
        node = self.nodes[name]
        if labels is not None:
            node = replace(node, metadata=replace(node.metadata, labels=labels))
        if annotations is not None:
            node = replace(node, metadata=replace(node.metadata, annotations=annotations or None))
        self.nodes[name] = replace(node, spec=replace(node.spec, **spec))

    def annotate(self, uid: str, key: str, value: str) -> None:
        """Somebody puts an annotation on a pod."""
        self.pods[uid] = annotated(self.pods[uid], key, value)

    # The Eviction API and its budgets

    def healthy(self, budget: DisruptionBudget) -> int:
        """Pods that count for the budget: running, not on their way out, and not known to be unready."""
        return sum(
            bool(matching(pod, [budget]))
            and pod.status.phase == "Running"
            and not terminating(pod)
            and all(one.status == "True" for one in pod.status.conditions or () if one.type == "Ready")
            for pod in self.pods.values()
        )

    def disruption_budgets(self) -> list[DisruptionBudget]:
        """The budgets with what they allow now, as the disruption controller would have it."""
        return [
            replace(budget, status=BudgetStatus(max(0, self.healthy(budget) - least))) for budget, least in self.kept
        ]

    def budget_refusal(self, pod: Pod) -> Answer | None:
        """What the Eviction API says if the budgets do not let the pod go."""
        found = matching(pod, self.disruption_budgets())
        if len(found) > 1:
            return Answer(EvictionAnswer.REFUSED, "This pod has more than one PodDisruptionBudget")
        if found and found[0].status.disruptions_allowed <= 0:
            return Answer(EvictionAnswer.BUDGET, "Cannot evict pod as it would violate the pod's disruption budget.")
        return None

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
            passed = judge(pod, fitting, board, self.now).passed
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

    def serves(self, node: Node) -> bool:
        """Whether the node's label is selected by a pod that is there: it stays as long as that runs."""
        label = labelled_for(node)
        return label is not None and any(
            (pod.spec.node_selector or {}).get(CLAIM_KEY) == label
            for pod in (*self.pods.values(), *self.seen().values())
            if pod.spec.node_name == node.metadata.name and not finished(pod)
        )

    def seen(self) -> dict[str, Pod]:
        """The pods by UID as a cache may still show them."""
        return self.pods

    def marked(self) -> list[str]:
        """Nodes that carry a mark of ours, but for the label that a pod there needs."""
        return sorted(
            name
            for name, node in self.nodes.items()
            if (tainted_for(node), shielded_for(node)) != (None, None)
            or (labelled_for(node) is not None and not self.serves(node))
        )

    def where(self, prefix: str) -> list[str]:
        """Where the bound pods whose name starts so are."""
        return sorted(
            pod.spec.node_name
            for pod in self.pods.values()
            if pod.metadata.name.startswith(prefix) and pod.spec.node_name and not finished(pod)
        )
