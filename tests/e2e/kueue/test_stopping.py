"""Victims that are jobs of the real Kueue: stopped as a whole, queued again, and gone when their pods are gone."""

from __future__ import annotations

import functools
import json

import pytest

from kwok.controlplane import ControlPlane
from kwok.faults import Call, Refuse, refusal
from kwok.history import Change
from kwok.product import CONTROLLER, Product
from kwok.queues import API_VERSION, pod_group, priority_class, queued_job, queued_pod
from kwok.readings import chosen_nodes, ended, node_of, uid
from kwok.stages import TERM_DELAY
from tests.e2e.behind import controller_behind, start_again
from tests.e2e.desk import STOPPED_FOR, Desk, entry
from tests.e2e.drains import lent
from tests.e2e.ground import Ground


class Deaths:
    """When pods were bound, and when they were gone, by revision."""

    def __init__(self, ground: Ground) -> None:
        self.gone: dict[str, int] = {}
        self.evicted: set[str] = set()
        ground.history.listeners.append(self._note)

    def _note(self, change: Change) -> None:
        if change.kind != "pods":
            return
        name = change.object["metadata"]["name"]
        if change.deleted:
            self.gone[name] = change.revision
        conditions = change.object.get("status", {}).get("conditions") or ()
        if any(one.get("reason") == "EvictionByEvictionAPI" for one in conditions):
            self.evicted.add(name)


def stops(desk: Desk, name: str) -> int:
    """How often its Workload was made inactive."""
    active = [one["spec"].get("active") is not False for one in desk.of(name)]
    return sum(before and not after for before, after in zip([True, *active], active, strict=False))


async def test_k02_after_kueue_took_quota_back_the_node_that_it_emptied_most_is_chosen(desk: Desk) -> None:
    ground = desk.ground
    nodes = await lent(ground, 3)
    for name, value in (("low", 0), ("mid", 10), ("high", 20)):
        await desk.admin.create(priority_class(f"{ground.namespace}-{name}", value))
        ground.cleanup.append(f"/apis/{API_VERSION}/workloadpriorityclasses/{ground.namespace}-{name}")
    await desk.queue("big", 8, cohort=ground.namespace, reclaim="Any", checked=True)
    await desk.queue("small", 16, cohort=ground.namespace)
    low = {nodes[0]: 4, nodes[1]: 6, nodes[2]: 6}  # from there on: of middle priority, which Kueue spares
    deaths = Deaths(ground)
    names = {}
    for node in nodes:
        for number in range(8):
            name = f"s{nodes.index(node)}{number}"
            names[name] = node
            urgency = "mid" if number < low[node] else "low"
            rest = {"priority": f"{ground.namespace}-{urgency}", "annotations": {"wholenode.io/restart-cost": "1m"}}
            await desk.job(name, "small", node=node, cards=1, **rest)
    await ground.until(lambda: sum(ground.runs(pod) for pod in ground.pods("s")) == 24)
    await desk.big("train", "big", priority=f"{ground.namespace}-high")
    assert await desk.runs("train") == {nodes[0]}
    stopped = {pod.partition("-")[0] for pod in deaths.gone if pod.startswith("s")}
    assert len(deaths.gone) == 12
    assert len(stopped) == 12
    assert {names[one] for one in stopped if stops(desk, one)} == {nodes[0]}
    assert sum(stops(desk, one) for one in stopped) == 4
    assert not deaths.evicted


@pytest.mark.parametrize("kind", ["k07", "k11"])
async def test_k07_k10_k11_a_job_goes_as_a_whole_and_only_its_pods_say_when_it_is_gone(desk: Desk, kind: str) -> None:
    ground = desk.ground
    nodes = await lent(ground, 2)
    await desk.queue("small", 16)
    await desk.queue("big", 8, checked=True)
    job = await _victims(desk, kind)
    pods = await desk.ground.history.until(lambda: len(desk.nodes_of("small")) == 2, 60)
    assert pods
    victims = set(desk.pods_of("small"))
    deaths = Deaths(ground)
    await desk.big("train", "big")
    (node,) = await desk.runs("train")
    assert node in nodes
    assert victims <= set(deaths.gone)
    assert stops(desk, "small") == 1
    assert not deaths.evicted
    ready = next(one for one in desk.of("train") if entry(one).get("state") == "Ready")
    on_node = [name for name in victims if name in deaths.gone]
    assert max(deaths.gone[name] for name in on_node) < int(ready["metadata"]["resourceVersion"])

    # It is queued again by itself, and runs where there is room.
    await desk.until(lambda: desk.now("small")["spec"]["active"] and desk.is_("small", "Admitted"))
    assert STOPPED_FOR not in desk.now("small")["metadata"].get("annotations", {})
    assert uid(job) == uid(await desk.admin.get(f"/apis/batch/v1/namespaces/{ground.namespace}/jobs/small"))
    await ground.never_broke_a_rule()


async def _victims(desk: Desk, kind: str) -> dict[str, object]:
    if kind == "k07":
        return await desk.job("small", "small", pods=4, cards=4, term_delay="1500ms", grace_seconds=5)
    made = queued_job("small", desk.ground.namespace, queue="small", pods=4, cards=7)
    made["spec"]["template"]["metadata"]["annotations"][TERM_DELAY] = "1500ms"
    made["spec"].pop("completionMode")
    made["spec"] |= {"completions": 2}  # two of its four places are given back to the quota at once
    return await desk.admin.create(made)


