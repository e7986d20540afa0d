"""Whether pods that are stopped would find another place at once: a prediction from free cards, nothing is reserved.

Counted is room on nodes that are open to such a pod by the rules of pools, its node selector, affinity and tolerations.
What else waits for that room, CPU and memory, and parts of cards are not looked at (decision 0015).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.cards import terminating
from fleet.fitness import closed
from fleet.names import CLAIM_KEY
from fleet.objects import Affinity, Node, PodSpec, Taint, Toleration
from fleet.requests import RequestClass
from fleet.resources import Accepts, GPUPool, Overflow
from fleet.selectors import node_wanted, tolerates
from fleet.tally import free_cards
from fleet.view import View

_HARD = frozenset({"NoSchedule", "NoExecute"})
_HOSTNAME = "kubernetes.io/hostname"


class Wish(NamedTuple):
    """What pods need of a node beside a number of cards: pods of one wish compete for the same room."""

    resource: str
    whole: bool
    selector: tuple[tuple[str, str], ...]
    affinity: Affinity | None
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class Homes:
    """The room for pods of each wish, without nodes that are `taken` by others."""

    view: View
    taken: frozenset[str]
    _slots: dict[tuple[Wish, int], int] = field(default_factory=dict)

    def homeless(self, emptied: Sequence[str], filled: Sequence[str] = ()) -> int:
        """How many of those who run on the `emptied` nodes would find no place at once on other nodes than these.

        For each wish: pods of a size or larger against the places of that size, and all their cards against those free.
        """
        wanted = wishes_on(self.view, emptied[0]) if len(emptied) == 1 else self._wanted(emptied)
        closed_now = (*emptied, *filled)
        return sum(self._short(wish, sizes, closed_now) for wish, sizes in wanted.items())

    def _wanted(self, emptied: Sequence[str]) -> Mapping[Wish, Mapping[int, int]]:
        wanted: dict[Wish, Counter[int]] = {}
        for name in emptied:
            for wish, sizes in wishes_on(self.view, name).items():
                wanted.setdefault(wish, Counter()).update(sizes)
        return wanted

    def _short(self, wish: Wish, sizes: Mapping[int, int], emptied: Sequence[str]) -> int:
        free = _room(self.view, wish)
        gone = [free.get(name, 0) for name in emptied if name not in self.taken]
        short = pods = cards = dropped = 0
        for size in sorted(sizes, reverse=True):
            pods += sizes[size]
            cards += sizes[size] * size
            short = max(short, pods - self._places(wish, size) + sum(room // size for room in gone))
        missing = cards - self._places(wish, 1) + sum(gone)
        for size in sorted(sizes, reverse=True):
            if missing > 0:
                dropped += min(sizes[size], -(-missing // size))
                missing -= sizes[size] * size
        return max(short, dropped)

    def _places(self, wish: Wish, cards: int) -> int:
        known = self._slots.get((wish, cards))
        if known is None:
            room = _room(self.view, wish)
            known = sum(free // cards for name, free in room.items() if name not in self.taken)
            self._slots[wish, cards] = known
        return known


def wishes_on(view: View, node_name: str) -> Mapping[Wish, Mapping[int, int]]:
    """What those who run on the node would need elsewhere: how many of them need how many cards."""
    known: dict[Wish, Counter[int]] | None = view.memo.get(("wishes", node_name))
    if known is None:
        known = view.memo["wishes", node_name] = {}
        for pod in view.gpu_pods_on(node_name):
            if not terminating(pod):
                asked, spec = view.classify(pod), pod.spec
                selector = tuple(sorted(spec.node_selector.items())) if spec.node_selector else ()
                whole = asked.request_class is RequestClass.WHOLE_NODE
                wish = Wish(asked.resource, whole, selector, spec.affinity, spec.tolerations or ())
                known.setdefault(wish, Counter())[max(1, asked.cards)] += 1
    return known


def _room(view: View, wish: Wish) -> Mapping[str, int]:
    """Free cards of every node that a pod of this wish may go to."""
    known: Mapping[str, int] | None = view.memo.get(("room", wish))
    if known is None:
        places = _places_of(view, wish.resource, whole=wish.whole)
        host = dict(wish.selector).get(_HOSTNAME)
        here = places.by_host.get(host, ()) if host is not None else places.every
        known = view.memo["room", wish] = {
            one.node.metadata.name: one.cards
            for one in here
            if all(tolerates(wish.tolerations, taint) for taint in one.taints) and _wanted(one.node, wish)
        }
    return known


class _Place(NamedTuple):
    node: Node
    cards: int
    taints: tuple[Taint, ...]


class _Places(NamedTuple):
    """Nodes with free cards, whoever may have them; and by the name of their host, which pods may be pinned to."""

    every: tuple[_Place, ...]
    by_host: Mapping[str, Sequence[_Place]]


def _places_of(view: View, resource: str, *, whole: bool) -> _Places:
    """Worked out once for all wishes: there may be as many wishes as pods."""
    known: _Places | None = view.memo.get(("places", resource, whole))
    if known is None:
        found = ((node, _free(view, node, resource, whole=whole)) for node in view.nodes.values())
        every = tuple([_Place(node, cards, _hard(node)) for node, cards in found if cards > 0])
        by_host: dict[str, list[_Place]] = {}
        for one in every:
            by_host.setdefault(one.node.metadata.label(_HOSTNAME) or "", []).append(one)
        known = view.memo["places", resource, whole] = _Places(every, by_host)
    return known


def _hard(node: Node) -> tuple[Taint, ...]:
    return tuple([taint for taint in node.spec.taints or () if taint.effect in _HARD])


def _free(view: View, node: Node, resource: str, *, whole: bool) -> int:
    name = node.metadata.name
    pools = view.membership.by_node.get(name, ())
    if closed(node) or len(pools) > 1 or not _open(pools[0] if pools else None, resource, whole=whole):
        return 0
    cards = free_cards(node, resource, view.tally.on(name))
    if not cards or (whole and (name in view.tally.touched or cards != pools[0].spec.cards_per_node)):
        return 0
    return cards


def _open(pool: GPUPool | None, resource: str, *, whole: bool) -> bool:
    """As the extender has it. Lent nodes are open to every victim: its namespace has an agreement."""
    if pool is None:
        return not whole
    if pool.spec.resource_name != resource:
        return False
    if whole:
        return pool.spec.accepts is Accepts.WHOLE_NODE
    return pool.spec.accepts is Accepts.SMALL or pool.spec.overflow is Overflow.RECLAIMABLE


def _wanted(node: Node, wish: Wish) -> bool:
    return node_wanted(PodSpec(node_selector=dict(wish.selector), affinity=wish.affinity), node, CLAIM_KEY)
