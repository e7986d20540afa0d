"""Which nodes the extender lets a pod have, and why not.

Nothing is booked here and nothing is written: newer schedulers ask hypothetically.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress, repeat

from fleet import hami
from fleet.board import UNKNOWN, Board, Rank, Refused, Seat
from fleet.cards import refused_before
from fleet.gangs import candidate_refs
from fleet.lodgers import declared_run, may_enter
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Pod
from fleet.requests import Classifier, Request, RequestClass
from fleet.tally import NodeUse, Tally

_MAX_SCORE = 10
_LENT_MAX_SCORE = 2
"""The 7 steps above it tell all fillings of a node of 8 cards apart."""

_FOR_NOW = frozenset({Refused.NOT_READY, Refused.NODE_UNKNOWN, Refused.HELD, Refused.WAITING, Refused.EMPTIER})
"""Refusals that end by themselves; of the pod's nominated node they must not make it choose new victims."""


@dataclass(slots=True)
class Placement:
    """The answer to one question: nodes let through in the order asked, and a reason for each other one.

    `for_now` are refusals that preemption must not read as final: of the node the pod is nominated to.
    """

    passed: list[str] = field(default_factory=list)
    refused: dict[str, Refused] = field(default_factory=dict)
    for_now: dict[str, Refused] = field(default_factory=dict)


def judge(pod: Pod, names: Sequence[str], board: Board, now: datetime | None = None) -> Placement:
    """Which of the named nodes the pod may have. A pod without cards may have all, known to us or not.

    Without a time nobody is let onto a node that is being drained.
    """
    request = board.classifier.classify(pod)
    return _lodge(pod, names, _judge(pod, names, board, request), board, now)


def prefer(pod: Pod, names: Sequence[str], board: Board, tally: Tally, now: datetime | None = None) -> Placement:
    """As `judge`, but of the nodes a small pod may have only the best: the fullest that has room.

    The nodes must be ranked in `tally` as on the board. kube-scheduler sends only nodes on which the pod fits, so
    what is left is never worse than no place. Only where HAMi shares out cards the room is worked out here. A pod that
    was refused before gets every node it may have but untouched lent ones, for whoever refused it may know better.
    """
    request = board.classifier.classify(pod)
    if request.request_class is RequestClass.SMALL and not board.shared_out and not refused_before(pod):
        placement = _spare_nominated(pod, _fullest(pod, names, board, tally))
    else:
        placement = _judge(pod, names, board, request)
        if request.request_class is RequestClass.SMALL and len(placement.passed) > 1:
            _keep_best(pod, request, placement, board, tally)
    return _lodge(pod, names, placement, board, now)


def _lodge(pod: Pod, names: Sequence[str], placement: Placement, board: Board, now: datetime | None) -> Placement:
    """Let a small pod that asks for it onto nodes being drained, if it is done before the drain is."""
    if now is None or not board.draining or not declared_run(pod):
        return placement
    refused = {**placement.refused, **placement.for_now}
    open_ = {
        name for name, why in refused.items() if why is Refused.HELD and may_enter(pod, board.drained_by(name), now)
    }
    for name in open_:
        placement.refused.pop(name, None)
        placement.for_now.pop(name, None)
    open_.update(placement.passed)
    placement.passed = [name for name in names if name in open_]
    return placement


def _judge(pod: Pod, names: Sequence[str], board: Board, request: Request) -> Placement:
    match request.request_class:
        case RequestClass.NONE:
            return Placement(passed=list(names))
        case RequestClass.IMPOSSIBLE:
            placement = _impossible(names, board)
        case RequestClass.WHOLE_NODE:
            placement = _whole(pod, names, board)
        case _:
            placement = _small(pod, names, board)
    return _spare_nominated(pod, placement)


def not_ready(pod: Pod, names: Sequence[str], classifier: Classifier) -> Placement:
    """The answer while caches are being filled: GPU pods wait, others are none of our business."""
    if classifier.classify(pod).request_class is RequestClass.NONE:
        return Placement(passed=list(names))
    return _spare_nominated(pod, Placement(refused=dict.fromkeys(names, Refused.NOT_READY)))


def _spare_nominated(pod: Pod, placement: Placement) -> Placement:
    nominated = pod.status.nominated_node_name
    if nominated and placement.refused.get(nominated) in _FOR_NOW:
        placement.for_now[nominated] = placement.refused.pop(nominated)
    return placement


def _whole(pod: Pod, names: Sequence[str], board: Board) -> Placement:
    """Only nodes whose label is the UID of a live claim of this very gang."""
    namespace = pod.metadata.namespace
    mine = {uid for ref in candidate_refs(pod) for uid in board.claims_of.get((namespace, ref), ())}
    opened = board.opened
    otherwise = Refused.WAITING if mine.isdisjoint(opened.values()) else Refused.OTHERS_NODE
    passed = [name for name in names if opened.get(name) in mine] if mine else []
    refused = dict.fromkeys(names, otherwise)
    for name in passed:
        refused.pop(name, None)
    refused.update((name, why) for name, why in board.conflicts.items() if name in refused)
    unknown = [name for name in names if name not in board.seats]
    refused.update(dict.fromkeys(unknown, Refused.NODE_UNKNOWN))
    return Placement(passed, refused)


def _impossible(names: Sequence[str], board: Board) -> Placement:
    """No pool has nodes with so many cards; a node of no pool may, and the scheduler has looked at that."""
    seats = board.seats
    passed = [name for name in names if name in seats and seats[name].rank is Rank.NO_POOL]
    refused = dict.fromkeys(names, Refused.IMPOSSIBLE)
    for name in passed:
        refused.pop(name, None)
    return Placement(passed, refused)


