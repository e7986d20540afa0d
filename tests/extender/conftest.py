"""The extender as a process beside a real kube-scheduler that asks it, and two pools for it to tell apart."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
import yaml

from cluster.client import Api, connect
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.ports import pick
from kwok.testing import Fleet
from tests.cluster.resources import install_resources


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with connect(str(control_plane.kubeconfig)) as client:
        yield client


@pytest.fixture
async def extender(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[str]:
    """The extender as a process, asked by the control plane's kube-scheduler; its URL."""
    await install_resources(admin)
    port = pick(set())
    url = f"http://127.0.0.1:{port}"
    start_extender(control_plane, port)
    await until_ready(url)
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "podMaxBackoffSeconds": 2,
        "extenders": [
            {
                "urlPrefix": f"{url}/v1",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "weight": 130,
                "nodeCacheCapable": True,
                "ignorable": False,
                "httpTimeout": "1s",
                "managedResources": [{"name": "nvidia.com/gpu"}],
            }
        ],
    }
    await asyncio.to_thread(control_plane.restart_scheduler, yaml.safe_dump(config))
    yield url
    await asyncio.to_thread(control_plane.restart_scheduler, None)
    await asyncio.to_thread(control_plane.stop_component, "extender")


def start_extender(control_plane: ControlPlane, port: int) -> None:
    env = {
        **os.environ,
        "WHOLENODE_KUBECONFIG": str(control_plane.kubeconfig),
        "WHOLENODE_PORT": str(port),
        "WHOLENODE_LEAVE_SECONDS": "0",
    }
    control_plane.start_process("extender", [sys.executable, "-m", "extender"], env)


async def until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


@pytest.fixture
async def pools(admin: Admin, fleet: Fleet) -> AsyncIterator[tuple[list[str], list[str]]]:
    """Two nodes of a Small pool and two of a WholeNode pool; their names."""
    made = []
    for name, accepts in (("small", "Small"), ("big", "WholeNode")):
        labels = {**fleet.selector, "test-pool": name}
        spec = {"nodeSelector": {"matchLabels": labels}, "accepts": accepts, "cardsPerNode": 8}
        metadata = {"name": f"{fleet.name}-{name}"}
        made.append(
            await admin.create(
                {"apiVersion": "wholenode.io/v1alpha1", "kind": "GPUPool", "metadata": metadata, "spec": spec}
            )
        )
    small = await fleet.add(2, labels={"test-pool": "small"}, suffix="s")
    big = await fleet.add(2, labels={"test-pool": "big"}, suffix="b")
    yield small, big
    for pool in made:
        await admin.delete(f"/apis/wholenode.io/v1alpha1/gpupools/{pool['metadata']['name']}")
