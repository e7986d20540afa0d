"""Which nodes the extender lets a pod have, and why not: per node when something changes, per pod when asked.

Nothing is booked here and nothing is written: newer schedulers ask hypothetically.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from fleet.agreements import consenting_namespaces
from fleet.gangs import belongs
from fleet.marks import ENDED, labelled_for, tainted_for
from fleet.objects import Node, Pod
from fleet.pools import Membership
from fleet.requests import NO_REQUEST, Classifier, Request, RequestClass
from fleet.resources import Accepts, DrainAgreement, GPUPool, Overflow, WholeNodeClaim

_MAX_SCORE = 10
_LENT_MAX_SCORE = 2
"""The 7 steps above it tell all fillings of a node of 8 cards apart."""


class Refused(StrEnum):
    """Reasons shown in FailedScheduling: few and constant, for a text that changes wakes the pod again."""

    NOT_READY = "wholenode: the extender has not seen the whole cluster yet"
    NODE_UNKNOWN = "wholenode: node not seen yet"
    POOL_CONFLICT = "wholenode: node is in several pools"
    HELD = "wholenode: node is held for a whole-node gang"
    WHOLE_NODE_POOL = "wholenode: node is kept for whole-node gangs"
    NO_AGREEMENT = "wholenode: idle whole nodes are lent only to namespaces with a DrainAgreement"
    WAITING = "wholenode: the gang's claim holds no proved empty node yet"
    OTHERS_NODE = "wholenode: node is not the one vacated for this gang"
    IMPOSSIBLE = "wholenode: no node of any pool has so many cards"


_FOR_NOW = frozenset({Refused.NOT_READY, Refused.NODE_UNKNOWN, Refused.HELD, Refused.WAITING})
"""Refusals that end by themselves; of the pod's nominated node they must not make it choose new victims."""


@dataclass(frozen=True, slots=True)
class _Seat:
    """One node, as far as placement goes: `small` is why small pods may not have it, `lent` that it needs consent."""

    small: Refused | None = None
    lent: bool = False
    open_to: str | None = None
    cards: int = 0


@dataclass(frozen=True, slots=True)
class Board:
    """What placement goes by: made anew when nodes, pools, claims or agreements change, not when pods do."""

    classifier: Classifier
    seats: Mapping[str, _Seat]
    claims: tuple[WholeNodeClaim, ...]
    consenting: frozenset[str]
    open_claims: frozenset[str]

    @classmethod
    def of(
        cls,
        pools: Iterable[GPUPool],
        nodes: Iterable[Node],
        claims: Iterable[WholeNodeClaim],
        agreements: Iterable[DrainAgreement],
        now: datetime,
    ) -> "Board":
        pools, nodes = tuple(pools), tuple(nodes)
        membership = Membership.of(pools, nodes)
        seats = {node.metadata.name: _seat(node, membership) for node in nodes}
        live = tuple(claim for claim in claims if claim.spec.gang is not None and claim.status.phase not in ENDED)
        opened = frozenset(seat.open_to for seat in seats.values() if seat.open_to)
        return cls(Classifier.of(pools), seats, live, consenting_namespaces(agreements, now), opened)


def _seat(node: Node, membership: Membership) -> _Seat:
    name = node.metadata.name
    opened = labelled_for(node)
    pool = membership.pool_of(name)
    cards = pool.spec.cards_per_node if pool else 0
    if membership.conflicting(name):
        return _Seat(Refused.POOL_CONFLICT, open_to=None)
    if opened is not None or tainted_for(node) is not None:
        return _Seat(Refused.HELD, open_to=opened, cards=cards)
    if pool is None or pool.spec.accepts is Accepts.SMALL:
        return _Seat(cards=cards)
    if pool.spec.overflow is Overflow.RECLAIMABLE:
        return _Seat(lent=True, cards=cards)
    return _Seat(Refused.WHOLE_NODE_POOL, cards=cards)


