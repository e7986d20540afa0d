"""HAMi's shares of cards: what its annotations say about a node's cards and a pod's devices, and its rule of fit.

Annotations and the rule as in HAMi 2.8 to 2.10 (node register in JSON, device lists as `uuid,type,MiB,percent:...;`).
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec

from fleet.errors import FleetError
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Container, Node, Pod, PodSpec
from fleet.quantities import count
from fleet.times import parse_time

REGISTER: Final = "hami.io/node-nvidia-register"
DEVICE_CORDON: Final = "hami.io/device-cordon"
LOCK: Final = "hami.io/mutex.lock"
LOCK_EXPIRES_AFTER: Final = timedelta(minutes=5)
"""HAMi's own default: another pod may take a lock that is older."""
BOOKED_NODE: Final = "hami.io/vgpu-node"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
"""Annotations by which a pod asks to be packed or spread, over cards and over nodes."""
MEMORY: Final = "nvidia.com/gpumem"
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PARTS: Final = frozenset({MEMORY, PERCENTAGE, CORES})
"""Names that ask for parts of cards; nodes offer them in HAMi's register, not in `allocatable`."""

_NAMES: Final = (DEFAULT_RESOURCE, *PARTS)
_WHOLE: Final = 100


class Card(msgspec.Struct, frozen=True, gc=False):
    """One card as the device plugin registers it; HAMi leaves out what is zero or false."""

    id: str
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    health: bool = False


_REGISTER_DECODER: Final = msgspec.json.Decoder(tuple[Card, ...])


def cards_of(node: Node) -> tuple[Card, ...] | None:
    """The cards HAMi may use on the node: healthy and not cordoned; None if HAMi does not know the node.

    A register that cannot be read has no cards: HAMi places nothing there either. Nor does it where the kubelet offers
    none any more, since the device plugin is gone: the register stays behind.
    """
    text = node.metadata.annotation(REGISTER)
    if text is None:
        return None
    if not _offered(node):
        return ()
    cordoned = node.metadata.annotation(DEVICE_CORDON)
    return _usable(text, cordoned or "")


def _offered(node: Node) -> bool:
    try:
        return count((node.status.allocatable or {}).get(DEFAULT_RESOURCE, 0)) > 0
    except FleetError:
        return False


def registered(node: Node) -> tuple[Card, ...] | None:
    """All cards of the node that HAMi knows, usable or not; None if it does not know the node."""
    text = node.metadata.annotation(REGISTER)
    return None if text is None else _registered(text)


def unreadable(node: Node) -> bool:
    """Whether the node's register is no list of cards in JSON: cut off, or in the text form of HAMi before 2.8."""
    text = node.metadata.annotation(REGISTER)
    return text is not None and _parsed(text) is None


@dataclass(frozen=True, slots=True)
class Lock:
    """HAMi's lock of a node, held while a pod is bound there. `until` is None if its time cannot be read."""

    holder: str
    until: datetime | None


def lock_of(node: Node) -> Lock | None:
    """The node's lock (`time,namespace,pod`), expired or not; None if there is none."""
    text = node.metadata.annotation(LOCK)
    if not text:
        return None
    taken_at, _, rest = text.partition(",")
    holder = f"pod {rest.replace(',', '/')}" if rest else "somebody"
    try:
        return Lock(holder, parse_time(taken_at) + LOCK_EXPIRES_AFTER)
    except FleetError:
        return Lock(holder, None)


def _registered(register: str) -> tuple[Card, ...]:
    return _parsed(register) or ()


@lru_cache(maxsize=16_384)
def _parsed(register: str) -> tuple[Card, ...] | None:
    try:
        return _REGISTER_DECODER.decode(register)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


@lru_cache(maxsize=16_384)
def _usable(register: str, cordoned: str) -> tuple[Card, ...]:
    closed = {uuid.strip() for uuid in cordoned.split(",")}
    return tuple(card for card in _registered(register) if card.health and card.id not in closed)


@dataclass(frozen=True, slots=True)
class Share:
    """What a pod has of one card: `memory_mib` of memory and `cores` percent of the processors, in `slots` parts."""

    uuid: str
    memory_mib: int
    cores: int
    slots: int = 1


def booked_node(pod: Pod) -> str | None:
    """The node HAMi has chosen for the pod, bound or not: it counts the cards from then on."""
    return pod.metadata.annotation(BOOKED_NODE) or None


def shares(pod: Pod) -> tuple[Share, ...]:
    """What HAMi has given the pod, each card once; empty if it has given nothing, or nothing that can be read.

    Of what init containers have of a card, one after the other, and what the others have of it together, the larger
    counts, as with HAMi 2.10.
    """
    text = pod.metadata.annotation(ALLOCATED)
    if not text:
        return ()
    return _parse(text, _lists_before(text, pod.spec) if pod.spec.init_containers else 0)


def _lists_before(text: str, spec: PodSpec) -> int:
    """How many of the lists, of which each container has one, are those of init containers; 0 if nothing tells.

    HAMi 2.10 leaves out those of init containers without cards (HAMi#2899).
    """
    before, lists = spec.init_containers or (), text.count(";") + (not text.endswith(";"))
    asking = sum(any(name in side for side in _sides(one) for name in _NAMES) for one in before)
    together = len(spec.containers or ())
    return next((count for count in (len(before), asking) if count + together == lists), 0)


