"""Cards handed out as devices of ResourceClaims (dynamic resource allocation, resource.k8s.io/v1).

They are counted so that a node with such a pod is not taken for untouched. Whole nodes are handed out only for the
resource that a pool counts: a pod with devices is a small one, whatever their number.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fleet.objects import Allocation, DeviceRequest, Pod, ResourceClaim

CLAIMS_PATH: Final = "/apis/resource.k8s.io/v1/resourceclaims"
DEFAULT_DEVICE_CLASS: Final = "gpu.nvidia.com"

_MOST_DEVICES: Final = 1024
"""More than any claim is ever allocated; any number may be asked for."""

Claims = Mapping[tuple[str, str], ResourceClaim]
"""ResourceClaims by namespace and name."""


def by_name(claims: Iterable[ResourceClaim]) -> Claims:
    return {(one.metadata.namespace, one.metadata.name): one for one in claims}


def claims_of(pod: Pod, claims: Claims) -> Iterator[ResourceClaim]:
    """The pod's claims that exist: named by the pod, or made for it from a template."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    for entry in pod.spec.resource_claims or ():
        name = entry.resource_claim_name or made.get(entry.name)
        claim = claims.get((pod.metadata.namespace, name)) if name else None
        if claim is not None:
            yield claim


def users(claim: ResourceClaim) -> frozenset[str]:
    """UIDs of the pods that use the claim: the one it was made for, and those it is reserved for."""
    owner = claim.metadata.controller()
    reserved = (one.uid for one in claim.status.reserved_for or ())
    return frozenset(reserved) | ({owner.uid} if owner else frozenset())


def card_ids(claim: ResourceClaim, classes: frozenset[str]) -> tuple[str, ...]:
    """Devices of these classes, each by a name of its own: pods that share a claim share its cards.

    Those allocated, or as many as are asked for while none are.
    """
    wanted = {one.name: one for one in claim.spec.devices.requests or () if _classes(one) & classes}
    allocation = claim.status.allocation
    if allocation is None:
        numbers = range(min(_MOST_DEVICES, sum(_count(one) for one in wanted.values())))
        return tuple(f"{claim.metadata.uid}/{number}" for number in numbers)
    # A result of a first-available request is called "request/subrequest".
    results = (one for one in allocation.devices.results or () if one.request.split("/")[0] in wanted)
    return tuple(f"{one.driver}/{one.pool}/{one.device}" for one in results)


def allocated_on(claim: ResourceClaim, node_name: str, classes: frozenset[str]) -> int:
    """Devices of these classes that the claim has of the node, whether a pod has the claim or not.

    A driver's devices of one node are a pool of the node's name, or the allocation names that node alone.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return 0
    wanted = {one.name for one in claim.spec.devices.requests or () if _classes(one) & classes}
    only_there = _only_node(allocation) == node_name
    results = (one for one in allocation.devices.results or () if one.request.split("/")[0] in wanted)
    return sum(only_there or one.pool == node_name for one in results)


def _only_node(allocation: Allocation) -> str | None:
    """The one node, by name, that the allocation can be used on; None if it names none, or several."""
    terms = (allocation.node_selector.node_selector_terms if allocation.node_selector else None) or ()
    names = {
        name
        for term in terms
        for one in term.match_fields or ()
        if one.key == "metadata.name" and one.operator == "In"
        for name in one.values or ()
    }
    return next(iter(names)) if len(names) == 1 and len(terms) == 1 else None


def _classes(request: DeviceRequest) -> frozenset[str]:
    named = (request.exactly, *(request.first_available or ()))
    return frozenset(one.device_class_name for one in named if one is not None)


def _count(request: DeviceRequest) -> int:
    """How many devices are asked for; "all of a node" counts as one until it is allocated."""
    named = [one for one in (request.exactly, *(request.first_available or ())) if one is not None]
    return max((one.count or 1 for one in named), default=0)


def ignored_classes(pod: Pod, claims: Claims, classes: frozenset[str]) -> tuple[str, ...]:
    """Device classes of the pod's claims that are not counted as cards, sorted: network cards, for instance."""
    found = {
        name
        for claim in claims_of(pod, claims)
        for request in claim.spec.devices.requests or ()
        for name in _classes(request)
    }
    return tuple(sorted(found - classes))
