"""Check `preemption`: whether Kueue takes quota back for whole-node jobs without any node becoming whole."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from fleet.cards import gated_by, waiting
from fleet.doctor.checkup import Checkup, ClusterQueue
from fleet.doctor.findings import Code, Finding, Verdict, fine, not_used, shown
from fleet.fitness import closed, usable_cards
from fleet.kueue.objects import CONTROLLER_NAME, JOB_UID, WORKLOAD, Workload
from fleet.names import DEFAULT_RESOURCE, KUEUE_POD_GROUP
from fleet.objects import Pod
from fleet.requests import RequestClass
from fleet.view import View

_NEVER: Final = frozenset({"", "Never"})
_GPU: Final = "nvidia.com/"
_YOUNG: Final = timedelta(seconds=15)
"""Kueue admits while its victims still end, which is no wait in vain."""
_FIX: Final = (
    "Either have wholenode vacate nodes before Kueue admits (it also moves pods that Kueue does not know), on the\n"
    "flavors of whole-node jobs:\n"
    "{check}in ClusterQueue {queue}, under spec, beside checks that are there:\n"
    "admissionChecksStrategy:\n"
    "  admissionChecks: [{{name: {name}, onFlavors: [{flavor}]}}]\n"
    "or, where every victim is a Kueue job, let Kueue see nodes: a Topology with level kubernetes.io/hostname, and\n"
    "spec.topologyName on ResourceFlavor {flavor}; pods on nodes of a WholeNode pool then need, in their template,\n"
    "tolerations: [{{key: wholenode.io/claim, operator: Exists}}]"
)

_CHECK: Final = (
    "apiVersion: kueue.x-k8s.io/v1beta2\n"
    "kind: AdmissionCheck\n"
    "metadata: {name: vacate-node}\n"
    "spec: {controllerName: wholenode.io/vacate}\n"
    "and "
)


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Queues that preempt blindly, and admitted jobs whose whole-node pods find no whole node."""
    if not seen.queues:
        return (not_used("there are no ClusterQueues"),)
    blind = tuple(_blind(seen))
    wholes = _whole_nodes(seen.view)
    stranded = tuple(_stranded(seen.view, seen.at)) if not wholes else ()
    evicted = sum(one.is_true("Evicted") for one in seen.view.workloads.values())
    evidence = {
        "queues": [queue.metadata.name for queue, _ in blind],
        "wholeNodesFree": wholes,
        "workloadsEvicted": evicted,
        "admittedWithoutNode": sorted({one.key for one, _ in stranded}),
        "podsWaiting": len(stranded),
    }
    if not blind:
        return (fine("no queue takes quota back where nodes do not count", **evidence),)
    queue, flavor = blind[0]
    names = shown(one.metadata.name for one, _ in blind)
    ours = sorted(one.metadata.name for one in seen.view.checks if one.spec.controller_name == CONTROLLER_NAME)
    name, made = (ours[0], "") if ours else ("vacate-node", _CHECK)
    fix = _FIX.format(queue=queue.metadata.name, flavor=flavor, name=name, check=made)
    here = {queue.metadata.name for queue, _ in blind}
    vain = {one.key for one, _ in stranded if _queue(one) in here}
    if vain:
        waits = sum(one.key in vain for one, _ in stranded)
        text = (
            f"{len(vain)} Workloads are admitted and {waits} of their whole-node pods wait, for no node is whole: "
            f"{shown(vain)}; ClusterQueues that take quota back without looking at nodes: {names}; {evicted} Workloads "
            "are evicted"
        )
        return (Finding(Code.RECLAIMED_IN_VAIN, Verdict.PROBLEM, text, evidence, fix),)
    text = f"ClusterQueues that take quota back for whole-node jobs without looking at nodes: {names}"
    return (Finding(Code.RECLAIM_WITHOUT_TOPOLOGY, Verdict.WARNING, text, evidence, fix),)


def _blind(seen: Checkup) -> Iterator[tuple[ClusterQueue, str]]:
    """Queues that preempt, each with a GPU flavor that has neither a topology nor our check."""
    flavors = {one.metadata.name: one for one in seen.view.flavors}
    ours = {one.metadata.name for one in seen.view.checks if one.spec.controller_name == CONTROLLER_NAME}
    for queue in seen.queues:
        how = queue.spec.preemption
        if how is None or {how.reclaim_within_cohort, how.within_cluster_queue} <= _NEVER:
            continue
        for name in _gpu_flavors(queue):
            flavor = flavors.get(name)
            if flavor is not None and not flavor.spec.topology_name and not _checked(queue, name, ours):
                yield queue, name
                break


def _gpu_flavors(queue: ClusterQueue) -> Iterator[str]:
    for group in queue.spec.resource_groups or ():
        if any(name.startswith(_GPU) for name in group.covered_resources):
            yield from (one.name for one in group.flavors)


def _checked(queue: ClusterQueue, flavor: str, ours: set[str]) -> bool:
    strategy = queue.spec.admission_checks_strategy
    rules = strategy.admission_checks if strategy else None
    return any(rule.name in ours and (not rule.on_flavors or flavor in rule.on_flavors) for rule in rules or ())


def _queue(one: Workload) -> str:
    return one.status.admission.cluster_queue if one.status.admission else ""


def _whole_nodes(view: View) -> int:
    """Open nodes with cards of which nobody holds any."""
    found = 0
    for name, node in view.nodes.items():
        pool = view.membership.pool_of(name)
        resource = pool.spec.resource_name if pool else DEFAULT_RESOURCE
        has_all = usable_cards(node, resource) >= (pool.spec.cards_per_node if pool else 1)
        found += has_all and not closed(node) and not view.tally.on(name).touched
    return found


def _stranded(view: View, at: datetime) -> Iterator[tuple[Workload, Pod]]:
    """Pods that want all cards of a node and wait, ungated, though their Workload is admitted; not new ones."""
    admitted = [one for one in view.workloads.values() if one.is_true("Admitted") and not one.is_true("Finished")]
    by_name = {(one.metadata.namespace, one.metadata.name): one for one in admitted}
    by_owner = {uid: one for one in admitted for uid in _owners(one)}
    most = max((usable_cards(node, DEFAULT_RESOURCE) for node in view.nodes.values()), default=0)
    for uid, request in view.requests.items():
        pod = view.pods[uid]
        whole = request.request_class is RequestClass.WHOLE_NODE or (not request.shared and 0 < most <= request.cards)
        made = pod.metadata.creation_timestamp
        young = made is not None and at - made < _YOUNG
        if not whole or not waiting(pod) or gated_by(pod) or young:
            continue
        meta = pod.metadata
        name = meta.annotation(WORKLOAD) or meta.label(KUEUE_POD_GROUP) or ""
        owners = [by_owner[one.uid] for one in meta.owner_references or () if one.uid in by_owner]
        found = by_name.get((meta.namespace, name)) or next(iter(owners), None) or by_owner.get(uid)
        if found is not None:
            yield found, pod


def _owners(one: Workload) -> set[str]:
    """UIDs of the job or pods that the Workload is for."""
    return {ref.uid for ref in one.metadata.owner_references or ()} | {one.metadata.label(JOB_UID) or ""} - {""}
