"""Whole nodes next to HAMi: its extender behind ours on the real kube-scheduler, its device plugins, its cards."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from kwok.admin import Admin, path_of
from kwok.controlplane import ControlPlane
from kwok.experiments.consulting import codes, consult, show_deployment
from kwok.hami.devices import ALLOCATED, BOOKED_NODE, CORES, LOCK, REGISTER, decode
from kwok.hami.nodes import SharedFleet
from kwok.hami.run import Hami
from kwok.kueue import Kueue
from kwok.product import EXTENDER, Product
from kwok.queues import admission_check
from kwok.readings import annotation, node_of, phase, reason, terminating
from kwok.workloads import make_pod
from tests.e2e.conftest import SETTINGS, running_plane
from tests.e2e.desk import new_desk
from tests.e2e.drains import lent, node_of_name, state
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE, Ground

WHOLE = {"nvidia.com/gpu": "8", "nvidia.com/gpucores": "100"}
CARD = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
TENTH = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2456", "nvidia.com/gpucores": "10"}
SPREAD = {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "spread"}
PATIENT = {"scheduling.x-k8s.io/pod-group": "crowd"}
"""HAMi lets a pod of a group wait for the lock of its node; others start anew each time."""


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def hami(plane: ControlPlane) -> Iterator[Hami]:
    """HAMi on it: the stand-in, or the one that WHOLENODE_HAMI_SCHEDULER names."""
    hami = Hami(plane)
    asyncio.run(hami.start())
    yield hami
    hami.stop()


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[Kueue]:
    """Kueue on it, which counts cards and nothing of what HAMi knows beside them."""
    kueue = Kueue(plane, transformations=[{"input": CORES, "strategy": "Replace", "outputs": {}}])

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await kueue.install(admin)
            await kueue.start()
            await admin.create(admission_check())

    asyncio.run(start())
    yield kueue
    asyncio.run(kueue.stop())


@pytest.fixture(scope="module")
def product(plane: ControlPlane, hami: Hami, kueue: Kueue) -> Iterator[Product]:
    """wholenode, with the chart's own configuration for both extenders."""
    assert kueue.running
    product = Product(plane, SETTINGS | {"WHOLENODE_RETRY_AFTER_SECONDS": "1"}, hami.chart_values())

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await product.install(admin)
            await product.start()

    asyncio.run(start())
    yield product
    product.stop()


@pytest.fixture
async def fleet(admin: Admin) -> AsyncIterator[SharedFleet]:
    """Nodes whose cards HAMi shares out."""
    nodes = SharedFleet(admin, f"f-{datetime.now(UTC):%H%M%S%f}")
    yield nodes
    await nodes.remove()


async def share(ground: Ground, name: str, resources: dict[str, str] = TENTH, **rest: object) -> str:
    """A pod with parts of cards, bound by HAMi; its node."""
    await ground.pod(name, resources=resources, **rest)
    await ground.until(lambda: ground.runs(name))
    return ground.bound(name)[name]


async def train(ground: Ground, size: int = 1, **notes: str) -> None:
    """A gang of whole nodes, as HAMi is asked for them."""
    await ground.gang("train", size, resources=WHOLE, annotations=notes)


def cards(ground: Ground, name: str) -> list[str]:
    """The cards HAMi gave the pod."""
    given = decode(annotation(ground.pods()[name], ALLOCATED))
    return [part.id for container in given for part in container]


async def explained(ground: Ground, product: Product, pod: str) -> str:
    """Why the pod waits, in our words."""
    url = f"http://127.0.0.1:{product.ports[EXTENDER]}/v1/explain/{ground.namespace}/{pod}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text: str = (await answer.json())["text"]
        return text


def landed(ground: Ground) -> bool:
    return state(ground)[0] == "Bound"


