"""The extender in the real kube-scheduler: who lands where, who waits with which words, and who is woken."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from cluster import claims, nodes, pods
from cluster.client import Api, connect
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod
from fleet.resources import ClaimSpec, ClaimStatus, GangRef, Phase, WholeNodeClaim
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.ports import pick
from kwok.testing import Fleet
from kwok.workloads import make_pod
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
    env = {**os.environ, "WHOLENODE_KUBECONFIG": str(control_plane.kubeconfig), "WHOLENODE_PORT": str(port)}
    control_plane.start_process("extender", [sys.executable, "-m", "extender"], env)
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


async def until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


async def until_let_through(url: str, pod: bytes, node: str) -> None:
    """Wait until the extender itself would let the pod have the node."""
    question = {"Pod": msgspec.Raw(pod), "NodeNames": [node]}
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.post(f"{url}/v1/filter", data=msgspec.json.encode(question)) as answer:
                if (await answer.json())["NodeNames"] == [node]:
                    return
            await asyncio.sleep(0.02)


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


def gpu_pod(name: str, namespace: str, fleet: Fleet, cards: int, **more: Any) -> dict[str, Any]:
    return make_pod(name, namespace, cards=cards, node_selector=fleet.selector, **more)


async def landed(admin: Admin, namespace: str, name: str) -> str:
    found = await admin.wait_for(
        f"/api/v1/namespaces/{namespace}/pods/{name}",
        lambda pod: pod is not None and bool(pod["spec"].get("nodeName")),
        30,
    )
    assert found is not None
    return str(found["spec"]["nodeName"])


async def refused(admin: Admin, namespace: str, name: str) -> str:
    """The scheduler's words for a pod it could not place."""

    def said(pod: dict[str, Any] | None) -> bool:
        conditions = (pod or {}).get("status", {}).get("conditions") or []
        return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)

    found = await admin.wait_for(f"/api/v1/namespaces/{namespace}/pods/{name}", said, 30)
    assert found is not None
    return str(next(one["message"] for one in found["status"]["conditions"] if one["type"] == "PodScheduled"))


