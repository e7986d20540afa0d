"""Fake nodes with cards, as plain Node objects for KWOK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KWOK_ANNOTATIONS = {"kwok.x-k8s.io/node": "fake"}
GPU = "nvidia.com/gpu"
GPU_MEMORY = "nvidia.com/gpumem"
GPU_CORES = "nvidia.com/gpucores"
MODEL = "NVIDIA-GeForce-RTX-4090"
CARD_MEMORY_MIB = 24564

Node = dict[str, Any]


def make_nodes(
    count: int,
    cards: int,
    prefix: str = "node",
    labels: Mapping[str, str] | None = None,
    model: str = MODEL,
    *,
    shares_per_card: int = 1,
    annotations: Mapping[str, str] | None = None,
) -> list[Node]:
    """Return `count` Nodes named `<prefix>-000`, ... with `cards` cards each.

    Ready from the start, with 64 CPUs, 512 GiB of memory and room for 110 pods. With `shares_per_card` > 1 the node
    looks as under HAMi: `nvidia.com/gpu` counts shares, and `nvidia.com/gpumem` (MiB) and `nvidia.com/gpucores`
    (percent) are allocatable beside it. `labels` and `annotations` come on top of the usual ones.
    """
    if count < 0 or cards < 0 or shares_per_card < 1:
        raise ValueError("count and cards must not be negative, and a card has at least one share")
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    if cards:
        resources[GPU] = str(cards * shares_per_card)
    if cards and shares_per_card > 1:
        resources |= {GPU_MEMORY: str(cards * CARD_MEMORY_MIB), GPU_CORES: str(cards * 100)}
    return [_node(f"{prefix}-{index:03d}", resources, labels or {}, annotations or {}, model) for index in range(count)]


def _node(
    name: str, resources: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str], model: str
) -> Node:
    usual = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "kwok"}
    if GPU in resources:
        usual["nvidia.com/gpu.product"] = model
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**usual, **labels},
            "annotations": {**KWOK_ANNOTATIONS, **annotations},
        },
        "spec": {},
        "status": {
            "allocatable": dict(resources),
            "capacity": dict(resources),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}],
        },
    }


def is_ready(node: Mapping[str, Any]) -> bool:
    """Tell whether a Node is Ready and carries no taint of the node-lifecycle controller any more."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    taints = node.get("spec", {}).get("taints", ())
    return ready and not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)
