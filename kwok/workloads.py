"""Declared mixes of pods and jobs with a fixed seed; pure functions that return plain objects."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kwok.nodes import CARD_MEMORY_MIB, GPU, GPU_CORES, GPU_MEMORY
from kwok.stages import DURATION, STUCK, TERM_DELAY

QUEUE = "kueue.x-k8s.io/queue-name"
GANG = "wholenode.io/gang"
GANG_SIZE = "wholenode.io/gang-size"
IMAGE = "workload:1"

Manifest = dict[str, Any]
Shape = Literal["pod", "job", "share", "gang", "gang-job"]


@dataclass(frozen=True)
class Group:
    """Some workloads of one shape in a mix.

    shape: `pod` and `job` take `cards` cards; `share` takes a part of one card as under HAMi; `gang` is `size` bare
    pods placed all or none; `gang-job` is the same as one Indexed Job. Run times are drawn evenly from
    `seconds_from`..`seconds_to` (both None: they run on). `stuck` of them (0..1) never end once deleted.
    """

    name: str
    shape: Shape
    count: int
    cards: int = 1
    size: int = 1
    seconds_from: float | None = None
    seconds_to: float | None = None
    namespaces: tuple[str, ...] = ("default",)
    priority_class: str | None = None
    grace_seconds: int = 2
    term_delay: str | None = None
    stuck: float = 0.0
    share_memory_mib: int = CARD_MEMORY_MIB // 10
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a group that cannot be meant. Raises ValueError."""
        if self.count < 0 or self.cards < 1 or self.size < 1 or not self.namespaces:
            raise ValueError(f"group {self.name}: count >= 0, cards >= 1, size >= 1 and a namespace are needed")
        if (self.seconds_from is None) != (self.seconds_to is None):
            raise ValueError(f"group {self.name}: give both ends of the run time or none")
        low, high = self.seconds_from, self.seconds_to
        if low is not None and high is not None and not 0 < low <= high:
            raise ValueError(f"group {self.name}: 0 < seconds_from <= seconds_to is needed")
        if not 0 <= self.stuck <= 1:
            raise ValueError(f"group {self.name}: stuck is a part, 0..1")


@dataclass(frozen=True)
class Mix:
    """Groups that make up one workload; `shuffle` mixes their order."""

    groups: tuple[Group, ...]
    shuffle: bool = True


def go_duration(seconds: float) -> str:
    """Return a Go duration with millisecond precision, e.g. `1.5s`."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def make_pod(
    name: str,
    namespace: str = "default",
    *,
    cards: int = 1,
    duration_seconds: float | None = None,
    term_delay: str | None = None,
    grace_seconds: int = 2,
    priority_class: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node_selector: Mapping[str, str] | None = None,
    tolerations: list[dict[str, Any]] | None = None,
    resources: Mapping[str, str] | None = None,
    gang: tuple[str, int] | None = None,
    scheduler_name: str | None = None,
) -> Manifest:
    """Return a Pod that asks for `cards` whole cards (0: none) or for `resources` instead.

    duration_seconds: how long it runs (None: until it is deleted). term_delay: a Go duration, how long its end takes.
    gang: (name, number of pods) for the gang annotations.
    """
    limits = dict(resources) if resources is not None else ({GPU: str(cards)} if cards else {})
    notes = dict(annotations or {})
    if duration_seconds is not None:
        notes[DURATION] = go_duration(duration_seconds)
    if term_delay is not None:
        notes[TERM_DELAY] = term_delay
    if gang is not None:
        notes |= {GANG: gang[0], GANG_SIZE: str(gang[1])}
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds,
        "containers": [{"name": "main", "image": IMAGE, "resources": {"limits": limits, "requests": dict(limits)}}],
    }
    if priority_class is not None:
        spec["priorityClassName"] = priority_class
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    if tolerations:
        spec["tolerations"] = tolerations
    if scheduler_name is not None:
        spec["schedulerName"] = scheduler_name
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {}), "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def make_job(
    name: str,
    namespace: str = "default",
    *,
    pods: int = 1,
    labels: Mapping[str, str] | None = None,
    queue: str | None = None,
    backoff_limit: int = 6,
    **pod: Any,
) -> Manifest:
    """Return an Indexed Job of `pods` pods that run together; `pod` is as for `make_pod`.

    queue: a Kueue local queue; the Job is then created suspended. Evicted pods do not count against `backoff_limit`.
    """
    template = make_pod(name, namespace, labels=labels, **pod)
    metadata: Manifest = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": backoff_limit,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {
            "metadata": {key: template["metadata"][key] for key in ("labels", "annotations")},
            "spec": template["spec"],
        },
    }
    if queue is not None:
        metadata["labels"][QUEUE] = queue
        spec["suspend"] = True
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def generate(mix: Mix, seed: int) -> list[Manifest]:
    """Return the mix's objects in the order to create them; the same mix and seed give the same objects.

    The pods of a gang stay together, in the order of their index.
    """
    source = random.Random(seed)
    units: list[list[Manifest]] = []
    for group in mix.groups:
        units += [_unit(group, index, source) for index in range(group.count)]
    if mix.shuffle:
        source.shuffle(units)
    return [manifest for unit in units for manifest in unit]


def _unit(group: Group, index: int, source: random.Random) -> list[Manifest]:
    name = f"{group.name}-{index:04d}"
    seconds = None
    if group.seconds_from is not None and group.seconds_to is not None:
        seconds = round(source.uniform(group.seconds_from, group.seconds_to), 3)
    namespace = source.choice(group.namespaces)
    stuck = source.random() < group.stuck
    common: dict[str, Any] = {
        "cards": group.cards,
        "duration_seconds": seconds,
        "term_delay": STUCK if stuck else group.term_delay,
        "grace_seconds": group.grace_seconds,
        "priority_class": group.priority_class,
        "labels": group.labels,
        "annotations": group.annotations,
        "node_selector": group.node_selector,
    }
    if group.shape == "job":
        return [make_job(name, namespace, **common)]
    if group.shape == "gang-job":
        return [make_job(name, namespace, pods=group.size, gang=(name, group.size), **common)]
    if group.shape == "gang":
        return [
            make_pod(f"{name}-{member}", namespace, gang=(name, group.size), **common) for member in range(group.size)
        ]
    if group.shape == "share":
        share = {
            GPU: "1",
            GPU_MEMORY: str(group.share_memory_mib),
            GPU_CORES: str(max(1, round(100 * group.share_memory_mib / CARD_MEMORY_MIB))),
        }
        common["resources"] = share
    return [make_pod(name, namespace, **common)]