async def test_h03_a_whole_node_job_lands_on_an_untouched_node_and_eight_parts_do_not(ground: Ground) -> None:
    (small,) = await ground.pool(1, accepts="Small")
    big = await ground.pool(2)
    assert await share(ground, "parts", {"nvidia.com/gpu": "8", "nvidia.com/gpumem": "1000"}) == small
    await train(ground)
    await ground.until(lambda: landed(ground))
    node = ground.bound()["train-0"]
    assert node in big
    assert sorted(cards(ground, "train-0")) == [f"GPU-{node}-{index}" for index in range(8)]


async def test_h09_small_shares_fill_one_node_although_hami_would_spread_them(ground: Ground) -> None:
    await ground.pool(3, accepts="Small")
    nodes = [await share(ground, f"part-{number}", annotations=SPREAD) for number in range(3)]
    assert len(set(nodes)) == 1, "HAMi was left no other"


async def test_h06_a_victim_that_takes_its_time_is_counted_until_it_is_gone_and_the_job_lands_then(
    ground: Ground, hami: Hami
) -> None:
    (node,) = await lent(ground, 1)
    await share(ground, "slow", term_delay="3s", grace_seconds=10)
    await train(ground, **VACATE)
    await ground.until(lambda: terminating(ground.pods().get("slow", {"metadata": {}})))
    assert hami.booked()[f"{ground.namespace}/slow"] == node
    assert not ground.bound("train")
    await ground.until(lambda: landed(ground))
    assert "slow" not in ground.pods()
    assert len(cards(ground, "train-0")) == 8
    await ground.never_broke_a_rule()


async def test_h05_h10_a_booking_without_a_pod_keeps_the_node_until_its_pod_is_deleted(
    ground: Ground, hami: Hami, product: Product
) -> None:
    """A binding that is always refused leaves a booking behind: HAMi keeps it, and nobody is on the node."""
    (node,) = await lent(ground, 1)
    await ground.refuse_bindings("ghost")
    await ground.pod("ghost", resources=TENTH)
    await ground.until(lambda: annotation(ground.pods().get("ghost", {"metadata": {}}), BOOKED_NODE) == node)
    await train(ground, **VACATE)
    await ground.until(lambda: ground.waits("train", "BookedByHAMi"))
    assert f"{ground.namespace}/ghost" in await explained(ground, product, "train-0"), "it is named"
    assert hami.booked() == {f"{ground.namespace}/ghost": node}
    await ground.delete("ghost")
    await ground.until(lambda: landed(ground))
    assert f"{ground.namespace}/ghost" not in hami.booked()


async def test_h10_no_member_of_a_gang_reaches_hami_before_there_is_room_for_all(ground: Ground, hami: Hami) -> None:
    await ground.pool(1)
    await train(ground, 2)
    await ground.until(lambda: "train" in ground.claims() and phase(ground.claims()["train"]) == "Pending")
    await share_elsewhere(ground)
    assert not [one for one in ground.pods("train").values() if annotation(one, BOOKED_NODE)]
    assert not [one for one in hami.booked() if one.startswith(f"{ground.namespace}/train")]
    await ground.fleet.add(1, labels={"pool": f"{ground.fleet.name}-0"}, suffix="more")
    await ground.until(lambda: landed(ground))
    assert len(set(ground.bound("train").values())) == 2


async def share_elsewhere(ground: Ground) -> None:
    """A pod that HAMi places meanwhile: the scheduler has had its turn with all that were before it."""
    await ground.pool(1, accepts="Small")
    await share(ground, "passer-by")


async def test_h07_a_pod_that_hami_does_not_know_is_counted_by_us(ground: Ground, hami: Hami) -> None:
    first, second = await ground.pool(2, drain="Disabled")
    await ground.pod("by-hand", node=first, cards=1)
    await ground.until(lambda: ground.runs("by-hand"))
    await train(ground)
    await ground.until(lambda: landed(ground))
    assert ground.bound("train") == {"train-0": second}
    assert f"{ground.namespace}/by-hand" not in hami.booked(), "HAMi would have given it away"


