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
from fleet.marks import ENDED
from fleet.names import JOBSET_UID, KUEUE_POD_GROUP
from fleet.objects import Pod
from fleet.view import View

RESUMED_WITHIN: Final = timedelta(seconds=10)
"""How long at most a job that Kueue has stopped waits to be queued again until the gang has landed."""


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

    Until the claim's gang has landed they wait, at most `RESUMED_WITHIN`: to start them anew is as much work for Kueue
    as to stop them, and those it stops next, and the gang itself, would wait for that.
    """
    for workload in view.workloads.values():
        claim_uid = workload.metadata.annotation(DEACTIVATED_FOR)
        if claim_uid is None or workload.metadata.deletion_timestamp is not None:
            continue
        if (
            workload.active
            or workload.is_true("Finished")
            or (_stopped(workload) and not lacks_pods(view, workload) and not _behind(view, workload, claim_uid, now))
        ):
            yield ResumeWorkload(workload)


def _stopped(workload: Workload) -> bool:
    return workload.is_true("Evicted") and not workload.is_true("QuotaReserved")


def _behind(view: View, workload: Workload, claim_uid: str, now: datetime) -> bool:
    claim = view.claims.get(claim_uid)
    evicted = (one for one in workload.status.conditions or () if one.type == "Evicted")
    since = next((one.last_transition_time for one in evicted), None)
    acts = claim is not None and claim.status.phase not in ENDED
    return acts and since is not None and now < since + RESUMED_WITHIN


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
class _Index:
    """Workloads by namespace and name, and by the UID of the job they are for."""

    by_name: Mapping[tuple[str, str], Workload]
    by_owner: Mapping[str, Workload]

    @classmethod
    def of(cls, workloads: Iterable[Workload]) -> "_Index":
        by_name, by_owner = dict[tuple[str, str], Workload](), dict[str, Workload]()
        for one in sorted(workloads, key=_currency):
            by_name[one.metadata.namespace, one.metadata.name] = one
            owners = {owner.uid for owner in one.metadata.owner_references or ()}
            by_owner.update(dict.fromkeys(owners | {one.metadata.label(JOB_UID) or ""} - {""}, one))
        return cls(by_name, by_owner)


def _currency(workload: Workload) -> tuple[bool, bool, float, str]:
    """Sorts the Workload that counts last."""
    made = workload.metadata.creation_timestamp
    ended = workload.is_true("Finished")
    return not ended, admitted(workload), made.timestamp() if made else 0.0, workload.metadata.name


def _workload_of(view: View, pod: Pod) -> Workload | None:
    index: _Index | None = view.memo.get("index of workloads")
    if index is None:
        workloads = tuple(view.workloads.values())
        index = view.memo["index of workloads"] = view.memory.recall("index of workloads", _Index.of, workloads)
    meta = pod.metadata
    names = (meta.annotation(WORKLOAD), meta.label(KUEUE_POD_GROUP), meta.annotation(KUEUE_POD_GROUP))
    named = (index.by_name.get((meta.namespace, name)) for name in names if name)
    owned = (index.by_owner.get(uid) for uid in _owners(view, pod))
    found = [one for one in (*named, *owned) if one is not None and one.metadata.namespace == meta.namespace]
    return next((one for one in found if not one.is_true("Finished")), found[0] if found else None)


def _owners(view: View, pod: Pod) -> Iterator[str]:
    """UIDs of whoever a Workload with this pod may be for: its controllers up to the top, the JobSet, the pod."""
    owner = pod.metadata.controller()
    if owner is not None:
        yield owner.uid
        job = view.jobs.get(owner.uid)
        above = job.metadata.controller() if job is not None else None
        if above is not None:
            yield above.uid
        elif owner.kind == "Job" and (of_set := pod.metadata.label(JOBSET_UID)):
            yield of_set
    yield pod.metadata.uid


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
