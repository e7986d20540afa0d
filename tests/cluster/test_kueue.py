"""Writes to Kueue's objects on a real API server with Kueue's own kinds: what they change, when they are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from cluster.client import Api, connect
from cluster.dumps import read_dump, write_dump
from cluster.errors import Conflict, NotFound
from cluster.facts import whole
from cluster.kueue import activate_check, resume_workload, set_check, stop_workload
from fleet.kueue.expected import is_expected
from fleet.kueue.objects import API_VERSION, DEACTIVATED_FOR, AdmissionCheck, PodSetUpdate, Workload
from fleet.names import CLAIM_KEY, GANG
from fleet.objects import Toleration
from kwok import kueuefiles
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.queues import admission_check, flavor, queued_job
from kwok.served import apply_kinds
from tests.cluster.resources import install_resources
from tests.e2e.play import pool
from tests.fleet.admissions import at_check, pod_set
from tests.fleet.admissions import workload as made
from tests.fleet.builders import node, view

NOW = datetime(2027, 1, 4, 12, 0, tzinfo=UTC)
STAMP = "2027-01-04T11:00:00Z"
USED = {"workloads", "admissionchecks", "resourceflavors"}
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
UPDATE = PodSetUpdate(
    "main",
    annotations={GANG: "train"},
    node_selector={CLAIM_KEY: "uid-1"},
    tolerations=(Toleration(CLAIM_KEY, "Equal", "uid-1", "NoSchedule"),),
)


@pytest.fixture
async def api(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Api]:
    """A client, where Kueue's kinds are served without Kueue; they go with everything of them."""
    await install_resources(admin)
    found = [one for one in await asyncio.to_thread(kueuefiles.crds) if one["spec"]["names"]["plural"] in USED]
    await apply_kinds(admin, found)
    async with connect(str(control_plane.kubeconfig)) as client:
        yield client
    for one in found:
        await admin.delete(f"{KINDS}/{one['metadata']['name']}")


def path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/workloads/train"


async def reserved(admin: Admin, namespace: str, cards: int = 8) -> Workload:
    """A Workload that has its quota and two checks, the second of which is ours."""
    limits = {"limits": {"nvidia.com/gpu": str(cards)}, "requests": {"nvidia.com/gpu": str(cards)}}
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x", "resources": limits}]}
    job = await admin.create(queued_job("train", namespace, cards=cards))
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    await admin.create(
        {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": {"name": "train", "namespace": namespace, "ownerReferences": [owner]},
            "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 2, "template": {"spec": spec}}]},
        }
    )
    assigned = {"name": "main", "count": 2, "flavors": {"nvidia.com/gpu": "rtx"}}
    entry = {"state": "Pending", "message": "", "lastTransitionTime": STAMP}
    condition = {"type": "QuotaReserved", "status": "True", "reason": "x", "message": "", "lastTransitionTime": STAMP}
    status = {
        "conditions": [condition],
        "admission": {"clusterQueue": "team-b", "podSetAssignments": [assigned]},
        "admissionChecks": [{**entry, "name": "another"}, {**entry, "name": "vacate-node", "retryCount": 2}],
    }
    await admin.patch(f"{path(namespace)}/status", {"status": status})
    return await read(admin, namespace)


async def read(admin: Admin, namespace: str) -> Workload:
    return msgspec.convert(await admin.get(path(namespace)), Workload)


async def entries(admin: Admin, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin.get(path(namespace)))["status"]["admissionChecks"]
    return found


async def test_k15_ready_is_one_write_of_our_entry_alone(api: Api, admin: Admin, namespace: str) -> None:
    before = await reserved(admin, namespace)
    written = await set_check(api, before, "vacate-node", "Ready", "n1 is empty", (UPDATE,), NOW)

    another, ours = await entries(admin, namespace)
    assert another == {"name": "another", "state": "Pending", "message": "", "lastTransitionTime": STAMP}
    (update,) = ours.pop("podSetUpdates")
    assert update["nodeSelector"] == {CLAIM_KEY: "uid-1"}
    assert [one["value"] for one in update["tolerations"]] == ["uid-1"]
    assert (ours["state"], ours["message"], ours["retryCount"]) == ("Ready", "n1 is empty", 2)
    assert ours["lastTransitionTime"].startswith("2027-01-04T12:00:00")
    assert written == await read(admin, namespace)


async def test_k06_retry_asks_for_no_delay(api: Api, admin: Admin, namespace: str) -> None:
    """With `requeueAfterSeconds` Kueue would hold the quota until then (kueue#10660)."""
    before = await reserved(admin, namespace)
    await set_check(api, before, "vacate-node", "Retry", "the claim has failed", (), NOW)
    _, ours = await entries(admin, namespace)
    assert ours["state"] == "Retry"
    assert "requeueAfterSeconds" not in ours


async def test_k04_a_write_decided_on_an_older_version_is_a_conflict(api: Api, admin: Admin, namespace: str) -> None:
    before = await reserved(admin, namespace)
    await admin.patch(path(namespace), {"metadata": {"labels": {"changed": "by-kueue"}}})
    with pytest.raises(Conflict):
        await set_check(api, before, "vacate-node", "Ready", "", (UPDATE,), NOW)
    assert [one["state"] for one in await entries(admin, namespace)] == ["Pending", "Pending"]


