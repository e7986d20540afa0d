"""Which gangs a Workload at our check has, and what keeps them from starting besides the nodes."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from fleet.cards import waiting
from fleet.gangs import Gang, known_ref
from fleet.kueue.expected import failed_claims, sets_of, whole_sets
from fleet.kueue.objects import ResourceFlavor, Workload
from fleet.kueue.topology import HOSTNAME, places
from fleet.kueue.turns import Turn, of_pods, turns
from fleet.kueue.victims import workload_of
from fleet.marks import taint
from fleet.names import CLAIM_KEY, KUEUE_POD_GROUP
from fleet.objects import Node, PodSpec
from fleet.reasons import Reason
from fleet.resources import Accepts, WholeNodeClaim
from fleet.selectors import tolerates
from fleet.statuses import entered_at
from fleet.view import View
from fleet.wants import unready

_CUT: Final = timedelta(seconds=1)


def turns_by_gang(view: View) -> Mapping[str, Turn]:
    """The turns of Workloads whose pods take whole nodes, by the keys of their gangs; found once a picture.

    Not of those that wait for others' checks first: it is not ours to begin yet, or to go on.
    """
    known: dict[str, Turn] | None = view.memo.get("kueue turns by gang")
    if known is None:
        known = view.memo["kueue turns by gang"] = {}
        groups: dict[tuple[str, str], Turn] = {}
        for turn in turns(view):
            if turn.others:
                continue
            meta = turn.workload.metadata
            if not of_pods(turn.workload):
                known.update((one.key, turn) for one in sets_of(view, turn.workload) if one.whole)
            elif whole_sets(view, turn.workload):
                groups[meta.namespace, meta.name] = turn
                owners = (view.pods.get(owner.uid) for owner in meta.owner_references or ())
                known.update((view.gang_key_of(pod), turn) for pod in owners if pod is not None)
        if groups:
            _add_groups(view, groups, known)
    return known


def _add_groups(view: View, groups: Mapping[tuple[str, str], Turn], known: dict[str, Turn]) -> None:
    """A pod group's Workload has its name; not every pod of it need be among the owners."""
    for pod in view.pods.values():
        name = pod.metadata.label(KUEUE_POD_GROUP) if pod.metadata.labels else None
        if name is not None and (turn := groups.get((pod.metadata.namespace, name))) is not None:
            known[known_ref(pod, view.jobs, view.memory)[1]] = turn


def keys_of(view: View, turn: Turn) -> tuple[str, ...]:
    """The keys of the Workload's gangs that take whole nodes."""
    if not of_pods(turn.workload):
        return tuple(dict.fromkeys(one.key for one in sets_of(view, turn.workload) if one.whole))
    return tuple(key for key, one in turns_by_gang(view).items() if one is turn)


def unanswered(view: View, turn: Turn, keys: tuple[str, ...]) -> WholeNodeClaim | None:
    """The last claim that failed in this reservation of the quota, as long as Kueue has not heard of it.

    Times are cut to seconds, so that a failure just before may seem to be of this one: then the retries that Kueue has
    counted decide, though there may have been some for other reasons.
    """
    failed = failed_claims(view, turn.workload, keys)
    entry = next(one for one in turn.workload.status.admission_checks or () if one.name == turn.check)
    at = entered_at(failed[-1].status, failed[-1].status.phase) if failed else None
    if not failed or (at and turn.since and at < turn.since):
        return None
    surely = at is None or turn.since is None or at >= turn.since + _CUT
    return failed[-1] if surely or len(failed) > (entry.retry_count or 0) else None


def unready_now(view: View, claim: WholeNodeClaim, gang: Gang | None) -> tuple[Reason, str] | None:
    """As `unready`, in this picture: Kueue's gate does not count while it waits for us, what it cannot do does."""
    turn = turns_by_gang(view).get(gang.key) if gang else None
    if turn is None:
        return unready(claim, gang) or _would_fail(view, claim, gang)
    taken = conflict(view, turn.workload)
    if taken is not None:
        return Reason.KEY_TAKEN, taken
    missing = unready(claim, gang, at_our_check=True)
    return (
        missing or _outside(view, turn.workload) or _untolerated(claim, turn.workload, whole_sets(view, turn.workload))
    )


def conflict(view: View, workload: Workload) -> str | None:
    """Why Kueue could not add to the pods what sends them to a claim's nodes: it would end the job instead."""
    whole = whole_sets(view, workload)
    return view.memory.recall(("kueue conflict", workload.metadata.uid), _conflict, workload, view.flavors, whole)


