"""Every write of `cluster`, against a real API server: what it changes, what it leaves alone, what it refuses."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from cluster import claims, events, nodes, pods
from cluster.client import Api, connect
from cluster.errors import (
    AlreadyExists,
    Conflict,
    DisruptionBudgetRefused,
    HeldByAnother,
    Invalid,
    NotFound,
    NotHeld,
    SeveralBudgets,
)
from cluster.listing import ObjectDecoder, list_all
from cluster.pods import EvictOutcome
from fleet.names import CLAIM_KEY, POKE, SHIELD
from fleet.objects import Node, Pod
from fleet.resources import ClaimSpec, ClaimStatus, GangRef, Phase, PhaseTime, Policy, WholeNodeClaim
from fleet.shields import ANNOTATIONS
from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.testing import Fleet
from kwok.workloads import make_pod
from tests.cluster.resources import install_resources

OURS = "11111111-aaaa-4aaa-8aaa-000000000001"
OTHER = "22222222-bbbb-4bbb-8bbb-000000000002"


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with connect(str(control_plane.kubeconfig)) as client:
        yield client


async def read_node(api: Api, name: str) -> Node:
    return msgspec.json.decode(await api.get(f"/api/v1/nodes/{name}"), type=Node)


async def read_pod(api: Api, namespace: str, name: str) -> Pod:
    return msgspec.json.decode(await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}"), type=Pod)


def taints(node: Node) -> list[tuple[str, str | None, str]]:
    return [(taint.key, taint.value, taint.effect) for taint in node.spec.taints or ()]


# Nodes


async def test_hold_adds_our_taint_and_keeps_the_others_with_every_field(api: Api, admin: Admin, fleet: Fleet) -> None:
    (name,) = await fleet.add(1)
    foreign = [
        {"key": "team", "value": "x", "effect": "NoSchedule"},
        {"key": "slow", "effect": "PreferNoSchedule", "timeAdded": "2026-01-02T03:04:05Z"},
    ]
    await admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": foreign}})
    held = await nodes.hold(api, await read_node(api, name), OURS)
    assert taints(held) == [
        ("team", "x", "NoSchedule"),
        ("slow", None, "PreferNoSchedule"),
        (CLAIM_KEY, OURS, "NoSchedule"),
    ]
    assert (await admin.get(f"/api/v1/nodes/{name}"))["spec"]["taints"][:2] == foreign

    again = await nodes.hold(api, held, OURS)
    assert again.metadata.resource_version == held.metadata.resource_version

    opened = await nodes.release_to(api, held, OURS)
    assert opened.metadata.label(CLAIM_KEY) == OURS

    cleared = await nodes.clear(api, opened, OURS)
    assert taints(cleared) == [("team", "x", "NoSchedule"), ("slow", None, "PreferNoSchedule")]
    assert cleared.metadata.label(CLAIM_KEY) is None
    assert (await admin.get(f"/api/v1/nodes/{name}"))["spec"]["taints"] == foreign


async def test_n11_the_shield_comes_and_goes_with_the_taint_in_one_write_and_foreign_annotations_stay(
    api: Api, admin: Admin, fleet: Fleet
) -> None:
    (name,) = await fleet.add(1)
    down, karpenter = ANNOTATIONS
    before = {down: "true", "example.com/a": "x"}
    await admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": before}})
    started = await read_node(api, name)
    at_first = started.metadata.annotations or {}
    held = await nodes.hold(api, started, OURS)
    assert held.metadata.annotations == {**at_first, karpenter: "true", SHIELD: f"{OURS}:{karpenter}"}
    assert taints(held) == [(CLAIM_KEY, OURS, "NoSchedule")]

    opened = await nodes.release_to(api, held, OURS)
    kept = await nodes.clear(api, opened, OURS, label_stays=True)
    assert (taints(kept), kept.metadata.annotations) == ([], at_first)
    assert kept.metadata.label(CLAIM_KEY) == OURS
    assert (await nodes.clear(api, kept, OURS)).metadata.label(CLAIM_KEY) is None

    again = await nodes.hold(api, await read_node(api, name), OURS)
    await admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {karpenter: "false"}}})
    left = await nodes.clear(api, again, OURS)
    assert left.metadata.annotations == {**at_first, karpenter: "false"}, "what somebody changed meanwhile is theirs"


async def test_the_label_of_a_gang_that_runs_there_keeps_nobody_from_holding_the_node_and_is_replaced(
    api: Api, fleet: Fleet
) -> None:
    (name,) = await fleet.add(1)
    served = await nodes.clear(
        api,
        await nodes.release_to(api, await nodes.hold(api, await read_node(api, name), OTHER), OTHER),
        OTHER,
        label_stays=True,
    )
    held = await nodes.hold(api, served, OURS)
    assert (taints(held), held.metadata.label(CLAIM_KEY)) == ([(CLAIM_KEY, OURS, "NoSchedule")], OTHER)
    opened = await nodes.release_to(api, held, OURS)
    assert opened.metadata.label(CLAIM_KEY) == OURS
    late = await nodes.clear(api, held, OTHER)
    assert late.metadata.label(CLAIM_KEY) == OURS, "the sweep of the earlier one comes too late and changes nothing"


async def test_a_stale_view_of_the_node_is_read_again_and_decided_again(api: Api, admin: Admin, fleet: Fleet) -> None:
    (name,) = await fleet.add(1)
    stale = await read_node(api, name)
    await admin.patch(
        f"/api/v1/nodes/{name}", {"spec": {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}}
    )
    held = await nodes.hold(api, stale, OURS)
    assert taints(held) == [("team", "x", "NoSchedule"), (CLAIM_KEY, OURS, "NoSchedule")]
    ours = {"key": CLAIM_KEY, "value": OURS, "effect": "NoSchedule"}
    await admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [ours, {"key": "b", "effect": "NoSchedule"}]}})
    assert taints(await nodes.clear(api, held, OURS)) == [("b", None, "NoSchedule")]
    await admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    assert taints(await nodes.clear(api, held, OURS)) == []


async def test_d43_a_node_of_another_claim_is_refused_even_from_a_stale_view(api: Api, fleet: Fleet) -> None:
    (name,) = await fleet.add(1)
    free = await read_node(api, name)
    results = await asyncio.gather(nodes.hold(api, free, OURS), nodes.hold(api, free, OTHER), return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["HeldByAnother", "Node"]
    holder = next(taint.value for taint in (await read_node(api, name)).spec.taints or () if taint.key == CLAIM_KEY)
    loser = OTHER if holder == OURS else OURS
    held = await read_node(api, name)
    with pytest.raises(HeldByAnother):
        await nodes.release_to(api, held, loser)
    assert (await nodes.clear(api, held, loser)).metadata.resource_version == held.metadata.resource_version
    assert [taint.value for taint in (await read_node(api, name)).spec.taints or ()] == [holder]


async def test_a_node_without_our_taint_is_not_opened(api: Api, fleet: Fleet) -> None:
    (name,) = await fleet.add(1)
    with pytest.raises(NotHeld):
        await nodes.release_to(api, await read_node(api, name), OURS)


async def test_n03_a_node_made_anew_under_the_same_name_is_not_the_held_one(api: Api, fleet: Fleet) -> None:
    (name,) = await fleet.add(1)
    node = await read_node(api, name)
    earlier = msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, uid="gone", resource_version="1")
    )
    with pytest.raises(NotFound, match="made anew"):
        await nodes.hold(api, earlier, OURS)
    assert taints(await read_node(api, name)) == []


# Pods


def gated(name: str, namespace: str, fleet: Fleet, **rest: Any) -> dict[str, Any]:
    manifest = make_pod(name, namespace, cards=8, node_selector=fleet.selector, **rest)
    manifest["spec"]["schedulingGates"] = [{"name": "other/gate"}, {"name": CLAIM_KEY}]
    return manifest


async def test_k15_steering_a_gated_pod_is_one_write_that_keeps_foreign_fields(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    foreign = [{"key": "flaky", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 42}]
    await admin.create(gated("big", namespace, fleet, tolerations=foreign))
    before = await read_pod(api, namespace, "big")
    after = await pods.steer(api, before, OURS)
    assert after.spec.node_selector == {**fleet.selector, CLAIM_KEY: OURS}
    assert [gate.name for gate in after.spec.scheduling_gates or ()] == ["other/gate"]
    raw = (await admin.get(f"/api/v1/namespaces/{namespace}/pods/big"))["spec"]["tolerations"]
    assert foreign[0] in raw
    assert {"key": CLAIM_KEY, "operator": "Equal", "value": OURS, "effect": "NoSchedule"} in raw

    again = await pods.steer(api, after, OURS)
    assert again.metadata.resource_version == after.metadata.resource_version
    from_stale = await pods.steer(api, before, OURS)
    assert from_stale.spec == after.spec


async def test_a_pod_without_our_gate_gets_the_toleration_only(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await admin.create(make_pod("free", namespace, cards=8, node_selector=fleet.selector))
    after = await pods.steer(api, await read_pod(api, namespace, "free"), OURS)
    assert after.spec.node_selector == fleet.selector
    assert (CLAIM_KEY, OURS) in [(one.key, one.value) for one in after.spec.tolerations or ()]


async def test_k13_a_pod_that_selects_another_claim_is_refused_in_words(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    manifest = gated("big", namespace, fleet)
    manifest["spec"]["nodeSelector"] = {CLAIM_KEY: OTHER}
    await admin.create(manifest)
    with pytest.raises(Invalid, match=f"selects nodes of claim {OTHER}"):
        await pods.steer(api, await read_pod(api, namespace, "big"), OURS)


async def test_a_poke_changes_one_annotation_of_this_very_pod(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await admin.create(gated("big", namespace, fleet))
    before = await read_pod(api, namespace, "big")
    after = await pods.poke(api, before, "7")
    assert after.metadata.annotations == {**(before.metadata.annotations or {}), POKE: "7"}
    namesake = msgspec.structs.replace(before, metadata=msgspec.structs.replace(before.metadata, uid=OTHER))
    with pytest.raises(NotFound):
        await pods.poke(api, namesake, "8")
    assert (await read_pod(api, namespace, "big")).metadata.annotation(POKE) == "7"


async def test_d23_eviction_takes_this_very_pod_only_and_knows_gone(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await admin.create(make_pod("web-0", namespace, node_selector=fleet.selector))
    pod = await read_pod(api, namespace, "web-0")
    earlier = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=OTHER))
    assert await pods.evict(api, earlier) is EvictOutcome.GONE
    assert (await read_pod(api, namespace, "web-0")).metadata.deletion_timestamp is None
    assert await pods.evict(api, pod) is EvictOutcome.ACCEPTED
    await admin.wait_for(f"/api/v1/namespaces/{namespace}/pods/web-0", lambda found: found is None, 30)
    assert await pods.evict(api, pod) is EvictOutcome.GONE


def budget(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }


async def test_d17_each_refusal_of_a_disruption_budget_has_its_own_error(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await fleet.add(1)
    await admin.create(make_pod("web-0", namespace, node_selector=fleet.selector, labels={"app": "web"}))
    await admin.wait_for(
        f"/api/v1/namespaces/{namespace}/pods/web-0",
        lambda found: found is not None and found["status"].get("phase") == "Running",
        30,
    )
    await admin.create(budget("one", namespace))
    pod = await read_pod(api, namespace, "web-0")
    with pytest.raises(DisruptionBudgetRefused) as refused:
        await pods.evict(api, pod)
    assert refused.value.retry_after_seconds >= 0
    await admin.create(budget("two", namespace))
    with pytest.raises(SeveralBudgets):
        await pods.evict(api, pod)


async def test_pods_on_a_node_are_all_of_it_and_nobody_elses(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    first, second = await fleet.add(2)
    for name, node in (("a", first), ("b", first), ("c", second)):
        manifest = make_pod(name, namespace)
        manifest["spec"]["nodeName"] = node
        await admin.create(manifest)
    found, revision = await pods.pods_on_node(api, first)
    assert sorted(pod.metadata.name for pod in found) == ["a", "b"]
    assert revision >= max(int(pod.metadata.resource_version or 0) for pod in found) > 0


async def test_a_list_of_several_pages_is_whole(
    api: Api, admin: Admin, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.listing.PAGE_SIZE", 2)
    for number in range(5):
        await admin.create(gated_free(f"p{number}", namespace))
    found, version = await list_all(api, f"/api/v1/namespaces/{namespace}/pods", ObjectDecoder(Pod))
    assert sorted(pod.metadata.name for pod in found) == ["p0", "p1", "p2", "p3", "p4"]
    assert version >= max(int(pod.metadata.resource_version) for pod in found)


def gated_free(name: str, namespace: str) -> dict[str, Any]:
    manifest = make_pod(name, namespace)
    manifest["spec"]["schedulingGates"] = [{"name": "test/never"}]
    return manifest


# Claims


async def test_c13_claims_are_made_once_and_their_status_is_written_to_the_microsecond(
    api: Api, admin: Admin, namespace: str
) -> None:
    await install_resources(admin)
    spec = ClaimSpec(nodes=2, gang=GangRef("Job", "train", OURS), policy=Policy.WAIT_THEN_EVICT, patience="10m")
    claim = await claims.create_claim(api, namespace, "train", spec, {"by": "test"})
    assert claim.spec == spec
    with pytest.raises(AlreadyExists):
        await claims.create_claim(api, namespace, "train", spec)

    moment = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)
    status = ClaimStatus(phase=Phase.DRAINING, reason="Draining", phases=(PhaseTime(Phase.DRAINING, moment),))
    written = await claims.write_status(api, claim, status)
    assert written.status == status
    assert written.spec == spec
    assert written.metadata.labels == {"by": "test"}
    with pytest.raises(Conflict):
        await claims.write_status(api, claim, status)

    back = await claims.write_status(api, written, ClaimStatus(reason="Waiting"))
    assert back.status == ClaimStatus(reason="Waiting")

    with pytest.raises(Invalid, match=r"spec\.deadline"):
        await claims.create_claim(
            api, namespace, "bad", ClaimSpec(nodes=1, gang=spec.gang, patience="10m", deadline="1m")
        )

    namesake = msgspec.structs.replace(back, metadata=msgspec.structs.replace(back.metadata, uid=OTHER))
    with pytest.raises(Conflict):
        await claims.delete_claim(api, namesake)
    await claims.delete_claim(api, back)
    with pytest.raises(NotFound):
        await api.get(claims.object_path(back))
    assert isinstance(back, WholeNodeClaim)


# Events


async def test_repeated_events_become_one_series_and_a_refused_one_troubles_nobody(
    api: Api, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await admin.create(gated("big", namespace, fleet))
    about = events.reference(await read_pod(api, namespace, "big"))
    writer = events.EventWriter(api, "wholenode.io/controller", "test-1")
    task = asyncio.create_task(writer.run())
    nowhere = about._replace(namespace="no-such-namespace")
    writer.record(nowhere, "Waiting", "nobody will see this", "Normal", "Wait")
    for _ in range(4):
        writer.record(about, "Waiting", "waiting for a whole node", "Normal", "Wait")
    writer.record(about, "Evicted", "x" * 3000, "Warning", "Evict")
    await writer.drain()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    written = await admin.list(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    ours = {event["reason"]: event for event in written if event["reportingController"] == "wholenode.io/controller"}
    assert set(ours) == {"Waiting", "Evicted"}
    assert ours["Waiting"]["series"]["count"] == 2
    assert ours["Waiting"]["regarding"]["uid"] == about.uid
    assert len(ours["Evicted"]["note"]) == 1024
