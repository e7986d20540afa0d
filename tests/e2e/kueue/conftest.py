"""One control plane for all tests with the real Kueue, which was installed when wholenode was there already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from kwok.admin import Admin, path_of
from kwok.controlplane import ControlPlane
from kwok.kueue import BATCH_JOB, JOBSET, POD, Kueue
from kwok.product import Product
from kwok.queues import admission_check
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.desk import Desk, holds, new_desk
from tests.e2e.ground import Ground

SETTINGS = {"WHOLENODE_LEASE_SECONDS": "8", "WHOLENODE_RETRY_AFTER_SECONDS": "1", "WHOLENODE_AVOID_FOR_SECONDS": "2"}
NOTICED_SECONDS = 120.0
"""The controller looks every minute for kinds that were not there."""


@pytest.fixture(scope="package")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane that these tests share; each has nodes, pools, queues and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="package")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it; a claim that gave its nodes back looks for others soon."""
    yield from running_product(plane, SETTINGS)


@pytest.fixture(scope="package")
def kueue(plane: ControlPlane, product: Product) -> Iterator[Kueue]:
    """Kueue comes when the controller has long been running without it."""
    assert product.running("controller")
    kueue = Kueue(plane, frameworks=(BATCH_JOB, POD, JOBSET))

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await kueue.install(admin)
            await kueue.start()
            check = path_of(await admin.create(admission_check()))
            await admin.wait_for(check, lambda found: holds(found or {}, "Active"), NOTICED_SECONDS)

    asyncio.run(start())
    yield kueue
    asyncio.run(kueue.stop())


@pytest.fixture
async def desk(ground: Ground, kueue: Kueue) -> AsyncIterator[Desk]:
    """The test's ground, and what Kueue has for it."""
    async with new_desk(ground, kueue) as desk:
        yield desk
