"""What placement goes by: each node's part in it, changed node by node as the cluster changes, never by a question."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final

from fleet import hami
from fleet.agreements import consenting_namespaces
from fleet.fitness import usable_cards
from fleet.marks import ENDED, opened_for, tainted_for
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Node
from fleet.pools import Membership
from fleet.requests import Classifier
from fleet.resources import Accepts, DrainAgreement, GangRef, Overflow, Phase, WholeNodeClaim
from fleet.tally import MOST_TOUCHED

RANK_BITS: Final = MOST_TOUCHED.bit_length()
"""A rank is moved left by so many bits, to leave room for the number of a node's cards in use."""


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
    EMPTIER = "wholenode: a fuller node has room for the pod"


class Rank(IntEnum):
    """How gladly a node is given to a small pod: nodes lent by a WholeNode pool are the last."""

    LENT = 0
    NO_POOL = 1
    POOL = 2


@dataclass(frozen=True, slots=True)
class Seat:
    """One node, as far as placement goes: `small` is why small pods may not have it, `lent` that it needs consent.

    `shares`: the cards HAMi may share out there; None where it does not, and there are `plain` ones, if any.
    """

    small: Refused | None = None
    lent: bool = False
    open_to: str | None = None
    held_for: str | None = None
    cards: int = 0
    rank: Rank = Rank.POOL
    shares: tuple[hami.Card, ...] | None = None
    plain: int = 0


_CODES: Final = {reason: -1 - index for index, reason in enumerate(Refused)}
UNKNOWN: Final = _CODES[Refused.NODE_UNKNOWN]
"""The rank of a node that is not on the board."""


class _Refusals(dict[int, Refused]):
    """What is said of nodes, by rank and cards in use, that a pod does not get: worked out once for each number."""

    def __init__(self, lent: Refused) -> None:
        super().__init__({code: reason for reason, code in _CODES.items()})
        self._lent = lent

    def __missing__(self, place: int) -> Refused:
        reason = self._lent if place < _NOT_LENT else Refused.EMPTIER
        self[place] = reason
        return reason


_NOT_LENT: Final = (Rank.LENT + 1) << RANK_BITS
_WITH_CONSENT: Final = _Refusals(Refused.EMPTIER)
_WITHOUT_CONSENT: Final = _Refusals(Refused.NO_AGREEMENT)


class Board:
    """All nodes as placement sees them, and whose claims and agreements count. Attributes are for reading only."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self.seats: dict[str, Seat] = {}
        self.conflicts: dict[str, Refused] = {}
        """Nodes of several pools: nobody new may have them."""
        self.ranks: dict[str, int] = {}
        """Each node's rank, moved left; below 0 where no small pod may go at all, and why (`terms`)."""
        self.opened: dict[str, str] = {}
        """The claim UID each open node is open to."""
        self.claims_of: dict[tuple[str, GangRef], tuple[str, ...]] = {}
        """UIDs of the claims that still act, by namespace and gang."""
        self.draining: dict[str, tuple[str, datetime]] = {}
        """Nodes being drained: the UID of the claim, and when the last victim is expected to be gone."""
        self.consenting: frozenset[str] = frozenset()
        self._shared: set[str] = set()

    @classmethod
    def of(
        cls,
        classifier: Classifier,
        nodes: Iterable[Node],
        claims: Iterable[WholeNodeClaim],
        agreements: Iterable[DrainAgreement],
        now: datetime,
    ) -> "Board":
        board = cls(classifier)
        for node in nodes:
            board.put(node)
        board.set_claims(claims)
        board.set_agreements(agreements, now)
        return board

    @property
    def shared_out(self) -> bool:
        """Whether HAMi shares out cards of any node: then it has the last word on pods with cards."""
        return bool(self._shared)

    def terms(self, namespace: str) -> tuple[int, Mapping[int, Refused]]:
        """The lowest place that small pods of the namespace may have, and what is said of places they do not get.

        A place is a node's rank, with or without its cards in use.
        """
        return (0, _WITH_CONSENT) if namespace in self.consenting else (_NOT_LENT, _WITHOUT_CONSENT)

    def put(self, node: Node) -> None:
        """Take a node in, or a changed one anew."""
        name = node.metadata.name
        self.drop(name)
        seat = _seat(node, Membership.of(self.classifier.pools, (node,)))
        self.seats[name] = seat
        self.ranks[name] = seat.rank << RANK_BITS if seat.small is None else _CODES[seat.small]
        if seat.small is Refused.POOL_CONFLICT:
            self.conflicts[name] = seat.small
        if seat.open_to:
            self.opened[name] = seat.open_to
        if seat.shares is not None:
            self._shared.add(name)

    def drop(self, name: str) -> None:
        """Forget a node."""
        for part in (self.seats, self.ranks, self.conflicts, self.opened):
            part.pop(name, None)
        self._shared.discard(name)

    def set_claims(self, claims: Iterable[WholeNodeClaim]) -> None:
        self.claims_of, self.draining = {}, {}
        for claim in claims:
            if claim.status.phase is Phase.DRAINING and claim.status.drained_by is not None:
                until = claim.metadata.uid, claim.status.drained_by
                self.draining.update((held.name, until) for held in claim.status.nodes)
            if claim.spec.gang is not None and claim.status.phase not in ENDED:
                key = (claim.metadata.namespace, claim.spec.gang)
                self.claims_of[key] = (*self.claims_of.get(key, ()), claim.metadata.uid)

    def drained_by(self, name: str) -> datetime | None:
        """When the node's last victim is expected to be gone; None for a node that is not being drained."""
        uid, until = self.draining.get(name, ("", None))
        seat = self.seats.get(name)
        return until if seat is not None and seat.held_for == uid else None

    def set_agreements(self, agreements: Iterable[DrainAgreement], now: datetime) -> None:
        self.consenting = consenting_namespaces(agreements, now)


def _seat(node: Node, membership: Membership) -> Seat:
    name = node.metadata.name
    opened = opened_for(node)
    pool = membership.pool_of(name)
    cards = pool.spec.cards_per_node if pool else 0
    shares = hami.cards_of(node)
    plain = usable_cards(node, DEFAULT_RESOURCE) if shares is None else 0
    if membership.conflicting(name):
        return Seat(Refused.POOL_CONFLICT, shares=shares, plain=plain)
    if tainted_for(node) is not None:
        return Seat(Refused.HELD, open_to=opened, held_for=tainted_for(node), cards=cards, shares=shares, plain=plain)
    if pool is None:
        return Seat(rank=Rank.NO_POOL, shares=shares, plain=plain)
    if pool.spec.accepts is Accepts.SMALL:
        return Seat(cards=cards, shares=shares, plain=plain)
    if pool.spec.overflow is Overflow.RECLAIMABLE:
        return Seat(lent=True, cards=cards, rank=Rank.LENT, shares=shares, plain=plain)
    return Seat(Refused.WHOLE_NODE_POOL, cards=cards, shares=shares, plain=plain)
