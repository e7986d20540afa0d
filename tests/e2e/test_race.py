"""The race of the main job: single-card pods pour in while nodes are vacated; nobody lands on a wrong node."""

from __future__ import annotations

from kwok.admin import Admin
from kwok.landings import PodWatch, Report
from kwok.product import Product
from kwok.race import CLAIMS, Arrivals, Race, flood, prepare
from kwok.readings import taints
from kwok.scene import BENEFICIARY, LONG_JOB, Scene

RUNS, JOBS = 5, 5
ARRIVALS_PER_SECOND = 25
FLOOD_RUN_SECONDS = 3.0


async def test_a_naive_list_then_stop_fails_the_check(admin: Admin, watch: PodWatch) -> None:
    """The check sees what it is there for: without a taint, a gate and an extender, jobs land on wrong nodes."""
    scene = Scene()
    await prepare(admin, watch, scene)
    race, arrivals, landings = Race(admin, watch, scene), Arrivals(), []
    for run in range(RUNS):
        landings += (await race.naive_burst(run, ARRIVALS_PER_SECOND, FLOOD_RUN_SECONDS, arrivals)).landings
        await race.clear(run)
    assert arrivals.per_second >= 20
    assert len(Report(tuple(landings)).wrong) >= 1, "the naive variant passed a check that it must fail"


async def test_25_jobs_under_a_flood_land_only_on_nodes_vacated_for_them(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    """5 runs of 5 jobs, each of which has to vacate a node; victims keep their grace; no trace is left."""
    scene = Scene()
    await prepare(admin, watch, scene)
    for one in (*scene.pools(), *scene.agreements()):
        await admin.create(one)
    await product.start()
    await product.gate_active(admin, scene.cards, BENEFICIARY)

    race, landings = Race(admin, watch, scene), []
    async with flood(admin, scene, ARRIVALS_PER_SECOND, FLOOD_RUN_SECONDS) as arrivals:
        for run in range(RUNS):
            landings += (await race.burst(run)).landings
            await race.clear(run)
    found = Report(tuple(landings))

    assert arrivals.per_second >= 20
    assert found.landed == RUNS * JOBS
    assert found.wrong == ()
    assert all(one.victims >= 1 for one in found.landings), "each job had to vacate a node"
    claims = await admin.list(CLAIMS)
    assert len(claims) == RUNS * JOBS
    assert_grace_honoured(watch, claims, scene.grace_seconds)
    nodes = await admin.list("/api/v1/nodes")
    assert not [node["metadata"]["name"] for node in nodes if taints(node)]


def assert_grace_honoured(watch: PodWatch, claims: list[dict[str, object]], grace_seconds: float) -> None:
    """Every victim that ran on until it was stopped had its full grace between eviction and end."""
    victims = {
        victim["uid"]
        for claim in claims
        for victim in claim["status"].get("victims", [])  # type: ignore[attr-defined]
    }
    seen = [watch.pods[uid] for uid in victims if uid in watch.pods]
    long_running = [one for one in seen if one.name.startswith(f"{LONG_JOB}-")]
    assert long_running
    for one in long_running:
        assert one.deleting_at is not None
        assert one.gone_at is not None
        assert one.gone_at - one.deleting_at >= grace_seconds - 0.25, one
