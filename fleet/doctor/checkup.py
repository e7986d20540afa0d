"""What the doctor looks at: one picture of the cluster, an earlier one, and the settings of the programs around it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import msgspec

from fleet.doctor.schedulers import Configuration
from fleet.objects import Condition, Metadata
from fleet.view import View


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class Quota(_Object, frozen=True):
    """One resource of one flavor in a ClusterQueue or Cohort."""

    name: str
    nominal_quota: str | int = 0
    borrowing_limit: str | int | None = None


class FlavorQuota(_Object, frozen=True):
    name: str
    resources: tuple[Quota, ...] = ()


class ResourceGroup(_Object, frozen=True):
    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuota, ...] = ()


class Preemption(_Object, frozen=True):
    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"


class CheckRule(_Object, frozen=True):
    """An AdmissionCheck of a ClusterQueue; without `on_flavors` for all of its flavors."""

    name: str
    on_flavors: tuple[str, ...] | None = None


class CheckStrategy(_Object, frozen=True):
    admission_checks: tuple[CheckRule, ...] | None = None


class QueueSpec(_Object, frozen=True):
    resource_groups: tuple[ResourceGroup, ...] | None = None
    cohort_name: str = ""
    preemption: Preemption | None = None
    admission_checks_strategy: CheckStrategy | None = None


class QueueStatus(_Object, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class ClusterQueue(_Object, frozen=True):
    """A ClusterQueue of Kueue (v1beta2)."""

    metadata: Metadata
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class CohortSpec(_Object, frozen=True):
    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] | None = None


class Cohort(_Object, frozen=True):
    """A Cohort of Kueue: it may have quota of its own that its queues share."""

    metadata: Metadata
    spec: CohortSpec = CohortSpec()


class Transformation(_Object, frozen=True):
    """How Kueue turns one resource of a request into others before it counts them."""

    input: str
    strategy: str = "Retain"
    multiply_by: str = ""
    outputs: dict[str, str | int | float] | None = None


class KueueResources(_Object, frozen=True):
    exclude_resource_prefixes: tuple[str, ...] | None = None
    transformations: tuple[Transformation, ...] | None = None
    quota_check_strategy: str = "BlockUndeclared"


class KueueConfiguration(_Object, frozen=True):
    """Kueue's own Configuration, as far as it decides what a request counts."""

    resources: KueueResources = KueueResources()


@dataclass(frozen=True, slots=True)
class Program:
    """One container of a Deployment: where it is, what it runs, how many of its pods are wanted and ready."""

    deployment: str
    container: str
    image: str
    arguments: tuple[str, ...]
    labels: Mapping[str, str]
    wanted: int = 1
    ready: int = 1

    def flag(self, name: str) -> str | None:
        """The value of `--name=value` or `--name value`; the last one counts."""
        value = None
        for index, word in enumerate(self.arguments):
            if word.startswith(f"--{name}="):
                value = word.partition("=")[2]
            elif word == f"--{name}" and index + 1 < len(self.arguments):
                value = self.arguments[index + 1]
        return value

    @property
    def hami_scheduler(self) -> bool:
        """Whether this is HAMi's extender: it alone is told where its device configuration is."""
        return self.flag("device-config-file") is not None or self.container == "vgpu-scheduler-extender"


@dataclass(frozen=True, slots=True)
class TaintWriter:
    """Who owns `spec.taints` of a node by its managed fields; `applies`: by server-side apply."""

    node: str
    manager: str
    applies: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """An event about a pod."""

    reason: str
    pod: str
    message: str
    count: int
    last: datetime | None


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    name: str
    holder: str
    renewed_at: datetime | None
    lease_seconds: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A CRD: the versions it serves, and the fields that its schema knows of `spec` and `status`."""

    name: str
    served: frozenset[str]
    spec_fields: frozenset[str]
    status_fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answering:
    """Whether a Service of our extender says that it is ready."""

    service: str
    ready: bool
    detail: str = ""


BASICS: Final = ("nodes", "pods", "gpupools", "drainagreements", "wholenodeclaims")


@dataclass(frozen=True, slots=True)
class Checkup:
    """The cluster at `at`, and, if it was watched, at `earlier_at`.

    `missing` says by name of a part (`pods`, `clusterqueues`, ...) why it could not be read; `absent` are kinds that
    the cluster does not serve. `scheduler_configs` are those found, by where they are from.
    """

    view: View
    at: datetime
    earlier: View | None = None
    earlier_at: datetime | None = None
    queues: tuple[ClusterQueue, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    local_queues: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Name of the ClusterQueue by namespace and name of the LocalQueue."""
    kueue_config: KueueConfiguration | None = None
    scheduler_configs: tuple[Configuration, ...] = ()
    programs: tuple[Program, ...] = ()
    taint_writers: tuple[TaintWriter, ...] = ()
    events: tuple[Seen, ...] = ()
    leases: tuple[LeaseSeen, ...] = ()
    definitions: tuple[Definition, ...] = ()
    gates: tuple[str, ...] = ()
    answering: tuple[Answering, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    saved: bool = False
    """From a file: only what decisions need is in it."""

    @property
    def hami_programs(self) -> tuple[Program, ...]:
        return tuple(one for one in self.programs if one.hami_scheduler)

    def after(self, earlier: "Checkup") -> "Checkup":
        """This picture with what an earlier one showed."""
        return replace(self, earlier=earlier.view, earlier_at=earlier.at)
