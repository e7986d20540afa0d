"""Trouble with pods, budgets and nodes while a node is vacated, as the real API server makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest

from kwok.admin import APIError, Object, path_of
from kwok.controlplane import ControlPlane
from kwok.faults import Before, Refuse, refusal
from kwok.history import Change
from kwok.product import Product
from kwok.readings import chosen_nodes, ended, node_of, phase, reason, shown, taints, terminating, uid
from kwok.stages import STUCK
from kwok.workloads import make_pod
from tests.e2e.behind import budget, controller_behind, evicts, no_evictions
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE, Ground

WEB = {"app": "web"}
FINALIZER = "example.com/keep"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it; a node that was given back may be chosen again soon."""
    yield from running_product(plane, {"WHOLENODE_AVOID_FOR_SECONDS": "2"})


async def lent(ground: Ground, nodes: int) -> list[str]:
    """Nodes that may be vacated."""
    return await ground.pool(nodes, overflow="Reclaimable", drain="Agreed")


async def resident(ground: Ground, name: str, node: str, **rest: object) -> str:
    """A pod that runs on the node; its UID."""
    pod = await ground.pod(name, node=node, **rest)
    await ground.until(lambda: ground.runs(name))
    return uid(pod)


async def allows(ground: Ground, name: str, count: int) -> None:
    """Wait until the budget lets so many pods go."""
    path = f"/apis/policy/v1/namespaces/{ground.namespace}/poddisruptionbudgets/{name}"
    await ground.admin.wait_for(path, lambda one: (one or {}).get("status", {}).get("disruptionsAllowed") == count)


def state(ground: Ground) -> tuple[str, str]:
    """Phase and reason of the claim of the gang `train`."""
    claim = ground.claims().get("train", {"spec": {}})
    return phase(claim), reason(claim)


async def test_d14_a_second_budget_in_the_last_moment_is_tried_once_and_another_node_is_taken(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    cheap, dear = await lent(ground, 2)
    kept = await resident(ground, "kept", cheap, cards=1, labels=WEB)
    await resident(ground, "other", cheap, cards=0, labels=WEB)
    await resident(ground, "victim", dear, cards=4)
    await ground.admin.create(budget("first", ground.namespace, 1, WEB))
    await allows(ground, "first", 1)
    async with controller_behind(plane, product) as between:
        second = budget("second", ground.namespace, 0, WEB)
        between.fault = Before(evicts("kept"), lambda: ground.admin.create(second))
        await ground.gang("train", 1, annotations=VACATE)

        await ground.until(lambda: ground.bound("train") == {"train-0": dear})

        tries = [call for call in between.calls if call.evicts and call.evicted_uid == kept]
        assert [call.status for call in tries] == [500]
    assert ground.runs("kept")
    assert not taints_of(ground, cheap)
    await ground.never_broke_a_rule()


def taints_of(ground: Ground, node: str) -> list[str]:
    """Taints of ours on the node."""
    nodes = ground.history.live["nodes"].values()
    return [value for one in nodes if one["metadata"]["name"] == node for value in taints(one)]


async def test_d16_where_a_budget_lets_one_of_four_go_they_go_one_after_the_other(ground: Ground) -> None:
    (node,) = await lent(ground, 1)
    template = make_pod("web", cards=1, labels=WEB, node_selector=ground.fleet.selector, term_delay="300ms")
    template["spec"]["restartPolicy"] = "Always"
    replicas = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": ground.namespace},
        "spec": {"replicas": 4, "selector": {"matchLabels": WEB}, "template": template},
    }
    del template["metadata"]["name"], template["metadata"]["namespace"]
    await ground.admin.create(replicas)
    await ground.until(lambda: [one["status"].get("phase") for one in ground.pods("web").values()] == ["Running"] * 4)
    await ground.admin.create(budget("web", ground.namespace, 3, WEB))
    await allows(ground, "web", 1)
    await ground.pool(1, accepts="Small")
    fewest = 4

    def count(_: Change) -> None:
        nonlocal fewest
        up = [
            one for one in ground.pods("web").values() if ground.runs(one["metadata"]["name"]) and not terminating(one)
        ]
        fewest = min(fewest, len(up))

    ground.history.listeners.append(count)
    try:
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        assert fewest == 3
        await ground.never_broke_a_rule()
    finally:
        ground.history.listeners.remove(count)
        await ground.admin.delete(path_of(replicas))


