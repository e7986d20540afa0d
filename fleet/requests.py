"""What a pod asks of the fleet, and the class of request that follows from the pools: the one place that says so."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

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
    """What a pod asks of the fleet: `cards` of `resource`, and the class that follows from the pools."""

    resource: str
    cards: int
    request_class: RequestClass


NO_REQUEST = Request("", 0, RequestClass.NONE)


@dataclass(frozen=True, slots=True)
class Classifier:
    """Says what pods ask for, by the pools there are; made once, asked for every pod."""

    pools: tuple[GPUPool, ...]
    resources: tuple[str, ...]
    """Every resource name that counts cards: those of the pools, and the default one."""

    @classmethod
    def of(cls, pools: Iterable[GPUPool]) -> "Classifier":
        pools = tuple(pools)
        return cls(pools, tuple(sorted({DEFAULT_RESOURCE, *(pool.spec.resource_name for pool in pools)})))

    def classify(self, pod: Pod) -> Request:
        """The request of a pod. Whole-node means: all cards of a node of some WholeNode pool with that resource.

        A pod whose quantities cannot be read asks for nothing here; the API server lets none in.
        """
        for resource in self.resources:
            try:
                wanted = cards(pod, resource)
            except QuantityError:
                return NO_REQUEST
            if wanted > 0:
                return Request(resource, wanted, self._class(resource, wanted))
        return NO_REQUEST

    def _class(self, resource: str, wanted: int) -> RequestClass:
        same = [pool for pool in self.pools if pool.spec.resource_name == resource]
        if any(pool.spec.accepts is Accepts.WHOLE_NODE and pool.spec.cards_per_node == wanted for pool in same):
            return RequestClass.WHOLE_NODE
        if same and all(wanted > pool.spec.cards_per_node for pool in same):
            return RequestClass.IMPOSSIBLE
        return RequestClass.SMALL