def _small(pod: Pod, names: Sequence[str], board: Board) -> Placement:
    """Small pools and nodes of no pool; idle whole nodes for those who agreed to give them back; never a held node."""
    lowest, refusals = board.terms(pod.metadata.namespace)
    places = list(map(board.ranks.get, names, repeat(UNKNOWN)))
    passed = [name for name, place in zip(names, places, strict=True) if place >= lowest]
    if len(passed) == len(names):
        return Placement(passed)
    refused = {name: refusals[place] for name, place in zip(names, places, strict=True) if place < lowest}
    return Placement(passed, refused)


def _fullest(pod: Pod, names: Sequence[str], board: Board, tally: Tally) -> Placement:
    """What `_small` and `_keep_best` come to where only rank and fullness count: one look-up a name."""
    places = list(map(tally.order.get, names, repeat(UNKNOWN)))
    lowest, refusals = board.terms(pod.metadata.namespace)
    refused = dict(zip(names, map(refusals.__getitem__, places), strict=True))
    best = max(places, default=UNKNOWN)
    if best < lowest:
        return Placement(refused=refused)
    passed = _next_to_touch(list(compress(names, map(best.__eq__, places))), board, tally)
    for name in passed:
        refused.pop(name, None)
    return Placement(passed, refused)


def _next_to_touch(names: list[str], board: Board, tally: Tally) -> list[str]:
    """Of equally good nodes all, but of lent ones that nobody uses yet only the first by name.

    Pods may come faster than we see where they are put: each would touch a node of its own.
    """
    if (
        len(names) > 1
        and (seat := board.seats.get(names[0])) is not None
        and seat.lent
        and names[0] not in tally.touched
    ):
        return [min(names)]
    return names


def _keep_best(pod: Pod, request: Request, placement: Placement, board: Board, tally: Tally) -> None:
    again = refused_before(pod)
    if again:
        order = [_coarse(board.seats[name], tally.touched.get(name, 0)) for name in placement.passed]
    else:
        order = _room_order(pod, request, placement.passed, board, tally)
    best = max(order)
    kept = list(compress(placement.passed, map(best.__eq__, order)))
    if not again:
        kept = _next_to_touch(kept, board, tally)
    if len(kept) < len(placement.passed):
        held_back = dict.fromkeys(placement.passed, Refused.EMPTIER)
        for name in kept:
            held_back.pop(name, None)
        placement.refused.update(held_back)
        placement.passed = kept
        _spare_nominated(pod, placement)


def _coarse(seat: Seat, touched: int) -> int:
    """An untouched lent node is the last resort; all else is alike, for somebody may have refused the fullest."""
    return 0 if seat.lent and not touched else 1


_NO_ROOM, _UNTOUCHED_NODE, _UNTOUCHED_CARD, _TOUCHED_CARD = range(4)
_TIER_BITS = 8
_FULLEST = (1 << _TIER_BITS) - 1


def _room_order(pod: Pod, request: Request, names: Sequence[str], board: Board, tally: Tally) -> list[int]:
    """Pool before lent, room on cards in use before an untouched card before an untouched node.

    HAMi picks one node of those left to it, by its own policy, so its nodes of one tier are alike; among nodes it does
    not know the fullest is the best, and parts of cards have no room there.
    """
    wanted = hami.wishes(pod.spec)
    parts = hami.is_asked(pod.spec)
    order = []
    for name in names:
        seat, touched = board.seats[name], tally.touched.get(name, 0)
        if seat.shares is not None:
            tier, fullness = _tier(wanted, seat.shares, tally.on(name)), 0
        elif parts or (request.resource == DEFAULT_RESOURCE and seat.plain - touched < request.cards):
            # HAMi's scheduler does not look at cards: nodes without a register, and without cards, reach us too.
            tier, fullness = _NO_ROOM, 0
        else:
            tier, fullness = (_TOUCHED_CARD if touched else _UNTOUCHED_NODE), touched
        order.append(-1 if tier == _NO_ROOM else board.ranks[name] + (tier << _TIER_BITS) + min(fullness, _FULLEST))
    return order


def _tier(wanted: hami.Wishes, cards: tuple[hami.Card, ...], used: NodeUse) -> int:
    dirty = tuple(card for card in cards if card.id in used.cards)
    if dirty and wanted.fit_on(dirty, used.cards):
        return _TOUCHED_CARD
    if not wanted.fit_on(cards, used.cards):
        return _NO_ROOM
    return _UNTOUCHED_CARD if used.touched else _UNTOUCHED_NODE


def scores(pod: Pod, names: Sequence[str], board: Board, touched: Mapping[str, int]) -> list[tuple[str, int]]:
    """0 to 10 for each node, whole numbers: pool nodes before lent ones, fuller nodes first to keep others whole.

    `touched`: cards in use, by node.
    """
    request = board.classifier.classify(pod)
    if request.request_class is not RequestClass.SMALL:
        return [(name, 0) for name in names]
    return [(name, _score(board.seats.get(name), touched.get(name, 0))) for name in names]


def _score(seat: Seat | None, used: int) -> int:
    if seat is None:
        return 0
    if seat.rank is Rank.NO_POOL:
        return _LENT_MAX_SCORE + 1
    if seat.lent:
        return _filled(used, seat.cards, _LENT_MAX_SCORE)
    return _LENT_MAX_SCORE + 1 + _filled(used, seat.cards, _MAX_SCORE - _LENT_MAX_SCORE - 1)


def _filled(used: int, cards: int, top: int) -> int:
    """0 for an untouched node up to `top` for one with a single card left; rounded up, for a touched node must win."""
    return min(top, -(-used * top // max(1, cards - 1)))
