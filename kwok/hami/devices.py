"""Cards and parts of cards as HAMi's annotations and resource names say them: read and written the stand-in's own way.

Nothing here comes from `fleet.hami`, so that tests compare two readings of the same facts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.errors import QuantityError
from fleet.quantities import count

REGISTER: Final = "hami.io/node-nvidia-register"
CORDON: Final = "hami.io/device-cordon"
LOCK: Final = "hami.io/mutex.lock"
BOOKED_NODE: Final = "hami.io/vgpu-node"
BOOKED_AT: Final = "hami.io/vgpu-time"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"

GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
RESOURCES: Final = (GPU, MEMORY, CORES, PERCENTAGE, PRIORITY)

WHOLE: Final = 100
VENDOR: Final = "NVIDIA"
_FIELDS: Final = 4


@dataclass(frozen=True, slots=True)
class Device:
    """One card of a node's register: `count` pods may share it, `memory` in MiB, `cores` in percent."""

    id: str
    index: int
    count: int
    memory: int
    cores: int
    type: str
    health: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What one container gets of one card: `memory` in MiB, `cores` in percent."""

    id: str
    memory: int
    cores: int


Segments = tuple[tuple[Part, ...], ...]
"""The parts of each container: init containers first; a container without cards has none."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container wants of each of its `cards` cards; `memory` None: the percentage of the card's memory."""

    cards: int
    memory: int | None
    percentage: int
    cores: int

    def memory_of(self, device: Device) -> int:
        """In MiB, of this card."""
        return device.memory * self.percentage // WHOLE if self.memory is None else self.memory


def write_register(devices: tuple[Device, ...]) -> str:
    """The annotation as HAMi 2.8 and later write it: JSON in which zero values are left out."""
    shown = []
    for one in devices:
        fields = {"id": one.id, "index": one.index, "count": one.count, "devmem": one.memory, "devcore": one.cores,
                  "type": one.type, "mode": "hami-core", "health": one.health}  # fmt: skip
        shown.append({key: value for key, value in fields.items() if value})
    return json.dumps(shown, separators=(",", ":"))


def read_register(text: str) -> tuple[Device, ...]:
    """The NVIDIA cards of the annotation, in the order of their index; none if it cannot be read."""
    try:
        entries = json.loads(text)
        found = [
            Device(
                str(one["id"]), int(one.get("index", 0)), int(one.get("count", 0)), int(one.get("devmem", 0)),
                int(one.get("devcore", 0)), str(one.get("type", "")), bool(one.get("health", False)),
            )
            for one in entries
        ]  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()
    return tuple(sorted((one for one in found if "nvidia" in one.type.lower()), key=lambda one: one.index))


def encode(segments: Segments) -> str:
    """`uuid,NVIDIA,MiB,percent:` for each part, `;` after each container."""
    return "".join(
        "".join(f"{part.id},{VENDOR},{part.memory},{part.cores}:" for part in container) + ";" for container in segments
    )


def decode(text: str) -> Segments:
    """The reverse of `encode`; entries that cannot be read are left out."""
    return tuple(
        tuple(part for entry in container.split(":") if (part := _part(entry)) is not None)
        for container in text.split(";")[:-1]
    )


def _part(entry: str) -> Part | None:
    fields = entry.split(",")
    if len(fields) != _FIELDS:
        return None
    try:
        return Part(fields[0], int(fields[2]), int(fields[3]))
    except ValueError:
        return None


def containers(pod: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pod's init containers and its containers."""
    spec = pod["spec"]
    return list(spec.get("initContainers") or ()), list(spec.get("containers") or ())


def ask(container: Mapping[str, Any]) -> Ask | None:
    """What the container asks for; None without a number of cards: only the webhook adds one. Raises QuantityError."""
    cards, memory, percentage, cores = (_asked(container, name) for name in (GPU, MEMORY, PERCENTAGE, CORES))
    if cards <= 0:
        return None
    if memory:
        return Ask(cards, memory, 0, cores)
    return Ask(cards, None, percentage or WHOLE, cores)


def asks(pod: Mapping[str, Any]) -> tuple[tuple[Ask | None, ...], tuple[Ask | None, ...]]:
    """What init containers and containers ask for. An unreadable quantity asks for nothing, as in HAMi."""
    before, together = containers(pod)
    return tuple(map(_readable, before)), tuple(map(_readable, together))


def _readable(container: Mapping[str, Any]) -> Ask | None:
    try:
        return ask(container)
    except QuantityError:
        return None


def _asked(container: Mapping[str, Any], name: str) -> int:
    resources = container.get("resources") or {}
    for side in ("limits", "requests"):
        if name in (resources.get(side) or {}):
            return count(resources[side][name])
    return 0
