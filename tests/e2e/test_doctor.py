"""`wholenode doctor` on a real control plane: a healthy cluster, a broken one, and one it may not look into."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kwok.admin import Admin, path_of
from kwok.controlplane import ControlPlane
from kwok.product import NAMESPACE, Product
from kwok.testing import Fleet
from kwok.workloads import make_pod
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.play import agreement, pool

ROLE = "wholenode-doctor"


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this file."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode, installed and running on it."""
    yield from running_product(plane)


@pytest.fixture
async def ground(admin: Admin, product: Product, fleet: Fleet, namespace: str) -> AsyncIterator[str]:
    """Two nodes of one pool, and a pod with a card whose namespace has agreed."""
    assert product.scheduler_config
    await admin.create(pool(fleet.name, 8, accepts="WholeNode", overflow="Reclaimable", drain="Agreed"))
    await fleet.add(2, labels={"pool": fleet.name})
    await admin.create(agreement(namespace, (namespace,)))
    await admin.create(make_pod("p", namespace, cards=1, node_selector=fleet.selector))

    def bound(one: Any) -> bool:
        return bool(one and one["spec"].get("nodeName"))

    await admin.wait_for(f"/api/v1/namespaces/{namespace}/pods/p", bound)
    yield namespace
    await admin.delete(f"/apis/wholenode.io/v1alpha1/gpupools/{fleet.name}")


async def account(admin: Admin, plane: ControlPlane, name: str, role: str | None) -> Path:
    """The kubeconfig of a ServiceAccount that may do what the ClusterRole says, or nothing."""
    await admin.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
    )
    if role is not None:
        await admin.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
            }
        )
    return await asyncio.to_thread(plane.kubeconfig_for_service_account, NAMESPACE, name)


async def ask(kubeconfig: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-c", "from cli.main import main; main()", "doctor", "--json", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, "--kubeconfig", str(kubeconfig), stdout=pipe, stderr=pipe, env=dict(os.environ)
    )
    out, errors = await process.communicate()
    assert errors.decode() == ""
    report = json.loads(out)
    assert report["exitCode"] == process.returncode
    return report["exitCode"], report


def wrong(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["check"], one["code"]) for one in report["findings"] if one["verdict"] != "ok"}


async def test_a_healthy_cluster_with_the_charts_role(admin: Admin, plane: ControlPlane, ground: str) -> None:
    """Every part is read, by a reader who could write nothing."""
    assert ground
    code, report = await ask(await account(admin, plane, "healthy", ROLE), "--watch-seconds", "1")
    assert (code, report["unread"], wrong(report)) == (0, [], set())
    assert len(report["findings"]) == 10
    assert report["watchedSeconds"] >= 1
    [policy] = [one for one in report["findings"] if one["check"] == "placement-policy"]
    assert policy["evidence"]["wholeNodesFree"] == 1
    [config] = [one for one in report["findings"] if one["check"] == "scheduler-config"]
    assert config["evidence"]["sources"] == [f"ConfigMap {NAMESPACE}/wholenode-scheduler-config"]


async def test_a_broken_cluster(
    admin: Admin, plane: ControlPlane, product: Product, ground: str, fleet: Fleet, tmp_path: Path
) -> None:
    """A scheduler file, a ConfigMap, pools that overlap, a void agreement, a writer of taints; each is found."""
    reader = await account(admin, plane, "broken", ROLE)
    config = yaml.safe_load(product.scheduler_config)
    config["extenders"][0] |= {"ignorable": True, "nodeCacheCapable": False}
    file = tmp_path / "scheduler.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    code, report = await ask(reader, "--only", "scheduler-config", "--scheduler-config", str(file))
    assert code == 1
    assert wrong(report) == {("scheduler-config", "ExtenderIgnorable"), ("scheduler-config", "NodesInBody")}

    in_cluster = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "my-scheduler", "namespace": "kube-system"},
        "data": {"config.yaml": file.read_text(encoding="utf-8")},
    }
    twin = pool(f"{fleet.name}-twin", 8, accepts="WholeNode")
    twin["spec"]["nodeSelector"] = {"matchLabels": {"pool": fleet.name}}
    await admin.create(in_cluster)
    await admin.create(twin)
    await admin.patch(
        f"/apis/wholenode.io/v1alpha1/namespaces/{ground}/drainagreements/lend",
        {"spec": {"expires": "2020-01-01T00:00:00Z"}},
    )
    taint = {"key": "example.com/sick", "effect": "PreferNoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": fleet.nodes[0]}, "spec": {"taints": [taint]}}
    await admin.apply(node, manager="gpu-health")
    try:
        code, report = await ask(reader)
    finally:
        await admin.delete(path_of(in_cluster))
        await admin.delete(path_of(twin))
    assert code == 1
    assert wrong(report) >= {
        ("scheduler-config", "ExtenderIgnorable"),
        ("wholenode", "PoolsOverlap"),
        ("agreements", "VoidAgreement"),
        ("taint-writers", "SeveralTaintWriters"),
    }
    assert all(one["fix"] for one in report["findings"] if one["verdict"] != "ok")


async def test_without_rights_it_says_what_could_not_be_read(admin: Admin, plane: ControlPlane, ground: str) -> None:
    assert ground
    code, report = await ask(await account(admin, plane, "nobody", None))
    assert (code, report["verdict"]) == (2, "unknown")
    assert {one["code"] for one in report["findings"]} == {"NotRead"}
    assert all(any(part in line for line in report["unread"]) for part in ("nodes", "pods", "gpupools"))
    assert all("forbidden" in line for line in report["unread"] if not line.startswith("leases"))
