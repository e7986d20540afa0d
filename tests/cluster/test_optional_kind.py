"""A kind that a cluster need not serve, on a real API server: synced while absent, followed once its CRD is there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cluster import reflector
from cluster.client import connect
from cluster.reflector import Reflector
from fleet.names import COSCHEDULING_API
from fleet.objects import CoschedulingGroup
from kwok.admin import Admin
from kwok.controlplane import ControlPlane

NAME = f"podgroups.{COSCHEDULING_API}"
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    # The group belongs to the Kubernetes project, whose API server asks for this annotation.
    "metadata": {"name": NAME, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test only"}},
    "spec": {
        "group": COSCHEDULING_API,
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"minMember": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
async def groups(
    control_plane: ControlPlane, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reflector[CoschedulingGroup]]:
    """A running copy of all PodGroups; the kind is removed from the cluster afterwards."""
    monkeypatch.setattr(reflector, "_ASK_AGAIN_SECONDS", 0.1)
    path = f"/apis/{COSCHEDULING_API}/v1alpha1/podgroups"
    async with connect(str(control_plane.kubeconfig)) as api:
        copy = Reflector(api, path, CoschedulingGroup, optional=True)
        task = asyncio.create_task(copy.run())
        yield copy
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await admin.delete(CRD_PATH)


async def until(copy: Reflector[CoschedulingGroup], holds: Callable[[], bool]) -> None:
    """Wait until a change of the copy makes it true."""
    changed = asyncio.Event()
    copy.listeners.append(lambda _old, _new: changed.set())
    async with asyncio.timeout(60):
        while not holds():
            await changed.wait()
            changed.clear()


def _established(crd: dict[str, Any] | None) -> bool:
    conditions = (crd or {}).get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


async def test_a_kind_is_empty_while_it_is_not_served_and_followed_from_when_it_is_until_it_goes(
    groups: Reflector[CoschedulingGroup], admin: Admin, namespace: str
) -> None:
    async with asyncio.timeout(60):
        await groups.synced.wait()
    assert groups.store == {}

    await admin.create(CRD)
    await admin.wait_for(CRD_PATH, _established, 30)
    group = {"apiVersion": f"{COSCHEDULING_API}/v1alpha1", "kind": "PodGroup", "spec": {"minMember": 4}}
    await admin.create({**group, "metadata": {"name": "train", "namespace": namespace}})
    await until(groups, lambda: groups.find(namespace, "train") is not None)
    (seen,) = groups.store.values()
    assert seen.spec.min_member == 4

    await admin.delete(CRD_PATH)
    await until(groups, lambda: groups.store == {})
