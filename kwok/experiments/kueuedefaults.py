"""Two default settings of Kueue that let whole-node jobs down: quota in memory, and preemption that sees no nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kwok.admin import Admin, create_all
from kwok.controlplane import ControlPlane
from kwok.experiments.consulting import codes, consult, shown
from kwok.experiments.fullfleet import Fleet, full_fleet
from kwok.hami.nodes import shared_nodes
from kwok.kueue import Kueue
from kwok.nodes import CARD_MEMORY_MIB, GPU, GPU_CORES, GPU_MEMORY
from kwok.product import Product
from kwok.queues import API_VERSION, cluster_queue, flavor, local_queue, queued_job

Say = Callable[[str], None]
Figures = dict[str, Any]

JOBS, CARDS, QUOTA_CARDS = 3, 8, 10
ASKED_MIB = CARD_MEMORY_MIB // 3
TOTAL_MEMORY = "nvidia.com/total-gpumem"
IN_MEMORY = (
    {"input": GPU_MEMORY, "strategy": "Replace", "multiplyBy": GPU, "outputs": {TOTAL_MEMORY: "1"}},
    {"input": GPU, "strategy": "Replace", "outputs": {}},
)
IN_CARDS = tuple({"input": name, "strategy": "Replace", "outputs": {}} for name in (GPU_MEMORY, GPU_CORES))
GRACE_SECONDS = 5
SETTLED_SECONDS = 5.0
_WORKLOADS = f"/apis/{API_VERSION}/namespaces/default/workloads"


async def quota_unit(say: Say) -> Figures:
    """Three jobs of eight cards before a quota of ten cards' worth, in memory, and in cards as the doctor says."""
    found: Figures = {"quota_cards": QUOTA_CARDS, "jobs": JOBS, "cards_of_each": CARDS}
    say("defaults: quota in memory")
    found["before"] = await _quota(TOTAL_MEMORY, QUOTA_CARDS * CARD_MEMORY_MIB, IN_MEMORY)
    say("defaults: quota in cards")
    found["after"] = await _quota(GPU, QUOTA_CARDS, IN_CARDS)
    found["gone"] = "QuotaInMemory" in found["before"]["codes"] and not found["after"]["codes"]
    return found


async def _quota(resource: str, quota: int, transformations: Sequence[Mapping[str, Any]]) -> Figures:
    """How many jobs are admitted at once, what they hold, what the doctor says of it, and who comes in after them."""
    async with ControlPlane() as plane, Admin(plane.kubeconfig) as admin:
        await Product(plane).install(admin)
        kueue = Kueue(plane, transformations=transformations)
        await kueue.install(admin)
        await kueue.start()
        nodes = shared_nodes(JOBS, CARDS)
        for node in nodes:
            for side in ("capacity", "allocatable"):
                node["status"][side][GPU_MEMORY] = str(CARDS * CARD_MEMORY_MIB)
        await create_all(admin, nodes)
        for one in (flavor("cards", {}), cluster_queue("team", "cards", quota, resource=resource)):
            await admin.create(one)
        await admin.create(local_queue("default", "team"))
        asked = {GPU: str(CARDS), GPU_MEMORY: str(ASKED_MIB)}
        await create_all(admin, [queued_job(f"job-{index}", "default", resources=asked) for index in range(JOBS)])
        await admin.wait_for_all(_WORKLOADS, lambda all_: len(all_) == JOBS)
        admitted = await _settled(admin)
        config = (plane.root / "kueue" / "config.yaml").read_text(encoding="utf-8")
        findings = await consult(plane, "quota-unit", {"kueue-config": config})
        in_turn = await _in_turn(admin)
        await kueue.stop()
    return {
        "resource": resource,
        "quota": quota,
        "jobs_admitted": admitted,
        "cards_admitted": admitted * CARDS,
        "jobs_admitted_in_turn": in_turn,
        "doctor": shown(findings),
        "codes": sorted(codes(findings)),
    }


async def _in_turn(admin: Admin) -> list[int]:
    """How many jobs are admitted at a time, if all that are in end together and make room for the next."""
    turns = list[int]()
    while workloads := await admin.list(_WORKLOADS):
        turns.append(await _settled(admin))
        for one in await admin.list(_WORKLOADS):
            if _is(one, "Admitted"):
                owner = one["metadata"]["ownerReferences"][0]["name"]
                await admin.delete(f"/apis/batch/v1/namespaces/default/jobs/{owner}")
        left = len(workloads) - turns[-1]
        await admin.wait_for_all(_WORKLOADS, lambda all_, left=left: len(all_) == left)  # type: ignore[misc]
    return turns


async def _settled(admin: Admin) -> int:
    """How many Workloads are admitted once that number has stood for a while."""
    before, since = -1, 0.0
    loop = asyncio.get_running_loop()
    while True:
        workloads = await admin.list(_WORKLOADS)
        now = sum(_is(one, "Admitted") for one in workloads)
        if now != before:
            before, since = now, loop.time()
        elif now and loop.time() - since >= SETTLED_SECONDS:
            return now
        await asyncio.sleep(0.1)


def _is(workload: Figures, condition: str) -> bool:
    conditions = workload.get("status", {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


async def preemption(seed: int, jobs: int, wait_seconds: float, say: Say) -> Figures:
    """Whole-node jobs on a full fleet: Kueue takes quota back alone, and behind our check as the doctor says."""
    found: Figures = {"jobs": jobs, "waited_at_most_s": wait_seconds}
    for name, arm, kueue_does in (("before", "reclaim", "reclaim alone"), ("after", "wholenode", "our check")):
        say(f"defaults: preemption, {kueue_does}")
        async with full_fleet(arm, "borrowing", seed, GRACE_SECONDS) as fleet:  # type: ignore[arg-type]
            found[name] = await _landed(fleet, jobs, wait_seconds)
            findings = await consult(fleet.plane, "preemption")
            found[name] |= {"doctor": shown(findings), "codes": sorted(codes(findings))}
    found["gone"] = "ReclaimedInVain" in found["before"]["codes"] and not found["after"]["codes"]
    return found


async def _landed(fleet: Fleet, jobs: int, wait_seconds: float) -> Figures:
    names = [f"train-{index}" for index in range(jobs)]
    for name in names:
        await fleet.submit(name)
    await fleet.watch.until(lambda: all(map(fleet.runs, names)), wait_seconds)
    pods = [pod for name in names if (pod := fleet.pod_of(name)) is not None and fleet.runs(name)]
    running_at = [pod.running_at - fleet.submitted[pod.name.rsplit("-0-", 1)[0]] for pod in pods if pod.running_at]
    workloads = await fleet.admin.list(f"/apis/{API_VERSION}/namespaces/team-a/workloads")
    return {
        "admitted": sum(_is(one, "Admitted") for one in workloads),
        "running": len(pods),
        "seconds_to_running": sorted(round(one, 2) for one in running_at),
        "victims": len(fleet.stopped()),
    }
