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


class PodSpec(_Object, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int] | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    termination_grace_period_seconds: int | None = None


class Condition(_Object, frozen=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class PodStatus(_Object, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: datetime | None = None
    nominated_node_name: str | None = None
    conditions: tuple[Condition, ...] | None = None


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


class NodeStatus(_Object, frozen=True):
    allocatable: dict[str, str | int] | None = None
    capacity: dict[str, str | int] | None = None
    conditions: tuple[Condition, ...] | None = None


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


class Job(_Object, frozen=True):
    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class BudgetSpec(_Object, frozen=True):
    selector: LabelSelector | None = None


class BudgetStatus(_Object, frozen=True):
    disruptions_allowed: int = 0


class DisruptionBudget(_Object, frozen=True):
    """A policy/v1 PodDisruptionBudget."""

    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()
