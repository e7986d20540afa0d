"""One consistent picture of the cluster, as the caches hold it, with what follows from it worked out once."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from fleet.agreements import in_force
from fleet.cards import finished, seat, terminating
from fleet.devices import by_name
from fleet.gangs import Gang, gang_key, gangs, known_ref
from fleet.kueue.objects import AdmissionCheck, ResourceFlavor, Workload
from fleet.memory import Memory
from fleet.objects import CoschedulingGroup, DisruptionBudget, Job, Node, Pod, PodGroup, ResourceClaim
from fleet.pools import Membership
from fleet.readiness import Replicas
from fleet.requests import Classifier, Request, RequestClass
from fleet.resources import DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim
from fleet.runtimes import Runtimes
from fleet.spending import Spending
from fleet.tally import Tally


@dataclass(frozen=True)
class View:
    """The cluster at one moment. Nodes by name; pods, jobs, claims and records by UID; the others in any order."""

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    jobs: Mapping[str, Job]
    pools: tuple[GPUPool, ...]
    agreements: tuple[DrainAgreement, ...]
    claims: Mapping[str, WholeNodeClaim]
    budgets: tuple[DisruptionBudget, ...] = ()
    pod_groups: tuple[PodGroup | CoschedulingGroup, ...] = ()
    device_claims: tuple[ResourceClaim, ...] = ()
    records: Mapping[str, DrainRecord] = field(default_factory=dict)
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    """Kueue's, by UID; empty where Kueue is not installed. So are its flavors and checks."""
    flavors: tuple[ResourceFlavor, ...] = ()
    checks: tuple[AdmissionCheck, ...] = ()
    memory: Memory = field(default_factory=Memory, compare=False, repr=False)
    """What earlier pictures have left; what `memo` keeps is of this one only."""

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What others have worked out of this picture, for the next who asks; a key begins with what it is about."""
        return {}

    @cached_property
    def membership(self) -> Membership:
        return Membership.of(self.pools, self.nodes.values())

    @cached_property
    def classifier(self) -> Classifier:
        return self.memory.recall("classifier", _classifier, self.pools, self.device_claims)

    def classify(self, pod: Pod) -> Request:
        """What a pod asks for, whether the caches know it or not."""
        return self.requests.get(pod.metadata.uid) or self._request(pod)

    def _request(self, pod: Pod) -> Request:
        return self.memory.recall(("request", pod.metadata.uid), Classifier.classify, self.classifier, pod)

    @cached_property
    def requests(self) -> Mapping[str, Request]:
        """What each pod asks of the fleet, by UID; pods that ask for no cards are left out."""
        asked = {uid: self._request(pod) for uid, pod in self.pods.items()}
        return {uid: request for uid, request in asked.items() if request.request_class is not RequestClass.NONE}

    @cached_property
    def pods_by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods that take up room on each node, with or without cards; a node that does not exist has none."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            node = seat(pod)
            if node is not None and node in self.nodes:
                found.setdefault(node, []).append(pod)
        return {name: tuple(sorted(some, key=lambda pod: pod.key)) for name, some in found.items()}

    @cached_property
    def tally(self) -> Tally:
        """Cards in use on each node, card by card where that is known."""
        return Tally((self.pods[uid], request) for uid, request in self.requests.items())

    @cached_property
    def runtimes(self) -> Runtimes:
        """How long jobs of each kind have run so far."""
        return Runtimes.of(self.pods.values(), self.jobs)

    @cached_property
    def replicas(self) -> Replicas:
        """The ready pods of each service, without those that are being stopped."""
        return Replicas.of(self.pods.values(), self.claims.values())

    def gpu_pods_on(self, node_name: str) -> tuple[Pod, ...]:
        """Pods that hold cards of the node, terminating ones included."""
        return tuple(pod for pod in self.pods_by_node.get(node_name, ()) if pod.metadata.uid in self.requests)

    @cached_property
    def gangs(self) -> Mapping[str, Gang]:
        """Gangs of live GPU pods (not ended, not being deleted) with their members that have no cards, by gang key."""
        live = [(uid, pod) for uid, pod in self.pods.items() if not finished(pod) and not terminating(pod)]
        return gangs(
            (pod for uid, pod in live if uid in self.requests),
            self.jobs,
            (pod for pod in self.pods.values() if pod.status.phase == "Succeeded"),
            self.pod_groups,
            (pod for uid, pod in live if uid not in self.requests),
            self.memory,
        )

    def gang_key_of(self, pod: Pod) -> str:
        """Which gang the pod is of, alive or not."""
        return known_ref(pod, self.jobs, self.memory)[1]

    def in_force(self, now: datetime) -> Mapping[str, tuple[DrainAgreement, ...]]:
        """The agreements that are valid now, by namespace."""
        if now not in self._in_force:
            self._in_force[now] = in_force(self.agreements, now)
        return self._in_force[now]

    @cached_property
    def _in_force(self) -> dict[datetime, Mapping[str, tuple[DrainAgreement, ...]]]:
        return {}

    def spending(self, now: datetime) -> Spending:
        """What has been stopped up to now, from the records and the claims."""
        if now not in self._spendings:
            self._spendings[now] = Spending.of(self.records.values(), self.claims.values(), now)
        return self._spendings[now]

    @cached_property
    def _spendings(self) -> dict[datetime, Spending]:
        return {}

    def records_of(self, pod_uid: str) -> tuple[DrainRecord, ...]:
        """All records about the pod, the earliest first."""
        return self._records_by_pod.get(pod_uid, ())

    def records_under(self, namespace: str, agreement: str) -> tuple[DrainRecord, ...]:
        """All records that name the agreement, the earliest first."""
        return self._records_by_agreement.get((namespace, agreement), ())

    @cached_property
    def _records_by_agreement(self) -> Mapping[tuple[str, str], tuple[DrainRecord, ...]]:
        found: dict[tuple[str, str], list[DrainRecord]] = {}
        for record in sorted(self.records.values(), key=lambda one: (one.spec.at, one.metadata.name)):
            found.setdefault((record.metadata.namespace, record.spec.agreement), []).append(record)
        return {key: tuple(some) for key, some in found.items()}

    @cached_property
    def _records_by_pod(self) -> Mapping[str, tuple[DrainRecord, ...]]:
        found: dict[str, list[DrainRecord]] = {}
        for record in sorted(self.records.values(), key=lambda one: (one.spec.at, one.metadata.name)):
            found.setdefault(record.spec.pod_uid, []).append(record)
        return {uid: tuple(some) for uid, some in found.items()}

    def takers(self, gang: Gang | None) -> tuple[Pod, ...]:
        """The members that take a whole node each; a launcher with one card, or none, finds its place by itself."""
        whole = RequestClass.WHOLE_NODE
        return tuple(pod for pod in gang.pods if self._class(pod) is whole) if gang else ()

    def _class(self, pod: Pod) -> RequestClass:
        request = self.requests.get(pod.metadata.uid)
        return request.request_class if request else RequestClass.NONE

    @cached_property
    def claims_by_gang(self) -> Mapping[str, tuple[WholeNodeClaim, ...]]:
        """Claims of each gang, oldest first."""
        found: dict[str, list[WholeNodeClaim]] = {}
        for claim in sorted(self.claims.values(), key=age_key):
            if claim.spec.gang is not None:
                found.setdefault(gang_key(claim.metadata.namespace, claim.spec.gang), []).append(claim)
        return {key: tuple(some) for key, some in found.items()}

    def gang_of(self, claim: WholeNodeClaim) -> Gang | None:
        """The live members of the claim's gang; None if it has none."""
        if claim.spec.gang is None:
            return None
        return self.gangs.get(gang_key(claim.metadata.namespace, claim.spec.gang))


def _classifier(pools: tuple[GPUPool, ...], device_claims: tuple[ResourceClaim, ...]) -> Classifier:
    return Classifier.of(pools, by_name(device_claims))


def age_key(claim: WholeNodeClaim) -> tuple[float, str, str]:
    """Sorts claims oldest first, and always the same way."""
    created = claim.metadata.creation_timestamp
    return (created.timestamp() if created else 0.0, claim.metadata.namespace, claim.metadata.name)
