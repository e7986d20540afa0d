"""Which gang a pod belongs to: sets of pods that are placed all or none, and how many pods each must have.

First match wins: our own annotation, the in-tree PodGroup, Kueue's pod group, coscheduling's and Volcano's PodGroups,
the group of a LeaderWorkerSet, the JobSet, the Job if it is Indexed or runs one pod at a time, else the pod alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from fleet.cards import created
from fleet.memory import Memory
from fleet.names import (
    COSCHEDULING_API,
    COSCHEDULING_GROUP,
    GANG,
    GANG_MIN_SIZE,
    GANG_OWNER,
    GANG_SIZE,
    IN_TREE_API,
    JOB_COMPLETION_INDEX,
    JOBSET_GLOBAL_REPLICAS,
    JOBSET_JOB_INDEX,
    JOBSET_NAME,
    JOBSET_REPLICATED_JOB,
    JOBSET_UID,
    KUEUE_POD_GROUP,
    KUEUE_POD_GROUP_TOTAL,
    LWS_GROUP_INDEX,
    LWS_GROUP_KEY,
    LWS_NAME,
    LWS_SIZE,
    VOLCANO_API,
    VOLCANO_GROUP,
)
from fleet.objects import CoschedulingGroup, Job, OwnerReference, Pod, PodGroup
from fleet.resources import GangRef

_MAX_SIZE = 1024
_MAX_DIGITS = 20
_MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang and its live members. `size` is how many pods it must have before any may start.

    While that is not known, `unsized` says what it is to be learnt from, and `size` is how many pods there are.
    `minimum`: with how many members it goes on when others are stopped; 0 if it needs all that run.
    """

    namespace: str
    ref: GangRef
    size: int
    pods: tuple[Pod, ...]
    unsized: str = ""
    minimum: int = 0

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
    meta, owner = pod.metadata, pod.metadata.controller()
    of_set = _set_ref(pod, owner)
    in_tree = pod.spec.scheduling_group
    if _is_name(name := meta.annotation(GANG)):
        return (GangRef("Gang", name, meta.annotation(GANG_OWNER) or _uid(owner, of_set)),)
    if in_tree is not None and _is_name(name := in_tree.pod_group_name):
        return (GangRef("PodGroup", name, IN_TREE_API),)
    if _is_name(name := meta.label(KUEUE_POD_GROUP)):
        return (GangRef("Gang", name, _uid(owner, of_set)),)
    if _is_name(name := meta.label(COSCHEDULING_GROUP)):
        return (GangRef("PodGroup", name, COSCHEDULING_API),)
    if _is_name(name := meta.annotation(VOLCANO_GROUP)):
        return (GangRef("PodGroup", name, VOLCANO_API),)
    if of_set is not None:
        return (of_set,)
    alone = GangRef("Pod", meta.name, meta.uid)
    if owner and owner.kind == "Job":
        return (GangRef("Job", owner.name, owner.uid), alone)
    return (alone,)


def _is_name(text: str | None) -> TypeGuard[str]:
    return bool(text) and len(text or "") <= _MAX_NAME


def _set_ref(pod: Pod, owner: OwnerReference | None) -> GangRef | None:
    """The LeaderWorkerSet group or the JobSet whose pod this is, several owners down.

    Labels alone prove nothing: the owner must have the name that the set gives it, which in a namespace is one
    object's only. Leaders are owned by a StatefulSet named as the set, workers by one named as their leader.
    """
    if owner is None or not pod.metadata.labels:
        return None
    label = pod.metadata.label
    if owner.kind == "StatefulSet" and (key := label(LWS_GROUP_KEY)) and (name := label(LWS_NAME)):
        leader = f"{name}-{label(LWS_GROUP_INDEX)}"
        return GangRef("LeaderWorkerSet", leader, key) if owner.name in {name, leader} else None
    if owner.kind == "Job" and (uid := label(JOBSET_UID)) and (name := label(JOBSET_NAME)):
        job_name = f"{name}-{label(JOBSET_REPLICATED_JOB)}-{label(JOBSET_JOB_INDEX)}"
        return GangRef("JobSet", name, uid) if owner.name == job_name else None
    return None


def _uid(owner: OwnerReference | None, of_set: GangRef | None) -> str:
    """Who makes the pods of a gang: the set they are of, else their controller; nobody known if they have none."""
    return of_set.uid if of_set else owner.uid if owner else ""


def _owner_uid(pod: Pod) -> str:
    owner = pod.metadata.controller()
    return _uid(owner, _set_ref(pod, owner))


