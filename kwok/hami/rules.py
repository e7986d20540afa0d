"""HAMi's choice of cards and of a node: the rule of fit card by card, the two policies, the scores."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kwok.hami.devices import WHOLE, Ask, Device, Part, Segments

BINPACK, SPREAD, MUTEX = "binpack", "spread", "mutex"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
TOO_FEW: Final = "NodeInsufficientDevice"
_ONLY_TYPES, _NOT_TYPES = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
_ONLY_IDS, _NOT_IDS = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
_SCALE: Final = 10.0


@dataclass(slots=True)
class Used:
    """What is taken of one card: pods on it, MiB, percent."""

    slots: int = 0
    memory: int = 0
    cores: int = 0

    def add(self, part: Part, sign: int = 1) -> None:
        """Take (or with -1 give back) one part."""
        self.slots += sign
        self.memory += sign * part.memory
        self.cores += sign * part.cores


Usage = Mapping[str, Used]
_FREE: Final = Used()


@dataclass(frozen=True, slots=True)
class Choice:
    """By what a pod is placed: both policies and the pod's own words about cards."""

    node_policy: str = BINPACK
    card_policies: tuple[str, ...] = (SPREAD,)
    notes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, pod: Mapping[str, Any], node_policy: str, card_policy: str) -> Choice:
        """The pod's annotations before the flags; a name that HAMi does not know means binpack or spread."""
        notes = pod["metadata"].get("annotations") or {}
        named = notes.get(NODE_POLICY, node_policy)
        cards = tuple(one.strip() for one in notes.get(CARD_POLICY, card_policy).split(","))
        return cls(SPREAD if named == SPREAD else BINPACK, cards, notes)


def refusal(device: Device, used: Used, wanted: Ask, choice: Choice, cordoned: frozenset[str]) -> str | None:
    """Why this card is not for this container, in HAMi's order; None if it is."""
    if not device.health:
        return "CardNotHealth"
    if device.id in cordoned:
        return "CardCordoned"
    return _worded(device, choice.notes) or _full(device, used, wanted, mutex=MUTEX in choice.card_policies)


def _worded(device: Device, notes: Mapping[str, str]) -> str | None:
    kind = device.type.lower()
    if _ONLY_TYPES in notes and not any(one in kind for one in _words(notes[_ONLY_TYPES])):
        return "CardTypeMismatch"
    if any(one in kind for one in _words(notes.get(_NOT_TYPES, ""))):
        return "CardTypeMismatch"
    if _ONLY_IDS in notes and device.id.lower() not in _words(notes[_ONLY_IDS]):
        return "CardUuidMismatch"
    return "CardUuidMismatch" if device.id.lower() in _words(notes.get(_NOT_IDS, "")) else None


def _words(text: str) -> list[str]:
    return [one.strip().lower() for one in text.split(",") if one.strip()]


def _full(device: Device, used: Used, wanted: Ask, *, mutex: bool) -> str | None:
    if used.slots >= device.count or (mutex and used.slots):
        return "CardTimeSlicingExhausted"
    if device.memory - used.memory < wanted.memory_of(device):
        return "CardInsufficientMemory"
    if device.cores - used.cores < wanted.cores:
        return "CardInsufficientCore"
    if device.cores == wanted.cores == WHOLE and used.slots:
        return "ExclusiveDeviceAllocateConflict"
    if device.cores and used.cores == device.cores and not wanted.cores:
        return "CardComputeUnitsExhausted"
    return None


def card_score(device: Device, used: Used) -> float:
    """How full the card is, 0 to 30."""
    return _SCALE * (
        _part(used.slots, device.count) + _part(used.cores, device.cores) + _part(used.memory, device.memory)
    )


def node_score(devices: Sequence[Device], usage: Usage) -> float:
    """How full the node is before the pod, 0 to 30; what the pod asks for is not in it."""
    on = [usage.get(one.id, _FREE) for one in devices]
    return _SCALE * (
        _part(sum(one.slots for one in on), sum(one.count for one in devices))
        + _part(sum(one.cores for one in on), sum(one.cores for one in devices))
        + _part(sum(one.memory for one in on), sum(one.memory for one in devices))
    )


def _part(used: int, total: int) -> float:
    return used / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The parts each container gets, or (`segments` None) why not: cards by reason."""

    segments: Segments | None
    reasons: Counter[str]

    def message(self, cards: int) -> str:
        """As HAMi says it of one node."""
        return ", ".join(f"{count}/{cards} {reason}" for reason, count in sorted(self.reasons.items()))


def place(
    before: Sequence[Ask | None],
    together: Sequence[Ask | None],
    devices: Sequence[Device],
    usage: Usage,
    choice: Choice,
    cordoned: frozenset[str] = frozenset(),
) -> Outcome:
    """Cards of one node for a pod: init containers one at a time, then the containers beside each other."""
    reasons: Counter[str] = Counter()
    segments: list[tuple[Part, ...]] = []
    for wanted in before:
        found = _container(wanted, devices, usage, choice, cordoned, reasons)
        if found is None:
            return Outcome(None, reasons)
        segments.append(found)
    now = {key: Used(one.slots, one.memory, one.cores) for key, one in usage.items()}
    for wanted in together:
        found = _container(wanted, devices, now, choice, cordoned, reasons)
        if found is None:
            return Outcome(None, reasons)
        for part in found:
            now.setdefault(part.id, Used()).add(part)
        segments.append(found)
    return Outcome(tuple(segments), reasons)


def _container(
    wanted: Ask | None,
    devices: Sequence[Device],
    usage: Usage,
    choice: Choice,
    cordoned: frozenset[str],
    reasons: Counter[str],
) -> tuple[Part, ...] | None:
    """Different cards for one container, the policy's favourite first; None, with reasons added, if too few fit."""
    if wanted is None:
        return ()
    if wanted.cards > len(devices):
        reasons[TOO_FEW] += len(devices)
        return None
    ordered = sorted(devices, key=lambda one: card_score(one, usage.get(one.id, _FREE)))
    if BINPACK in choice.card_policies:
        ordered.reverse()
    found: list[Part] = []
    for device in ordered:
        why = refusal(device, usage.get(device.id, _FREE), wanted, choice, cordoned)
        if why is not None:
            reasons[why] += 1
        elif len(found) < wanted.cards:
            found.append(Part(device.id, wanted.memory_of(device), wanted.cores))
    return tuple(found) if len(found) == wanted.cards else None


def best(scored: Mapping[str, float], policy: str, source: random.Random) -> str:
    """The node of the policy's choice; equals are drawn, as HAMi's order among them is not defined."""
    wanted = min(scored.values()) if policy == SPREAD else max(scored.values())
    return source.choice(sorted(name for name, score in scored.items() if score == wanted))
