"""Which nodes belong to which pool."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.objects import Node
from fleet.resources import GPUPool


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
