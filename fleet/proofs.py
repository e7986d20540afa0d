"""Proof that a node is empty beyond the list of its pods: what else must have let go of its cards.

The list shows what the API server knows. A card may still be in use, or broken, when its pod is gone: the kubelet
reports it, a ResourceClaim still has it, HAMi has booked it, or a probe on the node itself finds a process on it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fleet import hami
from fleet.actions import Probe
from fleet.devices import allocated_on
from fleet.errors import FleetError
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Node
from fleet.quantities import count
from fleet.reasons import Reason
from fleet.resources import GPUPool, Phase, WholeNodeClaim
from fleet.statuses import entered_at
from fleet.upkeep import Context, member
from fleet.view import View

PROBE_COUNTS_FOR: Final = timedelta(seconds=10)
"""How long a probe's "empty" is good for: the list that goes with it may have to be taken once more."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a node without pods does not count as empty yet. `until`: when that ends by itself, if it is known."""

    text: str
    reason: Reason = Reason.NOT_PROVED
    until: datetime | None = None


def doubt(context: Context, claim: WholeNodeClaim) -> Doubt | None:
    """The first doubt about any node of the claim; asks the probes, where there are some, once nothing else is left."""
    nodes = [node for held in claim.status.nodes if (node := context.node_of(held)) is not None]
    for node in nodes:
        found = _booked(context.view, claim, node) or objection(context.view, node, context.now)
        if found is not None:
            return found
    if not context.timing.probe_nodes:
        return None
    doubts = [_unprobed(context, claim, node) for node in nodes]
    return next((one for one in doubts if one is not None), None)


def objection(view: View, node: Node, now: datetime) -> Doubt | None:
    """What the kubelet, ResourceClaims or HAMi's lock say against the node's being empty."""
    pool = view.membership.pool_of(node.metadata.name)
    missing = _not_reported(node, pool) if pool is not None else None
    return missing or _devices(view, node) or _locked(node, now)


def _not_reported(node: Node, pool: GPUPool) -> Doubt | None:
    """The kubelet takes a broken card, or one that its plugin has not given back, out of what it offers."""
    resource, name = pool.spec.resource_name, node.metadata.name
    try:
        offered = count((node.status.allocatable or {}).get(resource, 0))
        built_in = count((node.status.capacity or {}).get(resource, offered))
    except FleetError:
        return Doubt(f"node {name} reports cards ({resource}) in figures that cannot be read")
    if offered != built_in:
        return Doubt(f"node {name} offers {offered} of its {built_in} {resource}: a card is broken or not given back")
    cards = hami.registered(node) if resource == DEFAULT_RESOURCE else None
    usable = len(hami.cards_of(node) or ())
    if cards is not None and usable != len(cards):
        return Doubt(
            f"node {name} has {usable} of {len(cards)} cards that HAMi may use: the others are ill or cordoned"
        )
    return None


def _devices(view: View, node: Node) -> Doubt | None:
    name = node.metadata.name
    for claim in view.device_claims:
        devices = allocated_on(claim, name, view.classifier.device_classes)
        if devices:
            users = len(claim.status.reserved_for or ())
            waits = f"{users} pod(s) have it" if users else "nobody has it, it is not deallocated yet"
            text = f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name} has {devices} device(s) of {name}"
            return Doubt(f"{text}: {waits}")
    return None


def _locked(node: Node, now: datetime) -> Doubt | None:
    """HAMi takes a node's lock before it binds a pod there: until it is given back, or expires, one may still come."""
    lock = hami.lock_of(node)
    if lock is None or (lock.until is not None and lock.until <= now):
        return None
    ends = "; HAMi cannot read since when" if lock.until is None else f"; HAMi lets it expire {lock.until:%H:%M:%S}Z"
    return Doubt(f"HAMi has locked node {node.metadata.name} for {lock.holder}{ends}", Reason.BOOKED, lock.until)


def _booked(view: View, claim: WholeNodeClaim, node: Node) -> Doubt | None:
    """A pod of somebody else that HAMi has chosen the node for: no list of the node's pods shows it."""
    name = node.metadata.name
    for pod in view.gpu_pods_on(name):
        if pod.spec.node_name is None and not member(claim, pod):
            text = f"HAMi has booked cards of node {name} for pod {pod.key}, which is not bound yet"
            return Doubt(text, Reason.BOOKED)
    return None


def _unprobed(context: Context, claim: WholeNodeClaim, node: Node) -> Doubt | None:
    """Its answer counts if it was asked after the list had shown nobody; a no is asked again, like the list.

    Where that lies ahead the clock was set back since: then any answer of before now counts.
    """
    name, now = node.metadata.name, context.now
    since = entered_at(claim.status, Phase.PROVING_EMPTY) or now
    result = context.probes.get(name)
    if result is not None and (result.at > now or (result.at < since <= now)):
        result = None
    if result is not None:
        if result.empty and now < result.at + PROBE_COUNTS_FOR:
            return None
        again = result.at + context.timing.look_every
        if not result.empty and now < again:
            return Doubt(f"the probe of node {name} says it is not empty: {result.reason}", until=again)
    context.decision.actions.append(Probe(node))
    if result is not None and not result.empty:
        return Doubt(f"the probe of node {name} says it is not empty: {result.reason}")
    return Doubt(f"the probe of node {name} is asked")
