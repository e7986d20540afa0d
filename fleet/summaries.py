"""The status of pools and agreements: what is free, what is wrong, what is valid and how it was used."""

from collections import Counter
from datetime import datetime
from math import fsum

from fleet.agreements import problems
from fleet.fitness import closed, usable_cards, whole
from fleet.resources import (
    Accepts,
    AgreementStatus,
    Beneficiary,
    DrainAgreement,
    DrainRecord,
    GPUPool,
    Outcome,
    PoolStatus,
    ResourceCondition,
    Use,
)
from fleet.selectors import label_problem
from fleet.statuses import MAX_MESSAGE
from fleet.tally import free_cards
from fleet.view import View

_SHOWN_NODES = 5
_SHOWN_USES = 5


def pool_status(view: View, pool: GPUPool, now: datetime) -> PoolStatus:
    """Cards free on open nodes, and untouched whole nodes; held, cordoned and broken nodes are not free."""
    members = [name for name, pools in view.membership.by_node.items() if pool in pools]
    conflicts = view.membership.conflicts_of(pool.metadata.name)
    cards_free = wholes = 0
    for name in members:
        node = view.nodes[name]
        if name in conflicts or closed(node):
            continue
        on_node = view.gpu_pods_on(name)
        cards_free += free_cards(node, pool.spec.resource_name, view.tally.on(name))
        wholes += not on_node and whole(node, pool)
    return PoolStatus(
        nodes=len(members),
        cards_free=cards_free,
        whole_nodes_free=wholes,
        largest_gang=wholes if pool.spec.accepts is Accepts.WHOLE_NODE else 0,
        conditions=(_pool_condition(view, pool, members, now),),
    )


def _pool_condition(view: View, pool: GPUPool, members: list[str], now: datetime) -> ResourceCondition:
    status, reason, message = _pool_state(view, pool, members)
    return _condition("Ready", status, reason, message, pool.status.conditions, now, pool.metadata.generation)


def _pool_state(view: View, pool: GPUPool, members: list[str]) -> tuple[str, str, str]:
    conflicts = view.membership.conflicts_of(pool.metadata.name)
    wanted = sorted(pool.spec.node_selector.match_labels.items())
    impossible = [problem for key, value in wanted if (problem := label_problem(key, value))]
    if impossible:
        return "False", "SelectorCannotMatch", f"spec.nodeSelector.matchLabels: {'; '.join(impossible)}"
    if not members:
        return "False", "NoNodes", f"no node carries {', '.join(f'{key}={value}' for key, value in wanted)}"
    if conflicts:
        shown = ", ".join(conflicts[:_SHOWN_NODES])
        text = f"{len(conflicts)} node(s) are in another pool too and take no new GPU pod: {shown}"
        return "False", "NodesInSeveralPools", text
    return _cards_state(view, pool, members)


def _cards_state(view: View, pool: GPUPool, members: list[str]) -> tuple[str, str, str]:
    """Nodes with another number of cards serve no whole-node gang; a pool of nothing else is a mistake."""
    expected, resource = pool.spec.cards_per_node, pool.spec.resource_name
    found = Counter(usable_cards(view.nodes[name], resource) for name in members)
    others = sorted((cards, nodes) for cards, nodes in found.items() if cards != expected)
    if not others:
        return "True", "Serving", f"{len(members)} node(s)"
    figures = ", ".join(f"{nodes} with {cards}" for cards, nodes in others)
    if found[expected]:
        return "True", "Serving", f"{len(members)} node(s), not all with {expected} usable {resource}: {figures}"
    return "False", "CardsDiffer", f"none of {len(members)} node(s) has {expected} usable {resource}: {figures}"


def agreement_status(view: View, agreement: DrainAgreement, now: datetime) -> AgreementStatus:
    """Valid, or void and why, and what was stopped under it. A void one protects as if it did not exist."""
    found = problems(agreement, now)
    if found:
        status, reason, message = "False", "Void", "; ".join(found)
    else:
        names = ", ".join(sorted(map(_beneficiary, agreement.spec.beneficiaries)))
        status, reason, message = "True", "InForce", f"pods may be stopped for whole-node gangs of {names}"
    old = agreement.status.conditions
    condition = _condition("Valid", status, reason, message, old, now, agreement.metadata.generation)
    spending, meta = view.spending(now), agreement.metadata
    return AgreementStatus(
        conditions=(condition,),
        lost_gpu_seconds_last_day=round(spending.lost_under(meta.namespace, meta.name), 3),
        evictions_last_hour=spending.stopped_under(meta.namespace, meta.name),
        last_uses=_last_uses(view, agreement),
    )


def _beneficiary(one: Beneficiary) -> str:
    return f"{one.namespace} (queues {', '.join(sorted(one.local_queues))})" if one.local_queues else one.namespace


def _last_uses(view: View, agreement: DrainAgreement) -> tuple[Use, ...]:
    """The claims that had pods stopped under it, each with its latest moment and its sums."""
    by_claim: dict[str, list[DrainRecord]] = {}
    for record in view.records_under(agreement.metadata.namespace, agreement.metadata.name):
        if record.status.outcome is Outcome.STOPPED:
            by_claim.setdefault(record.spec.claim_uid, []).append(record)
    uses = [
        Use(
            some[-1].spec.claim,
            some[-1].spec.at,
            len({record.spec.pod_uid for record in some}),
            round(fsum(record.spec.lost_gpu_seconds for record in some), 3),
        )
        for some in by_claim.values()
    ]
    return tuple(sorted(uses, key=lambda use: (use.at, use.claim), reverse=True)[:_SHOWN_USES])


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
    return ResourceCondition(type_, status, reason, message[:MAX_MESSAGE], since, generation)
