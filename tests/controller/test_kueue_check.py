"""The admission check in the controller's hands: its entry is kept as written, and the pods to come are in the view."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.client import Api
from cluster.errors import Conflict, Invalid
from controller.caches import Caches
from controller.hands import Hands
from controller.metrics import Metrics
from fleet.actions import ActivateCheck, SetCheck
from fleet.kueue.expected import is_expected
from fleet.kueue.objects import AdmissionCheck, Workload
from tests.fleet.admissions import check, entry_of, flavor, replace, workload
from tests.fleet.builders import node, pool


@dataclass
class OneObject:
    """An API server with one object, which it answers with after a patch; or it refuses the patch."""

    held: Workload | AdmissionCheck
    refuses: Exception | None = None
    patches: list[tuple[str, Any]] = field(default_factory=list)

    async def patch(self, path: str, body: Any, _kind: str, **_: object) -> bytes:
        self.patches.append((path, json.loads(msgspec.json.encode(body))))
        if self.refuses is not None:
            raise self.refuses
        if isinstance(self.held, Workload):
            entries = (msgspec.convert(body[-1]["value"], type=type(entry_of(self.held))),)
            self.held = replace(self.held, status=replace(self.held.status, admission_checks=entries))
        return msgspec.json.encode(self.held)

    async def get(self, _path: str) -> bytes:
        return msgspec.json.encode(self.held)


def hands(api: OneObject, kept: dict[str, list[Any]]) -> Hands:
    caches: Any = SimpleNamespace(
        workloads=SimpleNamespace(apply=kept.setdefault("workloads", []).append),
        checks=SimpleNamespace(apply=kept.setdefault("checks", []).append),
    )
    server: Any = api
    events: Any = None
    return Hands(server, caches, Metrics(), events, lambda: True)


async def test_what_was_written_is_in_the_cache_at_once() -> None:
    api, kept = OneObject(workload()), {}
    await hands(api, kept).do(SetCheck(workload(), "vacate", "Ready", "n1 is empty"))
    (cached,) = kept["workloads"]
    assert entry_of(cached).state == "Ready"
    ((path, patch),) = api.patches
    assert path == "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-b/workloads/train/status"
    assert patch[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}


@pytest.mark.parametrize("moved", [True, False])
async def test_k04_a_refusal_is_a_conflict_only_if_the_workload_has_changed(*, moved: bool) -> None:
    now = workload()
    now = replace(now, metadata=replace(now.metadata, resource_version="2")) if moved else now
    api, kept = OneObject(now, Invalid("no such entry")), {}
    with pytest.raises(Conflict if moved else Invalid):
        await hands(api, kept).do(SetCheck(workload(), "vacate", "Ready", ""))
    assert kept["workloads"] == []


async def test_a_check_is_made_active() -> None:
    api, kept = OneObject(check()), {}
    await hands(api, kept).do(ActivateCheck(check(active=False)))
    assert kept["checks"] == [check()]
    assert api.patches[0][0] == "/apis/kueue.x-k8s.io/v1beta2/admissionchecks/vacate/status"


async def test_the_view_of_the_caches_has_the_pods_to_come_and_their_own_copy_has_not() -> None:
    caches = Caches(Api.__new__(Api), lambda: None)
    for copy, some in (
        (caches.nodes, [node("n1")]),
        (caches.pools, [pool()]),
        (caches.workloads, [workload()]),
        (caches.flavors, [flavor()]),
        (caches.checks, [check()]),
    ):
        copy.store.update((one.metadata.uid, one) for one in some)
    assert [is_expected(one) for one in caches.view({}).pods.values()] == [True]
    assert caches.pods.store == {}
    caches.checks.store.clear()
    assert not caches.view({}).pods