@lru_cache(maxsize=65_536)
def _parse(text: str, before: int) -> tuple[Share, ...]:
    lists = [_listed(one) for one in text.split(";")]
    together: dict[str, Share] = {}
    for share in chain.from_iterable(lists[before:]):
        known = together.get(share.uuid, Share(share.uuid, 0, 0, 0))
        together[share.uuid] = Share(
            share.uuid, known.memory_mib + share.memory_mib, known.cores + share.cores, known.slots + 1
        )
    for share in chain.from_iterable(lists[:before]):
        known = together.get(share.uuid, share)
        together[share.uuid] = Share(
            share.uuid, max(known.memory_mib, share.memory_mib), max(known.cores, share.cores), known.slots
        )
    return tuple(together.values())


def _listed(text: str) -> Iterator[Share]:
    for part in text.split(":"):
        fields = part.split(",")
        if len(fields) < 4:  # noqa: PLR2004 - uuid, type, memory, cores
            continue
        with suppress(ValueError):
            yield Share(fields[0], int(fields[2]), int(fields[3]))


@dataclass(frozen=True, slots=True)
class Wish:
    """What one container asks of each of its `cards` cards; `memory_mib` None means a percentage of the memory."""

    cards: int
    memory_mib: int | None
    percentage: int
    cores: int

    @property
    def whole_cards(self) -> bool:
        """Whether it asks for all memory of its cards, so that nobody else finds room there."""
        return self.memory_mib is None and self.percentage == _WHOLE

    def memory_of(self, card: Card) -> int:
        return card.devmem * self.percentage // _WHOLE if self.memory_mib is None else self.memory_mib


def is_asked(spec: PodSpec) -> bool:
    """Whether any container asks for a part of a card rather than, or beside, a number of cards."""
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        for side in _sides(container):
            if not PARTS.isdisjoint(side):
                return True
    return False


def _sides(container: Container) -> tuple[Mapping[str, str | int], ...]:
    if container.resources is None:
        return ()
    return tuple(side for side in (container.resources.limits, container.resources.requests) if side)


def wish(container: Container) -> Wish | None:
    """What the container asks for; None if it asks for no card.

    Memory or cores alone mean one card, and no memory at all means all of it. Raises QuantityError.
    """
    cards = _asked(container, DEFAULT_RESOURCE)
    memory, percentage, cores = (_asked(container, name) for name in (MEMORY, PERCENTAGE, CORES))
    if not cards:
        if cards is not None or not (memory or percentage or cores):
            return None
        cards = 1
    if not memory:
        memory, percentage = None, percentage or _WHOLE
    return Wish(cards, memory, percentage or 0, cores or 0)


def _asked(container: Container, name: str) -> int | None:
    return next((count(side[name]) for side in _sides(container) if name in side), None)


@dataclass(slots=True)
class Use:
    """What is taken of one card: how many shares, how much memory, how many percent of its processors."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0

    def add(self, memory_mib: int, cores: int, sign: int = 1, slots: int = 1) -> None:
        self.slots += sign * slots
        self.memory_mib += sign * memory_mib
        self.cores += sign * cores


_UNUSED: Final = Use()


def fits(card: Card, used: Use, wanted: Wish) -> bool:
    """HAMi's rule for one card: a free share, memory and cores; a whole card only if nobody is on it."""
    if used.slots >= card.count:
        return False
    if card.devmem - used.memory_mib < wanted.memory_of(card) or card.devcore - used.cores < wanted.cores:
        return False
    if card.devcore == _WHOLE and wanted.cores == _WHOLE and used.slots > 0:
        return False
    return not (card.devcore and used.cores == card.devcore and wanted.cores == 0)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the containers of a pod ask for: those that run together, and those before them, one at a time."""

    together: tuple[Wish, ...]
    before: tuple[Wish, ...]

    @property
    def whole_cards_only(self) -> bool:
        return all(one.whole_cards for one in (*self.together, *self.before))

    @property
    def cards(self) -> int:
        """Cards the pod needs at the least: containers may have parts of the same cards, but not of whole ones."""
        whole = sum(one.cards for one in self.together if one.whole_cards)
        parts = max((one.cards for one in self.together if not one.whole_cards), default=0)
        return max(whole + parts, max((one.cards for one in self.before), default=0))

    def fit_on(self, cards: tuple[Card, ...], used: Mapping[str, Use]) -> bool:
        """Whether all containers find their cards among these."""
        return _all_fit(cards, used, self.together) and all(_all_fit(cards, used, (one,)) for one in self.before)


def wishes(spec: PodSpec) -> Wishes:
    """What a pod asks of HAMi, container by container; sidecars run with the containers. Raises QuantityError."""
    together = [wish(one) for one in spec.containers or ()]
    before: list[Wish | None] = []
    for one in spec.init_containers or ():
        (together if one.restart_policy == "Always" else before).append(wish(one))
    # One at a time, so that those who ask for the same are served alike.
    return Wishes(tuple(one for one in together if one), tuple(dict.fromkeys(one for one in before if one)))


def _all_fit(cards: tuple[Card, ...], used: Mapping[str, Use], wanted: tuple[Wish, ...]) -> bool:
    if len(wanted) == 1:
        return sum(fits(card, used.get(card.id, _UNUSED), wanted[0]) for card in cards) >= wanted[0].cards
    now = {card.id: _copy(used.get(card.id, _UNUSED)) for card in cards}
    for one in wanted:
        # The fullest card that has room first, as packing does: what is left serves larger wishes.
        fitting = [card for card in cards if fits(card, now[card.id], one)]
        fitting.sort(key=lambda card: -now[card.id].slots)
        if len(fitting) < one.cards:
            return False
        for card in fitting[: one.cards]:
            now[card.id].add(one.memory_of(card), one.cores)
    return True


def _copy(use: Use) -> Use:
    return Use(use.slots, use.memory_mib, use.cores)
