"""Three jobs of eight cards each before a quota of ten cards' worth: counted by memory all get in, by card one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from kwok.admin import Admin, create_all
from kwok.bench.figures import Figures
from kwok.controlplane import ControlPlane
from kwok.experiments.options import Options
from kwok.kueue import Kueue
from kwok.nodes import CARD_MEMORY_MIB, GPU, GPU_MEMORY, make_nodes
from kwok.queues import API_VERSION, cluster_queue, flavor, local_queue, queued_job

CARDS_IN_QUOTA = 10
JOBS, CARDS = 3, 8
ASKED_MIB = CARD_MEMORY_MIB * 2 // 5
"""Memory that a job asks of each of its eight cards: it takes them whole all the same."""
TOTAL_MEMORY = "nvidia.com/total-gpumem"
_BY_MEMORY = {"input": GPU_MEMORY, "strategy": "Replace", "multiplyBy": GPU, "outputs": {TOTAL_MEMORY: "1"}}
_NOT_BY_CARD = {"input": GPU, "strategy": "Replace", "outputs": {}}
"""An excluded prefix would take `gpumem` with it."""
_UNCOUNTED = ["cpu", "memory", "ephemeral-storage"]
_ENDED_SECONDS = 120.0
_LOOK_EVERY_SECONDS = 0.1


async def measure(options: Options) -> AsyncIterator[Figures]:
    """By memory, then by card."""
    if options.wanted("by memory"):
        quota = CARDS_IN_QUOTA * CARD_MEMORY_MIB
        overrides = {
            "resources": {"excludeResourcePrefixes": _UNCOUNTED, "transformations": [_BY_MEMORY, _NOT_BY_CARD]}
        }
        found = await _admitted(TOTAL_MEMORY, quota, overrides)
        options.say(f"by memory ({quota} MiB): {found['cards_admitted']} cards admitted at once")
        yield {"by memory": {"quota_mib": quota, "asked_mib": CARDS * ASKED_MIB, **found}}
    if options.wanted("by card"):
        found = await _admitted(
            GPU, CARDS_IN_QUOTA, {"resources": {"excludeResourcePrefixes": [*_UNCOUNTED, GPU_MEMORY]}}
        )
        options.say(f"by card ({CARDS_IN_QUOTA}): {found['cards_admitted']} cards admitted at once")
        yield {"by card": {"quota_cards": CARDS_IN_QUOTA, **found}}


async def _admitted(resource: str, quota: int, overrides: Figures) -> Figures:
    """Run the jobs on nodes with room for all of them; the most cards that were admitted at a time, and that ran."""
    plane = ControlPlane()
    async with plane, Admin(plane.kubeconfig) as admin:
        kueue = Kueue(plane, overrides=overrides)
        await kueue.install(admin)
        await kueue.start()
        nodes = make_nodes(JOBS, CARDS)
        for node in nodes:
            for side in ("capacity", "allocatable"):
                node["status"][side][GPU_MEMORY] = str(CARDS * CARD_MEMORY_MIB)
        await create_all(admin, nodes)
        for one in (flavor("cards"), cluster_queue("team", "cards", quota, resource=resource)):
            await admin.create(one)
        await admin.create(local_queue("default", "team"))
        asked = {GPU: str(CARDS), GPU_MEMORY: str(ASKED_MIB)}
        jobs = [queued_job(f"job-{index}", "default", resources=asked, duration_seconds=3) for index in range(JOBS)]
        await create_all(admin, jobs, parallel=1)
        return await _most(admin)


async def _most(admin: Admin) -> Figures:
    """Look until all jobs have ended. Raises TimeoutError."""
    admitted, running, order, counted = 0, 0, list[int](), dict[str, str]()
    async with asyncio.timeout(_ENDED_SECONDS):
        while True:
            workloads = await admin.list(f"/apis/{API_VERSION}/workloads")
            in_use = sum(_is(one, "Admitted") and not _is(one, "Finished") for one in workloads)
            pods = await admin.list("/api/v1/namespaces/default/pods")
            runs = sum(one["status"].get("phase") == "Running" for one in pods)
            admitted, running = max(admitted, in_use), max(running, runs)
            for one in workloads:
                for assigned in one.get("status", {}).get("admission", {}).get("podSetAssignments") or ():
                    counted = assigned["resourceUsage"]
            if not order or order[-1] != in_use:
                order.append(in_use)
            if len(workloads) == JOBS and all(_is(one, "Finished") for one in workloads):
                return {
                    "cards_admitted": admitted * CARDS,
                    "cards_running": running * CARDS,
                    "jobs_admitted_over_time": order,
                    "counted_for_each_job": counted,
                }
            await asyncio.sleep(_LOOK_EVERY_SECONDS)


def _is(workload: Figures, condition: str) -> bool:
    conditions = workload.get("status", {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)