async def test_h11_a_lock_whose_pod_is_gone_keeps_the_node_shut_until_it_expires(ground: Ground) -> None:
    (node,) = await ground.pool(1)
    taken_at = datetime.now(UTC) - timedelta(minutes=5) + timedelta(seconds=5)
    lock = {"metadata": {"annotations": {LOCK: f"{taken_at:%Y-%m-%dT%H:%M:%SZ},{ground.namespace},nobody"}}}
    await ground.admin.patch(f"/api/v1/nodes/{node}", lock)
    await train(ground)
    await ground.until(lambda: state(ground) == ("ProvingEmpty", "BookedByHAMi"))
    assert "nobody" in ground.claims()["train"]["status"]["message"]
    await ground.until(lambda: landed(ground))


async def test_h12_an_init_container_without_cards_does_not_hide_the_card_of_the_main_one(ground: Ground) -> None:
    (node,) = await lent(ground, 1)
    pod = make_pod("main", ground.namespace, resources=TENTH, node_selector=ground.fleet.selector)
    pod["spec"]["initContainers"] = [{"name": "prepare", "image": "init:1"}]
    await ground.admin.create(pod)
    await ground.until(lambda: ground.runs("main"))
    written = annotation(ground.pods()["main"], ALLOCATED)
    assert re.match(";?GPU-", written), "HAMi 2.10 leaves out the ; of containers without cards (HAMi#2899)"
    await train(ground)
    await ground.until(lambda: "train" in ground.claims() and reason(ground.claims()["train"]) != "")
    assert phase(ground.claims()["train"]) == "Pending"
    assert node_of(ground.pods()["main"]) == node
    await ground.delete("main")
    await ground.until(lambda: landed(ground))


