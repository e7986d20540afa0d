"""Kueue's objects for tests and experiments, as plain manifests of kueue.x-k8s.io/v1beta2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kwok.nodes import GPU, MODEL
from kwok.workloads import QUEUE, Manifest, make_job, make_pod

API_VERSION = "kueue.x-k8s.io/v1beta2"
PRIORITY = "kueue.x-k8s.io/priority-class"
GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
HOSTNAME = "kubernetes.io/hostname"
CONTROLLER_NAME = "wholenode.io/vacate"
CHECK = "vacate-node"
FLAVOR_LABELS = {"nvidia.com/gpu.product": MODEL}


def _object(kind: str, name: str, spec: Mapping[str, Any], namespace: str | None = None) -> Manifest:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def admission_check(name: str = CHECK, controller: str = CONTROLLER_NAME) -> Manifest:
    """An AdmissionCheck; ours, unless another controller's name is given."""
    return _object("AdmissionCheck", name, {"controllerName": controller})


def flavor(name: str, node_labels: Mapping[str, str] | None = None, *, topology: str | None = None) -> Manifest:
    """A ResourceFlavor of the nodes with these labels (by default those of the usual card), with a Topology or not."""
    spec: Manifest = {"nodeLabels": dict(FLAVOR_LABELS if node_labels is None else node_labels)}
    if topology is not None:
        spec["topologyName"] = topology
    return _object("ResourceFlavor", name, spec)


def topology(name: str = "hosts", levels: Iterable[str] = (HOSTNAME,)) -> Manifest:
    """A Topology for topology-aware scheduling; the levels are node labels, the widest first."""
    return _object("Topology", name, {"levels": [{"nodeLabel": one} for one in levels]})


def cluster_queue(
    name: str,
    flavor: str,
    cards: int,
    *,
    cohort: str | None = None,
    borrow: int | None = None,
    lend: int | None = None,
    reclaim: str = "Never",
    within: str = "Never",
    checks: Iterable[str] = (),
    resource: str = GPU,
    strategy: str = "BestEffortFIFO",
) -> Manifest:
    """A ClusterQueue with a nominal quota of `cards` of one resource in one flavor, open to every namespace.

    borrow, lend: at most so much from and to the cohort (None: all there is). reclaim, within: preemption for its own
    quota in the cohort (Never, LowerPriority, Any) and inside the queue (Never, LowerPriority, ...).
    """
    quota: Manifest = {"name": resource, "nominalQuota": cards}
    if cohort is not None and borrow is not None:
        quota["borrowingLimit"] = borrow
    if cohort is not None and lend is not None:
        quota["lendingLimit"] = lend
    spec: Manifest = {
        "namespaceSelector": {},
        "queueingStrategy": strategy,
        "resourceGroups": [
            {"coveredResources": [resource], "flavors": [{"name": flavor, "resources": [quota]}]},
        ],
        "preemption": {"reclaimWithinCohort": reclaim, "withinClusterQueue": within},
    }
    if cohort is not None:
        spec["cohortName"] = cohort
    named = [{"name": one, "onFlavors": [flavor]} for one in checks]
    if named:
        spec["admissionChecksStrategy"] = {"admissionChecks": named}
    return _object("ClusterQueue", name, spec)


def local_queue(namespace: str, queue: str, name: str = "q") -> Manifest:
    """A LocalQueue of a namespace that leads to a ClusterQueue."""
    return _object("LocalQueue", name, {"clusterQueue": queue}, namespace)


def priority_class(name: str, value: int) -> Manifest:
    """A WorkloadPriorityClass."""
    return {"apiVersion": API_VERSION, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}


def queued_job(
    name: str,
    namespace: str,
    *,
    queue: str = "q",
    priority: str | None = None,
    min_parallelism: int | None = None,
    topology: str | None = None,
    **job: Any,
) -> Manifest:
    """A Job for Kueue, created suspended; `job` is as for `make_job` (pods, cards, duration_seconds, ...).

    topology: a node label; all its pods are to be on nodes with the same value of it. min_parallelism: partial
    admission may take so few of its pods.
    """
    made = make_job(name, namespace, queue=queue, **job)
    if priority is not None:
        made["metadata"]["labels"][PRIORITY] = priority
    if min_parallelism is not None:
        made["metadata"].setdefault("annotations", {})[MIN_PARALLELISM] = str(min_parallelism)
        made["spec"].pop("completionMode")
    if topology is not None:
        made["spec"]["template"]["metadata"]["annotations"][REQUIRED_TOPOLOGY] = topology
    return made


def queued_pod(name: str, namespace: str, *, queue: str = "q", **pod: Any) -> Manifest:
    """A plain pod for Kueue; `pod` is as for `make_pod`."""
    labels = {**(pod.pop("labels", None) or {}), QUEUE: queue}
    return make_pod(name, namespace, labels=labels, **pod)


def pod_group(name: str, namespace: str, size: int, *, queue: str = "q", **pod: Any) -> list[Manifest]:
    """Plain pods that Kueue admits together, named `<name>-0`, ..."""
    labels = {**(pod.pop("labels", None) or {}), QUEUE: queue, GROUP_NAME: name}
    annotations = {**(pod.pop("annotations", None) or {}), GROUP_SIZE: str(size)}
    return [
        make_pod(f"{name}-{index}", namespace, labels=labels, annotations=annotations, **pod) for index in range(size)
    ]
