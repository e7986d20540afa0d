"""Pods that Kueue started: by which Workload they must be stopped, who goes with them, and whom we owe a resumption.

A pod of a job that Kueue admitted is not evicted: its controller would make another at once, and the quota would stay
with the job. The whole Workload is made inactive instead, Kueue stops all its pods and gives the quota back, and we set
it active again: Kueue queues it anew.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fleet.actions import ResumeWorkload
from fleet.cards import finished, terminating
from fleet.kueue.objects import DEACTIVATED_FOR, JOB_UID, WORKLOAD, Workload
from fleet.marks import HOLDING
from fleet.names import JOBSET_UID, KUEUE_POD_GROUP
from fleet.objects import Job, Pod
from fleet.view import View

RESUMED_WITHIN: Final = timedelta(seconds=10)
"""How long at most a job that Kueue has stopped waits to be queued again until gangs have landed."""


def workload_of(view: View, pod: Pod) -> Workload | None:
    """The Workload that the pod is of: by its annotation, its pod group, else by its owners; None if it has none.

    An owner may have several, older ones of jobs that were resized: the one that has not finished counts.
    """
    if not view.workloads:
        return None
    known: dict[str, Workload | None] = view.memo.setdefault("workloads of pods", {})
    uid = pod.metadata.uid
    if uid not in known:
        known[uid] = _workload_of(view, pod)
    return known[uid]


def through_kueue(view: View, pod: Pod) -> Workload | None:
    """The Workload by which the pod must be stopped; None if it is for the Eviction API.

    So are pods outside Kueue, a plain pod that is a Workload by itself (Kueue sees to its finalizer), and pods of a
    Workload that has finished: Kueue has done with these, whether they still run or not.
    """
    workload = workload_of(view, pod)
    if workload is None or workload.is_true("Finished") or _is_alone(workload, pod):
        return None
    return workload


def leaving(view: View, pod: Pod) -> bool:
    """Whether Kueue is stopping the pod: its Workload is inactive, evicted, or has no quota, for whatever reason.

    Until the pod has a deletion timestamp, or is gone, only the Workload says so.
    """
    workload = workload_of(view, pod)
    return workload is not None and bool(pod.spec.node_name) and not admitted(workload)


def admitted(workload: Workload) -> bool:
    """Whether the Workload may run, or has ended by itself: nobody is taking it off its nodes."""
    if workload.is_true("Finished"):
        return True
    return workload.active and workload.is_true("QuotaReserved") and not workload.is_true("Evicted")


def pods_of(view: View, workload: Workload) -> tuple[Pod, ...]:
    """The pods that end with the Workload, by name: those on a node that nobody has deleted and that have not ended."""
    known: Mapping[str, tuple[Pod, ...]] | None = view.memo.get("pods of workloads")
    if known is None:
        known = view.memo["pods of workloads"] = _pods_by_workload(view)
    return known.get(workload.metadata.uid, ())


def fellows(view: View, pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Further pods that end with these, on whatever node, because Kueue stops whole Workloads; by name."""
    if not view.workloads:
        return ()
    pods = tuple(pods)
    here, found = {pod.metadata.uid for pod in pods}, dict[str, Pod]()
    for pod in pods:
        workload = through_kueue(view, pod)
        if workload is not None:
            found.update((one.metadata.uid, one) for one in pods_of(view, workload) if one.metadata.uid not in here)
    return tuple(sorted(found.values(), key=lambda pod: pod.key))


def workloads_of(view: View, pods: Iterable[Pod]) -> frozenset[str]:
    """UIDs of the Workloads by which any of the pods must be stopped."""
    if not view.workloads:
        return frozenset()
    found = (through_kueue(view, pod) for pod in pods)
    return frozenset(one.metadata.uid for one in found if one is not None)


def resumptions(view: View, now: datetime) -> Iterator[ResumeWorkload]:
    """Workloads that bear our mark and may be queued again, whether the claim they were stopped for is there or not.

    As soon as Kueue has evicted them and their quota is free; a group of plain pods not before all of its pods have
    been replaced, which Kueue cannot do: it would be admitted with nobody alive, and hold its quota. One that somebody
    has set active himself only loses the mark. Who is inactive without our mark was made so by somebody else, and stays
    so.

    They wait, at most `RESUMED_WITHIN`, until no claim holds nodes that its gang has not landed on: to start them anew
    is as much work for Kueue as to stop them, and those it stops next, and the gangs themselves, would wait for that.
    """
    busy = any(claim.status.phase in HOLDING for claim in view.claims.values())
    for workload in view.workloads.values():
        claim_uid = workload.metadata.annotation(DEACTIVATED_FOR)
        if claim_uid is None or workload.metadata.deletion_timestamp is not None:
            continue
        if (
            workload.active
            or workload.is_true("Finished")
            or (_stopped(workload) and not lacks_pods(view, workload) and not (busy and _lately(workload, now)))
        ):
            yield ResumeWorkload(workload)


def _stopped(workload: Workload) -> bool:
    return workload.is_true("Evicted") and not workload.is_true("QuotaReserved")