def _conflict(workload: Workload, flavors: tuple[ResourceFlavor, ...], whole: frozenset[str]) -> str | None:
    admission = workload.status.admission
    assigned = [one for one in (admission.pod_set_assignments if admission else None) or () if one.name in whole]
    by_topology = {one.name for one in assigned if places(one)}
    found = [
        (f"the pod template of {workload.key} has {taken}", "the template")
        for one in workload.spec.pod_sets or ()
        if one.name in whole and (taken := _taken(one.template.spec, may_tolerate=one.name in by_topology))
    ]
    names = {name for one in assigned for name in (one.flavors or {}).values()}
    for flavor in flavors:
        spec = PodSpec(node_selector=flavor.spec.node_labels, tolerations=flavor.spec.tolerations)
        if flavor.metadata.name in names and (taken := _taken(spec)):
            found.append((f"ResourceFlavor {flavor.metadata.name} has {taken}", "the flavor"))
    if not found:
        return None
    what, where = found[0]
    return (
        f"{what}: Kueue could not send its pods to the nodes of a claim, and would end the job; take it out of {where}"
    )


def _taken(spec: PodSpec, *, may_tolerate: bool = False) -> str | None:
    """`may_tolerate`: the pods have to, where Kueue's topology chooses their nodes."""
    if CLAIM_KEY in (spec.node_selector or {}):
        return f"the node selector {CLAIM_KEY}"
    if may_tolerate:
        return None
    return f"a toleration of {CLAIM_KEY}" if any(one.key == CLAIM_KEY for one in spec.tolerations or ()) else None


def _outside(view: View, workload: Workload) -> tuple[Reason, str] | None:
    """Kueue's topology has chosen a node that no claim can have."""
    whole = whole_sets(view, workload)
    admission = workload.status.admission
    for assignment in (admission.pod_set_assignments if admission else None) or ():
        for wanted in places(assignment) if assignment.name in whole else ():
            if wanted.key == HOSTNAME:
                by_host = {_host(node): node for node in view.nodes.values()}
                outside = [host for host in wanted.values or () if not _serves(view, by_host.get(host))]
                if outside:
                    text = f"Kueue's topology has put its pods on {', '.join(outside[:3])}, in no pool for whole nodes"
                    return Reason.OUTSIDE_POOLS, f"{text}: use a flavor without topology, or one of the pool's nodes"
    return None


def _would_fail(view: View, claim: WholeNodeClaim, gang: Gang | None) -> tuple[Reason, str] | None:
    """As `_untolerated`, for a gang that waits behind our own gate, without our check."""
    waits = (workload_of(view, pod) for pod in view.takers(gang) if waiting(pod))
    for workload in {one.metadata.uid: one for one in waits if one is not None}.values():
        missing = _untolerated(claim, workload, whole_sets(view, workload))
        if missing is not None:
            return missing
    return None


def _untolerated(claim: WholeNodeClaim, workload: Workload, whole: frozenset[str]) -> tuple[Reason, str] | None:
    """Kueue's topology has chosen hosts, and Kueue would fail the pods that wait for them as soon as we taint these.

    It ends each waiting pod that it has put on a node with a taint that the pod template does not tolerate, whatever
    the pod itself tolerates; the job makes another, for ever (TASReplaceNodeOnNodeTaints, on since 0.17).
    """
    admission = workload.status.admission
    assigned = {one.name: one for one in (admission.pod_set_assignments if admission else None) or ()}
    ours = taint(claim.metadata.uid)
    for pod_set in workload.spec.pod_sets or ():
        if pod_set.name not in whole or pod_set.name not in assigned:
            continue
        by_host = any(one.key == HOSTNAME for one in places(assigned[pod_set.name]))
        if by_host and not tolerates(pod_set.template.spec.tolerations, ours):
            return Reason.NOT_TOLERATED, (
                f"Kueue's topology has chosen the node for pod set {pod_set.name} of Workload {workload.key}, and it "
                f"ends pods that wait for a node with a taint: use a flavor without topology, or have the pod template "
                f"tolerate {CLAIM_KEY} (operator Exists)"
            )
    return None


def _host(node: Node) -> str:
    return node.metadata.label(HOSTNAME) or node.metadata.name


def _serves(view: View, node: Node | None) -> bool:
    pool = view.membership.pool_of(node.metadata.name) if node else None
    return pool is not None and pool.spec.accepts is Accepts.WHOLE_NODE
