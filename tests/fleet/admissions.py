"""A toy Kueue in the simulated cluster: it reserves quota, asks our check, starts jobs and takes quota back.

It keeps Kueue's rules that matter to us: podSetUpdates are merged additively (a key that is there ends the job), an
entry that is Ready never changes, a Retry evicts and counts, an eviction resets the entries, and pods are made from
the template with the flavor's labels and tolerations.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from fleet.actions import Action, ActivateCheck, SetCheck
from fleet.kueue.expected import with_expected
from fleet.kueue.objects import (
    CONTROLLER_NAME,
    GATE,
    Admission,
    AdmissionCheck,
    AdmissionCheckSpec,
    AdmissionCheckStatus,
    CheckState,
    FlavorSpec,
    PodSet,
    PodSetAssignment,
    PodSetUpdate,
    PodTemplate,
    ResourceFlavor,
    TemplateMetadata,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from fleet.kueue.turns import of_pods
from fleet.names import CLAIM_KEY, KUEUE_POD_GROUP, KUEUE_POD_GROUP_TOTAL, KUEUE_QUEUE
from fleet.objects import Condition, Metadata, OwnerReference, Pod, PodSpec, PodStatus, Toleration
from fleet.view import View
from tests.fleet.builders import T0, at, container, owned, pod
from tests.fleet.scenes import EVICT
from tests.fleet.simulation import Simulation

replace = msgspec.structs.replace

ACTIVE = Condition("Active", "True")


def check(name: str = "vacate", *, ours: bool = True, active: bool = True) -> AdmissionCheck:
    spec = AdmissionCheckSpec(CONTROLLER_NAME if ours else "somebody.else/check")
    return AdmissionCheck(
        Metadata(name, uid=f"check-{name}"), spec, AdmissionCheckStatus((ACTIVE,) if active else None)
    )


def flavor(
    name: str = "rtx", *, labels: Mapping[str, str] | None = None, tolerations: tuple[Toleration, ...] = ()
) -> ResourceFlavor:
    return ResourceFlavor(
        Metadata(name, uid=f"flavor-{name}"), FlavorSpec(dict(labels or {}), None, tolerations or None)
    )


def pod_set(
    name: str = "main",
    count: int = 1,
    cards: int = 8,
    *,
    notes: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> PodSet:
    """`count` pods of so many cards whose template lets others be stopped; `spec` are further fields of theirs."""
    template = PodTemplate(
        TemplateMetadata(dict(labels or {}), {**EVICT, **(notes or {})}),
        PodSpec(containers=(container(cards),), **spec),
    )
    return PodSet(name, count, None, template)


def workload(
    name: str = "train",
    *sets: PodSet,
    ns: str = "team-b",
    owner: OwnerReference | None = None,
    entries: Iterable[CheckState] = (CheckState("vacate", "Pending"),),
    reserved: float | None = 0,
    counts: Mapping[str, int] | None = None,
    topology: Mapping[str, dict[str, object]] | None = None,
    true: Iterable[str] = (),
    active: bool | None = None,
    priority: int | None = None,
    queue: str = "research",
) -> Workload:
    """A Workload of Job `name` that has its quota since `reserved`, with our check pending; `true`: more conditions."""
    sets = sets or (pod_set(),)
    conditions = [Condition(one, "True", last_transition_time=at(0)) for one in true]
    admission = None
    if reserved is not None:
        conditions.append(Condition("QuotaReserved", "True", last_transition_time=at(reserved)))
        assigned = tuple(
            PodSetAssignment(
                one.name,
                (counts or {}).get(one.name, one.count),
                {"nvidia.com/gpu": "rtx"},
                (topology or {}).get(one.name),
            )
            for one in sets
        )
        admission = Admission("team-b", assigned)
    metadata = Metadata(
        name,
        ns,
        uid=f"wl-{name}",
        resource_version="1",
        owner_references=(owner or owned("Job", name),),
        creation_timestamp=T0,
    )
    spec = WorkloadSpec(active, queue, priority, sets)
    return Workload(metadata, spec, WorkloadStatus(tuple(conditions), admission, tuple(entries)))


def group(name: str = "train", count: int = 2, *, cards: int = 8, **more: Any) -> list[Pod]:
    """Plain pods that Kueue admits together, behind its gate and ours."""
    return [
        pod(
            f"{name}-{index}",
            cards,
            ns="team-b",
            labels={KUEUE_POD_GROUP: name},
            notes={**EVICT, KUEUE_POD_GROUP_TOTAL: str(count)},
            gates=(GATE, CLAIM_KEY) if cards == 8 else (GATE,),
            **more,
        )
        for index in range(count)
    ]


def of_group(pods: list[Pod], name: str = "train", **more: Any) -> Workload:
    """Their Workload; it has the group's name, and each of them among its owners."""
    one = workload(name, pod_set(count=len(pods), cards=8), **more)
    owners = tuple(OwnerReference("Pod", each.metadata.name, each.metadata.uid) for each in pods)
    return replace(one, metadata=replace(one.metadata, owner_references=owners))


