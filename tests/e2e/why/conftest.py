"""One control plane with wholenode for all tests here: each makes its own nodes and pods, and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.product import Product
from tests.e2e.conftest import running_plane
from tests.e2e.waits import CARDS, POOLS, TEAMS, Scene, gpu_pool


@pytest.fixture(scope="package")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    yield from running_plane(request)


@pytest.fixture(scope="package")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode with a pool of each kind, and teams without any pods."""
    settings = {
        "WHOLENODE_HOST": "0.0.0.0",  # noqa: S104 - the API server proxies to no loopback address
        "WHOLENODE_LEASE_SECONDS": "4",
    }
    product = Product(plane, settings)

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await product.install(admin)
            for name in TEAMS:
                await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            for name, spec in POOLS.items():
                await admin.create(gpu_pool(name, spec))
            await product.start()
            await product.gate_active(admin, CARDS, "team-b")

    asyncio.run(start())
    yield product
    product.stop()


@pytest.fixture
async def scene(admin: Admin, product: Product) -> AsyncIterator[Scene]:
    """The nodes and pods of one test."""
    made = Scene(admin, product)
    yield made
    await made.clear()