def resumes(call: Call) -> bool:
    """Whether the controller sets a Workload active again."""
    return "/workloads/" in call.path and b'"active":true' in call.body.replace(b" ", b"")


async def test_k08_whom_a_crash_left_stopped_is_resumed_and_whom_somebody_else_stopped_is_not(
    desk: Desk, plane: ControlPlane, product: Product
) -> None:
    ground = desk.ground
    await lent(ground, 1)
    await desk.queue("small", 8)
    await desk.queue("big", 8, checked=True)
    await desk.job("small", "small", pods=2, cards=1)
    await desk.job("other", "small", cards=1)
    await desk.runs("small", 2)
    await desk.runs("other")
    await desk.patch("other", {"spec": {"active": False}})
    await ground.until(lambda: not desk.pods_of("other"))
    async with controller_behind(plane, product) as between:
        held = between.fault = Refuse(resumes, lambda: refusal(503, "ServiceUnavailable", "not now"))
        await desk.big("train", "big")
        await desk.until(lambda: desk.is_("small", "Evicted") and not desk.is_("small", "QuotaReserved"))
        await ground.until(lambda: bool(held.refused))
        product.kill(CONTROLLER)
        assert desk.now("small")["spec"]["active"] is False
        assert STOPPED_FOR in desk.now("small")["metadata"]["annotations"]
        between.begin()
        await start_again(plane, product)
        await desk.until(lambda: desk.now("small")["spec"]["active"])
        await desk.runs("train")
    assert STOPPED_FOR not in desk.now("small")["metadata"].get("annotations", {})
    assert desk.now("other")["spec"]["active"] is False
    assert stops(desk, "small") == 1


async def test_k09_a_single_pod_of_kueue_is_evicted_and_kueue_lets_it_go(desk: Desk) -> None:
    ground = desk.ground
    (node,) = await lent(ground, 1)
    await desk.queue("small", 2)
    await desk.queue("big", 8, checked=True)
    where = {"kubernetes.io/hostname": node}
    for name in ("first", "second", "waiting"):
        await desk.admin.create(queued_pod(name, ground.namespace, queue="small", node_selector=where))
        if name != "waiting":
            await ground.until(functools.partial(ground.runs, name))
    deaths = Deaths(ground)
    await desk.big("train", "big")
    await desk.runs("train")
    assert deaths.evicted == {"first", "second"}
    assert {"first", "second"} <= set(deaths.gone)
    assert "waiting" in ground.pods()
    assert not [one for name in ("first", "second") for one in desk.of(name) if one["spec"].get("active") is False]


async def test_k17_a_group_of_plain_pods_is_stopped_as_a_whole_and_comes_back_when_its_pods_are_replaced(
    desk: Desk,
) -> None:
    ground = desk.ground
    await lent(ground, 2)
    await desk.queue("small", 10)
    await desk.queue("big", 8, checked=True)
    group = pod_group("pair", ground.namespace, 2, queue="small", cards=5, node_selector=ground.fleet.selector)
    for pod in group:
        await desk.admin.create(pod)
    await ground.until(lambda: ground.runs("pair-0") and ground.runs("pair-1"))
    deaths = Deaths(ground)
    await desk.big("train", "big")
    await desk.runs("train")
    # Kueue keeps what is left of them until somebody replaces them.
    await ground.until(lambda: all(ended(pod) for pod in ground.pods("pair").values()))
    assert stops(desk, "pair") == 1
    assert not deaths.evicted

    # Nobody has: it holds no quota. With one of two it cannot start either.
    await desk.until(lambda: desk.is_("pair", "Evicted") and not desk.is_("pair", "QuotaReserved"))
    await lent(ground, 1)
    for number, pod in enumerate(group):
        assert desk.now("pair")["spec"]["active"] is False
        assert not desk.is_("pair", "QuotaReserved")
        pod["metadata"]["name"] = f"again-pair-{number}"
        await desk.admin.create(pod)
    await ground.until(lambda: ground.runs("again-pair-0") and ground.runs("again-pair-1"))
    assert STOPPED_FOR not in desk.now("pair")["metadata"].get("annotations", {})
    assert stops(desk, "pair") == 1


async def test_k07_records_name_every_pod_that_goes_with_the_job(desk: Desk) -> None:
    ground = desk.ground
    await lent(ground, 2)
    await desk.queue("small", 16)
    await desk.queue("big", 8, checked=True)
    await desk.job("small", "small", pods=4, cards=4)
    await desk.runs("small", 4)
    victims = {uid(pod) for pod in desk.pods_of("small").values()}
    await desk.big("train", "big")
    await desk.runs("train")
    (claim,) = ground.claims().values()
    records = [one for one in ground.history.live["records"].values() if uid(claim) in json.dumps(one)]
    told = json.dumps([claim, *records])
    assert all(victim in told for victim in victims)
    assert {node_of(pod) for pod in desk.pods_of("train").values()} == {one["name"] for one in chosen_nodes(claim)}
