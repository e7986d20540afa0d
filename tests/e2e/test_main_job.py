"""The main job on a real control plane: gangs, consent, foreign marks, kills; each with the chart's own roles."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kwok.admin import Admin, Object, create_all
from kwok.controlplane import ControlPlane
from kwok.landings import PodWatch, report
from kwok.product import CONTROLLER, EXTENDER, Product
from kwok.race import CLAIMS, Race, prepare
from kwok.readings import stray_marks
from kwok.scene import BENEFICIARY, TEAMS, Scene
from kwok.workloads import make_job

GATE = "wholenode.io/claim"
SWEPT_WITHIN_SECONDS = 60
OWN_CLAIMS = f"/apis/wholenode.io/v1alpha1/namespaces/{BENEFICIARY}/wholenodeclaims"
EVENTS = "/apis/events.k8s.io/v1/events"
BOTH_SIDES = {"StoppedByAgreement": "WholeNodeClaim", "UsedByClaim": "DrainAgreement"}
"""Reasons of Events, and the kind of object that each is about."""
SMALL = Scene(nodes=6, small_nodes=1, busy_cards=33, grace_seconds=1)
"""Six nodes, nearly all of them busy: enough where one or three nodes are to be vacated."""


async def start(admin: Admin, product: Product, scene: Scene, teams: tuple[str, ...] = TEAMS) -> None:
    for one in (*scene.pools(), *scene.agreements(teams)):
        await admin.create(one)
    await product.start()
    await product.gate_active(admin, scene.cards, BENEFICIARY)


def in_phase(*phases: str) -> Any:
    def condition(claims: Mapping[str, Mapping[str, Any]]) -> bool:
        return bool(claims) and all(one.get("status", {}).get("phase") in phases for one in claims.values())

    return condition


async def no_marks(admin: Admin) -> None:
    """Wait until no node carries a mark of ours, but for labels that pods need, and see that no pod has our gate."""

    async def pods_without_stray_marks() -> list[dict[str, Any]]:
        async with asyncio.timeout(SWEPT_WITHIN_SECONDS):
            while True:
                pods = await admin.list("/api/v1/pods")
                if not stray_marks(await admin.list("/api/v1/nodes"), pods):
                    return pods
                await asyncio.sleep(0.1)

    for pod in await pods_without_stray_marks():
        assert GATE not in [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]


async def test_without_any_agreement_nothing_is_evicted_and_the_claim_names_who_would_have_to_consent(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    await prepare(admin, watch, SMALL)
    await start(admin, product, SMALL, teams=())
    await admin.create(SMALL.whole_node_job("big"))

    claims = await admin.wait_for_all(
        OWN_CLAIMS,
        lambda found: any(one.get("status", {}).get("reason") == "AgreementMissing" for one in found.values()),
    )

    (claim,) = claims.values()
    assert claim["status"]["phase"] == "Pending"
    assert claim["status"]["plan"]["consentMissing"] == sorted(TEAMS)
    assert all(team in claim["status"]["message"] for team in TEAMS)
    assert not [one for one in watch.pods.values() if one.deleting_at is not None]
    assert stray_marks(await admin.list("/api/v1/nodes"), ()) == []

    for one in SMALL.agreements():  # consent given later is enough: nothing has to be submitted again
        await admin.create(one)
    await admin.wait_for_all(OWN_CLAIMS, in_phase("Bound"))
    await no_marks(admin)


async def landed(watch: PodWatch) -> None:
    """Wait until our own watch has shown what the claims tell."""

    def bound() -> bool:
        return all(one.node for one in watch.pods.values() if one.namespace == BENEFICIARY)

    assert await watch.until(bound, 30)


async def test_a_gang_of_three_pods_gets_three_nodes_and_none_of_them_opens_before_all_are_empty(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    await prepare(admin, watch, SMALL)
    await start(admin, product, SMALL)
    job = make_job("train", BENEFICIARY, pods=3, cards=8, annotations={"wholenode.io/policy": "WaitThenEvict"})
    await admin.create(job)

    claims = await admin.wait_for_all(OWN_CLAIMS, in_phase("Bound"))
    await landed(watch)

    (claim,) = claims.values()
    assert claim["spec"]["nodes"] == 3
    assert claim["spec"]["gang"]["kind"] == "Job"
    nodes = {node["name"] for node in claim["status"]["nodes"]}
    members = [one for one in watch.pods.values() if one.namespace == BENEFICIARY]
    assert {one.node for one in members} == nodes
    assert len(nodes) == 3
    last_victim_gone = max(watch.pods[victim["uid"]].gone_at or 0 for victim in claim["status"]["victims"])
    assert min(one.bound_at or 0 for one in members) >= last_victim_gone - 0.1
    await no_marks(admin)


async def test_pods_without_a_gate_work_too(admin: Admin, watch: PodWatch, product: Product) -> None:
    """Pods made before the admission policy: they are refused by the extender until their nodes are released."""
    await prepare(admin, watch, SMALL)
    await admin.create(SMALL.whole_node_job("early"))
    await start(admin, product, SMALL)

    await admin.wait_for_all(OWN_CLAIMS, in_phase("Bound"))

    (pod,) = await admin.list(f"/api/v1/namespaces/{BENEFICIARY}/pods")
    assert "nodeSelector" not in pod["spec"], "an ungated pod's selector cannot be changed"
    (claim,) = await admin.list(OWN_CLAIMS)
    assert pod["spec"]["nodeName"] == claim["status"]["nodeNames"]


async def test_a_foreign_cordon_or_taint_is_never_removed_and_that_node_is_never_chosen(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    await prepare(admin, watch, SMALL)
    taint = {"key": "example.com/maintenance", "value": "disk", "effect": "NoSchedule"}
    await admin.patch("/api/v1/nodes/big-000", {"spec": {"unschedulable": True}}, "strategic")
    await admin.patch("/api/v1/nodes/big-001", {"spec": {"taints": [taint]}}, "strategic")
    await start(admin, product, SMALL)
    await create_all(admin, [SMALL.whole_node_job(f"big-{index}") for index in range(4)])

    claims = await admin.wait_for_all(
        OWN_CLAIMS,
        lambda found: (
            sum(one.get("status", {}).get("phase") == "Bound" for one in found.values()) == 3
            and any(one.get("status", {}).get("phase") == "Pending" for one in found.values())
        ),
    )

    taken = {node["name"] for claim in claims.values() for node in claim["status"].get("nodes", [])}
    assert taken == {"big-002", "big-003", "big-004"}
    (left,) = [one for one in claims.values() if one["status"]["phase"] == "Pending"]
    assert {one["reason"] for one in left["status"]["plan"]["refused"]} >= {"Cordoned", "ForeignTaint"}
    cordoned = await admin.get("/api/v1/nodes/big-000")
    assert cordoned["spec"]["unschedulable"] is True
    tainted = await admin.get("/api/v1/nodes/big-001")
    assert taint in tainted["spec"]["taints"]


async def test_an_orphan_mark_of_ours_is_swept_and_nothing_else(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    """D08: a taint and a label with the UID of no claim, put on by hand beside two foreign taints."""
    await prepare(admin, watch, SMALL)
    foreign = [{"key": f"example.com/{name}", "effect": "NoSchedule"} for name in ("a", "b")]
    taints = [foreign[0], {"key": GATE, "value": "no-such-claim", "effect": "NoSchedule"}, foreign[1]]
    patch = {"metadata": {"labels": {GATE: "no-such-claim"}}, "spec": {"taints": taints}}
    await admin.patch("/api/v1/nodes/big-000", patch, "merge")
    await start(admin, product, SMALL)
    await no_marks(admin)
    node = await admin.get("/api/v1/nodes/big-000")
    assert node["spec"]["taints"] == foreign


@pytest.mark.parametrize("seed", [1, 2])
async def test_kill_9_of_controller_and_extender_at_random_moments_changes_nothing(
    plane: ControlPlane, admin: Admin, watch: PodWatch, product: Product, seed: int
) -> None:
    """The demonstration's burst, with one of the two processes killed every moment and started again."""
    scene = Scene(seed=seed)
    source = random.Random(seed)
    await prepare(admin, watch, scene)
    await start(admin, product, scene)
    race = Race(admin, watch, scene, seconds=120)
    kills = 0

    async def keep_killing() -> None:
        nonlocal kills
        while True:
            await asyncio.sleep(source.uniform(0.3, 2.5))
            name = source.choice((CONTROLLER, CONTROLLER, EXTENDER))
            await asyncio.to_thread(product.kill, name)
            kills += 1
            await asyncio.to_thread(product.launch, name)
            if source.random() < 0.7:  # else it is killed again before it has found its feet
                await asyncio.sleep(source.uniform(2.0, 6.0))

    killer = asyncio.create_task(keep_killing())
    try:
        found = await race.burst(0)
    finally:
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)

    assert kills >= 3
    assert found.landed == race.jobs
    assert found.wrong == ()
    claims = await admin.list(CLAIMS)
    assert len(claims) == race.jobs, "a gang has one claim, however often its controller dies"
    victims = [victim["uid"] for claim in claims for victim in claim["status"].get("victims", [])]
    assert len(victims) == len(set(victims))
    stopped = {one.uid for one in watch.pods.values() if one.deleting_at is not None}
    assert stopped == set(victims), "whoever was stopped stands in a claim, and nobody else"
    await no_marks(admin)
    assert plane.pids()


