"""Both components scraped by a real Prometheus: the first metrics are there, and say what happened."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from kwok import ports
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.landings import PodWatch
from kwok.product import CONTROLLER, EXTENDER, Product
from kwok.race import prepare
from kwok.scene import BENEFICIARY, Scene

SCENE = Scene(nodes=6, small_nodes=1, busy_cards=33, grace_seconds=1)
LOOK_EVERY_SECONDS = 0.2


def prometheus() -> str:
    """The program; without it the test is left out, except where everything is required."""
    found = shutil.which("prometheus")
    if found is None:
        if os.environ.get("WHOLENODE_REQUIRE_ALL"):
            pytest.fail("prometheus is not installed, and WHOLENODE_REQUIRE_ALL is set")
        pytest.skip("left out: prometheus is not installed (Debian package: prometheus)")
    return found


async def query(session: aiohttp.ClientSession, port: int, expression: str) -> list[tuple[dict[str, str], float]]:
    async with session.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression}) as answer:
        data: dict[str, Any] = await answer.json()
    return [(one["metric"], float(one["value"][1])) for one in data["data"]["result"]]


async def until(session: aiohttp.ClientSession, port: int, expression: str) -> list[tuple[dict[str, str], float]]:
    """Ask again, as Prometheus scrapes, until the expression has a result."""
    async with asyncio.timeout(60):
        while True:
            try:
                if found := await query(session, port, expression):
                    return found
            except aiohttp.ClientError:
                pass  # it is still starting
            await asyncio.sleep(LOOK_EVERY_SECONDS)


async def test_prometheus_scrapes_both_components(
    plane: ControlPlane, admin: Admin, watch: PodWatch, product: Product, tmp_path: Path
) -> None:
    program = prometheus()
    await prepare(admin, watch, SCENE)
    for one in (*SCENE.pools(), *SCENE.agreements()):
        await admin.create(one)
    await product.start()
    port = ports.pick(set())
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{product.ports[name]}"]}]}
            for name in (EXTENDER, CONTROLLER)
        ],
    }
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    plane.start_process(
        "prometheus",
        [
            program,
            f"--config.file={path}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    )
    await product.gate_active(admin, SCENE.cards, BENEFICIARY)
    await admin.create(SCENE.whole_node_job("big"))

    async with aiohttp.ClientSession() as session:
        up = await until(session, port, "sum(up) == 2")
        assert up
        assert await until(session, port, 'wholenode_claims{phase="Bound"} == 1')
        assert await until(session, port, 'wholenode_evictions_total{result="accepted"} > 0')
        lost = await until(session, port, "wholenode_lost_gpu_seconds_total > 0")
        assert {metric["beneficiary_namespace"] for metric, _ in lost} == {BENEFICIARY}
        waits = await until(session, port, "wholenode_claim_wait_seconds_count == 1")
        assert [metric["beneficiary_namespace"] for metric, _ in waits] == [BENEFICIARY]
        assert await until(session, port, 'wholenode_claim_decisions_total{phase="Bound"} == 1')
        decisions = await until(session, port, "wholenode_filter_decisions_total")
        assert {metric["result"] for metric, _ in decisions} >= {"passed"}
        free = await until(session, port, "wholenode_cards_free")
        assert {metric["pool"] for metric, _ in free} == {"small", "big"}
        assert await until(session, port, 'wholenode_whole_nodes_free{pool="big"} == 0')
        assert await until(session, port, "wholenode_leader == 1")
        for agreement in SCENE.agreements():
            name = agreement["metadata"]["namespace"]
            await admin.delete(f"/apis/wholenode.io/v1alpha1/namespaces/{name}/drainagreements/whole-nodes")
        for index in range(5):
            await admin.create(SCENE.whole_node_job(f"more-{index}"))
        assert await until(session, port, 'wholenode_claims_waiting{reason="AgreementMissing"} > 0')
    plane.stop_component("prometheus")