async def test_d17_a_429_without_a_cause_stops_all_evictions_for_as_long_as_it_says(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    for index in range(3):
        await resident(ground, f"victim-{index}", node, cards=1)
    reasons: set[str] = set()
    ground.history.listeners.append(lambda _: reasons.add(state(ground)[1]))
    async with controller_behind(plane, product) as between:
        slower = Refuse(evicts(), lambda: refusal(429, "TooManyRequests", "too many requests", retry_after=3), times=2)
        between.fault = slower
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        tries = [call.at for call in between.calls if call.evicts]
        assert len([call for call in between.calls if call.evicts and call.stored]) == 3
    for refused in slower.refused:
        # Those that were sent side by side with it may come yet.
        assert not [at for at in tries if refused.at + 0.5 < at < refused.at + 3]
    assert "PodDisruptionBudget" not in reasons


async def test_d18_a_budget_that_says_no_for_minutes_is_asked_ever_less_often_until_the_deadline(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    await resident(ground, "victim", node, cards=1, labels=WEB)
    await resident(ground, "other", node, cards=0, labels=WEB)
    await ground.admin.create(budget("web-budget", ground.namespace, 1, WEB))
    await allows(ground, "web-budget", 1)
    cause = ("DisruptionBudget", "The disruption budget web-budget needs 1 healthy pods and has 1 currently")
    says = "Cannot evict pod as it would violate the pod's disruption budget."
    async with controller_behind(plane, product) as between:
        never = Refuse(evicts(), lambda: refusal(429, "TooManyRequests", says, cause=cause))
        between.fault = never
        await ground.gang("train", 1, annotations={**VACATE, "wholenode.io/deadline": "15s"})

        def named() -> bool:
            told = ground.claims().get("train", {}).get("status", {}).get("message", "")
            return state(ground)[1] == "PodDisruptionBudget" and "web-budget" in told

        assert await ground.history.until(named, 30), ground.claims()
        await ground.admin.wait_for_all(f"/apis/events.k8s.io/v1/namespaces/{ground.namespace}/events", told_of_budget)
        await ground.until(lambda: state(ground)[0] == "Failed")
        await ground.until(lambda: not ground.marked())
        times = [call.at for call in between.calls if call.evicts]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) >= 2
    assert all(gap >= 0.99 * 2**index for index, gap in enumerate(gaps)), gaps
    assert ground.runs("victim")


def told_of_budget(events: Mapping[str, Object]) -> bool:
    """Whether an Event on the claim names the budget that says no."""
    return any(
        one["reason"] == "PodDisruptionBudget"
        and one["regarding"]["kind"] == "WholeNodeClaim"
        and "web-budget" in one["note"]
        for one in events.values()
    )


async def test_d22_an_eviction_that_a_policy_forbids_is_told_in_its_words_and_nobody_is_deleted_instead(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    message = "the night shift says no"
    (node,) = await lent(ground, 1)
    kept = await resident(ground, "kept", node, cards=1)
    for made in no_evictions(ground.namespace, message):
        await ground.admin.create(made)
        ground.cleanup.append(path_of(made))
    await until_forbidden(ground, "kept", message)
    async with controller_behind(plane, product) as between:
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: state(ground) == ("Blocked", "EvictionRefused"))
        assert message in ground.claims()["train"]["status"]["message"]
        await ground.until(lambda: not ground.marked())
        assert not [call for call in between.calls if call.method == "DELETE"]
    assert uid(ground.pods()["kept"]) == kept
    assert not terminating(ground.pods()["kept"])
    await ground.never_broke_a_rule()


async def until_forbidden(ground: Ground, pod: str, message: str) -> None:
    """The API server takes a moment to see a new policy; it is asked by dry runs."""
    path = f"/api/v1/namespaces/{ground.namespace}/pods/{pod}/eviction"
    meta = {"name": pod, "namespace": ground.namespace}
    dry = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": {"dryRun": ["All"]}}
    async with asyncio.timeout(HELD_OPEN_SECONDS):
        while True:
            try:
                await ground.admin.request("POST", path, dry)
            except APIError as error:
                if message in str(error):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("anew_first", [True, False])
async def test_d23_d24_the_namesake_of_a_victim_that_went_by_itself_is_not_touched(
    ground: Ground, plane: ControlPlane, product: Product, anew_first: bool
) -> None:
    """The eviction meets another UID (409) or nobody (404)."""
    (node,) = await lent(ground, 1)
    (elsewhere,) = await ground.pool(1, accepts="Small")
    first = await resident(ground, "web-0", node, cards=1)
    path = f"/api/v1/namespaces/{ground.namespace}/pods/web-0"

    async def replaced() -> None:
        await ground.admin.delete(path, grace_seconds=0)
        await ground.admin.wait_for(path, lambda found: found is None)
        if anew_first:
            await ground.pod("web-0", node=elsewhere, cards=1)

    async with controller_behind(plane, product) as between:
        between.fault = Before(evicts("web-0"), replaced)
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: bool([one for one in between.calls if one.evicts and one.status]))
        if not anew_first:
            await ground.pod("web-0", node=elsewhere, cards=1)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        assert {one.status for one in between.calls if one.evicts} == {409 if anew_first else 404}
        assert {one.evicted_uid for one in between.calls if one.evicts} == {first}
        assert not [one for one in between.calls if one.method == "DELETE"]
    again = ground.pods()["web-0"]
    assert uid(again) != first
    assert not terminating(again)
    assert node_of(again) == elsewhere
    await ground.never_broke_a_rule()


