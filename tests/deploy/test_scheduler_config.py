"""The rendered scheduler configuration in the real kube-scheduler, with the extender down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from kwok.controlplane import ControlPlane


@pytest.fixture
def scheduler(control_plane: ControlPlane, rendered: Callable[..., list[dict[str, Any]]]) -> Iterator[ControlPlane]:
    """kube-scheduler with our configuration; nobody listens where it would find the extender."""
    objects = rendered('scheduler.urlPrefix="http://127.0.0.1:9/v1"')
    [text] = [
        each["data"]["scheduler-config.yaml"]
        for each in objects
        if each["kind"] == "ConfigMap" and "scheduler-config.yaml" in each["data"]
    ]
    control_plane.restart_scheduler(text)
    yield control_plane
    control_plane.restart_scheduler(None)


def pod(name: str, limits: dict[str, str], selector: dict[str, str]) -> dict[str, Any]:
    container = {"name": "c", "image": "work", "resources": {"limits": limits}}
    spec = {"containers": [container], "nodeSelector": selector}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def test_pods_without_gpu_start_while_the_extender_is_down_and_gpu_pods_wait(
    scheduler: ControlPlane, kubectl: Any, namespace: str, fleet: Any
) -> None:
    assert scheduler.pids()["kube-scheduler"]
    await fleet.add(1)
    pods = [pod("gpu", {"nvidia.com/gpu": "1"}, fleet.selector), pod("cpu", {"cpu": "100m"}, fleet.selector)]
    kubectl("-n", namespace, "create", "-f", "-", given=yaml.safe_dump_all(pods))
    kubectl("-n", namespace, "wait", "pod/cpu", "--for=condition=PodScheduled", "--timeout=60s")
    kubectl(
        "-n", namespace, "wait", "pod/gpu", "--timeout=60s",
        "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=SchedulerError",
    )  # fmt: skip
