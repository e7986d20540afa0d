"""Pods that Kueue will make once we let their Workload pass: shown as pods, so that claims serve them as any others.

Their gang is told by the annotations that our entry of the check has Kueue put on the real pods, and by their owner:
so the key of the expected gang is that of the gang that comes, and its claim stays the same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fleet.cards import created, finished, terminating
from fleet.gangs import candidate_refs, gang_key, job_ended, known_ref
from fleet.kueue.objects import PodSet, PodSetAssignment, ResourceFlavor, Workload
from fleet.kueue.topology import bound_to, places
from fleet.kueue.turns import TURNS, Turn, of_pods, turns
from fleet.marks import ENDED
from fleet.names import GANG, GANG_OWNER, GANG_SIZE, KUEUE_QUEUE
from fleet.objects import Metadata, OwnerReference, Pod, PodSpec, PodStatus
from fleet.requests import Classifier, RequestClass
from fleet.resources import Phase, WholeNodeClaim
from fleet.view import View

_UID: Final = "expected/"
_PODSET: Final = "kueue.x-k8s.io/podset"
"""Label that Kueue puts on the pods of started jobs: the name of their pod set."""
_ONE_OWNER: Final = frozenset({"Job", "JobSet"})
"""Kinds all of whose pods are of one gang by their owner. Others have their pods made by another object (a RayJob by a
RayCluster), and launchers by a third (an MPIJob's by a Job), which are not waited for: they take no node."""
MOST_CLAIMS: Final = 3
"""How many claims may fail for a Workload before it is its owner's turn."""


def is_expected(pod: Pod) -> bool:
    """Whether the pod does not exist yet: nothing can be written to it."""
    return pod.metadata.uid.startswith(_UID)


@dataclass(frozen=True, slots=True)
class ExpectedSet:
    """The pods of one pod set, and the key of their gang; `whole`: each takes a whole node.

    `annotations`: those that say so, which their template has not got.
    """

    name: str
    key: str
    pods: tuple[Pod, ...]
    whole: bool
    annotations: dict[str, str]


def with_expected(view: View) -> View:
    """The view with the pods that Kueue will make for Workloads that have their quota and stand at our check.

    After the check is passed the real pods come one by one, and only what is missing of them is expected, as long as
    the claim that they are sent to acts for them. A job that has ended makes no more.
    """
    before = [turn for turn in turns(view) if not turn.others and not of_pods(turn.workload)]
    found: dict[str, Pod] = {}
    made: Counter[tuple[str, str]] | None = None
    for turn in before:
        sets = sets_of(view, turn.workload)
        if not sets or _ended(view, turn.workload):
            continue
        if turn.pending:
            found.update((pod.metadata.uid, pod) for one in sets for pod in one.pods)
            continue
        if _in_vain(view, turn):
            continue
        made = _made(view, before) if made is None else made
        found.update((pod.metadata.uid, pod) for pod in _missing(sets, made))
    if not found:
        return view
    seen = replace(view, pods={**view.pods, **found})
    seen.memo[TURNS] = turns(view)
    return seen


def sets_of(view: View, workload: Workload) -> tuple[ExpectedSet, ...]:
    """The pod sets whose pods the claim is for; empty if no pod of the Workload takes a whole node."""
    recall = view.memory.recall
    return recall(("kueue sets", workload.metadata.uid), _sets, workload, view.flavors, view.classifier)


def whole_sets(view: View, workload: Workload) -> frozenset[str]:
    """Names of the pod sets whose pods take a whole node each, whether they exist already or not."""
    recall = view.memory.recall
    return recall(("kueue whole", workload.metadata.uid), _whole, workload, view.classifier)


def _whole(workload: Workload, classifier: Classifier) -> frozenset[str]:
    assigned = _assigned(workload)
    return frozenset(
        one.name
        for one in workload.spec.pod_sets or ()
        if _count(one, assigned.get(one.name)) and _takes_node(one, classifier)
    )


def _assigned(workload: Workload) -> Mapping[str, PodSetAssignment]:
    admission = workload.status.admission
    return {one.name: one for one in (admission.pod_set_assignments if admission else None) or ()}


def _takes_node(pod_set: PodSet, classifier: Classifier) -> bool:
    asked = classifier.classify(Pod(Metadata(pod_set.name), pod_set.template.spec))
    return asked.request_class is RequestClass.WHOLE_NODE


def failed_claims(view: View, workload: Workload, keys: Iterable[str]) -> tuple[WholeNodeClaim, ...]:
    """Claims of the gangs that failed since the Workload was made, the oldest first."""
    since = workload.metadata.creation_timestamp
    return tuple(
        one
        for key in keys
        for one in view.claims_by_gang.get(key, ())
        if one.status.phase is Phase.FAILED
        and not (since and one.metadata.creation_timestamp and one.metadata.creation_timestamp < since)
    )


def _in_vain(view: View, turn: Turn) -> bool:
    """Whether no claim can act for the pods of a started job: all that they are sent to, for good, have ended."""
    claims = [view.claims.get(uid) for uid in turn.claims]
    return all(one is None or one.status.phase in ENDED for one in claims)


def _ended(view: View, workload: Workload) -> bool:
    owner = workload.metadata.controller()
    job = view.jobs.get(owner.uid) if owner else None
    return owner is None or (job is not None and (job_ended(job) or job.metadata.deletion_timestamp is not None))


def _made(view: View, before: Iterable[Turn]) -> Counter[tuple[str, str]]:
    """How many pods of each gang and pod set have been made since the quota was reserved, ended ones included."""
    since: dict[str, float] = {}
    for turn in before:
        if not turn.pending:
            # Times of conditions and objects are cut to seconds, and written by two programs.
            reserved = turn.since.timestamp() - 1 if turn.since else 0.0
            since |= {one.key: reserved for one in sets_of(view, turn.workload)}
    found: Counter[tuple[str, str]] = Counter()
    for pod in view.pods.values():
        if pod.metadata.annotations and GANG in pod.metadata.annotations and not terminating(pod):
            key = known_ref(pod, view.jobs, view.memory)[1]
            if key in since and (not finished(pod) or created(pod) >= since[key]):
                found[key, pod.metadata.label(_PODSET) or ""] += 1
    return found


def _missing(sets: tuple[ExpectedSet, ...], made: Mapping[tuple[str, str], int]) -> Iterable[Pod]:
    unnamed = {one.key: made.get((one.key, ""), 0) for one in sets}
    for one in sets:
        named = made.get((one.key, one.name), 0)
        others = min(unnamed[one.key], max(0, len(one.pods) - named))
        unnamed[one.key] -= others
        yield from one.pods[named + others :]


def _sets(workload: Workload, flavors: tuple[ResourceFlavor, ...], classifier: Classifier) -> tuple[ExpectedSet, ...]:
    owner, admission = workload.metadata.controller(), workload.status.admission
    whole = _whole(workload, classifier)
    if owner is None or admission is None or not whole or missing_flavors(workload, flavors):
        return ()
    assigned = _assigned(workload)
    by_name = {one.metadata.name: one for one in flavors}
    taking = [
        (one, assigned[one.name], _count(one, assigned[one.name]))
        for one in workload.spec.pod_sets or ()
        if one.name in assigned and (one.name in whole or owner.kind in _ONE_OWNER)
    ]
    names = {
        one.name: (one.template.metadata.annotations or {}).get(GANG) or workload.metadata.name for one, _, _ in taking
    }
    totals: Counter[str] = Counter()
    for one, _, count in taking:
        totals[names[one.name]] += count
    found = []
    for one, assignment, count in taking:
        said = one.template.metadata.annotations or {}
        added = {GANG: names[one.name], GANG_SIZE: str(totals[names[one.name]])}
        if owner.kind not in _ONE_OWNER:
            added[GANG_OWNER] = owner.uid
        missing = {key: text for key, text in added.items() if key not in said}
        used = [by_name[name] for name in dict.fromkeys((assignment.flavors or {}).values())]
        spec = _spec(workload, one, used, assignment)
        pods = tuple(_pod(workload, owner, one, spec, missing, number) for number in range(count))
        if pods:
            key = gang_key(workload.metadata.namespace, candidate_refs(pods[0])[0])
            found.append(ExpectedSet(one.name, key, pods, one.name in whole, missing))
    return tuple(found) if any(one.whole for one in found) else ()


def missing_flavors(workload: Workload, flavors: Iterable[ResourceFlavor]) -> tuple[str, ...]:
    """Flavors that the Workload was assigned and that are not there: what its pods will ask of nodes is not known."""
    admission, there = workload.status.admission, {one.metadata.name for one in flavors}
    assigned = (admission.pod_set_assignments if admission else None) or ()
    return tuple(sorted({name for one in assigned for name in (one.flavors or {}).values()} - there))


def _count(pod_set: PodSet, assignment: PodSetAssignment | None) -> int:
    """What Kueue admitted: it may be fewer than were asked for. A group of workers may be scaled to none."""
    return pod_set.count if assignment is None or assignment.count is None else assignment.count


def _spec(workload: Workload, pod_set: PodSet, flavors: list[ResourceFlavor], assignment: PodSetAssignment) -> PodSpec:
    spec = pod_set.template.spec
    selector, tolerations = dict(spec.node_selector or {}), spec.tolerations or ()
    for flavor in flavors:
        selector = {**(flavor.spec.node_labels or {}), **selector}
        tolerations = (*tolerations, *(flavor.spec.tolerations or ()))
    priority = workload.spec.priority if workload.spec.priority is not None else spec.priority
    made = msgspec.structs.replace(
        spec,
        node_name=None,
        node_selector=selector or None,
        tolerations=tolerations or None,
        scheduling_gates=None,
        priority=priority,
    )
    return bound_to(made, places(assignment))


def _pod(
    workload: Workload, owner: OwnerReference, pod_set: PodSet, spec: PodSpec, added: dict[str, str], number: int
) -> Pod:
    meta, template = workload.metadata, pod_set.template.metadata
    since = next((one for one in workload.status.conditions or () if one.type == "QuotaReserved"), None)
    queue = {KUEUE_QUEUE: workload.spec.queue_name} if workload.spec.queue_name else {}
    return Pod(
        Metadata(
            name=f"{meta.name}-{pod_set.name}-{number}",
            namespace=meta.namespace,
            uid=f"{_UID}{meta.uid}/{pod_set.name}/{number}",
            labels={**(template.labels or {}), **queue, _PODSET: pod_set.name},
            annotations={**(template.annotations or {}), **added},
            owner_references=(owner,),
            creation_timestamp=(since.last_transition_time if since else None) or meta.creation_timestamp,
        ),
        spec,
        PodStatus(phase="Pending"),
    )