async def test_d25_a_victim_with_a_finalizer_is_named_with_it_and_at_the_deadline_all_is_given_back(
    ground: Ground,
) -> None:
    (node,) = await lent(ground, 1)
    await resident(ground, "victim", node, cards=1, term_delay=STUCK, grace_seconds=1)
    path = f"/api/v1/namespaces/{ground.namespace}/pods/victim"
    await ground.admin.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
    try:
        await ground.gang("train", 1, annotations={**VACATE, "wholenode.io/deadline": "8s"})

        def named() -> bool:
            told = ground.claims().get("train", {}).get("status", {}).get("message", "")
            return state(ground)[0] == "Draining" and FINALIZER in told

        await ground.until(named)
        await ground.until(lambda: state(ground)[0] == "Failed")
        await ground.until(lambda: not ground.marked())
        assert ground.pods()["victim"]["metadata"]["finalizers"] == [FINALIZER]
        await ground.never_broke_a_rule()
    finally:
        await ground.admin.patch(path, {"metadata": {"finalizers": None}})


async def draining(ground: Ground, node: str) -> None:
    """Wait until the node is being vacated: its victim was told to go and takes its time."""
    await ground.until(lambda: bool(taints_of(ground, node)) and any(map(terminating, ground.pods().values())))


async def test_n02_a_node_that_is_deleted_while_it_is_vacated_is_replaced_by_another(ground: Ground) -> None:
    cheap, dear = await lent(ground, 2)
    await resident(ground, "slow", cheap, cards=1, term_delay="60s", grace_seconds=60)
    await resident(ground, "victim", dear, cards=4, annotations={"wholenode.io/restart-cost": "1h"})
    await ground.gang("train", 1, annotations=VACATE)
    await draining(ground, cheap)

    await ground.admin.delete(f"/api/v1/nodes/{cheap}")

    await ground.until(lambda: ground.bound("train") == {"train-0": dear})
    await ground.until(lambda: state(ground)[0] == "Bound")
    assert [shown(one) for one in ground.pods().values() if terminating(one)] == [f"{ground.namespace}/slow"]


async def test_n03_a_node_made_anew_under_its_name_is_held_and_proved_empty_anew(ground: Ground) -> None:
    (node,) = await lent(ground, 1)
    pool = ground.pools[0]["metadata"]["name"]
    await resident(ground, "slow", node, cards=1, term_delay="4s", grace_seconds=10)
    await ground.gang("train", 1, annotations=VACATE)
    await draining(ground, node)
    held = chosen_nodes(ground.claims()["train"])[0]["uid"]
    phases: list[str] = []
    beside: list[set[str]] = []

    def note(_: Change) -> None:
        phases.append(state(ground)[0])
        if ground.bound("train"):
            beside.append({name for name in ground.bound() if name != "train-0" and not ended(ground.pods()[name])})

    ground.history.listeners.append(note)

    await ground.admin.delete(f"/api/v1/nodes/{node}")
    await ground.fleet.add(1, labels={"pool": pool}, suffix="p1")

    await ground.until(lambda: ground.bound("train") == {"train-0": node})
    await ground.until(lambda: state(ground)[0] == "Bound")
    new = next(one for one in ground.history.live["nodes"].values() if one["metadata"]["name"] == node)
    assert chosen_nodes(ground.claims()["train"])[0]["uid"] == uid(new) != held
    assert phases.index("ProvingEmpty") > phases.index("Cordoning"), phases
    assert beside[0] == set()
