"""Cards in use on each node, kept as pods come and go: one change costs the same however large the fleet is."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fleet import hami
from fleet.cards import seat
from fleet.fitness import usable_cards
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Node, Pod
from fleet.requests import Request

MOST_TOUCHED: Final = (1 << 16) - 1
"""As many cards in use as count for a node's place: a pod may say that it has any number."""


@dataclass(frozen=True, slots=True)
class _Holding:
    node: str
    plain: int
    shares: tuple[hami.Share, ...]
    devices: tuple[str, ...]


@dataclass(slots=True)
class NodeUse:
    """What is taken on one node: whole cards nobody names, and cards known one by one, with what is taken of each."""

    plain: int = 0
    cards: dict[str, hami.Use] = field(default_factory=dict)

    @property
    def touched(self) -> int:
        """Cards that somebody holds, wholly or in part."""
        return self.plain + len(self.cards)

    def add(self, holding: _Holding, sign: int) -> None:
        self.plain += sign * holding.plain
        for share in holding.shares:
            self._take(share.uuid, share.memory_mib, share.cores, sign, share.slots)
        for device in holding.devices:
            self._take(device, 0, 0, sign)

    def _take(self, card: str, memory_mib: int, cores: int, sign: int, slots: int = 1) -> None:
        use = self.cards.setdefault(card, hami.Use())
        use.add(memory_mib, cores, sign, slots)
        if not use.slots:
            del self.cards[card]


_UNTOUCHED = NodeUse()


def free_cards(node: Node, resource: str, use: NodeUse) -> int:
    """Usable cards of the node that nobody holds; one that is broken and held is neither free nor missing twice."""
    registered = hami.cards_of(node) if resource == DEFAULT_RESOURCE else None
    if registered is None:
        return max(0, usable_cards(node, resource) - use.touched)
    return max(0, sum(card.id not in use.cards for card in registered) - use.plain)


class Tally:
    """Who holds cards where. Pods that hold none are ignored; a pod given again replaces what was known of it."""

    def __init__(self, pods: Iterable[tuple[Pod, Request]] = ()) -> None:
        self._holdings: dict[str, _Holding] = {}
        self._nodes: dict[str, NodeUse] = {}
        self.touched: dict[str, int] = {}
        """Cards in use, by node; nodes without any are left out. Not to be changed by the caller."""
        self._ranks: dict[str, int] = {}
        self.order: dict[str, int] = {}
        """Each ranked node's rank plus its cards in use: the larger, the sooner it is filled up; below 0: never."""
        for pod, request in pods:
            self.put(pod, request)

    def put(self, pod: Pod, request: Request) -> None:
        """Take the pod in as it is now."""
        self.drop(pod.metadata.uid)
        node = seat(pod)
        if node is None or request.cards <= 0:
            return
        shares = hami.shares(pod) if pod.metadata.annotations else ()
        plain = request.extra + (0 if shares else request.cards - len(request.devices))
        holding = _Holding(node, plain, shares, request.devices)
        self._holdings[pod.metadata.uid] = holding
        use = self._nodes.setdefault(node, NodeUse())
        use.add(holding, 1)
        self._say(node, use.touched)

    def drop(self, uid: str) -> None:
        """Forget the pod."""
        holding = self._holdings.pop(uid, None)
        if holding is None:
            return
        use = self._nodes[holding.node]
        use.add(holding, -1)
        if not use.touched:
            del self._nodes[holding.node]
        self._say(holding.node, use.touched)

    def _say(self, node: str, touched: int) -> None:
        if touched:
            self.touched[node] = touched
        else:
            del self.touched[node]
        rank = self._ranks.get(node, -1)
        if rank >= 0:
            self.order[node] = rank + min(touched, MOST_TOUCHED)

    def rank(self, node: str, rank: int | None) -> None:
        """Give the node a place in `order`, or take it out; ranks must lie further apart than cards."""
        if rank is None:
            self._ranks.pop(node, None)
            self.order.pop(node, None)
        else:
            self._ranks[node] = rank
            self.order[node] = rank + min(self.touched.get(node, 0), MOST_TOUCHED) if rank >= 0 else rank

    def on(self, node_name: str) -> NodeUse:
        """What is taken on the node; not to be changed by the caller."""
        return self._nodes.get(node_name, _UNTOUCHED)
