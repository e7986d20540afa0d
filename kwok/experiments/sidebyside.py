"""Whole-node jobs on a full fleet, side by side: Kueue's reclaim, Kueue with topology, and wholenode behind Kueue."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any, get_args

from kwok.bench.figures import Figures
from kwok.experiments.fullfleet import VICTIMS, Arm, Fleet, Kind, full_fleet
from kwok.experiments.options import Options
from kwok.queues import API_VERSION as KUEUE

GRACE_SECONDS = 5
ARMS: tuple[tuple[Arm, int], ...] = (
    ("reclaim", 5),
    ("topology", 5),
    ("packed", 5),
    ("stop", 5),
    ("wholenode", 1),
    ("wholenode", 5),
    ("wholenode", 10),
)
"""Each with the number of its whole-node jobs, or of the nodes whose jobs are stopped."""
WAIT_SECONDS = 60.0
"""How long jobs that do not run are waited for."""
ALLOWED_SECONDS = 1.5
"""What wholenode's jobs may take beyond the victims' end, in the median."""


async def measure(options: Options) -> AsyncIterator[Figures]:
    """Every arm against every kind of victims with 5 jobs; wholenode with 1 and with 10 as well."""
    for number in range(options.repetitions):
        for kind in get_args(Kind):
            for arm, jobs in ARMS:
                part = f"{kind}/{arm}/{jobs}" + (f"/{number + 1}" if options.repetitions > 1 else "")
                if not options.wanted(part) or (arm == "stop" and kind == "outside"):
                    continue
                async with full_fleet(arm, kind, options.seed + number, GRACE_SECONDS) as fleet:
                    found = await (only_stopped(fleet, jobs) if arm == "stop" else one_arm(fleet, jobs))
                options.say(f"{part}: {told(found)}")
                yield {part: found}


async def only_stopped(fleet: Fleet, count: int) -> Figures:
    """How long Kueue takes to empty so many nodes when their jobs' Workloads are all set inactive at once."""
    nodes = sorted({one.node for one in fleet.watch.pods.values()})[:count]
    pods = [one for one in fleet.watch.pods.values() if one.node in nodes]
    jobs = {one.name.rpartition("-")[0].rpartition("-")[0] for one in pods}
    path = f"/apis/{KUEUE}/namespaces/{VICTIMS}/workloads"
    stopped = [
        one["metadata"]["name"]
        for one in await fleet.admin.list(path)
        if any(owner["name"] in jobs for owner in one["metadata"]["ownerReferences"])
    ]
    began = time.monotonic()
    inactive = {"spec": {"active": False}}
    await asyncio.gather(*(fleet.admin.patch(f"{path}/{name}", inactive) for name in stopped))
    await fleet.watch.until(lambda: all(one.gone_at is not None for one in pods), WAIT_SECONDS)
    empty = [max(one.gone_at or math.inf for one in pods if one.node == node) - began for node in nodes]
    return {
        "nodes": len(nodes),
        "workloads": len(stopped),
        "seconds_to_empty": sorted(round(one, 2) for one in empty),
        "median_s": round(statistics.median(empty), 2),
        "max_s": round(max(empty), 2),
        "victims": len(fleet.stopped()),
    }


async def one_arm(fleet: Fleet, jobs: int) -> Figures:
    """Send the jobs at once, wait for them, and see where they landed and what it cost."""
    names = [f"train-{index}" for index in range(jobs)]
    for name in names:
        await fleet.submit(name)
    await fleet.watch.until(lambda: all(map(fleet.runs, names)), WAIT_SECONDS)
    return figures(fleet, names, await fleet.claims())


def figures(fleet: Fleet, names: list[str], claims: list[dict[str, Any]]) -> Figures:
    """What became of the jobs; lost GPU-seconds are how long the stopped pods had been running."""
    vacated = {uid(one): [node["name"] for node in one.get("status", {}).get("nodes") or ()] for one in claims}
    gangs = {one["spec"]["gang"].get("name", ""): uid(one) for one in claims}
    landed, waits, right = {}, [], 0
    for name in names:
        pod = fleet.pod_of(name)
        if pod is None or pod.running_at is None:
            continue
        mine = next(
            (nodes for gang, claim in gangs.items() if gang.startswith(f"job-{name}-") for nodes in [vacated[claim]]),
            [],
        )
        landed[name] = {"node": pod.node, "vacated_for_it": mine}
        waits.append(round(pod.running_at - fleet.submitted[name], 2))
        right += pod.node in mine
    stopped = fleet.stopped()
    lost = sum((one.deleting_at or 0.0) - (one.running_at or one.deleting_at or 0.0) for one in stopped)
    found: Figures = {
        "jobs": len(names),
        "running": len(waits),
        "seconds_to_running": sorted(waits),
        "median_s": round(statistics.median(waits), 2) if waits else None,
        "max_s": max(waits, default=None),
        "victims": len(stopped),
        "lost_gpu_seconds": round(lost, 1),
        "landed": landed,
    }
    if fleet.product is not None:
        quick = bool(waits) and statistics.median(waits) <= GRACE_SECONDS + ALLOWED_SECONDS
        found |= {"on_the_node_vacated_for_it": right, "as_promised": right == len(names) and quick}
    return found


def told(found: Figures) -> str:
    """For people: how long, and what it cost."""
    what = f"{found['running']} of {found['jobs']} running" if "jobs" in found else f"{found['nodes']} nodes empty"
    if found["median_s"] is not None:
        what += f", median {found['median_s']} s, at most {found['max_s']} s"
    return f"{what}, {found['victims']} victims"


def uid(item: dict[str, Any]) -> str:
    """The object's UID."""
    return str(item["metadata"]["uid"])
