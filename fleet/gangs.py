"""Which gang a pod belongs to: sets of pods that are placed all or none.

Precedence: our own annotations, Kueue's pod group, an Indexed Job, a Job that runs one pod, else the pod alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.cards import created
from fleet.names import GANG, GANG_SIZE, JOB_COMPLETION_INDEX, KUEUE_POD_GROUP, KUEUE_POD_GROUP_TOTAL
from fleet.objects import Job, Pod
from fleet.resources import GangRef

_MAX_SIZE = 1024
_MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang and its live members. `size` is how many pods it must have before any may start."""

    namespace: str
    ref: GangRef
    size: int
    pods: tuple[Pod, ...]

    @property
    def key(self) -> str:
        return gang_key(self.namespace, self.ref)


def gang_key(namespace: str, ref: GangRef) -> str:
    """Identity of a gang across the cluster: namesakes in other namespaces, or of other owners, are other gangs."""
    return f"{namespace}/{ref.kind}/{ref.name}/{ref.uid}"


def belongs(pod: Pod, namespace: str, ref: GangRef) -> bool:
    """Whether the pod is a member: by its owner's UID, so a recreated member is one and a namesake is not."""
    return pod.metadata.namespace == namespace and ref in candidate_refs(pod)


def candidate_refs(pod: Pod) -> tuple[GangRef, ...]:
    """The gangs a pod can belong to, judged by the pod alone.

    A pod of a Job is its Job's member or, where the Job's pods are independent, its own gang; which of the two
    depends on the Job (`gang_ref`), so both are given.
    """
    owner = pod.metadata.controller()
    named = pod.metadata.annotation(GANG) or pod.metadata.label(KUEUE_POD_GROUP)
    if named and len(named) <= _MAX_NAME:
        return (GangRef("Gang", named, owner.uid if owner else ""),)
    alone = GangRef("Pod", pod.metadata.name, pod.metadata.uid)
    if owner and owner.kind == "Job":
        return (GangRef("Job", owner.name, owner.uid), alone)
    return (alone,)


def gang_ref(pod: Pod, jobs: Mapping[str, Job]) -> GangRef:
    """The gang of a pod; `jobs` by UID. A Job's pods are one gang if it is Indexed or runs one pod at a time."""
    refs = candidate_refs(pod)
    if refs[0].kind != "Job":
        return refs[0]
    job = jobs.get(refs[0].uid)
    indexed = pod.metadata.annotation(JOB_COMPLETION_INDEX) is not None
    alone = job is not None and (job.spec.parallelism or 1) == 1
    return refs[0] if indexed or alone else refs[1]


def _size(ref: GangRef, pods: tuple[Pod, ...], jobs: Mapping[str, Job], ended: int) -> int:
    """Members that have succeeded are not waited for: a gang whose last pod starts again is whole without them."""
    if ref.kind == "Job":
        job = jobs.get(ref.uid)
        if job is None:
            return len(pods)
        parallelism = job.spec.parallelism if job.spec.parallelism is not None else 1
        if not job.spec.completions:
            return parallelism
        return min(parallelism, max(1, job.spec.completions - (job.status.succeeded or 0)))
    declared = [
        number
        for pod in pods
        for text in (pod.metadata.annotation(GANG_SIZE), pod.metadata.annotation(KUEUE_POD_GROUP_TOTAL))
        if text and (number := _number(text))
    ]
    return max(1, max(declared) - ended) if declared else 1 if ref.kind == "Pod" else len(pods)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) <= _MAX_SIZE else 0


def gangs(pods: Iterable[Pod], jobs: Mapping[str, Job], succeeded: Iterable[Pod] = ()) -> dict[str, Gang]:
    """All gangs of the given live pods by key; members oldest first, then by name. `succeeded` are ended members."""
    # Without an owner nothing tells a member that ended from one of an earlier run under the same name.
    ended = Counter(gang_key(pod.metadata.namespace, ref) for pod in succeeded if (ref := gang_ref(pod, jobs)).uid)
    members: dict[str, tuple[str, GangRef, list[Pod]]] = {}
    for pod in pods:
        ref = gang_ref(pod, jobs)
        namespace = pod.metadata.namespace
        members.setdefault(gang_key(namespace, ref), (namespace, ref, []))[2].append(pod)
    found: dict[str, Gang] = {}
    for key, (namespace, ref, some) in members.items():
        some.sort(key=lambda pod: (created(pod), pod.metadata.name))
        ordered = tuple(some)
        found[key] = Gang(namespace, ref, _size(ref, ordered, jobs, ended[key]), ordered)
    return found
