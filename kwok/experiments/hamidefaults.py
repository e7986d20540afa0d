"""Two default settings of HAMi that keep cards unused: its client's rate limit, and spreading."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kwok.admin import Admin, create_all
from kwok.bench.figures import percentile
from kwok.controlplane import ControlPlane
from kwok.experiments.consulting import codes, consult, show_deployment, shown
from kwok.hami.nodes import shared_nodes
from kwok.hami.run import Hami
from kwok.landings import PodWatch, follow
from kwok.product import Product
from kwok.workloads import Manifest, make_pod

Say = Callable[[str], None]
Figures = dict[str, Any]

WHOLE_CARD = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
TENTH = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2456", "nvidia.com/gpucores": "10"}
WHOLE_NODE = {"nvidia.com/gpu": "8", "nvidia.com/gpucores": "100"}
PODS = "/api/v1/pods"
GONE_SECONDS = 120.0


@dataclass(frozen=True)
class Size:
    """How large the fleet and its load are; the full one is the reference fleet of 400 cards."""

    nodes: int = 50
    whole_cards: int = 40
    tenths: int = 80
    seconds: float = 90.0
    busy_cards: int = 120
    whole_nodes: int = 5
    packing_seconds: float = 300.0
    landing_seconds: float = 60.0


FULL = Size()
SMALL = Size(nodes=6, busy_cards=12, whole_nodes=2, landing_seconds=3.0)
"""Enough for a test to see the same."""


@contextlib.asynccontextmanager
async def fleet(size: Size) -> AsyncIterator[tuple[ControlPlane, Admin]]:
    """An empty fleet under HAMi, on which wholenode's kinds are known but nothing of it runs."""
    async with ControlPlane() as plane, Admin(plane.kubeconfig) as admin:
        await Product(plane).install(admin)
        await create_all(admin, shared_nodes(size.nodes))
        yield plane, admin


async def rate_limit(size: Size, say: Say) -> Figures:
    """Whole-card and tenth-card requests on an empty fleet, at HAMi's default limit and at the one the doctor names."""
    found: Figures = {"requests": {"whole_card": size.whole_cards, "tenth_card": size.tenths}, "seconds": size.seconds}
    async with fleet(size) as (plane, admin):
        for name, qps, burst in (("before", 5, 10), ("at_100_200", 100, 200), ("after", 1000, 2000)):
            hami = Hami(plane, kube_qps=qps, kube_burst=burst)
            await started(plane, admin, hami, [] if name == "before" else ["kube-qps", "kube-burst"])
            say(f"defaults: rate limit {qps}/{burst}")
            found[name] = {"qps": qps, "burst": burst, **await _burst(admin, size)}
            findings = await consult(plane, "rate-limits", {"scheduler-config": hami.alone()})
            found[name] |= {"doctor": shown(findings), "codes": sorted(codes(findings))}
            await cleared(admin)
            hami.stop()
    found["gone"] = "ClientRateLimit" in found["before"]["codes"] and not found["after"]["codes"]
    return found


async def _burst(admin: Admin, size: Size) -> Figures:
    whole = [make_pod(f"whole-{number}", resources=WHOLE_CARD) for number in range(size.whole_cards)]
    tenth = [make_pod(f"tenth-{number}", resources=TENTH) for number in range(size.tenths)]
    async with follow(admin) as watch:
        began = time.monotonic()
        await create_all(admin, [*whole, *tenth])
        every = len(whole) + len(tenth)
        done = await watch.until(lambda: len(bound(watch)) == every, began + size.seconds - time.monotonic())
        took = time.monotonic() - began
        return {
            "all_placed_after_s": round(took, 1) if done else None,
            "whole_card": _placed(watch, "whole-", began),
            "tenth_card": _placed(watch, "tenth-", began),
        }


def _placed(watch: PodWatch, prefix: str, began: float) -> Figures:
    times = [one.bound_at - began for one in bound(watch, prefix) if one.bound_at is not None]
    if not times:
        return {"placed": 0}
    return {
        "placed": len(times),
        "p50_s": round(percentile(times, 0.5), 2),
        "p95_s": round(percentile(times, 0.95), 2),
    }


def bound(watch: PodWatch, prefix: str = "") -> list[Any]:
    """Pods that have a node."""
    return [one for one in watch.pods.values() if one.bound_at is not None and one.name.startswith(prefix)]


async def spreading(size: Size, say: Say) -> Figures:
    """Single-card jobs, then whole-node jobs: spread over nodes and cards, and packed as the doctor says."""
    found: Figures = {"busy_cards": size.busy_cards, "cards_free": 8 * size.nodes - size.busy_cards}
    async with fleet(size) as (plane, admin):
        for name, policy in (("before", "spread"), ("after", "binpack")):
            hami = Hami(plane, node_policy=policy, gpu_policy=policy)
            await started(plane, admin, hami, ["node-policy", "gpu-policy"])
            say(f"defaults: {policy} placement")
            found[name] = {"policy": policy, **await _whole_nodes(admin, size)}
            findings = await consult(plane, "placement-policy", {"scheduler-config": hami.alone()})
            found[name] |= {"doctor": shown(findings), "codes": sorted(codes(findings))}
            await cleared(admin)
            hami.stop()
    named = {"NoWholeNode", "NodesSpread"} & set(found["before"]["codes"])
    found["gone"] = bool(named) and not found["after"]["codes"]
    return found


async def _whole_nodes(admin: Admin, size: Size) -> Figures:
    busy = [make_pod(f"busy-{number}", resources=WHOLE_CARD) for number in range(size.busy_cards)]
    whole = [make_pod(f"whole-{number}", resources=WHOLE_NODE) for number in range(size.whole_nodes)]
    async with follow(admin) as watch:
        began = time.monotonic()
        await create_all(admin, busy)
        await watch.until(lambda: len(bound(watch)) == len(busy), size.packing_seconds)
        small = _placed(watch, "busy-", began)
        touched = len({one.node for one in bound(watch)})
        submitted = time.monotonic()
        await create_all(admin, whole)
        await watch.until(lambda: len(bound(watch, "whole-")) == len(whole), size.landing_seconds)
        return {
            "small": small,
            "nodes_touched": touched,
            "whole_nodes_asked": len(whole),
            "whole_node": _placed(watch, "whole-", submitted),
        }


async def started(plane: ControlPlane, admin: Admin, hami: Hami, told: Iterable[str]) -> None:
    """Run this HAMi, with nobody beside it, and have the cluster show the flags that are `told`."""
    await hami.start()
    await asyncio.to_thread(plane.restart_scheduler, hami.alone())
    await show_deployment(admin, hami.flags(told))


async def cleared(admin: Admin) -> None:
    """Delete all pods at once, and wait until they are gone."""
    pods: list[Manifest] = await admin.list(PODS)
    for pod in pods:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        await admin.delete(path, grace_seconds=0)
    await admin.wait_for_all(PODS, lambda found: not found, GONE_SECONDS)
