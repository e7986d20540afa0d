"""A pod's life on fake nodes: exact run time, slow and stuck ends, cordon, jobs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from kwok.admin import Admin, create_all
from kwok.controlplane import KWOK, ControlPlane
from kwok.nodes import is_ready
from kwok.stages import FINISH_AT, NODE_DOWN, STUCK
from kwok.testing import Fleet
from kwok.workloads import Manifest, make_job, make_pod


def phase(name: str) -> Any:
    return lambda pod: pod is not None and pod.get("status", {}).get("phase") == name


def gone(pod: Any) -> bool:
    return pod is None


def instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


async def test_fifty_nodes_become_ready_and_take_pods(admin: Admin, fleet: Fleet, namespace: str) -> None:
    nodes = await fleet.add(50)
    assert len(set(nodes)) == 50
    await create_all(admin, [make_pod(f"p{i}", namespace, cards=8, node_selector=fleet.selector) for i in range(50)])
    found = await admin.wait_for_all(
        f"/api/v1/namespaces/{namespace}/pods",
        lambda pods: len(pods) == 50 and all(phase("Running")(pod) for pod in pods.values()),
        timeout_seconds=180,
    )
    assert sorted(pod["spec"]["nodeName"] for pod in found.values()) == sorted(nodes)


async def test_a_pod_runs_exactly_as_long_as_it_says(admin: Admin, fleet: Fleet, namespace: str) -> None:
    await fleet.add(1)
    path = f"/api/v1/namespaces/{namespace}/pods/p"
    await admin.create(make_pod("p", namespace, duration_seconds=3, node_selector=fleet.selector))
    await admin.wait_for(path, phase("Running"))
    # An update of a running pod must not lengthen it.
    await admin.patch(path, {"metadata": {"labels": {"touched": "yes"}}})
    pod = await admin.wait_for(path, phase("Succeeded"))
    assert pod is not None
    finish = instant(pod["metadata"]["annotations"][FINISH_AT])
    started = instant(pod["status"]["startTime"])
    ended = instant(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])
    # Status times have whole seconds; the annotation is exact.
    assert dt.timedelta(seconds=3) <= finish - started < dt.timedelta(seconds=4.5)
    assert ended >= finish.replace(microsecond=0)


async def test_a_job_succeeds_when_its_pods_are_done(admin: Admin, fleet: Fleet, namespace: str) -> None:
    await fleet.add(2)
    job = make_job("j", namespace, pods=2, cards=8, duration_seconds=1, node_selector=fleet.selector)
    await admin.create(job)
    done = await admin.wait_for(
        f"/apis/batch/v1/namespaces/{namespace}/jobs/j", lambda j: j is not None and "completionTime" in j["status"]
    )
    assert done is not None
    assert done["status"]["succeeded"] == 2


async def test_a_slow_end_takes_its_time(admin: Admin, fleet: Fleet, namespace: str) -> None:
    await fleet.add(1)
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name, delay in (("slow", "4s"), ("quick", None)):
        pod = make_pod(name, namespace, term_delay=delay, grace_seconds=30, node_selector=fleet.selector)
        await admin.create(pod)
        await admin.wait_for(f"{path}/{name}", phase("Running"))
    # The slow one is asked to end first, and ends last.
    await admin.evict(namespace, "slow")
    await admin.evict(namespace, "quick")
    await admin.wait_for(f"{path}/quick", gone)
    slow = await admin.get(f"{path}/slow")
    assert slow["status"]["phase"] == "Running"
    assert "deletionTimestamp" in slow["metadata"]
    await admin.wait_for(f"{path}/slow", gone)


async def test_a_stuck_pod_stays(admin: Admin, fleet: Fleet, namespace: str) -> None:
    await fleet.add(1)
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name, delay in (("stuck", STUCK), ("after", "1s")):
        await admin.create(make_pod(name, namespace, term_delay=delay, node_selector=fleet.selector))
        await admin.wait_for(f"{path}/{name}", phase("Running"))
    await admin.delete(f"{path}/stuck")
    await admin.delete(f"{path}/after")
    await admin.wait_for(f"{path}/after", gone)
    assert (await admin.get(f"{path}/stuck"))["status"]["phase"] == "Running"


async def test_a_pod_runs_however_early_it_is_put_onto_its_node(
    control_plane: ControlPlane, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    control_plane.stop_component(KWOK)
    control_plane.start_component(KWOK, wait=False)
    for turn in range(10):
        nodes = await fleet.add(20, suffix=f"early{turn}")
        await create_all(admin, [put(make_pod(f"on-{node}", namespace, cards=1), node) for node in nodes])
    await admin.wait_for_all(
        f"/api/v1/namespaces/{namespace}/pods",
        lambda pods: len(pods) == 200 and all(phase("Running")(pod) for pod in pods.values()),
    )


def put(pod: Manifest, node: str) -> Manifest:
    """The pod, bound to the node by hand."""
    pod["spec"]["nodeName"] = node
    return pod


async def test_a_node_made_anew_under_its_name_is_served(admin: Admin, fleet: Fleet, namespace: str) -> None:
    for turn in range(3):
        [node] = await fleet.add(1)
        await admin.create(put(make_pod(f"p{turn}", namespace, cards=1), node))
        await admin.wait_for(f"/api/v1/namespaces/{namespace}/pods/p{turn}", phase("Running"))
        await admin.delete(f"/api/v1/namespaces/{namespace}/pods/p{turn}", grace_seconds=0)
        await admin.delete(f"/api/v1/nodes/{node}")


async def test_a_cordoned_node_is_tainted_and_freed_again(admin: Admin, fleet: Fleet) -> None:
    [node] = await fleet.add(1)

    def taints(found: Any) -> set[str]:
        return {taint["key"] for taint in found["spec"].get("taints", ())}

    path = f"/api/v1/nodes/{node}"
    await admin.patch(path, {"spec": {"unschedulable": True}})
    await admin.wait_for(path, lambda n: "node.kubernetes.io/unschedulable" in taints(n))
    await admin.patch(path, {"spec": {"unschedulable": None}})
    await admin.wait_for(path, lambda n: not taints(n))


async def test_a_node_can_be_taken_down(admin: Admin, fleet: Fleet) -> None:
    [node] = await fleet.add(1)
    path = f"/api/v1/nodes/{node}"
    await admin.patch(path, {"metadata": {"annotations": {NODE_DOWN: "yes"}}})
    down = {"type": "Ready", "status": "False", "reason": "Test", "message": "down"}
    await admin.patch(f"{path}/status", {"status": {"conditions": [down]}}, "strategic")

    def tainted(found: Any) -> bool:
        return any(t["key"] == "node.kubernetes.io/not-ready" for t in found["spec"].get("taints", ()))

    await admin.wait_for(path, tainted)
    await admin.patch(path, {"metadata": {"annotations": {NODE_DOWN: None}}})
    await admin.wait_for(path, lambda found: found is not None and is_ready(found))


@pytest.mark.parametrize("outcome", ["failed"])
async def test_a_pod_can_be_told_to_fail(admin: Admin, fleet: Fleet, namespace: str, outcome: str) -> None:
    await fleet.add(1)
    pod = make_pod("p", namespace, duration_seconds=0.5, annotations={"sim.wholenode.io/outcome": outcome})
    pod["spec"]["nodeSelector"] = fleet.selector
    await admin.create(pod)
    ended = await admin.wait_for(f"/api/v1/namespaces/{namespace}/pods/p", phase("Failed"))
    assert ended is not None
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1
