"""The real Kueue in the lab: it admits, its webhooks are called, it comes and goes; where its manifests come from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kwok import kueue, kueuefiles
from kwok.admin import Admin, APIError, Object, create_all
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.kueue import JOBSET, Kueue
from kwok.nodes import make_nodes
from kwok.queues import cluster_queue, flavor, local_queue, pod_group, queued_job, queued_pod
from kwok.workloads import make_pod
from tests.e2e.conftest import running_plane

PODS = "/api/v1/namespaces/{}/pods"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane that all tests here share: Kueue's webhooks are nothing for other tests."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Kueue]:
    """Kueue on it, and two nodes of 8 cards."""
    kueue = Kueue(plane, frameworks=("batch/job", "pod", JOBSET))

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await kueue.install(admin)
            await kueue.start()
            await create_all(admin, make_nodes(2, 8))
            await admin.create(flavor("cards"))

    asyncio.run(start())
    yield kueue
    asyncio.run(kueue.stop())


@pytest.fixture
async def admin(running: Kueue, plane: ControlPlane) -> AsyncIterator[Admin]:
    """A client with every right."""
    async with Admin(plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def queue(admin: Admin, namespace: str) -> str:
    """The test's namespace, with a queue of 16 cards of its own: nobody waits for what another test leaves."""
    await create_all(admin, [cluster_queue(namespace, "cards", 16), local_queue(namespace, namespace)])
    return namespace


async def all_run(admin: Admin, namespace: str, count: int) -> dict[str, Object]:
    """Wait until so many pods of the namespace run."""
    return await admin.wait_for_all(
        PODS.format(namespace),
        lambda pods: len(pods) == count and all(one["status"].get("phase") == "Running" for one in pods.values()),
    )


def gates(pod: Object) -> set[str]:
    return {one["name"] for one in pod["spec"].get("schedulingGates", ())}


async def test_a_job_is_admitted_and_runs_within_the_quota(admin: Admin, queue: str) -> None:
    await create_all(admin, [queued_job(f"job-{index}", queue, cards=8) for index in range(3)], parallel=1)
    await all_run(admin, queue, 2)
    workloads = await admin.wait_for_all(
        f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{queue}/workloads", lambda found: len(found) == 3
    )
    waiting = [one for one in workloads.values() if "admission" not in one.get("status", {})]
    assert len(waiting) == 1


async def test_its_webhooks_are_called_for_jobs_and_for_pods(admin: Admin, queue: str) -> None:
    job = queued_job("unsuspended", queue)
    job["spec"]["suspend"] = False
    made = await admin.create(job)
    assert made["spec"]["suspend"]
    pod = await admin.create(queued_pod("plain", queue))
    assert "kueue.x-k8s.io/admission" in gates(pod)
    assert pod["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    assert not gates(await admin.create(make_pod("other", queue)))
    await create_all(admin, pod_group("group", queue, 2))
    await all_run(admin, queue, 5)


async def test_stopped_it_is_in_nobodys_way_and_started_again_it_goes_on(
    admin: Admin, queue: str, running: Kueue
) -> None:
    await running.stop()
    assert not running.running
    await admin.create(queued_job("meanwhile", queue))
    assert not gates(await admin.create(queued_pod("ungated", queue)))
    await running.start()
    await all_run(admin, queue, 2)
    assert "kueue.x-k8s.io/admission" in gates(await admin.create(queued_pod("gated", queue)))
    with pytest.raises(LabError, match="already running"):
        await running.start()


async def test_killed_it_is_missed_until_it_is_back(admin: Admin, queue: str, running: Kueue) -> None:
    running.kill()
    with pytest.raises(APIError, match=r"mpod\.kb\.io"):
        await admin.create(queued_pod("plain", queue))
    with pytest.raises(LabError, match="not running"):
        running.kill()
    await running.start()
    await admin.create(queued_pod("plain", queue))
    await all_run(admin, queue, 1)


async def test_a_kueue_that_ends_at_its_start_says_why(plane: ControlPlane, running: Kueue) -> None:
    await running.stop()
    wrong = Kueue(plane, overrides={"integrations": {"frameworks": ["no/such"]}})
    with pytest.raises(LabError, match=r"Kueue is not ready: .*no/such"):
        await wrong.start()
    await running.start()


def test_the_manifests_are_copied_once_and_the_copy_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueuefiles, "cache_dir", lambda: tmp_path)
    kueuefiles.keep()
    monkeypatch.setattr(kueuefiles, "module_dir", lambda *_: pytest.fail("the sources were looked for again"))
    found = kueuefiles.crds()
    assert {one["spec"]["names"]["kind"] for one in found} >= {"Workload", "ClusterQueue", "AdmissionCheck"}
    assert {one["kind"] for one in kueuefiles.webhooks()} == {
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    }
    assert {one["spec"]["names"]["kind"] for one in kueuefiles.crds(kueuefiles.JOBSET)} == {"JobSet"}
    copy = next((tmp_path / "manifests").glob("kueue-*.json"))
    copy.write_text("[", encoding="utf-8")
    with pytest.raises(LabError, match="remove it"):
        kueuefiles.crds()


def test_sources_without_kinds_are_no_sources(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueuefiles, "module_dir", lambda *_: tmp_path)
    with pytest.raises(LabError, match="not whole"):
        kueuefiles.crds()
    assert not list(own_cache.rglob("*.json"))


def test_where_its_metrics_key_cannot_be_written_the_way_out_is_told(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kueue, "METRICS_CERTIFICATES", tmp_path / "file" / "certs")
    with pytest.raises(LabError, match="sudo install -d"):
        Kueue(plane).launch()
