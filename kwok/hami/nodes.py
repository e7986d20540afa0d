"""Fake nodes as HAMi's device plugin leaves them: a register of cards in an annotation, shares in `allocatable`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kwok.hami.devices import REGISTER, WHOLE, Device, write_register
from kwok.nodes import CARD_MEMORY_MIB, Node, make_nodes
from kwok.testing import Fleet

SPLIT = 10
MODEL = "NVIDIA GeForce RTX 4090"
HANDSHAKES = {
    f"hami.io/node-handshake{vendor}": "Requesting_2026-01-01 00:00:00"
    for vendor in ("", "-dcu", "-va", "-biren", "-xpu")
}
"""Written beforehand: HAMi would else make two calls for each of them and each node before it answers anything."""


def cards_of(node: str, cards: int, split: int = SPLIT, sick: Collection[int] = ()) -> tuple[Device, ...]:
    """The cards of one node, `GPU-<node>-<index>`; `sick` are the indexes of unhealthy ones."""
    return tuple(
        Device(f"GPU-{node}-{index}", index, split, CARD_MEMORY_MIB, WHOLE, MODEL, index not in sick)
        for index in range(cards)
    )


def shared_nodes(
    count: int,
    cards: int = 8,
    prefix: str = "gpu",
    labels: Mapping[str, str] | None = None,
    *,
    split: int = SPLIT,
    sick: Collection[int] = (),
    **rest: Any,
) -> list[Node]:
    """As `make_nodes`, with cards that HAMi shares out: `nvidia.com/gpu` counts shares, nothing else is allocatable."""
    nodes = make_nodes(count, cards * split, prefix, labels, **rest)
    for node in nodes:
        register = write_register(cards_of(node["metadata"]["name"], cards, split, sick))
        node["metadata"]["annotations"] |= HANDSHAKES | {REGISTER: register}
    return nodes


class SharedFleet(Fleet):
    """A test's nodes, with cards that HAMi shares out."""

    make = staticmethod(shared_nodes)
