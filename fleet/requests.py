"""What a pod asks of the fleet, and the class of request that follows from the pools: the one place that says so."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from fleet import devices, hami
from fleet.cards import cards
from fleet.errors import QuantityError
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Pod
from fleet.resources import Accepts, GPUPool


class RequestClass(StrEnum):
    NONE = "none"
    SMALL = "small"
    WHOLE_NODE = "whole-node"
    IMPOSSIBLE = "impossible"
    """More cards than a node of any pool has."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a pod asks of the fleet: `cards` of `resource`, and the class that follows from the pools.

    `shared`: parts of cards only (HAMi). `devices`: cards it has, or wants, as devices of ResourceClaims; they are
    among `cards`. `extra`: cards of other GPU resources beside; the class is the strictest of all.
    """

    resource: str
    cards: int
    request_class: RequestClass
    shared: bool = False
    devices: tuple[str, ...] = ()
    extra: int = 0


NO_REQUEST = Request("", 0, RequestClass.NONE)
_STRICTNESS = {
    RequestClass.NONE: 0,
    RequestClass.SMALL: 1,
    RequestClass.WHOLE_NODE: 2,
    RequestClass.IMPOSSIBLE: 3,
}


@dataclass(frozen=True, slots=True)
class Classifier:
    """Says what pods ask for, by the pools there are; made once, asked for every pod."""

    pools: tuple[GPUPool, ...]
    resources: tuple[str, ...]
    """Every resource name that counts cards: those of the pools, and the default one."""
    device_classes: frozenset[str]
    device_claims: devices.Claims

    @classmethod
    def of(cls, pools: Iterable[GPUPool], device_claims: devices.Claims = MappingProxyType({})) -> "Classifier":
        pools = tuple(pools)
        resources = sorted({DEFAULT_RESOURCE, *(pool.spec.resource_name for pool in pools)})
        classes = {devices.DEFAULT_DEVICE_CLASS, *(name for pool in pools for name in pool.spec.device_classes)}
        return cls(pools, tuple(resources), frozenset(classes), device_claims)

    def classify(self, pod: Pod) -> Request:
        """The request of a pod. Whole-node means: all cards of a node of some WholeNode pool, none of them shared.

        A pod whose quantities cannot be read asks for nothing here; the API server lets none in.
        """
        try:
            asked = self._extended(pod)
        except QuantityError:
            return NO_REQUEST
        if pod.spec.resource_claims is None:
            return asked
        claims = devices.claims_of(pod, self.device_claims)
        ids = tuple(sorted({name for one in claims for name in devices.card_ids(one, self.device_classes)}))
        if not ids:
            return asked
        resource = asked.resource or DEFAULT_RESOURCE
        return Request(resource, asked.cards + len(ids), RequestClass.SMALL, asked.shared, ids, asked.extra)

    def _extended(self, pod: Pod) -> Request:
        found = [one for resource in self.resources if (one := self._of(pod, resource)).cards > 0]
        if len(found) <= 1:
            return found[0] if found else NO_REQUEST
        chosen = max(found, key=lambda one: _STRICTNESS[one.request_class])
        return replace(chosen, extra=sum(one.cards for one in found) - chosen.cards)

    def _of(self, pod: Pod, resource: str) -> Request:
        if resource == DEFAULT_RESOURCE and hami.is_asked(pod.spec):
            asked = hami.wishes(pod.spec)
            if asked.cards > 0:
                shared = not asked.whole_cards_only
                return Request(resource, asked.cards, self._class(resource, asked.cards, shared=shared), shared)
        wanted = cards(pod, resource)
        return Request(resource, wanted, self._class(resource, wanted)) if wanted > 0 else NO_REQUEST

    def _class(self, resource: str, wanted: int, *, shared: bool = False) -> RequestClass:
        same = [pool for pool in self.pools if pool.spec.resource_name == resource]
        whole = any(pool.spec.accepts is Accepts.WHOLE_NODE and pool.spec.cards_per_node == wanted for pool in same)
        if whole and not shared:
            return RequestClass.WHOLE_NODE
        if same and all(wanted > pool.spec.cards_per_node for pool in same):
            return RequestClass.IMPOSSIBLE
        return RequestClass.SMALL

    def ignored_device_classes(self, pod: Pod) -> tuple[str, ...]:
        """Device classes of the pod's ResourceClaims that no pool counts as cards, sorted."""
        return devices.ignored_classes(pod, self.device_claims, self.device_classes)
