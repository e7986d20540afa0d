"""Builders of nodes and pods as HAMi leaves them: cards in a register, shares in annotations."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fleet.hami import ALLOCATED, BOOKED_NODE, CORES, DEVICE_CORDON, MEMORY, PERCENTAGE, REGISTER
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Container, Node, Pod, Resources
from tests.fleet.builders import node, pod

CARD_MIB = 24_564


def shared_node(
    name: str, in_pool: str = "small", *, cards: int = 8, split: int = 10, sick: Iterable[int] = (), cordon: str = ""
) -> Node:
    """A node whose cards HAMi shares out; `sick` are the indexes of unhealthy ones."""
    register = [
        {"id": f"{name}-{index}", "count": split, "devmem": CARD_MIB, "devcore": 100, "type": "NVIDIA"}
        | ({} if index in set(sick) else {"health": True})
        for index in range(cards)
    ]
    made = node(name, in_pool, cards=cards * split)
    notes = {REGISTER: msgspec.json.encode(register).decode(), **({DEVICE_CORDON: cordon} if cordon else {})}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=notes))


def asking(
    cards: int | None = None, *, memory: int | None = None, percentage: int | None = None, cores: int | None = None
) -> Container:
    """One container's wish, with only what is given written down."""
    given = {DEFAULT_RESOURCE: cards, MEMORY: memory, PERCENTAGE: percentage, CORES: cores}
    return Container("c", Resources(limits={name: str(value) for name, value in given.items() if value is not None}))


def sharing(name: str, where: str, took: Mapping[int, tuple[int, int]], *, bound: bool = True, **more: Any) -> Pod:
    """A pod that has `took`: index of the card -> MiB and percent of cores; only booked if it is not bound."""
    devices = ":".join(f"{where}-{index},NVIDIA,{memory},{cores}" for index, (memory, cores) in took.items())
    notes = {BOOKED_NODE: where, ALLOCATED: f"{devices}:;"}
    wish = asking(len(took), memory=next(iter(took.values()))[0]) if took else asking(1)
    return pod(name, on=where if bound else None, notes=notes, containers=(wish,), **more)