def both_sides_are_told(events: Mapping[str, Object]) -> bool:
    """Whether beneficiary and victims can read in Events what was stopped, for whom, under what."""
    kinds = {one["reason"]: one["regarding"]["kind"] for one in events.values()}
    return kinds.items() >= BOTH_SIDES.items() and kinds.get("VacatedByAgreement") == "Pod"


async def test_nothing_of_ours_stays_on_pods_nodes_and_jobs_and_no_call_was_refused(
    plane: ControlPlane, admin: Admin, watch: PodWatch, product: Product
) -> None:
    """C11, O06: after a full run no finalizer and no bookkeeping annotation; the roles were enough."""
    await prepare(admin, watch, SMALL)
    await start(admin, product, SMALL)
    submitted = {(BENEFICIARY, "big"): time.monotonic()}
    await admin.create(SMALL.whole_node_job("big"))
    await admin.wait_for_all(OWN_CLAIMS, in_phase("Bound"))
    await landed(watch)
    assert report(watch, submitted, await admin.list(CLAIMS)).wrong == ()

    for path in ("/api/v1/pods", "/api/v1/nodes", "/apis/batch/v1/jobs", CLAIMS):
        for item in await admin.list(path):
            assert not item["metadata"].get("finalizers"), item["metadata"]["name"]
            left = [key for key in item["metadata"].get("annotations", {}) if "kopf" in key or "last-handled" in key]
            assert left == []
    (claim,) = await admin.list(OWN_CLAIMS)
    events = list((await admin.wait_for_all(EVENTS, both_sides_are_told)).values())
    told = [one for one in events if one["reason"] in {"VacatedByAgreement", *BOTH_SIDES}]
    assert all("whole-nodes" in one["note"] for one in told), "each names the agreement"
    names = {one["reason"]: f"{one['note']} {one['regarding']['name']}" for one in told}
    assert all(claim["metadata"]["name"] in text for text in names.values()), "and the claim"
    product.stop()
    for name in (CONTROLLER, EXTENDER):
        log = (plane.logs / f"{name}.log").read_text(encoding="utf-8")
        assert "Forbidden" not in log
        assert "Traceback" not in log


