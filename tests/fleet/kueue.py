"""A small Kueue for the simulated cluster: it stops and queues again jobs whose Workloads are set inactive, active."""

from dataclasses import dataclass, field
from typing import Any

from fleet.actions import StopWorkload
from fleet.budgets import matching
from fleet.cards import finished, terminating
from fleet.kueue.objects import DEACTIVATED_FOR, JOB_UID, WORKLOAD, Workload, WorkloadSpec, WorkloadStatus
from fleet.names import KUEUE_POD_GROUP as GROUP
from fleet.objects import Condition, Job, Metadata, OwnerReference, Pod
from tests.fleet.builders import T0, job, owned, pod
from tests.fleet.world import World, replace


def workload(
    name: str,
    *,
    ns: str = "team-v",
    active: bool | None = None,
    true: tuple[str, ...] = ("QuotaReserved", "Admitted"),
    owner: OwnerReference | None = None,
    notes: dict[str, str] | None = None,
    uid: str | None = None,
    going: bool = False,
) -> Workload:
    """Kueue's object for a job (by its owner reference and label) or, without owner, for a pod group of its name."""
    return Workload(
        Metadata(
            name,
            ns,
            uid=uid or f"wl-{name}",
            labels={JOB_UID: owner.uid} if owner else None,
            annotations=notes,
            owner_references=(owner,) if owner else None,
            creation_timestamp=T0,
            deletion_timestamp=T0 if going else None,
        ),
        WorkloadSpec(active),
        WorkloadStatus(tuple(Condition(one, "True") for one in true)),
    )


def kueue_job(
    name: str, *nodes: str, indexed: bool = True, noted: bool = True, **more: Any
) -> list[Pod | Job | Workload]:
    """A running batch Job with one pod on each of the nodes, and its Workload."""
    owner = owned("Job", name)
    notes = {**({WORKLOAD: f"job-{name}"} if noted else {}), **more.pop("notes", {})}
    if indexed:
        notes["batch.kubernetes.io/job-completion-index"] = "0"
    pods = [
        pod(f"{name}-{index}", on=on, owner=owner, notes=notes, **{"grace": 3, **more})
        for index, on in enumerate(nodes)
    ]
    of = job(name, ns=more.get("ns", "team-v"), parallelism=len(nodes), completions=len(nodes), indexed=indexed)
    return [*pods, of, workload(f"job-{name}", ns=more.get("ns", "team-v"), owner=owner)]


def with_conditions(one: Workload, **status: bool) -> Workload:
    """The Workload with these conditions set True or False."""
    others = tuple(each for each in one.status.conditions or () if each.type not in status)
    told = tuple(Condition(name, "True" if holds else "False") for name, holds in status.items())
    return replace(one, status=replace(one.status, conditions=(*others, *told)))


def pods_of(world: World, one: Workload) -> list[Pod]:
    """The live pods of the Workload, on nodes."""
    owners = {owner.uid for owner in one.metadata.owner_references or ()}
    jobs = {uid for uid, each in world.jobs.items() if (of := each.metadata.controller()) and of.uid in owners}
    return [
        each
        for each in world.pods.values()
        if not finished(each)
        and not terminating(each)
        and each.spec.node_name
        and (
            each.metadata.annotation(WORKLOAD) == one.metadata.name
            or each.metadata.label(GROUP) == one.metadata.name
            or each.metadata.uid in owners
            or ((owner := each.metadata.controller()) is not None and owner.uid in owners | jobs)
        )
    ]


def alone(one: Workload, pod: Pod) -> bool:
    """Whether the Workload is for one plain pod, or has finished: then pods are evicted."""
    owners = {owner.uid for owner in one.metadata.owner_references or ()}
    return one.is_true("Finished") or owners == {pod.metadata.uid}


