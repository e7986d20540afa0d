"""Kueue, HAMi, scheduler, extender, controller are killed in turn while whole-node jobs come in: is anything lost?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator

from kwok.bench.figures import Figures
from kwok.controlplane import SCHEDULER
from kwok.errors import LabError
from kwok.experiments.fullfleet import VICTIMS, Fleet, full_fleet
from kwok.experiments.options import Options
from kwok.experiments.sidebyside import GRACE_SECONDS, figures, told
from kwok.product import CONTROLLER, EXTENDER, Product
from kwok.queues import API_VERSION

JOBS_EACH = 2
"""Whole-node jobs under way when a program is killed."""
KILLED = ("kueue", "hami", SCHEDULER, EXTENDER, CONTROLLER)
_UNDER_WAY = frozenset({"Draining", "Ready", "Landing"})
_WAIT_SECONDS = 120.0
_LOOK_EVERY_SECONDS = 0.1


async def measure(options: Options) -> AsyncIterator[Figures]:
    """One fleet of borrowing victims; each program is killed once, in the middle of a drain, and started again."""
    for number in range(options.repetitions):
        async with full_fleet("wholenode", "borrowing", options.seed + number, GRACE_SECONDS, with_hami=True) as fleet:
            found = await _outages(fleet)
        part = "outages" if options.repetitions == 1 else f"outages/{number + 1}"
        options.say(f"{part}: {found['running']} of {found['jobs']} running, {told(found)}; {found['at_the_end']}")
        yield {part: found}


async def _outages(fleet: Fleet) -> Figures:
    names: list[str] = []
    for victim in KILLED:
        fresh = [f"train-{len(names) + index}" for index in range(JOBS_EACH)]
        names += fresh
        for name in fresh:
            await fleet.submit(name)
        await _until_under_way(fleet, fresh)
        await _kill_and_start(fleet, victim)
        await fleet.watch.until(lambda fresh=fresh: all(map(fleet.runs, fresh)), _WAIT_SECONDS)
    found = figures(fleet, names, await fleet.claims())
    del found["as_promised"]  # nobody promises that in the time of an outage
    return {**found, "killed": list(KILLED), "at_the_end": await _at_the_end(fleet)}


async def _until_under_way(fleet: Fleet, names: list[str]) -> None:
    """Until a claim of one of the jobs holds nodes."""
    async with asyncio.timeout(_WAIT_SECONDS):
        while True:
            for claim in await fleet.claims():
                mine = any(str(claim["spec"]["gang"]["name"]).startswith(f"job-{name}-") for name in names)
                if mine and claim.get("status", {}).get("phase") in _UNDER_WAY:
                    return
            await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def _kill_and_start(fleet: Fleet, name: str) -> None:
    if name == "kueue":
        fleet.kueue.kill()
        await fleet.kueue.start()
    elif name == "hami" and fleet.hami is not None:
        await asyncio.to_thread(fleet.hami.kill)
        await asyncio.to_thread(fleet.hami.launch)
        await fleet.hami.ready()
    elif name == SCHEDULER:
        os.kill(fleet.plane.pids()[SCHEDULER], signal.SIGKILL)
        await asyncio.to_thread(fleet.plane.stop_component, SCHEDULER)
        await asyncio.to_thread(fleet.plane.start_component, SCHEDULER)
    else:
        product = _product(fleet)
        product.kill(name)
        product.launch(name)
        await product.ready(name)


def _product(fleet: Fleet) -> Product:
    if fleet.product is None:
        raise LabError("wholenode does not run on this fleet")
    return fleet.product


async def _at_the_end(fleet: Fleet) -> Figures:
    """Wait until quota and cards agree, and tell what there is, whether they do or not."""
    found: Figures = {}
    for _ in range(int(_WAIT_SECONDS / _LOOK_EVERY_SECONDS)):
        found = await _account(fleet)
        if found["agree"]:
            break
        await asyncio.sleep(_LOOK_EVERY_SECONDS)
    return found


async def _account(fleet: Fleet) -> Figures:
    """Cards that Kueue counts as used, cards that pods of its jobs were made for, and what should not be there.

    A job that Kueue admitted has its pods, whether they found a place yet or not: they are pinned to their nodes.
    """
    workloads = await fleet.admin.list(f"/apis/{API_VERSION}/workloads")
    counted, inactive, marked = 0, 0, 0
    for one in workloads:
        if any(
            c["type"] == "Admitted" and c["status"] == "True" for c in one.get("status", {}).get("conditions") or ()
        ):
            counted += sum(
                int(assigned["resourceUsage"].get("nvidia.com/gpu", 0))
                for assigned in one["status"]["admission"]["podSetAssignments"]
            )
        inactive += one["spec"].get("active") is False
        marked += "wholenode.io/deactivated-for" in (one["metadata"].get("annotations") or {})
    alive = [one for one in fleet.watch.pods.values() if one.gone_at is None and one.deleting_at is None]
    made = sum(one.cards for one in alive)
    on_nodes = Counter(
        node for one in fleet.watch.pods.values() if one.gone_at is None for node in [one.node] * one.cards
    )
    crowded = [node for node, cards in on_nodes.items() if node and cards > 8]  # noqa: PLR2004
    jobs = await fleet.admin.list(f"/apis/batch/v1/namespaces/{VICTIMS}/jobs")
    booked = await asyncio.to_thread(fleet.hami.booked) if fleet.hami is not None else {}
    placed = {
        f"{one.namespace}/{one.name}": one.node for one in fleet.watch.pods.values() if not one.gone_at and one.node
    }
    right = counted == made and not inactive and not marked and not crowded and booked == placed
    return {
        "agree": right,
        "cards_of_admitted_workloads": counted,
        "cards_of_pods": made,
        "inactive_workloads": inactive,
        "workloads_with_our_mark": marked,
        "crowded_nodes": crowded,
        "pods_on_nodes": len(placed),
        "booked_by_hami": len(booked),
        "jobs_of_victims": len(jobs),
    }
