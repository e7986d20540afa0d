"""Whether a node could serve a whole-node gang at all, whatever runs on it: each no has a countable reason."""

from collections.abc import Iterable
from enum import StrEnum

from fleet.cards import READERS, asks, requested
from fleet.errors import FleetError
from fleet.hami import PARTS, cards_of, unreadable
from fleet.marks import holders, tainted_for
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE
from fleet.objects import Node, Pod
from fleet.quantities import count
from fleet.resources import GPUPool
from fleet.selectors import node_wanted, tolerates

_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_CORDON_TAINT = "node.kubernetes.io/unschedulable"


class Obstacle(StrEnum):
    """Why a node is out of the question for a gang; values are shown to people and counted."""

    POOL_CONFLICT = "InSeveralPools"
    CORDONED = "Cordoned"
    NOT_READY = "NotReady"
    TAINTED = "ForeignTaint"
    MISSING_CARDS = "CardsMissing"
    UNREADABLE = "HAMiRegisterUnreadable"
    HELD = "HeldForAnotherClaim"
    NOT_WANTED = "NotSelectedByPod"
    NO_CPU = "NotEnoughCPU"
    NO_MEMORY = "NotEnoughMemory"
    NO_PODS = "PodLimitReached"
    NO_RESOURCE = "NotEnoughOfAResource"
    AVOIDED = "GivenBackLately"
    OWN_GANG = "OwnGangRunsThere"
    NO_TOPOLOGY_DOMAIN = "NoTopologyDomain"
    OTHER_DOMAIN = "OtherTopologyDomain"


_ROOM = {"cpu": Obstacle.NO_CPU, "memory": Obstacle.NO_MEMORY}


def ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())


def closed(node: Node) -> bool:
    """Whether the node takes nobody new just now: cordoned, not ready, or held for a claim."""
    return bool(node.spec.unschedulable) or not ready(node) or tainted_for(node) is not None


def usable_cards(node: Node, resource: str) -> int:
    """Cards the node offers to pods; broken or missing ones are not in it.

    HAMi's device plugin counts shares in `allocatable`; the cards themselves stand in its register.
    """
    if resource == DEFAULT_RESOURCE and (cards := cards_of(node)) is not None:
        return len(cards)
    try:
        return count((node.status.allocatable or {}).get(resource, 0))
    except FleetError:
        return 0


def whole(node: Node, pool: GPUPool) -> bool:
    """Whether the node is open and has all the cards its pool says it has (busy or not)."""
    return not closed(node) and usable_cards(node, pool.spec.resource_name) == pool.spec.cards_per_node


def obstacle(node: Node, pool: GPUPool, members: Iterable[Pod], claim_uid: str) -> Obstacle | None:
    """The first thing about the node itself that rules it out for these pods; None if nothing does.

    Another's cordon always does. Another's taint does unless every member tolerates it: GPU nodes often carry one
    that all GPU pods tolerate.
    """
    members = tuple(members)
    if node.spec.unschedulable:
        return Obstacle.CORDONED
    if not ready(node):
        return Obstacle.NOT_READY
    held_for = holders(node)
    if held_for and claim_uid not in held_for:
        return Obstacle.HELD
    for taint in node.spec.taints or ():
        if taint.key == CLAIM_KEY or taint.effect not in _HARD_EFFECTS:
            continue
        if taint.key == _CORDON_TAINT:
            return Obstacle.CORDONED
        if not all(tolerates(pod.spec.tolerations, taint) for pod in members):
            return Obstacle.TAINTED
    if usable_cards(node, pool.spec.resource_name) != pool.spec.cards_per_node:
        return lacking(node, pool.spec.resource_name)
    if not all(node_wanted(pod.spec, node, CLAIM_KEY) for pod in members):
        return Obstacle.NOT_WANTED
    return None


def lacking(node: Node, resource: str) -> Obstacle:
    """What to call it that the node does not offer the cards it should."""
    return Obstacle.UNREADABLE if resource == DEFAULT_RESOURCE and unreadable(node) else Obstacle.MISSING_CARDS


def lack_of_room(node: Node, staying: Iterable[Pod], members: Iterable[Pod], resource: str) -> Obstacle | None:
    """What the node would still be short of, beside cards, once only the pods in `staying` remain.

    Looked at member by member: each has a node of its own.
    """
    staying = tuple(staying)
    allocatable = node.status.allocatable or {}
    if "pods" in allocatable and len(staying) + 1 > count(allocatable["pods"]):
        return Obstacle.NO_PODS
    for member in members:
        for name, wanted in asks(member).items():
            if name == resource or wanted <= 0 or (name in PARTS and cards_of(node) is not None):
                continue
            read = READERS.get(name, count)
            room = read(allocatable.get(name, 0)) - sum(requested(pod.spec, name, read) for pod in staying)
            if wanted > room:
                return _ROOM.get(name, Obstacle.NO_RESOURCE)
    return None