async def test_a_small_pod_is_woken_when_its_team_agrees_to_give_idle_nodes_back(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    """A change in a custom resource alone wakes nobody in kube-scheduler; the controller does."""
    scene = Scene(nodes=3, small_nodes=1, busy_cards=8)
    await create_all(admin, [*scene.fleet(), *scene.namespaces()])
    for pool in scene.pools():
        await admin.create(pool)
    await product.start()
    await create_all(admin, scene.background(count=12))  # 8 fit into the small pool, 4 wait
    assert await watch.until(lambda: sum(bool(one.node) for one in watch.pods.values()) == 8, 30)

    for agreement in scene.agreements():
        await admin.create(agreement)

    assert await watch.until(lambda: sum(bool(one.node) for one in watch.pods.values()) == 12, 30)


async def test_kube_schedulers_preemption_never_stops_anybody_for_a_whole_node_pod(
    admin: Admin, watch: PodWatch, product: Product
) -> None:
    """An ungated whole-node pod of a high priority: preemption would stop pods without anybody's consent."""
    await prepare(admin, watch, SMALL)
    await admin.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "above-all"},
            "value": 1000,
        }
    )
    for pool in SMALL.pools():
        await admin.create(pool)
    await product.start()
    job = SMALL.whole_node_job("greedy")
    job["spec"]["priorityClassName"] = "above-all"
    await admin.create(job)

    def refused(claims: Mapping[str, Mapping[str, Any]]) -> bool:
        return any(one.get("status", {}).get("reason") == "AgreementMissing" for one in claims.values())

    await admin.wait_for_all(OWN_CLAIMS, refused)
    path = f"/api/v1/namespaces/{BENEFICIARY}/pods/greedy"
    await admin.patch(path, {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}, "strategic")
    pod = await admin.wait_for(
        path,
        lambda found: any(
            one.get("reason") == "Unschedulable" for one in (found or {}).get("status", {}).get("conditions", [])
        ),
    )

    assert pod is not None
    assert not pod["status"].get("nominatedNodeName")
    assert not [one for one in watch.pods.values() if one.deleting_at is not None]