def entry_of(one: Workload, name: str = "vacate") -> CheckState:
    return next(entry for entry in one.status.admission_checks or () if entry.name == name)


def at_check(view: View, *given: Workload | AdmissionCheck | ResourceFlavor, expect: bool = True) -> View:
    """The view with Kueue's objects, our check among them, and the pods it will make."""
    checks = tuple(one for one in given if isinstance(one, AdmissionCheck)) or (check(),)
    flavors = tuple(one for one in given if isinstance(one, ResourceFlavor)) or (flavor(),)
    workloads = {one.metadata.uid: one for one in given if isinstance(one, Workload)}
    made = dataclasses.replace(view, workloads=workloads, flavors=flavors, checks=checks)
    return with_expected(made) if expect else made


@dataclass
class Queued(Simulation):
    """The simulated cluster with the toy Kueue. `slow`: seconds from Ready to the pods of a job."""

    workloads: dict[str, Workload] = field(default_factory=dict)
    checks: list[AdmissionCheck] = field(default_factory=lambda: [check()])
    flavors: list[ResourceFlavor] = field(default_factory=lambda: [flavor()])
    slow: float = 0
    requeue: float | None = 1
    """Seconds from an eviction to the next reservation; None for never."""
    answers_given: list[SetCheck] = field(default_factory=list)
    installed: bool = True

    def view(self) -> View:
        seen = super().view()
        if not self.installed:
            return seen
        return with_expected(
            dataclasses.replace(
                seen, workloads=dict(self.workloads), flavors=tuple(self.flavors), checks=tuple(self.checks)
            )
        )

    def queue(self, *some: Workload) -> "Queued":
        self.workloads.update((one.metadata.uid, one) for one in some)
        return self

    def _do(self, action: Action) -> None:
        match action:
            case SetCheck():
                self.answers_given.append(action)
                self._set(action)
            case ActivateCheck(check=one):
                status = AdmissionCheckStatus((ACTIVE,))
                self.checks = [replace(each, status=status) if each == one else each for each in self.checks]
            case _:
                super()._do(action)

    def _set(self, action: SetCheck) -> None:
        now = self.workloads.get(action.workload.metadata.uid)
        if now is None or now.metadata.resource_version != action.workload.metadata.resource_version:
            return  # the precondition of the write
        known = entry_of(now, action.check)
        assert known.state != "Ready" or action.state != "Ready", "podSetUpdates are immutable while Ready"
        wrong = action.state == "Retry" and (not now.is_true("QuotaReserved") or now.is_true("Evicted"))
        assert not wrong, "a Retry without quota strands the Workload (kueue#3543)"
        names = {one.name for one in now.spec.pod_sets or ()}
        assert {one.name for one in action.updates} <= names, "updates name pod sets of the Workload"
        state = CheckState(action.check, action.state, action.message, self.now, known.retry_count, action.updates)
        self.change(now, entries=[state if one.name == action.check else one for one in self._entries(now)])
        if action.state == "Retry":
            self.evict(now.metadata.uid)
        elif all(one.state == "Ready" for one in self._entries(self.workloads[now.metadata.uid])):
            self.conditions(now.metadata.uid, Admitted=True)
            self.later(self.seconds + self.slow, lambda: self.start(now.metadata.uid))

    def _entries(self, one: Workload) -> list[CheckState]:
        return list(one.status.admission_checks or ())

    def change(self, one: Workload, *, entries: Iterable[CheckState] | None = None, **status: Any) -> None:
        """Kueue writes the Workload's status: a new version of it."""
        uid = one.metadata.uid
        now = self.workloads[uid]
        if entries is not None:
            status["admission_checks"] = tuple(entries)
        version = str(int(now.metadata.resource_version) + 1)
        metadata = replace(now.metadata, resource_version=version)
        self.workloads[uid] = replace(now, metadata=metadata, status=replace(now.status, **status))

    def conditions(self, uid: str, **values: bool) -> None:
        """Set conditions of the Workload now; times are cut to seconds, as Kubernetes does."""
        cut: datetime = self.now.replace(microsecond=0)
        kept = [one for one in self.workloads[uid].status.conditions or () if one.type not in values]
        new = [
            Condition(name, "True" if value else "False", last_transition_time=cut) for name, value in values.items()
        ]
        self.change(self.workloads[uid], conditions=(*kept, *new))

    def start(self, uid: str) -> None:
        """Make the pods of an admitted job, as its template, the flavor and the updates of all checks say.

        Plain pods are there already: they are given the same, and Kueue's gate is lifted.
        """
        one = self.workloads.get(uid)
        if one is None or not one.is_true("Admitted") or one.is_true("Evicted"):
            return
        if of_pods(one):
            self._lift(one)
            return
        for index, pod_set_ in enumerate(one.spec.pod_sets or ()):
            assigned = (one.status.admission.pod_set_assignments or ())[index] if one.status.admission else None
            updates = [
                update
                for each in self._entries(one)
                for update in each.pod_set_updates or ()
                if update.name == pod_set_.name
            ]
            count = assigned.count if assigned and assigned.count is not None else pod_set_.count
            for number in range(count):
                self.add(self.made(one, pod_set_, updates, number))

    def _lift(self, one: Workload) -> None:
        (pods,) = one.spec.pod_sets or ()
        updates = [update for each in self._entries(one) for update in each.pod_set_updates or ()]
        wanted = self.made(one, pods, updates, 0)
        for owner in one.metadata.owner_references or ():
            pod = self.pods[owner.uid]
            gates = tuple(gate for gate in pod.spec.scheduling_gates or () if gate.name != GATE)
            selector = dict(pod.spec.node_selector or {})
            _merge(selector, wanted.spec.node_selector or {})
            self.pods[owner.uid] = replace(
                pod,
                spec=replace(
                    pod.spec,
                    node_selector=selector or None,
                    tolerations=wanted.spec.tolerations,
                    scheduling_gates=gates or None,
                ),
            )

    def made(self, one: Workload, pods: PodSet, updates: Iterable[PodSetUpdate], number: int) -> Pod:
        """One pod of a started job."""
        template = pods.template
        labels = {
            **(template.metadata.labels or {}),
            KUEUE_QUEUE: one.spec.queue_name,
            "kueue.x-k8s.io/podset": pods.name,
        }
        notes, spec = dict(template.metadata.annotations or {}), template.spec
        selector, tolerations = dict(spec.node_selector or {}), list(spec.tolerations or ())
        for each in self.flavors:
            _merge(selector, each.spec.node_labels or {})
            tolerations += each.spec.tolerations or ()
        for update in updates:
            _merge(selector, update.node_selector or {})
            _merge(notes, update.annotations or {})
            tolerations += update.tolerations or ()
        self._made += 1
        name = f"{one.metadata.name}-{pods.name}-{self._made}"
        metadata = Metadata(
            name, one.metadata.namespace, f"pod-{name}", "1", labels=labels, annotations=notes,
            owner_references=one.metadata.owner_references, creation_timestamp=self.now.replace(microsecond=0),
        )  # fmt: skip
        made = replace(spec, node_selector=selector or None, tolerations=tuple(tolerations) or None)
        made = replace(made, termination_grace_period_seconds=3)
        return Pod(metadata, made, PodStatus(phase="Pending"))

    def evict(self, uid: str) -> None:
        """Take the quota back: entries are reset, pods deleted; after `requeue` seconds it is reserved anew."""
        one = self.workloads[uid]
        self.conditions(uid, Evicted=True)
        reset = [
            each
            if each.state == "Pending"
            else CheckState(
                each.name,
                "Pending",
                f"Reset to Pending after eviction. Previously: {each.state}",
                self.now,
                (each.retry_count or 0) + 1 if each.state == "Retry" else None,
            )
            for each in self._entries(self.workloads[uid])
        ]
        self.change(one, entries=reset)
        for each in list(self.pods.values()):
            owned_ = each.metadata.owner_references == one.metadata.owner_references
            runs = each.spec.node_name and each.metadata.label(KUEUE_POD_GROUP) == one.metadata.name
            if owned_ or (of_pods(one) and runs):
                self.delete(each.metadata.uid)
        self.conditions(uid, QuotaReserved=False, Admitted=False)
        if self.requeue is not None:
            self.later(self.seconds + self.requeue, lambda: self.reserve(uid))

    def reserve(self, uid: str) -> None:
        if uid in self.workloads and self.workloads[uid].active:
            self.conditions(uid, QuotaReserved=True, Evicted=False)

    def the_workload(self) -> Workload:
        return next(iter(self.workloads.values()))

    def states(self) -> list[str]:
        """The states that we have written, in order."""
        return [one.state for one in self.answers_given]


def _merge(into: dict[str, str], more: Mapping[str, str]) -> None:
    for key, value in more.items():
        assert into.get(key, value) == value, f"FailedToStart: {key} is there already"
        into[key] = value
