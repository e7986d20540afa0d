"""Fixtures for every test: one real control plane a session; a client, a namespace and nodes for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kwok.admin import Admin
from kwok.binaries import ensure
from kwok.catalogue import NAMED_PATHS
from kwok.controlplane import ControlPlane
from kwok.testing import Fleet, remove_namespace

# How long one example takes depends on what else the machine does: no test may fail for that. Nor may one fail for what
# this run happens to draw: new examples are drawn by whoever asks for them (`make explore`).
settings.register_profile("wholenode", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck))
settings.load_profile("wholenode")

CLUSTER_FIXTURES = {"control_plane", "built"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --keep-logs."""
    parser.addoption("--keep-logs", action="store_true", help="keep the control plane's logs and say where they are")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark that tests with a control plane get."""
    config.addinivalue_line("markers", "cluster: needs the real control plane (its binaries are built if missing)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a control plane, so that `-m 'not cluster'` leaves them out."""
    for item in items:
        if CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())) or "e2e" in item.path.parts:
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def built() -> Mapping[str, Path]:
    """The programs of the control plane, built if they are missing."""
    return ensure()


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, built: Mapping[str, Path]) -> Iterator[ControlPlane]:
    """A running control plane with scheduler, controllers and KWOK, shared by the session; without nodes."""
    assert built
    plane = ControlPlane(keep_logs=bool(request.config.getoption("--keep-logs")))
    plane.start()
    yield plane
    failed = bool(request.session.testsfailed)
    plane.stop(failed=failed)
    if failed or plane.keep_logs:
        reporter = request.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\ncontrol plane logs: {plane.logs}")


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Admin]:
    """A client with every right, for one test."""
    async with Admin(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(admin: Admin) -> AsyncIterator[str]:
    """A namespace of its own for one test; it and everything in it is deleted afterwards (pods at once)."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await remove_namespace(admin, name)


@pytest.fixture
async def fleet(admin: Admin) -> AsyncIterator[Fleet]:
    """Nodes for one test: `await fleet.add(5)` makes some, `fleet.selector` selects them."""
    nodes = Fleet(admin, f"f-{uuid.uuid4().hex[:8]}")
    yield nodes
    await nodes.remove()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory and no ready-made binaries named, for tests of building."""
    for name in ("KUBEBUILDER_ASSETS", *NAMED_PATHS.values()):
        monkeypatch.delenv(name, raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setenv("WHOLENODE_CACHE", str(cache))
    return cache
