"""kube-scheduler and the extender over TLS, each with a certificate, as the chart has it; and with new ones later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from kwok import ports
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.helm import helm
from kwok.pki import Authority
from kwok.product import CHART
from kwok.testing import Fleet
from kwok.workloads import make_pod
from tests.cluster.resources import install_resources
from tests.e2e.play import pool

SECONDS = 60.0
"""How long a test waits for anything: far above what it takes."""


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The session's own: this needs neither the controller nor the chart's objects in the cluster."""
    return control_plane


class Files:
    """Two directories as Secrets are mounted: the extender's, and kube-scheduler's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._issued = 0
        self.extender, self.scheduler = root / "extender", root / "scheduler"
        for one in (self.extender, self.scheduler):
            one.mkdir()

    def authority(self, name: str) -> Authority:
        return Authority.create(self._root / name)

    def put(self, directory: Path, own: Authority, trusted: Authority) -> None:
        """A new certificate of `own`, and the certificate of the authority whose holders are trusted."""
        self._issued += 1
        pair = own.issue(f"pair-{self._issued}", "whoever")
        for source, name in ((pair.certificate, "tls.crt"), (pair.key, "tls.key"), (trusted.ca_file, "ca.crt")):
            shutil.copy(source, directory / f".{name}")
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (directory / f".{name}").rename(directory / name)


def scheduler_config(port: int, directory: Path) -> str:
    """What the chart makes of the values that docs/install.md names for TLS."""
    values = {
        "scheduler.urlPrefix": f"https://127.0.0.1:{port}/v1",
        "scheduler.tls.caFile": directory / "ca.crt",
        "scheduler.tls.certFile": directory / "tls.crt",
        "scheduler.tls.keyFile": directory / "tls.key",
        "extender.tls.secretName": "wholenode-tls",
        "extender.tls.clientCA": "true",
    }
    settings = [flag for key, value in values.items() for flag in ("--set", f"{key}={value}")]
    command = [str(helm()), "template", "wholenode", str(CHART), "--show-only", "templates/scheduler-config.yaml"]
    run = subprocess.run([*command, *settings], capture_output=True, text=True, check=True)
    text = str(yaml.safe_load(run.stdout)["data"]["scheduler-config.yaml"])
    assert "enableHTTPS: true" in text
    return text


class Served:
    """The extender with TLS, its port and its plain port of probes."""

    def __init__(self) -> None:
        taken: set[int] = set()
        self.port, self.health_port = ports.pick(taken), ports.pick(taken)

    def environment(self, plane: ControlPlane, directory: Path) -> dict[str, str]:
        return {
            **os.environ,
            "WHOLENODE_KUBECONFIG": str(plane.kubeconfig),
            "WHOLENODE_PORT": str(self.port),
            "WHOLENODE_HEALTH_PORT": str(self.health_port),
            "WHOLENODE_TLS_CERT_FILE": str(directory / "tls.crt"),
            "WHOLENODE_TLS_KEY_FILE": str(directory / "tls.key"),
            "WHOLENODE_TLS_CLIENT_CA_FILE": str(directory / "ca.crt"),
            "WHOLENODE_LEAVE_SECONDS": "0",
        }

    async def until(self, path: str, text: str) -> None:
        """Wait until the page of the plain port says it."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{self.health_port}{path}") as answer:
                        if answer.status == 200 and text in await answer.text():
                            return
                await asyncio.sleep(0.05)

    async def taken(self, times: int) -> None:
        """Wait until files have been taken so often, the first time at the start included."""
        await self.until("/metrics", f'wholenode_certificate_loads_total{{result="taken"}} {times:.1f}')


@pytest.fixture
async def small_node(admin: Admin, fleet: Fleet) -> AsyncIterator[str]:
    """The only node that the test's pods may have; the extender lets small pods have it."""
    await install_resources(admin)
    (node,) = await fleet.add(1, labels={"pool": fleet.name})
    await admin.create(pool(fleet.name, 8, accepts="Small"))
    yield node
    await admin.delete(f"/apis/wholenode.io/v1alpha1/gpupools/{fleet.name}")


async def test_o04_o14_gpu_pods_are_bound_with_certificates_on_both_sides_and_with_every_new_one(
    plane: ControlPlane, admin: Admin, fleet: Fleet, namespace: str, small_node: str, tmp_path: Path
) -> None:
    async def see_bound(name: str) -> None:
        await admin.create(make_pod(name, namespace, cards=1, node_selector=fleet.selector))
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        found = await admin.wait_for(path, lambda pod: bool(pod and pod["spec"].get("nodeName")), SECONDS)
        assert found is not None
        assert found["spec"]["nodeName"] == small_node

    async def see_no_answer(name: str) -> None:
        await admin.create(make_pod(name, namespace, cards=1, node_selector=fleet.selector))
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await admin.wait_for(path, lambda pod: "certificate" in failure(pod or {}), SECONDS)

    files, served = Files(tmp_path), Served()
    old, new = files.authority("old"), files.authority("new")
    for directory in (files.extender, files.scheduler):
        files.put(directory, old, old)
    config = scheduler_config(served.port, files.scheduler)
    environment = served.environment(plane, files.extender)
    plane.start_process("extender-tls", [sys.executable, "-m", "extender"], environment)
    try:
        await served.until("/readyz", "ok")
        await asyncio.to_thread(plane.restart_scheduler, config)
        await see_bound("first")

        files.put(files.extender, old, old)  # renewed by the same authority: nobody is restarted
        await served.taken(2)
        await see_bound("renewed")

        files.put(files.extender, new, new)  # of a new authority: kube-scheduler must be given the new files, too
        await served.taken(3)
        await asyncio.to_thread(plane.restart_scheduler, config)
        await see_no_answer("not-trusted")
        files.put(files.scheduler, new, new)
        await asyncio.to_thread(plane.restart_scheduler, config)
        await see_bound("of-a-new-authority")
    finally:
        await asyncio.to_thread(plane.restart_scheduler, None)
        await asyncio.to_thread(plane.stop_component, "extender-tls")


def failure(pod: dict[str, dict[str, list[dict[str, str]]]]) -> str:
    """What kube-scheduler says of a try that could not be made."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((one.get("message", "") for one in conditions if one.get("reason") == "SchedulerError"), "")
