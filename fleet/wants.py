"""What a claim and its gang ask for, and what they may do, whatever the nodes are like."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from fleet.cards import gated_by, waiting
from fleet.errors import FleetError
from fleet.gangs import Gang
from fleet.kueue.objects import WORKLOAD
from fleet.kueue.turns import GATES
from fleet.names import CLAIM_KEY
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.requests import RequestClass
from fleet.resources import GPUPool, Policy, WholeNodeClaim
from fleet.times import format_duration, parse_duration
from fleet.view import View


def wants_claim(view: View, gang: Gang) -> bool:
    """Whether a gang needs whole nodes and has a member that still waits for one."""
    return any(waiting(pod) for pod in gang.pods) and any(waiting(pod) for pod in view.takers(gang))


def nodes_wanted(claim: WholeNodeClaim, takers: tuple[Pod, ...]) -> int:
    """One node for each member that takes one and waits: those that are bound have theirs."""
    return sum(waiting(pod) for pod in takers) or claim.spec.nodes


_ONE_BY_ONE: Final = (
    ". A StatefulSet makes the next pod when the last one is ready, unless its podManagementPolicy is Parallel"
)


def _in_order(gang: Gang) -> bool:
    """Whether a StatefulSet makes the pods: what it does by default never makes a gang complete."""
    owners = (pod.metadata.controller() for pod in gang.pods)
    return gang.ref.kind == "Gang" and any(owner is not None and owner.kind == "StatefulSet" for owner in owners)


def unready(claim: WholeNodeClaim, gang: Gang | None, *, at_our_check: bool = False) -> tuple[Reason, str] | None:
    """Why the gang could not start whole, even on empty nodes; None if all of it is there and free of other gates.

    `at_our_check`: Kueue's own gates wait for us, so we do not wait for them.
    """
    if claim.spec.policy is Policy.PREVIEW and gang is None:
        return None
    present = len(gang.pods) if gang else 0
    size = gang.size if gang else claim.spec.nodes
    if gang is not None and gang.unsized:
        return Reason.GANG_INCOMPLETE, f"{present} pod(s) of the gang exist, of how many is not known: {gang.unsized}"
    if gang is None or present < size:
        text = f"{present} of {size} pods of the gang exist; it starts whole or not at all"
        return Reason.GANG_INCOMPLETE, text + (_ONE_BY_ONE if gang and _in_order(gang) else "")
    passable = {CLAIM_KEY, *(GATES if at_our_check else ())}
    foreign = sorted({name for pod in gang.pods if waiting(pod) for name in gated_by(pod)} - passable)
    if foreign:
        return Reason.FOREIGN_GATE, f"another scheduling gate is still closed: {', '.join(foreign)}"
    own = (None, claim.metadata.uid)
    pinned = [pod for pod in gang.pods if waiting(pod) and _pin(pod) not in own]
    if pinned:
        pod = min(pinned, key=lambda one: one.metadata.name)
        text = f"pod {pod.metadata.name} selects the nodes of a claim that is gone, for good: "
        workload = pod.metadata.annotation(WORKLOAD)
        if workload is None:
            return Reason.PINNED, text + "delete the pod, create it anew"
        # Its template selects them too: a pod that is only deleted comes back the same.
        return (
            Reason.PINNED,
            text + f"have Kueue start its job anew: spec.active of Workload {workload} false, then true",
        )
    return None


def may_stop(claim: WholeNodeClaim, now: datetime) -> tuple[bool, Reason, str, datetime | None]:
    """Whether the claim itself lets anybody be stopped now; if not, why, and from when if only time is missing."""
    if claim.spec.policy is Policy.WAIT:
        text = "policy is Wait: nobody is stopped; set wholenode.io/policy: WaitThenEvict to use agreements"
        return False, Reason.POLICY_WAIT, text, None
    since = claim.metadata.creation_timestamp or now
    try:
        until = since + parse_duration(claim.spec.patience)
    except FleetError as error:
        return False, Reason.PATIENCE, f"spec.patience: {error}", None
    if now < until and claim.spec.policy is not Policy.PREVIEW:
        return False, Reason.PATIENCE, f"waits {format_duration(until - since)} for natural ends first", until
    return True, Reason.PLANNED, "", None


def member_too_large(view: View, gang: Gang | None) -> str | None:
    """A gang with a member that no node of any pool could have can never start whole."""
    for pod in gang.pods if gang else ():
        request = view.requests.get(pod.metadata.uid)
        if request is not None and request.request_class is RequestClass.IMPOSSIBLE and waiting(pod):
            return f"pod {pod.metadata.name} needs {request.cards} {request.resource}; no node of any pool has so many"
    return None


def mixed_sizes(view: View, gang: Gang | None) -> str | None:
    """Why no nodes are chosen for members that take whole nodes of several kinds."""
    sizes = sorted(
        {(one.cards, one.resource) for pod in view.takers(gang) if (one := view.requests.get(pod.metadata.uid))}
    )
    if len(sizes) < 2:  # noqa: PLR2004
        return None
    named = ", ".join(f"{cards} {resource}" for cards, resource in sizes)
    return f"its members take whole nodes of different kinds ({named}): give those of each kind a gang of their own"


def wish(view: View, claim: WholeNodeClaim, gang: Gang | None) -> tuple[str, int]:
    """What one member asks for. A made-up gang (Preview) asks for the nodes of its pool, or of the first that fits."""
    for pod in view.takers(gang) or (gang.pods if gang else ()):
        request = view.requests.get(pod.metadata.uid)
        if request is not None:
            return request.resource, request.cards
    named = [pool for pool in _by_name(view.pools) if claim.spec.pool in (None, pool.metadata.name)]
    return (named[0].spec.resource_name, named[0].spec.cards_per_node) if named else ("GPU", 1)


def _by_name(pools: Iterable[GPUPool]) -> list[GPUPool]:
    whole = [pool for pool in pools if pool.spec.accepts == "WholeNode"]
    return sorted(whole, key=lambda pool: pool.metadata.name)


def _pin(pod: Pod) -> str | None:
    return (pod.spec.node_selector or {}).get(CLAIM_KEY)
