"""Trouble with the programs and with the way to the API server: killed, frozen, deaf, started anew, uninstalled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from kwok import helm as tools
from kwok.admin import Admin, Object, create_all
from kwok.controlplane import ControlPlane
from kwok.faultproxy import proxy
from kwok.faults import Before, Kind
from kwok.product import CONTROLLER, EXTENDER, NAMESPACE, Product
from kwok.readings import MARK, node_of, phase, taints, terminating, uid
from kwok.workloads import make_pod
from tests.e2e.behind import controller_behind, start_again
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE, Ground

SECOND = "controller-2"
LEASE_SECONDS = 6
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/wholenode-controller"
INSTALL = Path(__file__).resolve().parents[2] / "docs" / "install.md"
LOOKS = 600
FRAMEWORK = ("kopf", "last-handled-configuration", "not-used")


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it."""
    yield from running_product(plane, {"WHOLENODE_LEASE_SECONDS": str(LEASE_SECONDS)})


async def being_vacated(ground: Ground, term_delay: str = "3s") -> str:
    """A node of its own whose one victim was told to go and takes its time; for the gang `train`."""
    (node,) = await ground.pool(1, overflow="Reclaimable", drain="Agreed")
    await ground.pod("slow", node=node, cards=1, term_delay=term_delay, grace_seconds=30)
    await ground.until(lambda: ground.runs("slow"))
    await ground.gang("train", 1, annotations=VACATE)
    await ground.until(lambda: terminating(ground.pods()["slow"]))
    return node


def train(ground: Ground) -> str:
    """Phase of the claim of the gang `train`."""
    return phase(ground.claims().get("train", {}))


@contextlib.asynccontextmanager
async def second_controller(plane: ControlPlane, product: Product, url: str) -> AsyncIterator[None]:
    """Another controller, which waits for the lease; gone afterwards."""
    product.through[SECOND] = url
    await asyncio.to_thread(product.launch, SECOND, CONTROLLER)
    await product.ready(SECOND)
    try:
        yield
    finally:
        await asyncio.to_thread(plane.stop_component, SECOND)
        del product.through[SECOND]


async def test_c05_a_leader_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    async with (
        proxy(product.kubeconfig(CONTROLLER)) as other,
        controller_behind(plane, product) as own,
        second_controller(plane, product, other.url),
    ):
        node = await being_vacated(ground)
        assert own.writes()
        assert not other.calls
        product.signal(CONTROLLER, signal.SIGSTOP)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        await ground.until(lambda: train(ground) == "Bound" and not taints_on(ground, node))
        assert other.writes()

        before = len(own.calls)
        product.signal(CONTROLLER, signal.SIGCONT)
        await until_so(lambda: not product.running(CONTROLLER))

        late = [(call.kind, call.path) for call in own.calls[before:] if call.kind is not Kind.LEASE and call.stored]
        assert late == []
        await ground.never_broke_a_rule()


def taints_on(ground: Ground, node: str) -> list[str]:
    """Taints of ours on the node."""
    nodes = ground.history.live["nodes"].values()
    return [value for one in nodes if one["metadata"]["name"] == node for value in taints(one)]


