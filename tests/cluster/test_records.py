"""Drain records on a real API server: written once, resolved once, deleted by UID."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from cluster.claims import collection_path, object_path
from cluster.client import Api, connect
from cluster.errors import Conflict, Invalid, NotFound
from cluster.listing import ObjectDecoder, list_all
from cluster.pods import ask_checkpoint
from cluster.records import create_record, delete_record, resolve_record
from fleet.names import CHECKPOINT_REQUESTED
from fleet.objects import Pod
from fleet.records import record_of
from fleet.resources import DrainRecord, Outcome, RecordStatus, Victim
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.workloads import make_pod
from tests.cluster.resources import install_resources
from tests.fleet.builders import agreement, at, claim

replace = msgspec.structs.replace


@pytest.fixture
async def api(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Api]:
    await install_resources(admin)
    async with connect(str(control_plane.kubeconfig)) as client:
        yield client


def intention(namespace: str, *, lost: float = 12.5) -> DrainRecord:
    victim = Victim(namespace, "v", "u-1", "n1", 1, agreement="yes", lost_gpu_seconds=lost, evicted_at=at(0.123456))
    return record_of(claim(), victim, "train", agreement(), at(1))


async def test_a_record_is_one_however_often_it_is_written(api: Api, namespace: str) -> None:
    both = await asyncio.gather(*(create_record(api, intention(namespace)) for _ in range(2)))
    assert both[0] == both[1] == await create_record(api, intention(namespace))
    assert both[0].spec == intention(namespace).spec, "times keep their microseconds"
    assert both[0].status.outcome is Outcome.PENDING
    found, _ = await list_all(api, collection_path(DrainRecord, namespace), ObjectDecoder(DrainRecord), {})
    assert list(found) == [both[0]]


async def test_a_name_that_says_something_else_is_told(api: Api, namespace: str) -> None:
    await create_record(api, intention(namespace, lost=0))
    with pytest.raises(Conflict, match="says something else"):
        await create_record(api, intention(namespace))


async def test_the_server_refuses_a_change_of_what_was_written(api: Api, namespace: str) -> None:
    made = await create_record(api, intention(namespace))
    with pytest.raises(Invalid, match="never changed"):
        await api.patch(object_path(made), {"spec": {"lostGpuSeconds": 0}}, "merge")


async def test_a_record_is_resolved_once(api: Api, namespace: str) -> None:
    made = await create_record(api, intention(namespace))
    resolved = await resolve_record(api, made, RecordStatus(Outcome.STOPPED, at(9)))
    assert resolved.status == RecordStatus(Outcome.STOPPED, at(9))
    assert resolved.spec == made.spec
    for stale in (made, resolved):
        with pytest.raises(Conflict):
            await resolve_record(api, stale, RecordStatus(Outcome.SPARED, at(10)))
    assert (await create_record(api, intention(namespace))).status.outcome is Outcome.STOPPED


async def test_only_this_very_record_is_deleted(api: Api, namespace: str) -> None:
    made = await create_record(api, intention(namespace))
    with pytest.raises(Conflict):
        await delete_record(api, replace(made, metadata=replace(made.metadata, uid="another")))
    await delete_record(api, made)
    with pytest.raises(NotFound):
        await delete_record(api, made)


async def test_a_checkpoint_is_asked_of_this_very_pod(api: Api, admin: Admin, namespace: str) -> None:
    await admin.create(make_pod("p", namespace))
    path = f"/api/v1/namespaces/{namespace}/pods/p"
    pod = msgspec.json.decode(await api.get(path), type=Pod)
    assert (await ask_checkpoint(api, pod, "now")).metadata.annotation(CHECKPOINT_REQUESTED) == "now"
    namesake = replace(pod, metadata=replace(pod.metadata, uid="another"))
    with pytest.raises(NotFound):
        await ask_checkpoint(api, namesake, "later")
    assert msgspec.json.decode(await api.get(path), type=Pod).metadata.annotation(CHECKPOINT_REQUESTED) == "now"
