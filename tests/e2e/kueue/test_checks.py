"""Our admission check before the real Kueue: quota first, then empty nodes, then the start; and every way back."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kwok.admin import path_of
from kwok.controlplane import SCHEDULER, ControlPlane
from kwok.faults import Before, Call, Kind
from kwok.kueue import Kueue
from kwok.product import Product
from kwok.queues import API_VERSION, admission_check, pod_group, priority_class
from kwok.readings import chosen_nodes, node_of, phase, uid
from tests.e2e.behind import controller_behind
from tests.e2e.desk import CLAIM, WORKLOADS, Desk, entry, holds, selector_of
from tests.e2e.drains import lent, residents
from tests.e2e.ground import VACATE, Ground

STAMP = "2027-01-04T11:00:00Z"
DOWN_SECONDS = 4
SLOW = {"term_delay": "600s", "grace_seconds": 5}


def claims_of(ground: Ground) -> list[str]:
    """UIDs of all claims of the namespace that are there."""
    there = ground.history.live["claims"].values()
    return [uid(one) for one in there if one["metadata"]["namespace"] == ground.namespace]


def states(desk: Desk, name: str) -> list[str]:
    """The states that our entry of the Workload went through."""
    found: list[str] = []
    for one in desk.of(name):
        state = str(entry(one).get("state", ""))
        if state and (not found or found[-1] != state):
            found.append(state)
    return found


def never_half_pinned(desk: Desk) -> None:
    """K15: selector and toleration of a claim are in an entry together or not at all."""
    for workload in desk.story:
        for update in entry(workload).get("podSetUpdates") or ():
            selected = update.get("nodeSelector", {}).get(CLAIM)
            tolerated = [one.get("value") for one in update.get("tolerations") or () if one["key"] == CLAIM]
            assert tolerated == ([selected] if selected else [])


async def test_k01_with_quota_one_node_is_vacated_and_the_job_starts_there(desk: Desk) -> None:
    ground = desk.ground
    nodes = await lent(ground, 4)
    await desk.queue("small", 32)
    await desk.queue("big", 8, checked=True)
    for number, node in enumerate(nodes):
        await desk.job(f"small-{number}", "small", node=node, cards=1, term_delay="1s", grace_seconds=5)
    for number in range(4):
        await desk.runs(f"small-{number}")
    await desk.big("train", "big")
    await desk.until(lambda: desk.is_("train", "QuotaReserved"))
    await desk.job("later", "small", cards=1)
    (node,) = await desk.runs("train")
    await desk.runs("later")

    (claim,) = ground.claims().values()
    assert [one["name"] for one in chosen_nodes(claim)] == [node]
    assert states(desk, "train") == ["Pending", "Ready"]
    assert selector_of(desk.now("train")) == uid(claim)
    stopped = [
        name for name in (f"small-{number}" for number in range(4)) if desk.of(name)[-1] and _stopped(desk, name)
    ]
    assert stopped == [f"small-{nodes.index(node)}"]
    never_half_pinned(desk)
    await ground.never_broke_a_rule()


def _stopped(desk: Desk, name: str) -> bool:
    return any(one["spec"].get("active") is False for one in desk.of(name))


async def test_k01_pods_that_kueue_has_pinned_already_are_not_held_by_our_gate(desk: Desk) -> None:
    await lent(desk.ground, 2)
    await desk.queue("big", 16, checked=True)
    seen: list[bool] = []
    desk.ground.history.listeners.append(
        lambda change: (
            seen.append(bool(change.object["spec"].get("schedulingGates")))
            if change.kind == "pods" and change.object["metadata"]["name"].startswith("train-")
            else None
        )
    )
    await desk.big("train", "big", pods=2)
    nodes = await desk.runs("train", 2)
    assert len(nodes) == 2
    assert seen
    assert not any(seen)
    (claim,) = desk.ground.claims().values()
    assert {one["name"] for one in chosen_nodes(claim)} == nodes
    await desk.ground.never_broke_a_rule()


async def test_k01_a_group_of_plain_whole_node_pods_runs_on_the_nodes_vacated_for_it(desk: Desk) -> None:
    first, second = await lent(desk.ground, 2)
    await residents(desk.ground, first, "here", term_delay="1s")
    await residents(desk.ground, second, "there")
    await desk.queue("big", 16, checked=True)
    for pod in pod_group("train", desk.ground.namespace, 2, queue="big", cards=8, annotations=VACATE):
        await desk.admin.create(pod)
    await desk.ground.until(lambda: desk.ground.runs("train-0") and desk.ground.runs("train-1"))
    assert {node_of(pod) for pod in desk.ground.pods("train-").values()} == {first, second}
    assert len(desk.ground.claims()) == 1
    never_half_pinned(desk)
    await desk.ground.never_broke_a_rule()


async def test_k03_preempted_before_it_started_the_claim_goes_and_neither_ready_nor_retry_is_written(
    desk: Desk,
) -> None:
    ground = desk.ground
    (node,) = await lent(ground, 1)
    await residents(ground, node, "slow", **SLOW)
    await desk.admin.create(priority_class(f"{ground.namespace}-first", 1000))
    ground.cleanup.append(f"/apis/{API_VERSION}/workloadpriorityclasses/{ground.namespace}-first")
    await desk.queue("big", 8, within="LowerPriority", checked=True)
    await desk.big("train", "big")
    await ground.until(lambda: bool(ground.marked()) and bool(claims_of(ground)))
    assert states(desk, "train") == ["Pending"]

    await desk.job("urgent", "big", cards=1, priority=f"{ground.namespace}-first")
    await desk.until(lambda: desk.is_("train", "Evicted"))
    await ground.until(lambda: not ground.marked())
    await desk.until(lambda: desk.is_("urgent", "Admitted"))
    assert states(desk, "train") == ["Pending"]
    assert not desk.is_("train", "QuotaReserved")
    await ground.delete_at_once("slow")


async def test_k04_a_write_on_an_older_version_is_refused_and_decided_anew(
    desk: Desk, plane: ControlPlane, product: Product
) -> None:
    ground = desk.ground
    await lent(ground, 1)
    await desk.queue("big", 8, checked=True)
    async with controller_behind(plane, product) as between:

        def sets_ready(call: Call) -> bool:
            return "/workloads/" in call.path and call.path.endswith("/status") and b'"Ready"' in call.body

        between.fault = Before(sets_ready, lambda: desk.patch("train", {"metadata": {"labels": {"touched": "yes"}}}))
        await desk.big("train", "big")
        await desk.runs("train")
        found = [call.status for call in between.writes() if sets_ready(call)]
        assert found[0] in {409, 422}
        assert found[-1] == 200
    assert states(desk, "train") == ["Pending", "Ready"]


async def test_k05_a_small_job_passes_at_once_with_no_updates_in_one_write(
    desk: Desk, plane: ControlPlane, product: Product
) -> None:
    await desk.ground.pool(1, accepts="Small")
    await desk.queue("all", 8, checked=True)
    async with controller_behind(plane, product) as between:
        await desk.job("small", "all", cards=1)
        await desk.runs("small")
        writes = [call for call in between.writes() if "/workloads/" in call.path]
        assert len(writes) == 1
    assert states(desk, "small") == ["Pending", "Ready"]
    assert not entry(desk.now("small")).get("podSetUpdates")
    assert not desk.ground.claims()


async def test_k06_a_drain_that_gives_up_gives_the_quota_back_and_after_three_tries_it_is_the_owners_turn(
    desk: Desk,
) -> None:
    ground = desk.ground
    (node,) = await ground.pool(1)
    await residents(ground, node, "stays")
    await desk.queue("big", 8, checked=True)
    await desk.big("train", "big", annotations={"wholenode.io/deadline": "1s"})
    await desk.until(lambda: "none is made any more" in entry(desk.now("train")).get("message", ""))
    assert states(desk, "train") == ["Pending", "Retry", "Pending", "Retry", "Pending"]
    assert not any(entry(one).get("requeueAfterSeconds") for one in desk.of("train"))
    lost = [holds(one, "QuotaReserved") for one in desk.of("train")]
    assert sum(before and not after for before, after in itertools.pairwise(lost)) == 2
    failed = [one for one in ground.history.live["claims"].values() if uid(one) in claims_of(ground)]
    assert [phase(one) for one in failed] == ["Failed"] * 3
    assert ground.runs("stays")


async def test_k12_a_job_that_was_admitted_with_fewer_pods_gets_so_many_nodes(desk: Desk) -> None:
    await desk.ground.pool(4)
    await desk.queue("big", 16, checked=True)
    await desk.big("train", "big", pods=4, min_parallelism=2)
    nodes = await desk.runs("train", 2)
    assert len(nodes) == 2
    (claim,) = desk.ground.claims().values()
    assert {one["name"] for one in chosen_nodes(claim)} == nodes
    await desk.ground.never_broke_a_rule()


async def test_k13_a_template_with_our_selector_is_never_ready_and_is_told_why(desk: Desk) -> None:
    await desk.ground.pool(1)
    await desk.queue("big", 8, checked=True)
    await desk.big("train", "big", node_selector={CLAIM: "mine"})
    await desk.until(lambda: bool(entry(desk.now("train")).get("message")))
    assert states(desk, "train") == ["Pending"]
    assert CLAIM in entry(desk.now("train"))["message"]
    assert not desk.is_("train", "Finished")
    await desk.job("next", "big", cards=1)
    assert not desk.ground.marked()


async def test_k14_k15_preempted_after_ready_everything_of_the_claim_goes_and_the_next_admission_gets_new(
    desk: Desk, plane: ControlPlane
) -> None:
    ground = desk.ground
    (node,) = await ground.pool(1)
    await desk.admin.create(priority_class(f"{ground.namespace}-first", 1000))
    ground.cleanup.append(f"/apis/{API_VERSION}/workloadpriorityclasses/{ground.namespace}-first")
    await desk.queue("big", 8, within="LowerPriority", checked=True)
    job = f"/apis/batch/v1/namespaces/{ground.namespace}/jobs/train"
    await asyncio.to_thread(plane.stop_component, SCHEDULER)
    try:
        await desk.big("train", "big")
        await ground.until(lambda: bool(desk.pods_of("train")))
        first = selector_of(desk.now("train"))
        await desk.job("urgent", "big", cards=1, priority=f"{ground.namespace}-first", duration_seconds=600)
        await desk.until(lambda: desk.is_("urgent", "Admitted"))
        await ground.until(lambda: not ground.marked() and not desk.pods_of("train"))
        spec = (await desk.admin.get(job))["spec"]["template"]["spec"]
        assert CLAIM not in spec.get("nodeSelector", {})
        assert not [one for one in spec.get("tolerations") or () if one["key"] == CLAIM]
    finally:
        await asyncio.to_thread(plane.start_component, SCHEDULER)
    await desk.delete("urgent")
    assert await desk.runs("train") == {node}
    second = selector_of(desk.now("train"))
    assert first
    assert second not in {"", first}
    assert "Retry" not in states(desk, "train")
    never_half_pinned(desk)
    await ground.never_broke_a_rule()


@pytest.mark.parametrize("how", ["queue-stopped", "deactivated", "deleted", "kueue-restarted"])
async def test_k18_a_drain_follows_what_becomes_of_the_workload(desk: Desk, kueue: Kueue, how: str) -> None:
    ground = desk.ground
    (node,) = await lent(ground, 1)
    await residents(ground, node, "slow", **SLOW)
    await desk.queue("big", 8, checked=True)
    await desk.big("train", "big")
    await ground.until(lambda: bool(ground.marked()))
    if how == "queue-stopped":
        queue = f"/apis/{API_VERSION}/clusterqueues/{desk.queues[0]}"
        await desk.admin.patch(queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    elif how == "deactivated":
        await desk.patch("train", {"spec": {"active": False}})
    elif how == "deleted":
        await desk.delete("train")
    else:
        kueue.kill()
        await kueue.start()
        assert ground.marked()
        await desk.delete("train")
    await ground.until(lambda: not ground.marked())
    assert states(desk, "train") == ["Pending"]
    assert not any(holds(one, "Admitted") for one in desk.of("train"))
    if how == "deactivated":
        assert desk.now("train")["spec"]["active"] is False
    await ground.delete_at_once("slow")


async def test_no_node_is_emptied_before_anothers_check_is_ready(desk: Desk) -> None:
    ground = desk.ground
    (node,) = await lent(ground, 1)
    await residents(ground, node, "here", term_delay="1s")
    name = f"{ground.namespace}-approval"
    approval = path_of(await desk.admin.create(admission_check(name, "example.com/approval")))
    ground.cleanup.append(approval)
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": STAMP}
    await desk.admin.patch(f"{approval}/status", {"status": {"conditions": [active]}})
    await desk.queue("big", 8, checked=True, checks=(name,))
    await desk.big("train", "big")
    await desk.until(lambda: entry(desk.now("train")).get("message", "").startswith("WaitingForOtherChecks: "))
    assert not claims_of(ground)
    assert not ground.marked()

    workload = f"{WORKLOADS.format(ground.namespace)}/{desk.now('train')['metadata']['name']}"
    found = (await desk.admin.get(workload))["status"]["admissionChecks"]
    ready = [{**one, "state": "Ready"} if one["name"] == name else one for one in found]
    await desk.admin.patch(f"{workload}/status", {"status": {"admissionChecks": ready}})
    assert await desk.runs("train") == {node}
    assert states(desk, "train") == ["Pending", "Ready"]
    await ground.never_broke_a_rule()


async def test_k18_killed_in_a_drain_kueue_costs_no_storm_of_writes_and_the_job_starts_when_it_is_back(
    desk: Desk, kueue: Kueue, plane: ControlPlane, product: Product
) -> None:
    ground = desk.ground
    (node,) = await lent(ground, 1)
    await residents(ground, node, "here", term_delay="1s")
    await desk.queue("big", 8, checked=True)
    async with controller_behind(plane, product) as between:
        await desk.big("train", "big")
        await ground.until(lambda: bool(ground.marked()))
        kueue.kill()
        try:
            await ground.until(lambda: [phase(one) for one in ground.claims().values()] == ["Landing"])
            refused = len(between.calls)
            await asyncio.sleep(DOWN_SECONDS)
            tried = [call for call in between.calls[refused:] if call.kind is Kind.WRITE and "/workloads/" in call.path]
            others = [call for call in between.calls[refused:] if call.evicts]
            assert 1 <= len(tried) <= DOWN_SECONDS
            assert not others
            assert len(ground.marked()) == 1
        finally:
            await kueue.start()
        assert await desk.runs("train") == {node}
    assert states(desk, "train") == ["Pending", "Ready"]
    assert len(claims_of(ground)) == 1
    await ground.never_broke_a_rule()
