"""What the fleet has for one request: the nodes it could use, their free cards, and what rules others out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fleet import hami
from fleet.cards import cards
from fleet.errors import FleetError
from fleet.fitness import Obstacle, lacking, ready, usable_cards
from fleet.marks import ENDED, holders
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod, Taint
from fleet.requests import Request, RequestClass
from fleet.resources import Accepts, GPUPool, Overflow, Phase, Policy
from fleet.selectors import node_wanted, tolerates
from fleet.tally import Tally, free_cards
from fleet.view import View

_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_CORDON_TAINT = "node.kubernetes.io/unschedulable"
_IDLE = frozenset({Phase.PENDING, Phase.BLOCKED})
_MOST_SUPPLIES = 32


@dataclass(frozen=True, slots=True)
class Stand:
    """One node as far as no single pod matters. `held_for`: UIDs of claims whose mark or plan it carries."""

    node: Node
    pools: tuple[GPUPool, ...]
    shut: Obstacle | None
    held_for: frozenset[str]
    taints: tuple[Taint, ...]


@dataclass(frozen=True, slots=True)
class Seat:
    """One node that the request could use: `lent` if only with consent, `held_for` others than its own claim.

    `free` are untouched cards; `room` says whether the request finds its cards, or its shares of cards, there now.
    """

    name: str
    cards: int
    free: int
    room: bool
    lent: bool
    held_for: frozenset[str]


@dataclass(frozen=True)
class Supply:
    """All nodes there are for a request: usable ones as seats (by name), the others counted by what rules them out."""

    seats: tuple[Seat, ...]
    shut: Counter[str]
    largest: int
    """Most cards that any of the nodes has, usable or not."""
    outside: bool = False
    """Whether these are the nodes of no pool, for a request that no pool has nodes for."""

    @property
    def where(self) -> str:
        return "of no pool" if self.outside else "of its pools"

    @cached_property
    def nodes(self) -> int:
        return len(self.seats) + self.shut.total()

    @cached_property
    def cards_free(self) -> int:
        return sum(seat.free for seat in self.seats)

    @cached_property
    def cards_held(self) -> int:
        return sum(seat.free for seat in self.seats if seat.held_for)

    @cached_property
    def fitting(self) -> tuple[Seat, ...]:
        return tuple(seat for seat in self.seats if seat.room)

    @cached_property
    def best(self) -> Seat | None:
        """Most free cards; among equals one that is not held for others, then by name."""
        return min(self.seats, key=lambda seat: (-seat.free, bool(seat.held_for), seat.name), default=None)


class Ground:
    """The nodes of a view, looked at once for any number of requests."""

    def __init__(self, view: View, tally: Tally | None = None, *, gangs_known: bool = True) -> None:
        """`tally` saves counting cards in use where somebody keeps count already.

        `gangs_known` is False if the view lacks what says how many pods a gang has: then only claims are asked.
        """
        self.view = view
        self.gangs_known = gangs_known
        self._tally = tally
        self._supplies: dict[object, Supply] = {}
        self.words: dict[object, str] = {}
        """Reasons of small pods that stand alike, kept by whoever counts them."""

    def let_go(self) -> None:
        """Keep no more than a few of the supplies that were worked out: each has every node in it."""
        if len(self._supplies) > _MOST_SUPPLIES:
            self._supplies.clear()

    @property
    def tally(self) -> Tally:
        return self.view.tally if self._tally is None else self._tally

    @cached_property
    def stands(self) -> tuple[Stand, ...]:
        """Every node, by name."""
        held: dict[str, set[str]] = {}
        for claim in self.view.claims.values():
            status = claim.status
            if status.phase not in ENDED | _IDLE and claim.spec.policy is not Policy.PREVIEW:
                for one in status.nodes:
                    held.setdefault(one.name, set()).add(claim.metadata.uid)
        return tuple(
            self._stand(self.view.nodes[name], held.get(name, frozenset())) for name in sorted(self.view.nodes)
        )

    def _stand(self, node: Node, planned: set[str] | frozenset[str]) -> Stand:
        pools = self.view.membership.by_node.get(node.metadata.name, ())
        foreign = tuple(one for one in node.spec.taints or () if one.key != CLAIM_KEY and one.effect in _HARD_EFFECTS)
        cordoned = node.spec.unschedulable or any(one.key == _CORDON_TAINT for one in foreign)
        shut = Obstacle.POOL_CONFLICT if len(pools) > 1 else Obstacle.CORDONED if cordoned else None
        if shut is None and not ready(node):
            shut = Obstacle.NOT_READY
        return Stand(node, pools, shut, frozenset(holders(node)) | planned, foreign)

    def supply(
        self, pod: Pod, request: Request, own_claim: str = "", pool_name: str | None = None, *, outside: bool = False
    ) -> Supply:
        """What there is for the pod; equal askers share the work. `own_claim`: UID whose nodes are not held for others.

        `pool_name` leaves only that pool, as a claim may; `outside` leaves only nodes of no pool.
        """
        spec = pod.spec
        shares = _shares(pod) if request.shared else None
        selector = tuple(sorted(spec.node_selector.items())) if spec.node_selector else ()
        beside = self._beside(pod, request)
        key = (request, own_claim, pool_name, outside, selector, spec.affinity, spec.tolerations, shares, beside)
        if key not in self._supplies:
            within = self._outside() if outside else self._within(request, pool_name)
            seats, shut, largest = self._seats(pod, request, own_claim, within, shares, beside)
            self._supplies[key] = Supply(seats, shut, largest, outside)
        return self._supplies[key]

    def cards_of(self, pod: Pod, resource: str) -> int:
        """Cards of the node that the pod holds: of that resource, if it has several."""
        request = self.view.classify(pod)
        return cards(pod, resource) if request.extra else request.cards

    def _beside(self, pod: Pod, request: Request) -> tuple[tuple[str, int], ...]:
        """The other card resources that the pod asks for, with how many of each."""
        if not request.extra:
            return ()
        others = (name for name in self.view.classifier.resources if name != request.resource)
        return tuple((name, wanted) for name in others if (wanted := cards(pod, name)) > 0)

    def _free(self, node: Node, resource: str) -> int:
        """Untouched cards; on a node with cards of several resources, those of this one."""
        name, usable = node.metadata.name, usable_cards(node, resource)
        several = self.view.classifier.resources if len(self.view.classifier.resources) > 1 else ()
        if any(usable_cards(node, other) for other in several if other != resource):
            return max(0, usable - sum(cards(pod, resource) for pod in self.view.gpu_pods_on(name)))
        return free_cards(node, resource, self.tally.on(name))

    def _seats(
        self,
        pod: Pod,
        request: Request,
        own_claim: str,
        within: Iterator[tuple[Stand, bool]],
        shares: hami.Wishes | None,
        beside: tuple[tuple[str, int], ...],
    ) -> tuple[tuple[Seat, ...], Counter[str], int]:
        seats: list[Seat] = []
        shut: Counter[str] = Counter()
        largest = 0
        whole = request.request_class is RequestClass.WHOLE_NODE
        for stand, lent in within:
            usable = usable_cards(stand.node, request.resource)
            declared = [one.spec.cards_per_node for one in stand.pools if one.spec.resource_name == request.resource]
            if usable == 0 and not declared:
                continue
            largest = max(largest, usable, *declared)
            obstacle = stand.shut or _refused(stand, pod)
            if obstacle is None and (usable != request.cards if whole else usable == 0):
                obstacle = lacking(stand.node, request.resource)
            if obstacle is None and any(usable_cards(stand.node, other) < wanted for other, wanted in beside):
                obstacle = Obstacle.MISSING_CARDS
            if obstacle is not None:
                shut[obstacle] += 1
                continue
            name = stand.node.metadata.name
            free = self._free(stand.node, request.resource)
            room = free >= request.cards and all(self._free(stand.node, other) >= wanted for other, wanted in beside)
            if shares is not None and (registered := hami.cards_of(stand.node)) is not None:
                room = shares.fit_on(registered, self.tally.on(name).cards)
            seats.append(Seat(name, usable, free, room, lent, stand.held_for - {own_claim}))
        return tuple(seats), shut, largest

    def _outside(self) -> Iterator[tuple[Stand, bool]]:
        return ((stand, False) for stand in self.stands if not stand.pools)

    def _within(self, request: Request, pool_name: str | None) -> Iterator[tuple[Stand, bool]]:
        """Nodes of the pools that serve the request, and whether they are only lent to it."""
        whole = request.request_class is RequestClass.WHOLE_NODE
        for stand in self.stands:
            if whole:
                if any(serves(pool, request) and pool_name in {None, pool.metadata.name} for pool in stand.pools):
                    yield stand, False
            elif not stand.pools or any(pool.spec.accepts is Accepts.SMALL for pool in stand.pools):
                yield stand, False
            elif any(pool.spec.overflow is Overflow.RECLAIMABLE for pool in stand.pools):
                yield stand, True


def serves(pool: GPUPool, request: Request) -> bool:
    """Whether a node of the pool is just what a whole-node request asks for."""
    spec = pool.spec
    same = spec.resource_name == request.resource and spec.cards_per_node == request.cards
    return spec.accepts is Accepts.WHOLE_NODE and same


def _refused(stand: Stand, pod: Pod) -> Obstacle | None:
    if not all(tolerates(pod.spec.tolerations, taint) for taint in stand.taints):
        return Obstacle.TAINTED
    return None if node_wanted(pod.spec, stand.node, CLAIM_KEY) else Obstacle.NOT_WANTED


def _shares(pod: Pod) -> hami.Wishes | None:
    try:
        return hami.wishes(pod.spec)
    except FleetError:
        return None
