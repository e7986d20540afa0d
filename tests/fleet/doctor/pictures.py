"""Short builders of what the doctor looks at: Kueue's queues, scheduler configurations, programs."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fleet.doctor.bindings import BIND_TIME, FILTER_TIME
from fleet.doctor.checkup import (
    CheckRule,
    CheckStrategy,
    Checkup,
    ClusterQueue,
    FlavorQuota,
    Preemption,
    Program,
    QueueSpec,
    Quota,
    ResourceGroup,
)
from fleet.doctor.findings import Code, Finding, Verdict
from fleet.doctor.schedulers import Configuration, read
from fleet.kueue.objects import (
    Admission,
    AdmissionCheck,
    AdmissionCheckSpec,
    FlavorSpec,
    PodSet,
    PodTemplate,
    ResourceFlavor,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from fleet.objects import Condition, Container, Metadata, Pod, PodSpec
from tests.fleet.builders import T0, at, pod, view
from tests.fleet.shares import asking

CARD = "nvidia.com/gpu"


def seen(*objects: Any, now: float = 600, kueue: Mapping[str, Any] | None = None, **more: Any) -> Checkup:
    """A checkup `now` seconds after T0 of the objects; `kueue`: workloads, flavors, checks of the view."""
    given = dict(kueue or {})
    given["workloads"] = {one.metadata.uid: one for one in given.get("workloads", ())}
    picture = view(*objects)
    known = {name: getattr(picture, name) for name in ("nodes", "pods", "jobs", "pools", "agreements", "claims")}
    return Checkup(type(picture)(**{**known, **given}), at(now), **more)


def only(findings: Iterable[Finding], code: Code) -> Finding:
    """The one finding with this code."""
    [found] = [one for one in findings if one.code is code]
    return found


def codes(findings: Iterable[Finding]) -> set[Code]:
    return {one.code for one in findings if one.verdict is not Verdict.OK}


def placed(name: str, on: str, *, made: float = 0, chosen: float | None = None, bound: float, cards: int = 1) -> Pod:
    """A pod that was made, booked by HAMi (if so) and bound at these seconds after T0."""
    notes = {}
    if chosen is not None:
        notes = {
            "hami.io/vgpu-node": on,
            FILTER_TIME: str(int(T0.timestamp() + chosen)),
            BIND_TIME: str(int(T0.timestamp() + bound)),
        }
    one = pod(name, cards, on=on, created=made, started=bound, notes=notes)
    said = (Condition("PodScheduled", "True", last_transition_time=at(bound)),)
    return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, conditions=said))


def refused(one: Pod) -> Pod:
    said = (Condition("PodScheduled", "False", "Unschedulable", "0/1 nodes", at(1)),)
    return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, conditions=said))


def by_scheduler(one: Pod, name: str) -> Pod:
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, scheduler_name=name))


def hami_program(*flags: str) -> Program:
    return Program("hami-system/hami-scheduler", "vgpu-scheduler-extender", "hami", ("scheduler", *flags), {})


def queue(
    name: str = "team-a",
    quotas: Mapping[str, str | int] | None = None,
    *,
    flavor: str = "cards",
    reclaim: str = "Never",
    within: str = "Never",
    checks: Iterable[CheckRule] = (),
    active: bool = True,
) -> ClusterQueue:
    quotas = {CARD: 16} if quotas is None else quotas
    resources = tuple(Quota(resource, value) for resource, value in quotas.items())
    spec = QueueSpec(
        (ResourceGroup(tuple(quotas), (FlavorQuota(flavor, resources),)),),
        "all",
        Preemption(within, reclaim),
        CheckStrategy(tuple(checks)) if checks else None,
    )
    made = ClusterQueue(Metadata(name, uid=f"cq-{name}"), spec)
    said = (Condition("Active", "True" if active else "False", "Ready" if active else "Stopped", "as it is"),)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, conditions=said))


def flavor(name: str = "cards", labels: Mapping[str, str] | None = None, topology: str | None = None) -> ResourceFlavor:
    return ResourceFlavor(Metadata(name, uid=f"rf-{name}"), FlavorSpec(dict(labels or {}), topology_name=topology))


def our_check(name: str = "vacate", *, active: bool = True) -> AdmissionCheck:
    made = AdmissionCheck(Metadata(name, uid=f"ac-{name}"), AdmissionCheckSpec("wholenode.io/vacate"))
    said = (Condition("Active", "True" if active else "False"),)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, conditions=said))


def workload(
    name: str = "job",
    container: Container | None = None,
    *,
    count: int = 1,
    said: Iterable[str] = (),
    by: str = "team-a",
    ns: str = "team-a",
) -> Workload:
    """One pod set; `said` are its conditions that are True; admitted to `by` if it has quota."""
    spec = PodSpec((container or asking(8),))
    said = tuple(said)
    status = WorkloadStatus(
        tuple(Condition(one, "True") for one in said), Admission(by) if "QuotaReserved" in said else None
    )
    pods = (PodSet("main", count, template=PodTemplate(spec=spec)),)
    return Workload(Metadata(name, ns, uid=f"wl-{name}"), WorkloadSpec(queue_name="q", pod_sets=pods), status)


OURS: dict[str, Any] = {
    "urlPrefix": "http://wholenode-extender.wholenode-system.svc:8080/v1",
    "filterVerb": "filter",
    "preemptVerb": "preempt",
    "nodeCacheCapable": True,
    "ignorable": False,
    "httpTimeout": "1s",
}
HAMI: dict[str, Any] = {
    "urlPrefix": "https://127.0.0.1:443",
    "enableHTTPS": True,
    "tlsConfig": {"insecure": True},
    "filterVerb": "filter",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "weight": 1,
    "httpTimeout": "30s",
    "managedResources": [
        {"name": "nvidia.com/gpu", "ignoredByScheduler": True},
        {"name": "nvidia.com/gpumem", "ignoredByScheduler": True},
    ],
}


def config(*extenders: Mapping[str, Any], source: str = "file", **more: Any) -> Configuration:
    """A configuration that is as it should be, but for what is given."""
    loaded = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "podMaxBackoffSeconds": 2,
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": list(extenders),
        **more,
    }
    found = read(source, loaded)
    assert found is not None
    return found