def gang_ref(pod: Pod, jobs: Mapping[str, Job]) -> GangRef:
    """The gang of a pod; `jobs` by UID. A Job's pods are one gang if it is Indexed or runs one pod at a time."""
    refs = candidate_refs(pod)
    if refs[0].kind != "Job":
        return refs[0]
    job = jobs.get(refs[0].uid)
    indexed = pod.metadata.annotation(JOB_COMPLETION_INDEX) is not None
    alone = job is not None and (job.spec.parallelism or 1) == 1
    return refs[0] if indexed or alone else refs[1]


def known_ref(pod: Pod, jobs: Mapping[str, Job], memory: Memory) -> tuple[GangRef, str]:
    """The gang of a pod (`gang_ref`) and its key."""
    owner = pod.metadata.controller() if jobs else None
    job = jobs.get(owner.uid) if owner else None
    return memory.recall(("gang of", pod.metadata.uid), _ref_and_key, pod, job)


def _ref_and_key(pod: Pod, job: Job | None) -> tuple[GangRef, str]:
    ref = gang_ref(pod, {job.metadata.uid: job} if job else {})
    return ref, gang_key(pod.metadata.namespace, ref)


def jobs_of(ref: GangRef, jobs: Mapping[str, Job]) -> tuple[Job, ...]:
    """The Jobs that make the gang's pods, as far as they are known; none for gangs of another kind."""
    if ref.kind == "Job":
        return (jobs[ref.uid],) if ref.uid in jobs else ()
    return _by_owner(jobs).get(ref.uid, ()) if ref.kind == "JobSet" else ()


def _by_owner(jobs: Mapping[str, Job]) -> dict[str, tuple[Job, ...]]:
    """Jobs by their owner's UID. A JobSet's restart makes each anew, under the name of one that is going: left out."""
    found: dict[str, tuple[Job, ...]] = {}
    for job in jobs.values():
        owner = job.metadata.controller()
        if owner and job.metadata.deletion_timestamp is None:
            found[owner.uid] = (*found.get(owner.uid, ()), job)
    return found


def job_ended(job: Job) -> bool:
    return any(one.type in {"Complete", "Failed"} and one.status == "True" for one in job.status.conditions or ())


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the sizes of gangs follow from besides their pods."""

    jobs: Mapping[str, Job]
    by_owner: Mapping[str, tuple[Job, ...]]
    groups: Mapping[str, int]
    """How many pods each PodGroup wants, by gang key."""
    ended: Counter[tuple[str, str]]
    """Members that have succeeded, by gang key and owner's UID."""

    def of(self, key: str, ref: GangRef, pods: list[Pod]) -> tuple[int, str]:
        """The size; or how many pods there are, and what it is to be learnt from as long as nobody has said it."""
        match ref.kind:
            case "Job":
                size, unsized = _of_jobs(jobs_of(ref, self.jobs), 1), f"there is no Job {ref.name}"
            case "JobSet":
                count = _largest(pod.metadata.label(JOBSET_GLOBAL_REPLICAS) for pod in pods)
                known = self.by_owner.get(ref.uid, ())
                size = _of_jobs(known, count)
                unsized = f"{len(known)} of {count or 'all'} Jobs of JobSet {ref.name} exist"
            case "PodGroup":
                size, unsized = self._less_ended(self.groups.get(key, 0), key, pods), _no_group(ref)
            case "LeaderWorkerSet":
                size = _largest(pod.metadata.annotation(LWS_SIZE) for pod in pods)
                unsized = f"no pod has the annotation {LWS_SIZE}"
            case "Gang":
                said = [pod.metadata.annotation(one) for pod in pods for one in (GANG_SIZE, KUEUE_POD_GROUP_TOTAL)]
                size, unsized = self._less_ended(_largest(said), key, pods), ""
                if not size and any(said):
                    # Taken for not said, a part of the gang would start without the rest.
                    unsized = f"its size must be a number from 1 to {_MAX_SIZE}, not {next(filter(None, said))[:40]!r}"
            case _:
                size, unsized = 1, ""
        return (size, "") if size else (len(pods), unsized)

    def _less_ended(self, size: int, key: str, pods: list[Pod]) -> int:
        """Members that succeeded are not waited for: a gang whose last pod starts again is whole without them.

        Only those of an owner who has a live member too: else nothing tells them from an earlier run's.
        """
        ended = sum(self.ended[key, owner] for owner in {_owner_uid(pod) for pod in pods} - {""})
        return max(1, size - ended) if size else 0


def _of_jobs(known: tuple[Job, ...], count: int) -> int:
    return max(1, sum(map(_needed, known))) if 0 < count <= len(known) else 0


