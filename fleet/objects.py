"""The few fields of Kubernetes' own objects that decisions need, as frozen structs decoded straight from JSON.

Unknown fields are ignored, so a newer API server does not break us. Absent and null mean the same.
"""

from datetime import datetime

import msgspec


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    pass


class OwnerReference(_Object, frozen=True):
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class Metadata(_Object, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def revision(self) -> int:
        """The resource version as a number, for telling the newer of two states of one kind; 0 if there is none."""
        return int(self.resource_version or 0)

    def label(self, key: str) -> str | None:
        return self.labels.get(key) if self.labels else None

    def annotation(self, key: str) -> str | None:
        return self.annotations.get(key) if self.annotations else None

    def controller(self) -> OwnerReference | None:
        """The one owner that manages the object, if it has one."""
        for owner in self.owner_references or ():
            if owner.controller:
                return owner
        return None


class Resources(_Object, frozen=True):
    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class Container(_Object, frozen=True):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class Toleration(_Object, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Taint(_Object, frozen=True):
    key: str
    effect: str
    value: str | None = None


class Requirement(_Object, frozen=True):
    """One `matchExpressions` entry of a label or node selector."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class LabelSelector(_Object, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class NodeSelectorTerm(_Object, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(_Object, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(_Object, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(_Object, frozen=True):
    node_affinity: NodeAffinity | None = None


class SchedulingGate(_Object, frozen=True):
    name: str


class PodResourceClaim(_Object, frozen=True):
    """One entry of a pod's `resourceClaims`: a claim of that name, or one made from a template."""

    name: str
    resource_claim_name: str | None = None


class SchedulingGroup(_Object, frozen=True):
    pod_group_name: str | None = None


class PodSpec(_Object, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int] | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    scheduling_group: SchedulingGroup | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None


class Condition(_Object, frozen=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class Terminated(_Object, frozen=True):
    finished_at: datetime | None = None


class ContainerState(_Object, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(_Object, frozen=True):
    state: ContainerState | None = None


class PodStatus(_Object, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: datetime | None = None
    nominated_node_name: str | None = None
    conditions: tuple[Condition, ...] | None = None
    resource_claim_statuses: tuple[PodResourceClaim, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(_Object, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """`namespace/name`, for people; identity is `metadata.uid`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeSpec(_Object, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class NodeAddress(_Object, frozen=True):
    type: str
    address: str


class NodeStatus(_Object, frozen=True):
    allocatable: dict[str, str | int] | None = None
    capacity: dict[str, str | int] | None = None
    conditions: tuple[Condition, ...] | None = None
    addresses: tuple[NodeAddress, ...] | None = None


class Node(_Object, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class JobSpec(_Object, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None


class JobStatus(_Object, frozen=True):
    succeeded: int | None = None
    conditions: tuple[Condition, ...] | None = None
    start_time: datetime | None = None
    completion_time: datetime | None = None


class Job(_Object, frozen=True):
    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class GangPolicy(_Object, frozen=True):
    min_count: int = 1


class SchedulingPolicy(_Object, frozen=True):
    gang: GangPolicy | None = None


class PodGroupSpec(_Object, frozen=True):
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class PodGroup(_Object, frozen=True):
    """A scheduling.k8s.io PodGroup (Kubernetes 1.36 and later, KEP-4671)."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()


class CoschedulingSpec(_Object, frozen=True):
    min_member: int = 1


class CoschedulingGroup(_Object, frozen=True):
    """A scheduling.x-k8s.io/v1alpha1 PodGroup: the Coscheduling plugin's own resource of that name."""

    metadata: Metadata
    spec: CoschedulingSpec = CoschedulingSpec()


class BudgetSpec(_Object, frozen=True):
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class BudgetStatus(_Object, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class DisruptionBudget(_Object, frozen=True):
    """A policy/v1 PodDisruptionBudget."""

    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class NamedDeviceRequest(_Object, frozen=True):
    device_class_name: str = ""
    count: int | None = None


class DeviceRequest(_Object, frozen=True):
    name: str
    exactly: NamedDeviceRequest | None = None
    first_available: tuple[NamedDeviceRequest, ...] | None = None


class DeviceRequests(_Object, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None


class ResourceClaimSpec(_Object, frozen=True):
    devices: DeviceRequests = DeviceRequests()


class DeviceResult(_Object, frozen=True):
    request: str
    driver: str = ""
    pool: str = ""
    device: str = ""


class DeviceResults(_Object, frozen=True):
    results: tuple[DeviceResult, ...] | None = None


class Allocation(_Object, frozen=True):
    devices: DeviceResults = DeviceResults()
    node_selector: NodeSelector | None = None


class ClaimConsumer(_Object, frozen=True):
    """A pod that may use a ResourceClaim."""

    uid: str = ""


class ResourceClaimStatus(_Object, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] | None = None


class ResourceClaim(_Object, frozen=True):
    """A resource.k8s.io/v1 ResourceClaim: devices that pods share or have for themselves."""

    metadata: Metadata
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()
