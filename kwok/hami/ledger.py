"""What HAMi believes to be taken: nodes as last read, and the pods it has booked cards for, from watches and itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.errors import QuantityError
from fleet.quantities import count
from kwok.hami.devices import ALLOCATED, BOOKED_NODE, CORDON, GPU, REGISTER, Device, Segments, decode, read_register
from kwok.hami.rules import Used

Object = Mapping[str, Any]
GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
_OVER: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as it was when it was last read: only a new register or another number of cards has it read again."""

    register: str
    offered: int
    devices: tuple[Device, ...]
    cordoned: frozenset[str]


@dataclass(frozen=True, slots=True)
class Booking:
    """A pod with cards: `segments` container by container, of which the first `before` are init containers'."""

    pod: str
    node: str
    segments: Segments
    before: int


class Ledger:
    """Nodes and bookings. Every method is one step: nobody sees it half done."""

    def __init__(self) -> None:
        self.nodes: dict[str, Seen] = {}
        self.bookings: dict[str, Booking] = {}
        """By UID of the pod: bound or not, and terminating ones."""
        self.alive: dict[tuple[str, str], str] = {}
        """UIDs of all pods that exist, by namespace and name: whether the holder of a lock is there."""
        self.grouped: set[str] = set()
        """UIDs of pods of a pod group: they wait for a lock, others fail at once."""

    def put_node(self, node: Object) -> None:
        """A node that appears or changes."""
        notes = node["metadata"].get("annotations") or {}
        name, register = node["metadata"]["name"], notes.get(REGISTER, "")
        offered = _offered(node)
        known = self.nodes.get(name)
        if known is not None and (known.register, known.offered) == (register, offered):
            return
        cordoned = frozenset(one.strip() for one in notes.get(CORDON, "").split(",") if one.strip())
        self.nodes[name] = Seen(register, offered, read_register(register) if offered else (), cordoned)

    def drop_node(self, name: str) -> None:
        """A node that is gone takes its bookings along."""
        self.nodes.pop(name, None)
        self.bookings = {uid: one for uid, one in self.bookings.items() if one.node != name}

    def add_pod(self, pod: Object) -> None:
        """A pod seen for the first time, also after a start: HAMi 2.10 leaves out those that are terminating."""
        if not pod["metadata"].get("deletionTimestamp"):
            self.change_pod(pod)
        else:
            self._exists(pod)

    def change_pod(self, pod: Object) -> None:
        """A change: only an end gives cards back, deletion alone does not, nor does the loss of the annotations."""
        self._exists(pod)
        metadata = pod["metadata"]
        if pod.get("status", {}).get("phase") in _OVER:
            self.bookings.pop(metadata["uid"], None)
            return
        notes = metadata.get("annotations") or {}
        if notes.get(BOOKED_NODE):
            self._book(pod, notes[BOOKED_NODE], decode(notes.get(ALLOCATED, "")))

    def drop_pod(self, pod: Object) -> None:
        """A pod that is gone."""
        metadata = pod["metadata"]
        self.bookings.pop(metadata["uid"], None)
        self.grouped.discard(metadata["uid"])
        key = metadata["namespace"], metadata["name"]
        if self.alive.get(key) == metadata["uid"]:
            del self.alive[key]

    def book(self, pod: Object, node: str, segments: Segments) -> None:
        """Count these cards as taken from now on."""
        self._book(pod, node, segments)

    def release(self, uid: str) -> None:
        """Forget a booking."""
        self.bookings.pop(uid, None)

    def usage(self, node: str) -> dict[str, Used]:
        """What is taken of each card of the node: of init containers the largest wish, beside it that of all others."""
        found: dict[str, Used] = {}
        for one in self.bookings.values():
            if one.node == node:
                for card, used in _used(one).items():
                    on = found.setdefault(card, Used())
                    on.slots, on.memory, on.cores = (
                        on.slots + used.slots, on.memory + used.memory, on.cores + used.cores,
                    )  # fmt: skip
        return found

    def _exists(self, pod: Object) -> None:
        metadata = pod["metadata"]
        self.alive[metadata["namespace"], metadata["name"]] = metadata["uid"]
        group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        if group or GROUP_LABEL in (metadata.get("labels") or {}):
            self.grouped.add(metadata["uid"])

    def _book(self, pod: Object, node: str, segments: Segments) -> None:
        metadata = pod["metadata"]
        before = 0 if _initialized(pod) else len(pod["spec"].get("initContainers") or ())
        kept = segments if before else segments[len(pod["spec"].get("initContainers") or ()) :]
        self.bookings[metadata["uid"]] = Booking(f"{metadata['namespace']}/{metadata['name']}", node, kept, before)


def _offered(node: Object) -> int:
    try:
        return count((node.get("status", {}).get("allocatable") or {}).get(GPU, 0))
    except QuantityError:
        return 0


def _initialized(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Initialized" and one["status"] == "True" for one in conditions)


def _used(booking: Booking) -> dict[str, Used]:
    together: dict[str, Used] = {}
    for container in booking.segments[booking.before :]:
        for part in container:
            together.setdefault(part.id, Used()).add(part)
    for container in booking.segments[: booking.before]:
        for part in container:
            on = together.setdefault(part.id, Used())
            on.slots, on.memory, on.cores = (
                max(on.slots, 1), max(on.memory, part.memory), max(on.cores, part.cores),
            )  # fmt: skip
    return together
