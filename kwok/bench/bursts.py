"""How long whole-node jobs wait, in bursts on a busy fleet: ours, and kube-scheduler's own preemption, in one run."""

from __future__ import annotations

import statistics
from typing import Any

from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.landings import Report, follow
from kwok.product import Product
from kwok.race import Arrivals, Race, flood, prepare
from kwok.scene import BENEFICIARY, Scene

_FLOOD_PER_SECOND, _FLOOD_RUN_SECONDS = 25.0, 3.0
_PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "above-all"},
    "value": 1000,
}


def figures(reports: list[Report], grace_seconds: int) -> dict[str, Any]:
    """Figures of several bursts; waits are submit to bound, `over_grace` is what goes beyond the grace."""
    landings = tuple(one for report in reports for one in report.landings)
    whole = Report(landings)
    waits = sorted(whole.waits_seconds)
    return {
        "requests": len(landings),
        "landed": whole.landed,
        "wrong_landings": len(whole.wrong),
        "victims": whole.victims,
        "wait_s": {"min": waits[0], "median": round(statistics.median(waits), 3), "max": waits[-1]} if waits else None,
        "over_grace_median_s": round(statistics.median(waits) - grace_seconds, 3) if waits else None,
    }


async def ours(scene: Scene, runs: int, *, flooded: bool) -> dict[str, Any]:
    """Bursts of five jobs with wholenode."""
    async with ControlPlane() as plane, Admin(plane.kubeconfig) as admin, follow(admin) as watch:
        await prepare(admin, watch, scene)
        product = Product(plane)
        await product.install(admin)
        for one in (*scene.pools(), *scene.agreements()):
            await admin.create(one)
        await product.start()
        await product.gate_active(admin, scene.cards, BENEFICIARY)
        race, reports, arrivals = Race(admin, watch, scene), [], Arrivals()
        for run in range(runs):
            if flooded:
                async with flood(admin, scene, _FLOOD_PER_SECOND, _FLOOD_RUN_SECONDS, arrivals):
                    reports.append(await race.burst(run))
            else:
                reports.append(await race.burst(run))
            await race.clear(run)
        product.stop()
    return {**figures(reports, scene.grace_seconds), "arrivals_per_s": round(arrivals.per_second, 1)}


async def preemption(scene: Scene, runs: int) -> dict[str, Any]:
    """The same bursts with the stock kube-scheduler, where the jobs simply outrank everybody."""
    async with ControlPlane() as plane, Admin(plane.kubeconfig) as admin, follow(admin) as watch:
        await admin.create(_PRIORITY)
        await prepare(admin, watch, scene)
        race = Race(admin, watch, scene)
        waits = []
        for run in range(runs):
            waits += await race.outranking_burst(run, "above-all")
            await race.clear(run)
    waits.sort()
    median = statistics.median(waits)
    return {
        "requests": runs * race.jobs,
        "landed": len(waits),
        "wait_s": {"min": round(waits[0], 3), "median": round(median, 3), "max": round(waits[-1], 3)},
        "over_grace_median_s": round(median - scene.grace_seconds, 3),
    }


async def measure(runs: int, seed: int) -> dict[str, Any]:
    """Every arm, one after the other on the same machine."""
    scene = Scene(seed=seed)
    return {
        "fleet": f"{scene.nodes} nodes x {scene.cards} cards, {scene.busy_cards} busy",
        "grace_s": scene.grace_seconds,
        "seed": seed,
        "runs": runs,
        "wholenode": await ours(scene, runs, flooded=False),
        "wholenode_under_flood": await ours(scene, runs, flooded=True),
        "kube_scheduler_preemption": await preemption(scene, runs),
    }