def _needed(job: Job) -> int:
    """How many pods the Job runs at once; fewer when fewer are left to succeed, none once it has ended."""
    if job_ended(job):
        return 0
    parallelism = job.spec.parallelism if job.spec.parallelism is not None else 1
    if not job.spec.completions:
        return parallelism
    return min(parallelism, max(0, job.spec.completions - (job.status.succeeded or 0)))


def _no_group(ref: GangRef) -> str:
    if ref.uid == VOLCANO_API:
        return f"PodGroups of {VOLCANO_API} are not read, {GANG} and {GANG_SIZE} would say it"
    return f"there is no PodGroup {ref.name} of {ref.uid}"


def _largest(texts: Iterable[str | None]) -> int:
    """The largest number that any pod gives; 0 if none gives one that can be read."""
    return max((_number(text) for text in texts if text), default=0)


def _number(text: str) -> int:
    # Python reads no number of more than some thousand digits, and anybody may write one into an annotation.
    short = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if short and 0 < int(text) <= _MAX_SIZE else 0


def _minimum(group: PodGroup | CoschedulingGroup) -> tuple[str, int]:
    """The gang key of a PodGroup and how many pods it wants; one without a gang policy is content with any."""
    if isinstance(group, PodGroup):
        api, policy = IN_TREE_API, group.spec.scheduling_policy.gang
        count = policy.min_count if policy else 1
    else:
        api, count = COSCHEDULING_API, group.spec.min_member
    return gang_key(group.metadata.namespace, GangRef("PodGroup", group.metadata.name, api)), max(1, count)


def gangs(
    pods: Iterable[Pod],
    jobs: Mapping[str, Job],
    succeeded: Iterable[Pod] = (),
    groups: Iterable[PodGroup | CoschedulingGroup] = (),
    cardless: Iterable[Pod] = (),
    memory: Memory | None = None,
) -> dict[str, Gang]:
    """All gangs of the given live pods by key; members oldest first, then by name. `succeeded` are ended members.

    `cardless` are live pods that make no gang of their own here, but are members of one that has others: a launcher
    without cards beside workers that have some.
    """
    memory = Memory() if memory is None else memory
    members: dict[str, tuple[str, GangRef, list[Pod]]] = {}
    for pod in pods:
        ref, key = known_ref(pod, jobs, memory)
        if key in members:
            members[key][2].append(pod)
        else:
            members[key] = pod.metadata.namespace, ref, [pod]
    shared = {namespace for namespace, ref, _ in members.values() if ref.kind != "Pod"}
    for pod in cardless:
        if pod.metadata.namespace in shared:
            _, key = known_ref(pod, jobs, memory)
            if key in members:
                members[key][2].append(pod)
    done = [pod for pod in succeeded if pod.metadata.namespace in shared]
    refs = ((pod, *known_ref(pod, jobs, memory)) for pod in done)
    ended = Counter((key, _owner_uid(pod)) for pod, ref, key in refs if ref.kind in {"Gang", "PodGroup"})
    sets = _by_owner(jobs) if any(ref.kind == "JobSet" for _, ref, _ in members.values()) else {}
    sizes = _Sizes(jobs, sets, dict(map(_minimum, groups)), ended)
    found: dict[str, Gang] = {}
    for key, (namespace, ref, some) in members.items():
        if ref.kind in {"Pod", "Job"}:
            found[key] = memory.recall(("gang", key), _by_itself, ref, jobs.get(ref.uid), *some)
            continue
        some.sort(key=_age)
        size, unsized = sizes.of(key, ref, some)
        found[key] = Gang(namespace, ref, size, tuple(some), unsized, _goes_on_with(ref, size, unsized, some))
    return found


def _age(pod: Pod) -> tuple[float, str, str]:
    return created(pod), pod.metadata.name, pod.metadata.uid


def _by_itself(ref: GangRef, job: Job | None, *pods: Pod) -> Gang:
    """A gang that follows from its pods and its Job alone, if it has one."""
    some = sorted(pods, key=_age)
    sizes = _Sizes({ref.uid: job} if job else {}, {}, {}, Counter())
    size, unsized = sizes.of("", ref, some)
    return Gang(some[0].metadata.namespace, ref, size, tuple(some), unsized, _goes_on_with(ref, size, unsized, some))


def _goes_on_with(ref: GangRef, size: int, unsized: str, pods: list[Pod]) -> int:
    """What its owner says; else the minimum of its PodGroup, for the other kinds count all their pods."""
    said = _largest(pod.metadata.annotation(GANG_MIN_SIZE) for pod in pods)
    return said or (size if ref.kind == "PodGroup" and not unsized else 0)
