"""How long jobs of one kind have run before: learned from those that finished, to tell when the next ones will end.

Jobs are of one kind (a lineage) if they are of one namespace and one CronJob, or their owners' names differ in numbers
and generated endings only. Services have no run time: they end when somebody ends them.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from fleet.objects import Job, Pod

FEWEST_SAMPLES = 3
MOST_SAMPLES = 20
_QUANTILE = 0.9
_SERVICES = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"})
_GENERATED = re.compile("[bcdfghjklmnpqrstvwxz2456789]{5}")
"""What Kubernetes appends to a generateName: it leaves out vowels, and digits that look like letters."""

Lineage = tuple[str, str, str]
"""Namespace, kind of owner, and what the names of its jobs have in common."""


@dataclass(frozen=True, slots=True)
class Runtimes:
    """Run times of each lineage that has finished often enough."""

    jobs: Mapping[str, Job]
    learned: Mapping[Lineage, timedelta]

    @classmethod
    def of(cls, pods: Iterable[Pod], jobs: Mapping[str, Job]) -> "Runtimes":
        """Learn from pods that succeeded and, where a Job's pods are gone, from the Job; `jobs` by UID."""
        samples: dict[Lineage, list[tuple[datetime, timedelta]]] = {}
        seen: set[str] = set()
        for pod in pods:
            ended, started = _ended(pod), pod.status.start_time
            if ended is None or started is None or ended <= started or (lineage := lineage_of(pod, jobs)) is None:
                continue
            samples.setdefault(lineage, []).append((ended, ended - started))
            owner = pod.metadata.controller()
            seen.add(owner.uid if owner else "")
        for uid, job in jobs.items():
            started, ended = job.status.start_time, job.status.completion_time
            if uid not in seen and started and ended and ended > started and _runs_once(job):
                samples.setdefault(_of_job(job), []).append((ended, ended - started))
        return cls(jobs, {one: cautious(some) for one, some in samples.items() if len(some) >= FEWEST_SAMPLES})

    def of_pod(self, pod: Pod) -> timedelta | None:
        """How long the pod may be expected to run from its start; None if nothing like it has finished often enough."""
        if not self.learned:
            return None
        lineage = lineage_of(pod, self.jobs)
        return self.learned.get(lineage) if lineage else None


def cautious(samples: Iterable[tuple[datetime, timedelta]]) -> timedelta:
    """Of the last 20 runs (end, length) the length that nine in ten did not exceed; of fewer than ten, the longest."""
    last = sorted(samples)[-MOST_SAMPLES:]
    lengths = sorted(length for _, length in last)
    return lengths[math.ceil(_QUANTILE * len(lengths)) - 1]


def lineage_of(pod: Pod, jobs: Mapping[str, Job]) -> Lineage | None:
    """The lineage of a pod; None for a pod of a service."""
    namespace, owner = pod.metadata.namespace, pod.metadata.controller()
    if owner is None:
        return namespace, "Pod", stem(pod.metadata.name)
    if owner.kind in _SERVICES:
        return None
    job = jobs.get(owner.uid) if owner.kind == "Job" else None
    return _of_job(job) if job else (namespace, owner.kind, stem(owner.name))


def _of_job(job: Job) -> Lineage:
    above = job.metadata.controller()
    if above is not None and above.kind == "CronJob":
        return job.metadata.namespace, "CronJob", above.name
    return job.metadata.namespace, "Job", stem(job.metadata.name)


@lru_cache(maxsize=65536)
def stem(name: str) -> str:
    """A name without its numbers and its generated ending: `train-7`, `train-12` and `train-x7k2p` are all `train`."""
    parts = name.split("-")
    if len(parts) > 1 and _GENERATED.fullmatch(parts[-1]):
        parts.pop()
    return "-".join(part for part in parts if not part.isdigit()) or name


def _runs_once(job: Job) -> bool:
    """Whether all pods of the Job run at the same time: else its length says nothing about theirs."""
    at_once = job.spec.parallelism if job.spec.parallelism is not None else 1
    return (job.spec.completions or at_once) <= at_once


def _ended(pod: Pod) -> datetime | None:
    """When the last container of a pod that succeeded had ended."""
    if pod.status.phase != "Succeeded":
        return None
    ends = [
        one.state.terminated.finished_at
        for one in pod.status.container_statuses or ()
        if one.state and one.state.terminated and one.state.terminated.finished_at
    ]
    return max(ends, default=None)