async def test_c06_when_the_leader_is_lost_another_takes_over_within_the_lease_and_five_seconds_and_goes_on(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    async with proxy(product.kubeconfig(CONTROLLER)) as other, second_controller(plane, product, other.url):
        node = await being_vacated(ground)
        holder = (await ground.admin.get(LEASE))["spec"]["holderIdentity"]

        def taken_over(lease: Object | None) -> bool:
            return lease is not None and lease["spec"]["holderIdentity"] not in {"", holder}

        product.signal(CONTROLLER, signal.SIGKILL)
        await ground.admin.wait_for(LEASE, taken_over, LEASE_SECONDS + 5)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        await ground.until(lambda: train(ground) == "Bound")
        assert len(ground.claims()) == 1
        await ground.never_broke_a_rule()
    await start_again(plane, product)


async def test_c07_while_the_watches_are_silent_a_drain_goes_on_by_lists_and_sees_who_comes(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    async with controller_behind(plane, product) as between:
        node = await being_vacated(ground)
        between.hold(watches_only=True)
        await ground.pod("late", node=node, cards=1, term_delay="1s", grace_seconds=10)

        await ground.until(lambda: "late" not in ground.pods())
        await ground.until(lambda: ground.bound("train") == {"train-0": node})

        between.let_go()
        await ground.until(lambda: train(ground) == "Bound")
        await ground.never_broke_a_rule()


async def test_c08_after_a_watch_gap_the_cache_holds_exactly_the_pods_that_exist(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    nodes = await ground.pool(13, accepts="Small")
    pods = [ground._pod(f"one-{index:03d}", cards=1) for index in range(103)]
    for index, pod in enumerate(pods):
        pod["spec"]["nodeName"] = nodes[index % len(nodes)]
    async with controller_behind(plane, product) as between:
        await create_all(ground.admin, pods)
        await until_free(ground, 1)
        between.hold(watches_only=True)
        gone = [f"/api/v1/namespaces/{ground.namespace}/pods/one-{index:03d}" for index in range(100)]
        await asyncio.gather(*(ground.admin.delete(path, grace_seconds=0) for path in gone))

        between.expire_watches()

        await until_free(ground, 101)


async def until_free(ground: Ground, cards: int) -> None:
    """Wait until the controller, by its cache, counts so many cards of the first pool as free."""
    path = f"/apis/wholenode.io/v1alpha1/gpupools/{ground.pools[0]['metadata']['name']}"
    await ground.admin.wait_for(path, lambda pool: (pool or {}).get("status", {}).get("cardsFree") == cards)


async def test_c09_while_the_extender_starts_anew_no_small_pod_slips_in(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    node = await being_vacated(ground, term_delay="6s")
    await ground.pool(1, accepts="Small")
    async with ground.raining() as landed:
        product.kill(EXTENDER)
        await asyncio.to_thread(product.launch, EXTENDER)
        await product.ready(EXTENDER)
        await ground.until(lambda: len(landed) >= 10)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        assert node not in landed.values()
    await ground.never_broke_a_rule()


async def test_c10_a_controller_that_is_uninstalled_while_it_drains_leaves_no_finalizer_and_the_clean_up_does_the_rest(
    ground: Ground, plane: ControlPlane, product: Product, tmp_path: Path
) -> None:
    node = await being_vacated(ground, term_delay="1s")
    await asyncio.to_thread(plane.stop_component, CONTROLLER)
    try:
        await ground.until(lambda: "slow" not in ground.pods())
        assert await left_by_us(ground.admin) == []
        assert taints_on(ground, node)

        block = INSTALL.read_text(encoding="utf-8").partition("<!-- tested: cleanup -->")[2].split("```")[1]
        (tmp_path / "kubectl").symlink_to(tools.kubectl())
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBECONFIG": str(plane.kubeconfig)}
        command = ["bash", "-euo", "pipefail", "-c", block.removeprefix("sh\n")]
        run = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr

        await ground.until(lambda: not ground.marked())
        await ground.until(lambda: MARK not in str(ground.pods()["train-0"]["spec"].get("schedulingGates")))
        await ground.delete("train-0")
    finally:
        await start_again(plane, product)


async def left_by_us(admin: Admin) -> list[str]:
    """Finalizers of ours, and a framework's bookkeeping, on anything that others rely on."""
    found = []
    for path in ("/api/v1/pods", "/api/v1/nodes", "/apis/batch/v1/jobs"):
        for item in await admin.list(path):
            notes = [*(item["metadata"].get("finalizers") or ()), *(item["metadata"].get("annotations") or ())]
            found += [f"{item['metadata']['name']}: {one}" for one in notes if any(mark in one for mark in FRAMEWORK)]
            found += [one for one in item["metadata"].get("finalizers") or () if "wholenode" in one]
    return found


async def test_c11_after_a_whole_run_nothing_carries_a_finalizer_or_bookkeeping(ground: Ground) -> None:
    node = await being_vacated(ground, term_delay="200ms")
    await ground.until(lambda: train(ground) == "Bound" and not taints_on(ground, node))
    assert await left_by_us(ground.admin) == []
    for kind in ("wholenodeclaims", "drainagreements", "drainrecords", "gpupools"):
        for item in await ground.admin.list(f"/apis/wholenode.io/v1alpha1/{kind}"):
            assert not item["metadata"].get("finalizers")
            assert not [one for one in item["metadata"].get("annotations") or () if one.startswith("kopf")]


async def test_c13_a_claim_that_is_made_twice_at_the_same_moment_is_one_claim(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await ground.pool(1)
    async with controller_behind(plane, product) as between:

        async def first() -> None:
            call = next(call for call in between.calls if call.path.endswith("/wholenodeclaims"))
            await ground.admin.request("POST", call.path, json.loads(call.body))

        between.fault = Before(lambda call: call.method == "POST" and call.path.endswith("/wholenodeclaims"), first)
        await ground.gang("train", 1)
        await ground.until(lambda: ground.bound("train") == {"train-0": node})
        await ground.until(lambda: train(ground) == "Bound")
        made = [call.status for call in between.calls if call.path.endswith("/wholenodeclaims")]
        assert made[0] == 409
        assert len(ground.claims()) == 1


async def test_c15_after_a_thousand_pods_came_and_went_both_programs_count_as_a_fresh_list_does(
    ground: Ground, product: Product
) -> None:
    nodes = await ground.pool(10, accepts="Small")
    kept = []
    for group in range(10):
        pods = [make_pod(f"p{group}-{index}", ground.namespace, cards=1, grace_seconds=0) for index in range(100)]
        for index, pod in enumerate(pods):
            pod["spec"]["nodeName"] = nodes[index % len(nodes)]
        kept.append(pods[group]["metadata"]["name"])
        await create_all(ground.admin, pods)
        paths = [
            f"/api/v1/namespaces/{ground.namespace}/pods/{pod['metadata']['name']}"
            for pod in pods
            if pod is not pods[group]
        ]
        await asyncio.gather(*(ground.admin.delete(path, grace_seconds=0) for path in paths))
    listed = await ground.admin.list(f"/api/v1/namespaces/{ground.namespace}/pods")
    assert sorted(one["metadata"]["name"] for one in listed) == sorted(kept)
    assert len({uid(one) for one in listed if node_of(one)}) == 10

    await until_free(ground, 70)
    wanted = f'wholenode_extender_cards_free{{pool="{ground.pools[0]["metadata"]["name"]}"}} 70.0'
    url = f"http://127.0.0.1:{product.ports[EXTENDER]}/metrics"
    told = ""
    async with aiohttp.ClientSession() as session:
        for _ in range(LOOKS):
            async with session.get(url) as answer:
                told = await answer.text()
            if wanted in told:
                break
            await asyncio.sleep(HELD_OPEN_SECONDS / LOOKS)
    assert wanted in told


async def until_so(condition: Callable[[], bool]) -> None:
    """Wait for what no watch tells."""
    for _ in range(LOOKS):
        if condition():
            return
        await asyncio.sleep(HELD_OPEN_SECONDS / LOOKS)
    pytest.fail(f"not so after {HELD_OPEN_SECONDS:.0f} s")
