"""deploy/examples, applied as they are: next to the real Kueue everything in them is accepted, and runs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from kwok.admin import Admin, Object, create_all
from kwok.controlplane import ControlPlane
from kwok.kueue import Kueue
from kwok.nodes import make_nodes
from kwok.product import Product
from kwok.readings import node_of
from tests.e2e.conftest import running_plane, running_product

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"}
RACK = "topology.example.com/rack"
PODS = "/api/v1/namespaces/{}/pods"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of the module's own: the examples are about a whole cluster."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it."""
    yield from running_product(plane)


@pytest.fixture
async def admin(plane: ControlPlane, product: Product) -> AsyncIterator[Admin]:
    """A client with every right; Kueue runs and counts cpu and memory too; 2 small nodes, 6 whole ones in 2 racks."""
    assert product
    kueue = Kueue(plane, overrides={"resources": {}})
    async with Admin(plane.kubeconfig) as client:
        await kueue.install(client)
        await kueue.start()
        kinds = (("small", "r1", 2), ("whole", "r1", 5), ("whole", "r2", 1))
        for pool, rack, count in kinds:
            labels = {"pool": pool, RACK: rack, **PRODUCT}
            await create_all(client, make_nodes(count, 8, f"{pool}-{rack}", labels))
        yield client
        await kueue.stop()


def manifests(file: str) -> list[Object]:
    return list(yaml.safe_load_all((EXAMPLES / file).read_text(encoding="utf-8")))


async def apply(admin: Admin, file: str) -> None:
    for one in manifests(file):
        await admin.apply(one)


async def running(admin: Admin, namespace: str, app: str, count: int) -> list[str]:
    """Wait until so many pods of the app run; the nodes they are on."""

    def all_run(found: Mapping[str, Object]) -> bool:
        return len(found) == count and all(one["status"].get("phase") == "Running" for one in found.values())

    pods = await admin.wait_for_all(PODS.format(namespace), all_run, 60.0, labelSelector=f"app={app}")
    return sorted(node_of(pod) for pod in pods.values())


def test_the_readme_tells_of_every_example_and_of_no_other() -> None:
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = {one.name for one in EXAMPLES.glob("*.yaml")}
    assert files
    assert set(re.findall(r"\]\((\S+\.yaml)\)", told)) == files


async def test_the_examples_are_accepted_and_run_on_the_nodes_they_ask_for(admin: Admin) -> None:
    for file in ("1-pools.yaml", "2-tenants.yaml", "3-agreements.yaml"):
        await apply(admin, file)
    for one in manifests("3-agreements.yaml"):
        namespace, name = one["metadata"]["namespace"], one["metadata"]["name"]
        path = f"/apis/wholenode.io/v1alpha1/namespaces/{namespace}/drainagreements/{name}"
        await admin.wait_for(path, _valid)

    await apply(admin, "6-service.yaml")
    await apply(admin, "7-small-jobs.yaml")
    assert {node.split("-")[0] for node in await running(admin, "team-b", "chat", 3)} == {"small"}
    assert {node.split("-")[0] for node in await running(admin, "team-b", "sweep", 1)} == {"small"}

    await apply(admin, "4-whole-node-job.yaml")
    (alone,) = await running(admin, "team-a", "finetune", 1)
    await apply(admin, "5-gang-of-4-nodes.yaml")
    gang = await running(admin, "team-a", "pretrain", 4)
    assert alone.startswith("whole-")
    assert len({alone, *gang}) == 5, "a node for each of the five pods"
    assert {node.rsplit("-", 1)[0] for node in gang} == {"whole-r1"}, "all of one rack"


def _valid(found: Object | None) -> bool:
    conditions = (found or {}).get("status", {}).get("conditions") or []
    return any(one["type"] == "Valid" and one["status"] == "True" for one in conditions)
