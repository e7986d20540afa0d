"""The extender in the real kube-scheduler: who lands where, who waits with which words, and who is woken."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from cluster import claims, nodes, pods
from cluster.client import Api
from fleet.names import CLAIM_KEY, EXPECTED_RUN
from fleet.objects import Node, Pod
from fleet.resources import ClaimSpec, ClaimStatus, GangRef, HeldNode, Phase, WholeNodeClaim
from kwok import flags
from kwok.admin import Admin
from kwok.binaries import ensure
from kwok.controlplane import SCHEDULER, ControlPlane
from kwok.history import Change, record
from kwok.ports import pick
from kwok.testing import Fleet
from kwok.workloads import make_pod
from tests.extender.conftest import start_extender


async def until_metric(url: str, name: str, condition: Callable[[float], bool]) -> float:
    """Wait until the figure of the extender's line that begins so is as wanted; return it."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.get(f"{url}/metrics") as answer:
                [line] = [one for one in (await answer.text()).splitlines() if one.startswith(name)]
            if condition(found := float(line.rsplit(" ", 1)[1])):
                return found
            await asyncio.sleep(0.02)


async def until_let_through(url: str, pod: bytes, node: str) -> None:
    """Wait until the extender itself would let the pod have the node."""
    question = {"Pod": msgspec.Raw(pod), "NodeNames": [node]}
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.post(f"{url}/v1/filter", data=msgspec.json.encode(question)) as answer:
                if (await answer.json())["NodeNames"] == [node]:
                    return
            await asyncio.sleep(0.02)


def gpu_pod(name: str, namespace: str, fleet: Fleet, cards: int, **more: Any) -> dict[str, Any]:
    return make_pod(name, namespace, cards=cards, node_selector=fleet.selector, **more)


async def place(admin: Admin, pod: dict[str, Any], node: str) -> None:
    """Make the pod on a node, without a scheduler."""
    pod["spec"]["nodeName"] = node
    await admin.create(pod)


async def landed(admin: Admin, namespace: str, name: str) -> str:
    found = await admin.wait_for(
        f"/api/v1/namespaces/{namespace}/pods/{name}",
        lambda pod: pod is not None and bool(pod["spec"].get("nodeName")),
        30,
    )
    assert found is not None
    return str(found["spec"]["nodeName"])


async def refused(admin: Admin, namespace: str, name: str, reason: str = "Unschedulable") -> str:
    """The scheduler's words for a pod it could not place."""

    def said(pod: dict[str, Any] | None) -> bool:
        return not_scheduled(pod or {}).get("reason") == reason

    found = await admin.wait_for(f"/api/v1/namespaces/{namespace}/pods/{name}", said, 30)
    return not_scheduled(found or {})["message"]


