"""The few fields of Kueue's objects (kueue.x-k8s.io/v1beta2) that decisions need, as frozen structs."""

from datetime import datetime
from typing import Final

import msgspec

from fleet.objects import Condition, Metadata, PodSpec, Taint, Toleration

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CONTROLLER_NAME: Final = "wholenode.io/vacate"
"""`spec.controllerName` of the AdmissionChecks that are ours."""
GATE: Final = "kueue.x-k8s.io/admission"
"""Kueue's scheduling gate on plain pods: it is lifted when the Workload is admitted."""
TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"
WORKLOAD: Final = "kueue.x-k8s.io/workload"
"""Annotation on pods of started jobs: the name of their Workload."""
MANAGED: Final = "kueue.x-k8s.io/managed"
"""Label, and finalizer, of plain pods that Kueue looks after."""
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: UID of the job it is for."""
DEACTIVATED_FOR: Final = "wholenode.io/deactivated-for"
"""Annotation of ours on a Workload that we stop: UID of the claim. While it is there, we owe setting it active."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    pass


class TemplateMetadata(_Object, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(_Object, frozen=True):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec = PodSpec()


class PodSet(_Object, frozen=True):
    """`count` pods of one kind; Kueue may admit fewer (`minCount`): what it admitted is in the assignment."""

    name: str = "main"
    count: int = 1
    min_count: int | None = None
    template: PodTemplate = PodTemplate()


class WorkloadSpec(_Object, frozen=True):
    active: bool | None = None
    queue_name: str = ""
    priority: int | None = None
    pod_sets: tuple[PodSet, ...] | None = None


class PodSetAssignment(_Object, frozen=True):
    """What Kueue admitted of one pod set; `flavors` by resource name. `topology_assignment` is not read further."""

    name: str = "main"
    count: int | None = None
    flavors: dict[str, str] | None = None
    topology_assignment: dict[str, object] | None = None


class Admission(_Object, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] | None = None


class PodSetUpdate(_Object, frozen=True):
    """What Kueue merges into the pods of one pod set when it starts them; every key must be new to their template."""

    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class CheckState(_Object, frozen=True):
    """One entry of `status.admissionChecks`: Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str = ""
    last_transition_time: datetime | None = None
    retry_count: int | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] | None = None


class WorkloadStatus(_Object, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] | None = None


class Workload(_Object, frozen=True):
    """What Kueue queues, admits and evicts: one job, pod, or group of pods."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def is_true(self, condition: str) -> bool:
        """Whether the condition of that type is True. Reasons change from version to version and are not looked at."""
        return any(one.type == condition and one.status == "True" for one in self.status.conditions or ())

    @property
    def active(self) -> bool:
        return self.spec.active is not False

    @property
    def key(self) -> str:
        """`namespace/name`, for people; identity is `metadata.uid`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class FlavorSpec(_Object, frozen=True):
    node_labels: dict[str, str] | None = None
    node_taints: tuple[Taint, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_name: str | None = None


class ResourceFlavor(_Object, frozen=True):
    """A kind of nodes in Kueue's quota; its labels and tolerations are merged into the pods it is assigned to."""

    metadata: Metadata
    spec: FlavorSpec = FlavorSpec()


class AdmissionCheckSpec(_Object, frozen=True):
    controller_name: str = ""


class AdmissionCheckStatus(_Object, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class AdmissionCheck(_Object, frozen=True):
    metadata: Metadata
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()