def _lately(workload: Workload, now: datetime) -> bool:
    """Whether Kueue has evicted it less than `RESUMED_WITHIN` ago."""
    evicted = (one for one in workload.status.conditions or () if one.type == "Evicted")
    since = next((one.last_transition_time for one in evicted), None)
    return since is not None and now < since + RESUMED_WITHIN


def lacks_pods(view: View, workload: Workload) -> int:
    """How many pods of a group that somebody made by hand are missing, or have to be replaced; 0 for all others.

    The Workload of a single plain pod is never made inactive by us, and whoever controls pods makes them anew.
    """
    owners = workload.metadata.owner_references or ()
    if not owners or any(owner.kind != "Pod" or owner.controller for owner in owners):
        return 0
    pods = tuple(_group(view, workload))
    if any(pod.metadata.controller() is not None for pod in pods):
        return 0
    there = sum(not terminating(pod) and pod.status.phase != "Failed" for pod in pods)
    return max(0, sum(one.count for one in workload.spec.pod_sets or ()) - there)


def _group(view: View, workload: Workload) -> Iterator[Pod]:
    """The pods of the group that the Workload is for; its name is that of the Workload."""
    for pod in view.pods.values():
        if pod.metadata.namespace == workload.metadata.namespace:
            names = (pod.metadata.label(KUEUE_POD_GROUP), pod.metadata.annotation(KUEUE_POD_GROUP))
            if workload.metadata.name in names:
                yield pod


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one Workload is found by. `currency` sorts the one that counts last."""

    workload: Workload
    currency: tuple[bool, bool, float, str]
    owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Index:
    """Workloads by namespace and name, and by the UID of the job they are for."""

    by_name: Mapping[tuple[str, str], Workload]
    by_owner: Mapping[str, Workload]

    @classmethod
    def of(cls, view: View) -> "_Index":
        recall = view.memory.recall
        entries = [recall(("indexed workload", uid), _entry, one) for uid, one in view.workloads.items()]
        by_name, by_owner = dict[tuple[str, str], Workload](), dict[str, Workload]()
        for entry in sorted(entries, key=lambda one: one.currency):
            one = entry.workload
            by_name[one.metadata.namespace, one.metadata.name] = one
            for owner in entry.owners:
                by_owner[owner] = one
        return cls(by_name, by_owner)


def _entry(one: Workload) -> _Entry:
    made = one.metadata.creation_timestamp
    current = not one.is_true("Finished"), admitted(one), made.timestamp() if made else 0.0, one.metadata.name
    owners = {owner.uid for owner in one.metadata.owner_references or ()} | {one.metadata.label(JOB_UID) or ""}
    return _Entry(one, current, frozenset(owners - {""}))


def _workload_of(view: View, pod: Pod) -> Workload | None:
    index: _Index | None = view.memo.get("index of workloads")
    if index is None:
        index = view.memo["index of workloads"] = _Index.of(view)
    owner = pod.metadata.controller()
    job = view.jobs.get(owner.uid) if owner is not None else None
    namespace = pod.metadata.namespace
    names, owners = view.memory.recall(("workload names", pod.metadata.uid), _names, pod, job)
    named = (index.by_name.get((namespace, name)) for name in names)
    owned = (index.by_owner.get(uid) for uid in owners)
    found = [one for one in (*named, *owned) if one is not None and one.metadata.namespace == namespace]
    return next((one for one in found if not one.is_true("Finished")), found[0] if found else None)


def _names(pod: Pod, job: Job | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of Workloads that the pod gives, and UIDs of whoever its Workload may be for.

    These are its controllers up to the top, the JobSet, the pod; `job` is the Job that controls it, if there is one.
    """
    meta, owner = pod.metadata, pod.metadata.controller()
    said = (meta.annotation(WORKLOAD), meta.label(KUEUE_POD_GROUP), meta.annotation(KUEUE_POD_GROUP))
    owners = []
    if owner is not None:
        owners.append(owner.uid)
        above = job.metadata.controller() if job is not None else None
        if above is not None:
            owners.append(above.uid)
        elif owner.kind == "Job" and (of_set := meta.label(JOBSET_UID)):
            owners.append(of_set)
    return tuple(name for name in said if name), (*owners, meta.uid)


def _is_alone(workload: Workload, pod: Pod) -> bool:
    """Whether the Workload is for this one plain pod."""
    if pod.metadata.label(KUEUE_POD_GROUP) or pod.metadata.annotation(KUEUE_POD_GROUP):
        return False
    return any(owner.uid == pod.metadata.uid for owner in workload.metadata.owner_references or ())


def _pods_by_workload(view: View) -> Mapping[str, tuple[Pod, ...]]:
    found: dict[str, list[Pod]] = {}
    for pod in view.pods.values():
        if pod.spec.node_name and not finished(pod) and not terminating(pod):
            workload = workload_of(view, pod)
            if workload is not None:
                found.setdefault(workload.metadata.uid, []).append(pod)
    return {uid: tuple(sorted(pods, key=lambda pod: pod.key)) for uid, pods in found.items()}
