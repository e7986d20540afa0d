"""A control plane with wholenode on it, for one test at a time: everything runs with the chart's own roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.landings import PodWatch, follow
from kwok.product import Product
from kwok.testing import Fleet
from tests.e2e.ground import Ground, new_ground
from tests.e2e.play import agreement

SETTINGS = {"WHOLENODE_LEASE_SECONDS": "4"}
UNDECIDED = "could not be decided"
"""What the controller logs where an error of ours keeps one claim waiting; other claims, and most tests, go on."""


def running_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane for a fixture of any scope; its logs stay, and are named, if a test fails meanwhile."""
    plane = ControlPlane(keep_logs=bool(request.config.getoption("--keep-logs")))
    plane.start()
    failures = request.session.testsfailed
    yield plane
    failed = request.session.testsfailed > failures
    plane.stop(failed=failed)
    if failed:
        reporter = request.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\ncontrol plane logs: {plane.logs}")


def running_product(plane: ControlPlane, settings: Mapping[str, str] = SETTINGS) -> Iterator[Product]:
    """wholenode, installed and running, for a fixture of any scope; stopped afterwards, its objects stay."""
    product = Product(plane, settings)

    async def start() -> None:
        async with Admin(plane.kubeconfig) as admin:
            await product.install(admin)
            await product.start()

    asyncio.run(start())
    yield product
    product.stop()
    for log in plane.logs.glob("*.log"):
        assert UNDECIDED not in log.read_text(encoding="utf-8", errors="replace"), f"{log}: an error while deciding"


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of the test's own: it has the whole fleet to itself, and kube-scheduler asks our extender."""
    yield from running_plane(request)


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Admin]:
    """A client with every right."""
    async with Admin(plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def watch(admin: Admin) -> AsyncIterator[PodWatch]:
    """What happens to pods with cards during the test."""
    async with follow(admin) as seen:
        yield seen


@pytest.fixture
async def product(plane: ControlPlane, admin: Admin) -> AsyncIterator[Product]:
    """wholenode, installed and running; stopped after the test, its objects stay."""
    product = Product(plane, SETTINGS)
    await product.install(admin)
    yield product
    product.stop()


@pytest.fixture
async def ground(admin: Admin, product: Product, fleet: Fleet, namespace: str) -> AsyncIterator[Ground]:
    """What one test stands on: whoever is in the namespace agrees to be stopped for its whole-node jobs."""
    async with new_ground(admin, product, fleet, namespace) as ground:
        await admin.create(agreement(namespace, (namespace,)))
        yield ground