def stop_workload(world: World, action: StopWorkload) -> list[Pod]:
    """As the real hands do it: on the version that was decided on, if it may be; the pods that go."""
    uid, pods = action.workload.metadata.uid, pods_of(world, action.workload)
    if world.workloads.get(uid) is not action.workload:
        return []
    assert action.workload.active, f"{action.workload.key} is stopped twice"
    assert {one.metadata.uid for one in pods} <= {one.uid for one in action.victims}, "not all of the job was asked"
    for budget, least in world.kept:
        hit = sum(bool(matching(one, [budget])) for one in pods)
        assert not hit or world.healthy(budget) - hit >= least, f"{action.workload.key} is stopped against a budget"
    notes = {**(action.workload.metadata.annotations or {}), DEACTIVATED_FOR: action.claim.metadata.uid}
    _change(world, action.workload, notes, active=False)
    return pods


def resume_workload(world: World, one: Workload) -> None:
    """As the real hands do it."""
    notes = dict(one.metadata.annotations or {})
    assert notes.pop(DEACTIVATED_FOR, None), f"{one.key} is not ours to resume"
    if world.workloads.get(one.metadata.uid) is one:
        _change(world, one, notes, active=True)


def _change(world: World, one: Workload, notes: dict[str, str], *, active: bool) -> None:
    meta, spec = replace(one.metadata, annotations=notes or None), replace(one.spec, active=active)
    world.workloads[one.metadata.uid] = replace(one, metadata=meta, spec=spec)
    if world.kueue is not None:
        world.kueue.saw(one.metadata.uid)


@dataclass
class Kueue:
    """Reacts as the real one: evicted first, then the pods are deleted, then the quota is free.

    `admits_after`: seconds from being set active until the job is admitted again and its pods are made anew; None: it
    waits for ever. While `stopped` nothing happens.
    """

    world: World
    admits_after: float | None = None
    stopped: bool = False
    evicted: list[str] = field(default_factory=list)
    """Names of Workloads, in the order they were evicted."""
    _gone: dict[str, list[Pod]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.kueue = self

    def saw(self, uid: str) -> None:
        """Something about the Workload has changed."""
        one = self.world.workloads.get(uid)
        if one is None or self.stopped:
            return
        if not one.active and not one.is_true("Evicted"):
            self._soon(0.1, lambda: self.evict(uid))
        elif (
            one.active and one.is_true("Evicted") and not one.is_true("QuotaReserved") and self.admits_after is not None
        ):
            self._soon(self.admits_after, lambda: self._admit(uid))

    def start(self) -> None:
        """Go on after having been stopped: it looks at everything anew."""
        self.stopped = False
        for uid in list(self.world.workloads):
            self.saw(uid)

    def evict(self, uid: str) -> None:
        """Deactivation, and preemption as well: condition, pods, quota, one after the other."""
        one = self.world.workloads.get(uid)
        if one is None:
            return
        self.evicted.append(one.metadata.name)
        self._set(uid, Evicted=True, Admitted=False)
        self._soon(0.1, lambda: self._stop_pods(uid))
        self._soon(0.2, lambda: self._set(uid, QuotaReserved=False))

    def _stop_pods(self, uid: str) -> None:
        of = self.world.workloads.get(uid)
        for one in pods_of(self.world, of) if of else ():
            self._gone.setdefault(uid, []).append(one)
            self.world.delete(one.metadata.uid)

    def _admit(self, uid: str) -> None:
        one = self.world.workloads.get(uid)
        if one is None or not one.active or one.is_true("QuotaReserved"):
            return
        self._set(uid, Evicted=False, QuotaReserved=True, Admitted=True)
        for old in self._gone.pop(uid, []):
            name, now = f"{old.metadata.name}-again", self.world.now
            meta = replace(old.metadata, name=name, uid=f"{old.metadata.uid}-again", creation_timestamp=now)
            spec, status = replace(old.spec, node_name=None), replace(old.status, phase="Pending", start_time=None)
            self.world.add(replace(old, metadata=meta, spec=spec, status=status))

    def _set(self, uid: str, **status: bool) -> None:
        if uid in self.world.workloads:
            self.world.workloads[uid] = with_conditions(self.world.workloads[uid], **status)
            self.saw(uid)

    def _soon(self, seconds: float, happen: Any) -> None:
        self.world.later(self.world.seconds + seconds, happen)
