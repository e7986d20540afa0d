"""A thousand landings under a flood: bursts of whole-node jobs on a busy fleet while single-card pods keep arriving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from kwok.admin import Admin, create_all
from kwok.bench.figures import Figures, percentile
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.landings import PodWatch, Report, follow
from kwok.product import Product
from kwok.race import Arrivals, Race, flood, prepare
from kwok.scene import BENEFICIARY, TEAMS, Scene
from kwok.soak.lane import Keeper

_SHOWN = 20
_SWEPT_AT_ONCE, _SWEEPS = 100, 20
_PATIENCE_SECONDS = 240.0
"""For a burst to land: what is asked here is where it lands, however busy the machine is."""


@dataclass(frozen=True)
class Load:
    """landings: whole-node jobs in all, in bursts of `jobs`; the flood's pods run for `run_seconds` each."""

    landings: int = 1000
    jobs: int = 20
    arrivals_per_second: float = 25.0
    run_seconds: float = 3.0
    grace_seconds: int = 1
    seed: int = 7

    @property
    def bursts(self) -> int:
        """Bursts of `jobs` that make up the landings, the last one whole."""
        return -(-self.landings // self.jobs)


async def measure(load: Load, say: Callable[[str], None]) -> Figures:
    """Run all bursts and give the figures. `missing`: jobs that never landed."""
    scene = Scene(grace_seconds=load.grace_seconds, seed=load.seed)
    async with ControlPlane() as plane, Admin(plane.kubeconfig) as admin, follow(admin) as watch:
        product = Product(plane)
        await product.install(admin)
        await prepare(admin, watch, scene)
        await create_all(admin, (*scene.pools(), *scene.agreements()))
        await product.start()
        keeper = Keeper(plane, product)
        kept = asyncio.create_task(keeper.run())
        try:
            await product.gate_active(admin, scene.cards, BENEFICIARY)
            reports, arrivals = await _bursts(admin, watch, scene, load, say)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise LabError(f"{error} (logs: {plane.logs})") from error  # a LabError keeps them
        finally:
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)
            await asyncio.to_thread(product.stop)
    return {**figures(load, reports, arrivals), "restarts": keeper.starts}


async def _bursts(
    admin: Admin, watch: PodWatch, scene: Scene, load: Load, say: Callable[[str], None]
) -> tuple[list[Report], Arrivals]:
    race, reports = Race(admin, watch, scene, jobs=load.jobs, seconds=_PATIENCE_SECONDS), list[Report]()
    async with flood(admin, scene, load.arrivals_per_second, load.run_seconds) as arrivals:
        for run in range(load.bursts):
            reports.append(await race.burst(run))
            await race.clear(run)
            await _sweep_up(admin)
            watch.forget_gone()
            landed, wrong = sum(one.landed for one in reports), sum(len(one.wrong) for one in reports)
            say(f"soak: {landed} landings, {wrong} wrong, after {run + 1} of {load.bursts} bursts")
    return reports, arrivals


async def _sweep_up(admin: Admin) -> None:
    """Delete the flood's ended pods, as a time to live would: thousands of them would slow down every list.

    A few at a time: the API server deletes one after the other, and cuts off a request that takes a minute.
    """
    ended = {"fieldSelector": "status.phase=Succeeded", "limit": str(_SWEPT_AT_ONCE)}
    for team in TEAMS:
        for _ in range(_SWEEPS):
            gone = await admin.request("DELETE", f"/api/v1/namespaces/{team}/pods", params=ended)
            if len(gone.get("items") or ()) < _SWEPT_AT_ONCE:
                break


def figures(load: Load, reports: list[Report], arrivals: Arrivals) -> Figures:
    """What all bursts came to."""
    every = Report(tuple(landing for one in reports for landing in one.landings))
    waits = every.waits_seconds
    return {
        "landings": every.landed,
        "wrong": len(every.wrong),
        "missing": len(every.landings) - every.landed,
        "bursts_of": load.jobs,
        "flood_pods": arrivals.created,
        "flood_per_second": round(arrivals.per_second, 1),
        "grace_seconds": load.grace_seconds,
        "wait_seconds": {f"p{part}": round(percentile(waits, part / 100), 2) for part in (50, 90, 99)} if waits else {},
        "victims": every.victims,
        "lost_gpu_seconds": every.lost_gpu_seconds,
        "wrong_ones": [str(one) for one in every.wrong[:_SHOWN]],
    }