@dataclass(slots=True)
class Placement:
    """The answer to one question: nodes let through in the order asked, and a reason for each other one.

    `for_now` are refusals that preemption must not read as final: of the node the pod is nominated to.
    """

    passed: list[str] = field(default_factory=list)
    refused: dict[str, Refused] = field(default_factory=dict)
    for_now: dict[str, Refused] = field(default_factory=dict)


def judge(pod: Pod, names: Sequence[str], board: Board) -> Placement:
    """Which of the named nodes the pod may have. A pod without cards may have all, known to us or not."""
    request = board.classifier.classify(pod)
    match request.request_class:
        case RequestClass.NONE:
            return Placement(passed=list(names))
        case RequestClass.IMPOSSIBLE:
            return Placement(refused=dict.fromkeys(names, Refused.IMPOSSIBLE))
        case RequestClass.WHOLE_NODE:
            placement = _whole(pod, names, board)
        case _:
            placement = _small(pod, names, board)
    return _spare_nominated(pod, placement)


def not_ready(pod: Pod, names: Sequence[str], classifier: Classifier) -> Placement:
    """The answer while caches are being filled: GPU pods wait, others are none of our business."""
    if classifier.classify(pod) == NO_REQUEST:
        return Placement(passed=list(names))
    return _spare_nominated(pod, Placement(refused=dict.fromkeys(names, Refused.NOT_READY)))


def _spare_nominated(pod: Pod, placement: Placement) -> Placement:
    nominated = pod.status.nominated_node_name
    if nominated and placement.refused.get(nominated) in _FOR_NOW:
        placement.for_now[nominated] = placement.refused.pop(nominated)
    return placement


def _whole(pod: Pod, names: Sequence[str], board: Board) -> Placement:
    """Only nodes whose label is the UID of a live claim of this very gang."""
    mine = {
        claim.metadata.uid
        for claim in board.claims
        if claim.spec.gang is not None and belongs(pod, claim.metadata.namespace, claim.spec.gang)
    }
    otherwise = Refused.OTHERS_NODE if mine & board.open_claims else Refused.WAITING
    placement = Placement()
    for name in names:
        seat = board.seats.get(name)
        if seat is None:
            placement.refused[name] = Refused.NODE_UNKNOWN
        elif seat.open_to is not None and seat.open_to in mine:
            placement.passed.append(name)
        else:
            placement.refused[name] = Refused.POOL_CONFLICT if seat.small is Refused.POOL_CONFLICT else otherwise
    return placement


def _small(pod: Pod, names: Sequence[str], board: Board) -> Placement:
    """Small pools and nodes of no pool; idle whole nodes for those who agreed to give them back; never a held node."""
    consents = pod.metadata.namespace in board.consenting
    placement = Placement()
    for name in names:
        seat = board.seats.get(name)
        if seat is None:
            placement.refused[name] = Refused.NODE_UNKNOWN
        elif seat.small is not None:
            placement.refused[name] = seat.small
        elif seat.lent and not consents:
            placement.refused[name] = Refused.NO_AGREEMENT
        else:
            placement.passed.append(name)
    return placement


def scores(pod: Pod, names: Sequence[str], board: Board, cards_used: Mapping[str, int]) -> list[tuple[str, int]]:
    """0 to 10 for each node, whole numbers: pool nodes before lent ones, fuller nodes first to keep others whole."""
    request: Request = board.classifier.classify(pod)
    if request.request_class is not RequestClass.SMALL:
        return [(name, 0) for name in names]
    return [(name, _score(board.seats.get(name), cards_used.get(name, 0))) for name in names]


def _score(seat: _Seat | None, used: int) -> int:
    if seat is None or seat.cards == 0:
        return 0
    if seat.lent:
        return _filled(used, seat.cards, _LENT_MAX_SCORE)
    return _LENT_MAX_SCORE + 1 + _filled(used, seat.cards, _MAX_SCORE - _LENT_MAX_SCORE - 1)


def _filled(used: int, cards: int, top: int) -> int:
    """0 for an untouched node up to `top` for one with a single card left; rounded up, for a touched node must win."""
    return min(top, -(-used * top // max(1, cards - 1)))