async def test_h04_hamis_webhook_and_our_gate_read_a_pod_alike(ground: Ground, hami: Hami) -> None:
    await ground.pool(0)
    hook = await ground.admin.create(hami.webhook(ground.namespace))
    ground.cleanup.append(path_of(hook))
    mutated = {}
    for name, resources in (("part", {"nvidia.com/gpumem": "3000"}), ("whole", {"nvidia.com/gpu": "8"})):
        pod = make_pod(name, ground.namespace, resources=resources)
        async with asyncio.timeout(HELD_OPEN_SECONDS):  # the API server takes a moment to see a new webhook
            while mutated.get(name, {}).get("schedulerName") != "hami-scheduler":
                path = path_of(pod, collection=True)
                mutated[name] = (await ground.admin.request("POST", path, pod, params={"dryRun": "All"}))["spec"]
    limits = {name: spec["containers"][0]["resources"]["limits"] for name, spec in mutated.items()}
    assert limits["part"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    assert limits["whole"] == WHOLE
    assert "schedulingGates" not in mutated["part"]
    assert mutated["whole"]["schedulingGates"] == [{"name": "wholenode.io/claim"}]


async def test_h13_h14_a_node_with_a_broken_register_and_one_with_an_ill_card_are_not_whole(ground: Ground) -> None:
    await ground.pool(0)
    mine = {"pool": f"{ground.fleet.name}-0"}
    (broken,) = await ground.fleet.add(1, labels=mine, suffix="broken")
    (ill,) = await ground.fleet.add(1, labels=mine, suffix="ill", sick=(3,))
    register = annotation(node_of_name(ground, broken), REGISTER)
    for text in (register[:-20], "GPU-0,10,24564,100,NVIDIA-4090,0,true:"):
        await ground.admin.patch(f"/api/v1/nodes/{broken}", {"metadata": {"annotations": {REGISTER: text}}})
        await ground.until(lambda text=text: annotation(node_of_name(ground, broken), REGISTER) == text)  # type: ignore[misc]
    await train(ground)
    await ground.until(lambda: state(ground)[0] == "Pending" and state(ground)[1] != "")
    refused = {one["reason"]: one["example"] for one in ground.claims()["train"]["status"]["plan"]["refused"]}
    assert refused == {"CardsMissing": ill, "HAMiRegisterUnreadable": broken}
    await ground.admin.patch(f"/api/v1/nodes/{broken}", {"metadata": {"annotations": {REGISTER: register}}})
    await ground.until(lambda: landed(ground))
    assert ground.bound("train") == {"train-0": broken}


async def test_kueue_admits_we_vacate_and_hami_picks_the_cards(ground: Ground, kueue: Kueue, hami: Hami) -> None:
    (node,) = await lent(ground, 1)
    await share(ground, "resident", term_delay="1s", grace_seconds=5)
    async with new_desk(ground, kueue) as desk:
        await desk.queue("big", 8, checked=True)
        await desk.job("train", "big", resources=WHOLE, annotations=VACATE)
        assert await desk.runs("train") == {node}
        (pod,) = desk.pods_of("train")
        assert len(cards(ground, pod)) == 8
        assert hami.booked()[f"{ground.namespace}/{pod}"] == node
        assert desk.is_("train", "Admitted")
        assert "resident" not in ground.pods()
        await ground.never_broke_a_rule()


async def test_h16_while_hami_is_down_pods_wait_as_attempted_and_failed_and_nobody_is_stopped(
    ground: Ground, hami: Hami
) -> None:
    await ground.pool(1, accepts="Small")
    await lent(ground, 2)
    home = await share(ground, "resident")
    lent_home = await share(ground, "lodger", node_selector={"pool": f"{ground.fleet.name}-1"})
    before = hami.booked()
    hami.kill()
    await ground.pod("late", resources=TENTH)
    await train(ground, **VACATE)
    await ground.until(lambda: failed_attempt(ground, "late") and failed_attempt(ground, "train-0"))
    assert state(ground)[0] == "Landing", "the free node is held"
    assert ground.runs("lodger")
    assert not terminating(ground.pods()["lodger"])
    hami.launch()
    await hami.ready()
    assert before.items() <= hami.booked().items(), "read from the annotations again"
    await ground.until(lambda: landed(ground) and ground.runs("late"))
    assert ground.bound()["late"] == home
    assert ground.bound()["train-0"] != lent_home


def failed_attempt(ground: Ground, name: str) -> bool:
    """Whether the scheduler tried the pod and could not even look for a place."""
    conditions = ground.pods().get(name, {}).get("status", {}).get("conditions") or ()
    return any(one["type"] == "PodScheduled" and one.get("reason") == "SchedulerError" for one in conditions)


async def test_h15_the_default_limit_of_hamis_client_holds_everything_up_and_the_advised_one_does_not(
    ground: Ground, plane: ControlPlane, hami: Hami
) -> None:
    """Nine calls a pod and five a second: what an empty fleet could take at once comes one pod in two seconds."""
    await ground.pool(5, accepts="Small")
    hami.kill()
    slow = hami.with_limit(5, 10)
    await slow.ready()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(3):
        await ground.pod(f"first-{number}", resources=CARD)
    await ground.until(lambda: len(ground.bound("first")) == 3)
    seven_each = 3 * 7 - 10
    assert loop.time() - began >= seven_each / 5 - 0.5, "seven calls a pod before it is bound, ten of them free"
    assert await found_by_doctor(ground, plane, slow, ()) & {"LowClientLimit", "ClientRateLimit"}
    slow.kill()
    advised = hami.with_limit(100, 200)
    await advised.ready()
    await asyncio.gather(*(ground.pod(f"more-{n}", resources=CARD, labels=PATIENT) for n in range(37)))
    await ground.until(lambda: len(ground.bound()) == 40)
    owners = [card for name in ground.bound() for card in cards(ground, name)]
    assert len(owners) == len(set(owners)) == 40, owners
    assert await found_by_doctor(ground, plane, advised, ("kube-qps", "kube-burst")) == set()
    advised.kill()
    hami.launch()
    await hami.ready()


async def found_by_doctor(ground: Ground, plane: ControlPlane, hami: Hami, told: tuple[str, ...]) -> set[str]:
    """What the doctor finds wrong with rates where HAMi's Deployment names these flags."""
    await show_deployment(ground.admin, hami.flags(told))
    return codes(await consult(plane, "rate-limits"))
