"""Which nodes belong to which pool, and which class of request a pod is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.cards import cards
from fleet.errors import QuantityError
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Node, Pod
from fleet.resources import Accepts, GPUPool


def in_pool(node: Node, pool: GPUPool) -> bool:
    """Whether the node carries all labels of the pool's selector; an empty selector matches nothing."""
    wanted = pool.spec.node_selector.match_labels
    labels = node.metadata.labels or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True, slots=True)
class Membership:
    """Which pools each node is in. A node of two pools is in conflict: it takes no new GPU pod of either."""

    by_node: Mapping[str, tuple[GPUPool, ...]]

    @classmethod
    def of(cls, pools: Iterable[GPUPool], nodes: Iterable[Node]) -> "Membership":
        ordered = sorted(pools, key=lambda pool: pool.metadata.name)
        return cls({node.metadata.name: tuple(pool for pool in ordered if in_pool(node, pool)) for node in nodes})

    def pool_of(self, node_name: str) -> GPUPool | None:
        """The one pool of a node; None if it is in none, or in several."""
        pools = self.by_node.get(node_name, ())
        return pools[0] if len(pools) == 1 else None

    def conflicting(self, node_name: str) -> bool:
        return len(self.by_node.get(node_name, ())) > 1

    def conflicts_of(self, pool_name: str) -> tuple[str, ...]:
        """Nodes of the pool that are in another pool too, sorted."""
        return tuple(
            sorted(
                name
                for name, pools in self.by_node.items()
                if len(pools) > 1 and any(pool.metadata.name == pool_name for pool in pools)
            )
        )


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


def gpu_resources(pools: Iterable[GPUPool]) -> tuple[str, ...]:
    """Every resource name that counts cards: those of the pools, and the default one."""
    return tuple(sorted({DEFAULT_RESOURCE, *(pool.spec.resource_name for pool in pools)}))


def classify(pod: Pod, pools: Iterable[GPUPool]) -> Request:
    """The request of a pod. Whole-node means: all cards of a node of some WholeNode pool with that resource.

    A pod whose quantities cannot be read asks for nothing here; the API server lets none in.
    """
    pools = tuple(pools)
    for resource in gpu_resources(pools):
        try:
            wanted = cards(pod, resource)
        except QuantityError:
            return NO_REQUEST
        if wanted > 0:
            return Request(resource, wanted, _class(resource, wanted, pools))
    return NO_REQUEST


def _class(resource: str, wanted: int, pools: tuple[GPUPool, ...]) -> RequestClass:
    same = [pool for pool in pools if pool.spec.resource_name == resource]
    if any(pool.spec.accepts is Accepts.WHOLE_NODE and pool.spec.cards_per_node == wanted for pool in same):
        return RequestClass.WHOLE_NODE
    if same and all(wanted > pool.spec.cards_per_node for pool in same):
        return RequestClass.IMPOSSIBLE
    return RequestClass.SMALL
