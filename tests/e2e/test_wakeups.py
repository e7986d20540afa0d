"""Pods that kube-scheduler was told to wait for a reason that has passed are bound though nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.faultproxy import proxy
from kwok.product import EXTENDER, Product
from kwok.readings import phase, reason
from kwok.testing import Fleet
from tests.e2e.behind import extender_behind, start_again
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE, Ground, new_ground
from tests.e2e.play import agreement

NOT_READY = "wholenode: the extender has not seen the whole cluster yet"
WAITING = "wholenode: the gang's claim holds no proved empty node yet"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module, with nobody else on it: nothing happens that a test does not."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it."""
    yield from running_product(plane)


@pytest.fixture
async def ground(admin: Admin, product: Product, fleet: Fleet, namespace: str) -> AsyncIterator[Ground]:
    """What one test stands on."""
    async with new_ground(admin, product, fleet, namespace) as ground:
        yield ground


async def first_word(port: int) -> int:
    """Status of the extender's first answer to whether it is ready."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(HELD_OPEN_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    return answer.status
            await asyncio.sleep(0.02)


async def test_e18_the_extender_refuses_a_pod_because_it_has_not_seen_the_last_victim_go_and_the_pod_is_bound(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await ground.pool(1, overflow="Reclaimable", drain="Agreed")
    await ground.admin.create(agreement(ground.namespace, (ground.namespace,)))
    await ground.pod("victim", node=node, cards=1, term_delay="2s", grace_seconds=10)
    async with proxy(product.kubeconfig(EXTENDER)) as between, extender_behind(between, plane, product):
        await product.ready(EXTENDER)
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: reason(ground.claims().get("train", {})) == "WaitingForVictimsToEnd")
        between.hold()
        await ground.until(lambda: ground.refused("train-0", WAITING))
        assert "victim" not in ground.pods()
        assert phase(ground.claims()["train"]) == "Landing"

        between.let_go()

        await ground.until(lambda: ground.bound("train") == {"train-0": node})
    await ground.never_broke_a_rule()


async def test_e20_an_extender_that_starts_late_says_so_and_the_pod_is_bound_once_it_knows_the_cluster(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    """The controller starts anew, too: else it would wake the pod because of the new pool."""
    (node,) = await ground.pool(1, accepts="Small")
    await start_again(plane, product)
    async with proxy(product.kubeconfig(EXTENDER)) as between:
        between.hold()
        async with extender_behind(between, plane, product):
            assert await first_word(product.ports[EXTENDER]) == 503
            await ground.pod("cpu", cards=0)
            # Nothing more is to happen to it, for it would wake the other.
            await ground.until(lambda: ground.runs("cpu"))
            await ground.pod("early", cards=1)
            await ground.until(lambda: ground.refused("early", f"1 {NOT_READY}"))
            assert ground.bound() == {"cpu": node}

            between.let_go()

            await ground.until(lambda: ground.bound("early") == {"early": node})
    await ground.never_broke_a_rule()
