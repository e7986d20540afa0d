"""The status of pools and agreements: what is free, what is wrong, what is valid."""

from datetime import datetime

from fleet.agreements import problems
from fleet.cards import created, waiting
from fleet.fitness import ready, usable_cards, whole
from fleet.marks import tainted_for
from fleet.objects import Pod
from fleet.requests import RequestClass
from fleet.resources import (
    Accepts,
    AgreementStatus,
    DrainAgreement,
    GPUPool,
    PoolStatus,
    ResourceCondition,
)
from fleet.view import View

_SHOWN_NODES = 5
_WOKEN_PODS = 100


def pool_status(view: View, pool: GPUPool, now: datetime) -> PoolStatus:
    """Cards free on open nodes, and untouched whole nodes; held, cordoned and broken nodes are not free."""
    members = [name for name, pools in view.membership.by_node.items() if pool in pools]
    conflicts = view.membership.conflicts_of(pool.metadata.name)
    cards_free = wholes = 0
    for name in members:
        node = view.nodes[name]
        closed = node.spec.unschedulable or not ready(node) or tainted_for(node) is not None
        if name in conflicts or closed:
            continue
        on_node = view.gpu_pods_on(name)
        used = sum(view.requests[pod.metadata.uid].cards for pod in on_node)
        cards_free += max(0, usable_cards(node, pool.spec.resource_name) - used)
        wholes += not on_node and whole(node, pool)
    return PoolStatus(
        nodes=len(members),
        cards_free=cards_free,
        whole_nodes_free=wholes,
        largest_gang=wholes if pool.spec.accepts is Accepts.WHOLE_NODE else 0,
        conditions=(_pool_condition(pool, members, conflicts, now),),
    )


def _pool_condition(pool: GPUPool, members: list[str], conflicts: tuple[str, ...], now: datetime) -> ResourceCondition:
    if not members:
        wanted = ", ".join(f"{key}={value}" for key, value in sorted(pool.spec.node_selector.match_labels.items()))
        status, reason, message = "False", "NoNodes", f"no node carries {wanted}"
    elif conflicts:
        shown = ", ".join(conflicts[:_SHOWN_NODES])
        status, reason = "False", "NodesInSeveralPools"
        message = f"{len(conflicts)} node(s) are in another pool too and take no new GPU pod: {shown}"
    else:
        status, reason, message = "True", "Serving", f"{len(members)} node(s)"
    return _condition("Ready", status, reason, message, pool.status.conditions, now, pool.metadata.generation)


def agreement_status(agreement: DrainAgreement, now: datetime) -> AgreementStatus:
    """Valid, or void and why. A void agreement protects its namespace as if it did not exist."""
    found = problems(agreement, now)
    if found:
        status, reason, message = "False", "Void", "; ".join(found)
    else:
        names = ", ".join(sorted({one.namespace for one in agreement.spec.beneficiaries}))
        status, reason, message = "True", "InForce", f"pods may be stopped for whole-node gangs of {names}"
    old = agreement.status.conditions
    condition = _condition("Valid", status, reason, message, old, now, agreement.metadata.generation)
    return AgreementStatus(conditions=(condition,))


def _condition(
    type_: str,
    status: str,
    reason: str,
    message: str,
    old: tuple[ResourceCondition, ...],
    now: datetime,
    generation: int,
) -> ResourceCondition:
    before = next((one for one in old if one.type == type_), None)
    since = before.last_transition_time if before is not None and before.status == status else now
    return ResourceCondition(type_, status, reason, message, since, generation)


def refused_small_pods(view: View) -> tuple[Pod, ...]:
    """Small pods that kube-scheduler tried and found no place for, oldest first, at most 100."""
    found = [
        view.pods[uid]
        for uid, request in view.requests.items()
        if request.request_class is RequestClass.SMALL and _refused(view.pods[uid])
    ]
    return tuple(sorted(found, key=lambda pod: (created(pod), pod.key))[:_WOKEN_PODS])


def _refused(pod: Pod) -> bool:
    return waiting(pod) and any(
        one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable"
        for one in pod.status.conditions or ()
    )