async def test_k04_so_is_one_whose_entry_has_gone_or_moved(api: Api, admin: Admin, namespace: str) -> None:
    before = await reserved(admin, namespace)
    await admin.patch(f"{path(namespace)}/status", {"status": {"admissionChecks": []}})
    with pytest.raises(Conflict):
        await set_check(api, before, "vacate-node", "Ready", "", (UPDATE,), NOW)
    with pytest.raises(Conflict, match="no entry"):
        await set_check(api, await read(admin, namespace), "vacate-node", "Ready", "", (UPDATE,), NOW)


async def test_k07_a_stop_is_one_write_with_our_mark_on_the_version_that_was_decided_on(
    api: Api, admin: Admin, namespace: str
) -> None:
    before = await reserved(admin, namespace)
    stopped = await stop_workload(api, before, "claim-1")
    assert stopped == await read(admin, namespace)
    assert stopped is not None
    assert (stopped.active, stopped.metadata.annotation(DEACTIVATED_FOR)) == (False, "claim-1")
    assert stopped.status == before.status, "what Kueue says is left alone"
    with pytest.raises(Conflict):
        await stop_workload(api, before, "claim-2")
    with pytest.raises(Conflict, match="inactive already"):
        await stop_workload(api, stopped, "claim-2")
    assert (await read(admin, namespace)).metadata.annotation(DEACTIVATED_FOR) == "claim-1"


async def test_k07_a_stop_that_is_not_allowed_any_more_is_not_sent(api: Api, admin: Admin, namespace: str) -> None:
    before = await reserved(admin, namespace)
    assert await stop_workload(api, before, "claim-1", lambda: False) is None
    assert await read(admin, namespace) == before


async def test_k08_a_resumption_takes_only_our_mark_off(api: Api, admin: Admin, namespace: str) -> None:
    before = await reserved(admin, namespace)
    await admin.patch(path(namespace), {"metadata": {"annotations": {"theirs": "stays"}}})
    stopped = await stop_workload(api, await read(admin, namespace), "claim-1")
    assert stopped is not None
    resumed = await resume_workload(api, stopped)
    assert resumed == await read(admin, namespace)
    assert resumed.active
    assert resumed.metadata.annotations == {"theirs": "stays"}
    with pytest.raises(Conflict):
        await resume_workload(api, stopped)
    assert resumed.status == before.status


async def test_k07_one_made_anew_under_its_name_is_neither_stopped_nor_resumed(
    api: Api, admin: Admin, namespace: str
) -> None:
    before = await reserved(admin, namespace)
    await admin.delete(path(namespace))
    with pytest.raises(NotFound):
        await stop_workload(api, before, "claim-1")
    await admin.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/train")
    after = await reserved(admin, namespace)
    with pytest.raises(Conflict):
        await stop_workload(api, before, "claim-1")
    with pytest.raises(Conflict):
        await resume_workload(api, before)
    assert await read(admin, namespace) == after


async def test_our_check_becomes_active_once(api: Api, admin: Admin) -> None:
    await admin.create(admission_check())
    where = f"/apis/{API_VERSION}/admissionchecks/vacate-node"
    seen = msgspec.convert(await admin.get(where), AdmissionCheck)
    await activate_check(api, seen, NOW)
    (condition,) = (await admin.get(where))["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Active", "True")
    with pytest.raises(Conflict):
        await activate_check(api, seen, NOW)


async def test_what_is_read_at_once_and_what_is_kept_in_a_file_know_the_pods_to_come(
    api: Api, admin: Admin, namespace: str
) -> None:
    await admin.create(pool(f"of-{namespace}", 8, accepts="WholeNode"))
    await admin.create(admission_check())
    await admin.create(flavor("rtx"))
    await reserved(admin, namespace)
    assert not any(map(is_expected, (await whole(api)).view.pods.values())), "another's check comes first"
    passed = [{**one, "state": "Ready"} if one["name"] == "another" else one for one in await entries(admin, namespace)]
    await admin.patch(f"{path(namespace)}/status", {"status": {"admissionChecks": passed}})
    seen = (await whole(api)).view
    coming = sorted(pod.key for pod in seen.pods.values() if is_expected(pod))
    assert coming == [f"{namespace}/train-main-0", f"{namespace}/train-main-1"]

    data = write_dump(seen, NOW)
    assert b"expected/" not in data, "only what is there is written down"
    again = read_dump(data).view
    assert sorted(pod.key for pod in again.pods.values() if is_expected(pod)) == coming
    await admin.delete(f"/apis/wholenode.io/v1alpha1/gpupools/of-{namespace}")


def test_annotations_of_templates_that_nothing_reads_are_left_out_of_a_file() -> None:
    template = pod_set(notes={"example.com/secret": "PASSWORD=1"})
    data = write_dump(at_check(view(node("n1")), made("train", template)), NOW)
    assert b"PASSWORD" not in data
    assert b"wholenode.io/policy" in data