def not_scheduled(pod: Mapping[str, Any]) -> dict[str, str]:
    """The condition in which kube-scheduler says why the pod has no node, or an empty one."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"), {})


async def test_p01_small_pods_fill_the_small_pool_only_and_the_rest_wait(
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


async def test_p02_a_whole_node_pod_gets_no_idle_node_of_a_small_pool(
    extender: str, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    _, big = pools
    for number, node in enumerate(big):
        await place(admin, gpu_pod(f"busy{number}", namespace, fleet, 1), node)
    await admin.create(gpu_pod("whole", namespace, fleet, 8))
    said = await refused(admin, namespace, "whole")
    assert "2 Insufficient nvidia.com/gpu" in said, "the busy ones of its own pool"
    assert "2 wholenode: the gang's claim holds no proved empty node yet" in said, "the idle ones of the small pool"
    whole = await admin.get(f"/api/v1/namespaces/{namespace}/pods/whole")
    assert "nodeName" not in whole["spec"]


async def test_p07_small_pods_are_packed(
    extender: str, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    places = []
    free = f'wholenode_extender_cards_free{{pool="{fleet.name}-small"}}'
    for number in range(6):
        await admin.create(gpu_pod(f"p{number}", namespace, fleet, 1))
        places.append(await landed(admin, namespace, f"p{number}"))
        # The scheduler may be a moment ahead of the extender's watch.
        await until_metric(extender, free, lambda cards, used=number + 1: cards == 16 - used)
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
        await place(admin, gpu_pod(f"whole{number}", namespace, fleet, 8), node)
    for number, node in enumerate(small):
        await place(admin, gpu_pod(f"same{number}", namespace, fleet, 8, priority_class=f"{fleet.name}-high"), node)
    await admin.create(gpu_pod("urgent", namespace, fleet, 1, priority_class=f"{fleet.name}-high"))
    await refused(admin, namespace, "urgent")
    await admin.create(make_pod("afterwards", namespace, cards=0, node_selector=fleet.selector))
    await landed(admin, namespace, "afterwards")
    found = await admin.list(f"/api/v1/namespaces/{namespace}/pods")
    assert [pod["metadata"]["name"] for pod in found if pod["metadata"].get("deletionTimestamp")] == []
    await admin.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{fleet.name}-high")


async def test_d10_a_whole_node_pod_waits_for_its_claims_label_and_nobody_else_gets_in(
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


async def test_a_short_job_may_use_a_node_that_is_being_drained_and_nobody_else_may(
    extender: str, api: Api, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    _, (node, _) = pools
    claim = await claims.create_claim(api, namespace, "train", ClaimSpec(nodes=1, gang=GangRef("Gang", "train")))
    held = await nodes.hold(api, await read_node(api, node), claim.metadata.uid)
    ours, everything = {"key": CLAIM_KEY, "operator": "Exists"}, {"operator": "Exists"}
    there = {**fleet.selector, "kubernetes.io/hostname": node}
    asking = {
        name: make_pod(
            name,
            namespace,
            node_selector=there,
            tolerations=[toleration],
            annotations={EXPECTED_RUN: run} if run else {},
        )
        for name, toleration, run in (
            ("short", ours, "1m"),
            ("long", ours, "20m"),
            ("silent", ours, ""),
            ("brazen", everything, "1m"),
        )
    }
    status = ClaimStatus(
        phase=Phase.DRAINING,
        reason="WaitingForVictimsToEnd",
        nodes=(HeldNode(node, held.metadata.uid),),
        drained_by=datetime.now(UTC) + timedelta(minutes=10),
    )
    await claims.write_status(api, claim, status)
    await until_let_through(extender, msgspec.json.encode(asking["short"]), node)
    for pod in asking.values():
        await admin.create(pod)
    assert await landed(admin, namespace, "short") == node
    for name in ("long", "silent", "brazen"):
        assert "1 wholenode: node is held for a whole-node gang" in await refused(admin, namespace, name)


async def test_e15_a_pod_refused_many_times_while_the_fleet_changes_is_told_the_same_words_once(
    extender: str, api: Api, admin: Admin, fleet: Fleet, namespace: str, pools: tuple[list[str], list[str]]
) -> None:
    small, big = pools
    told: list[str] = []

    def note(change: Change) -> None:
        if change.kind == "pods" and change.object["metadata"]["namespace"] == namespace:
            told.append(not_scheduled(change.object).get("message", ""))

    async with record(admin) as history:
        history.listeners.append(note)
        await admin.create(gpu_pod("whole", namespace, fleet, 8))
        assert await history.until(lambda: bool(told) and bool(told[-1]), 30)
        asked = 'wholenode_request_seconds_count{verb="filter"}'
        before = await until_metric(extender, asked, bool)
        for number in range(20):
            if number % 4 == 0:
                gang = GangRef("Gang", f"other{number}")
                claim = await claims.create_claim(api, namespace, f"other{number}", ClaimSpec(nodes=1, gang=gang))
                await claims.write_status(api, claim, ClaimStatus(phase=Phase.READY, reason="Ready"))
            labels = {"touched": str(number)}
            await admin.patch(f"/api/v1/nodes/{(small + big)[number % 4]}", {"metadata": {"labels": labels}})
            before = await until_metric(extender, asked, lambda now, before=before: now > before)
        await history.catch_up()
    assert {one for one in told if one} == {told[-1]}
    assert "4 wholenode: the gang's claim holds no proved empty node yet" in told[-1]
    events = await admin.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=FailedScheduling")
    assert len({one["message"] for one in events}) == 1
    assert len(events) < 5, "they are counted in a series; a few may be under way before it begins"


async def read_node(api: Api, name: str) -> Node:
    return msgspec.json.decode(await api.get(f"/api/v1/nodes/{name}"), type=Node)


@pytest.fixture
def other_scheduler(control_plane: ControlPlane) -> Iterator[str]:
    """A second kube-scheduler, that has never heard of extenders; the name pods choose it by."""
    name, port = "other-scheduler", pick(set())
    stock = yaml.safe_dump({"profiles": [{"schedulerName": name}]})
    config = control_plane.root / f"{name}.yaml"
    config.write_text(flags.scheduler_config(stock, control_plane.kubeconfig), encoding="utf-8")
    binary = ensure((SCHEDULER,))[SCHEDULER]
    control_plane.start_process(name, flags.scheduler(binary, config, port))
    yield name
    control_plane.stop_component(name)


async def test_e19_while_the_extender_is_down_gpu_pods_wait_held_nodes_stay_closed_and_others_start(
    extender: str,
    other_scheduler: str,
    control_plane: ControlPlane,
    api: Api,
    admin: Admin,
    fleet: Fleet,
    namespace: str,
    pools: tuple[list[str], list[str]],
) -> None:
    """The controller's and the extender's own pods ask for no cards, as the pod `cpu` does."""
    (held, open_node), _ = pools
    await nodes.hold(api, await read_node(api, held), "a-claim")
    await asyncio.to_thread(control_plane.stop_component, "extender")
    on_held = {**fleet.selector, "kubernetes.io/hostname": held}
    await admin.create(gpu_pod("gpu", namespace, fleet, 1))
    await admin.create(make_pod("cpu", namespace, cards=0, node_selector=fleet.selector))
    await admin.create(make_pod("cpu-on-held", namespace, cards=0, node_selector=on_held))
    for cards in (1, 8):
        name = f"another-{cards}"
        await admin.create(
            make_pod(name, namespace, cards=cards, node_selector=on_held, scheduler_name=other_scheduler)
        )

    assert extender.removeprefix("http://") in await refused(admin, namespace, "gpu", "SchedulerError")
    assert await landed(admin, namespace, "cpu") != held
    kept_out = ("cpu-on-held", "another-1", "another-8")
    for name in kept_out:
        assert "1 node(s) had untolerated taint" in await refused(admin, namespace, name)

    start_extender(control_plane, int(extender.rsplit(":", 1)[1]))
    assert await landed(admin, namespace, "gpu") == open_node
    for name in kept_out:
        pod = await admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        assert "nodeName" not in pod["spec"]