async def test_p01_p02_small_pods_fill_the_small_pool_only_and_the_rest_wait(
    extender: str, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    small, _ = pools
    for number in range(16):
        await admin.create(gpu_pod(f"p{number}", namespace, fleet, 1))
    assert {await landed(admin, namespace, f"p{number}") for number in range(16)} == set(small)
    await admin.create(gpu_pod("one-more", namespace, fleet, 1))
    assert "2 wholenode: node is kept for whole-node gangs" in await refused(admin, namespace, "one-more")
    await admin.create(gpu_pod("whole", namespace, fleet, 8))
    assert "2 wholenode: the gang's claim holds no proved empty node yet" in await refused(admin, namespace, "whole")


async def test_p07_small_pods_are_packed(
    extender: str, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    places = []
    for number in range(6):
        await admin.create(gpu_pod(f"p{number}", namespace, fleet, 1))
        places.append(await landed(admin, namespace, f"p{number}"))
        async with aiohttp.ClientSession() as session, asyncio.timeout(30):
            used = 0.0
            while used != number + 1:  # the scheduler may be a moment ahead of the extender's watch
                async with session.get(f"{extender}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                free = [line for line in lines if line.startswith("wholenode_extender_cards_free") and "-small" in line]
                used = 16 - float(free[0].rsplit(" ", 1)[1])
    assert len(set(places)) == 1


async def test_e16_a_high_priority_small_pod_stops_nobody_on_whole_nodes(
    extender: str, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    small, big = pools
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"{fleet.name}-high"},
        "value": 1000,
    }
    await admin.create(priority)
    for number, node in enumerate(big):
        manifest = gpu_pod(f"whole{number}", namespace, fleet, 8)
        manifest["spec"]["nodeName"] = node
        await admin.create(manifest)
    for number, node in enumerate(small):
        manifest = gpu_pod(f"same{number}", namespace, fleet, 8, priority_class=f"{fleet.name}-high")
        manifest["spec"]["nodeName"] = node
        await admin.create(manifest)
    await admin.create(gpu_pod("urgent", namespace, fleet, 1, priority_class=f"{fleet.name}-high"))
    await refused(admin, namespace, "urgent")
    await admin.create(make_pod("afterwards", namespace, cards=0, node_selector=fleet.selector))
    await landed(admin, namespace, "afterwards")
    found = await admin.list(f"/api/v1/namespaces/{namespace}/pods")
    assert [pod["metadata"]["name"] for pod in found if pod["metadata"].get("deletionTimestamp")] == []
    await admin.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{fleet.name}-high")


async def test_e18_a_whole_node_pod_waits_for_its_claims_label_and_nobody_else_gets_in(
    extender: str, api: Api, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    _, big = pools
    claim = await claims.create_claim(api, namespace, "train", ClaimSpec(nodes=1, gang=GangRef("Gang", "train")))
    uid = claim.metadata.uid
    toleration = {"key": CLAIM_KEY, "operator": "Equal", "value": uid, "effect": "NoSchedule"}
    await admin.create(gpu_pod("mine", namespace, fleet, 8, gang=("train", 1), tolerations=[toleration]))
    await refused(admin, namespace, "mine")

    node = await nodes.hold(api, await read_node(api, big[0]), uid)
    claim = await claims.write_status(api, claim, ClaimStatus(phase=Phase.READY, reason="Ready"))
    everything = [{"operator": "Exists"}]
    await admin.create(gpu_pod("stranger", namespace, fleet, 8, gang=("other", 1), tolerations=everything))
    await refused(admin, namespace, "stranger")
    await nodes.release_to(api, node, uid)
    # The scheduler may have asked before the extender saw the label, and nothing would make it ask again.
    mine = await api.get(f"/api/v1/namespaces/{namespace}/pods/mine")
    await until_let_through(extender, mine, big[0])
    await pods.poke(api, msgspec.json.decode(mine, type=Pod), "1")
    assert await landed(admin, namespace, "mine") == big[0]

    await admin.delete(f"/api/v1/namespaces/{namespace}/pods/mine", grace_seconds=0)
    await admin.create(gpu_pod("intruder", namespace, fleet, 1, tolerations=everything))
    assert await landed(admin, namespace, "intruder") in pools[0]
    stranger = await admin.get(f"/api/v1/namespaces/{namespace}/pods/stranger")
    assert "nodeName" not in stranger["spec"]
    assert isinstance(claim, WholeNodeClaim)


async def read_node(api: Api, name: str) -> Node:
    return msgspec.json.decode(await api.get(f"/api/v1/nodes/{name}"), type=Node)


async def test_e19_while_the_extender_is_down_cpu_pods_start_and_gpu_pods_are_bound_afterwards(
    extender: str,
    control_plane: ControlPlane,
    admin: Admin,
    fleet: Fleet,
    namespace: str,
    pools: tuple[list[str], list[str]],
) -> None:
    await asyncio.to_thread(control_plane.stop_component, "extender")
    await admin.create(gpu_pod("gpu", namespace, fleet, 1))
    await admin.create(make_pod("cpu", namespace, cards=0, node_selector=fleet.selector))
    await landed(admin, namespace, "cpu")
    gpu = await admin.get(f"/api/v1/namespaces/{namespace}/pods/gpu")
    assert "nodeName" not in gpu["spec"]
    port = extender.rsplit(":", 1)[1]
    env = {**os.environ, "WHOLENODE_KUBECONFIG": str(control_plane.kubeconfig), "WHOLENODE_PORT": port}
    control_plane.start_process("extender", [sys.executable, "-m", "extender"], env)
    await until_ready(extender)
    assert await landed(admin, namespace, "gpu") in pools[0]
