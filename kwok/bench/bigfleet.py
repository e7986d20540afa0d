"""A fleet of thousands of nodes and pods of the size they have in real clusters, created as fast as it is taken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kwok.admin import OK_BELOW, Admin, APIError, path_of
from kwok.nodes import GPU, make_nodes
from kwok.scene import API, BENEFICIARY, TEAMS
from kwok.workloads import Manifest, make_pod

PODS_PER_NODE = 8
CARDS = 8
LEAN_APISERVER = ("--disable-admission-plugins=TaintNodesByCondition",)
"""Without a controller manager nobody would take the not-ready taint of new nodes away."""

_PARALLEL = 24
_PREFIX = "gpu-8x-worker-eu-central"
"""Names of the length that clouds give: they are most of a question."""
_SMALL_PART = 0.6
_HELD_PART = 0.02
_CARD_PODS, _CARD_PODS_WEIGHTS = (8, 7, 6, 4, 0), (50, 10, 10, 10, 20)
_ENVIRONMENT, _IMAGES = 28, 20
_OTHER_DEVICE = "rdma/hca"


def real_size(pod: Manifest) -> Manifest:
    """The same pod with what real ones carry besides, environment, probes, volumes: about 4 KB in a question."""
    container = pod["spec"]["containers"][0]
    container["image"] = "registry.example.com/research/training/pytorch-trainer:2026.01-cuda12.8"
    container["command"] = ["/bin/sh", "-c", "exec python -m trainer.main --config /etc/trainer/config.yaml"]
    container["env"] = [
        {"name": f"TRAINER_SETTING_{number:02d}", "value": f"value-of-setting-{number:02d}"}
        for number in range(_ENVIRONMENT)
    ]
    container["livenessProbe"] = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 20}
    container["readinessProbe"] = {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 10}
    names = ("config", "scratch", "cache", "shm")
    container["volumeMounts"] = [{"name": name, "mountPath": f"/mnt/{name}"} for name in names]
    pod["spec"]["volumes"] = [{"name": name, "emptyDir": {}} for name in names]
    pod["spec"]["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    pod["metadata"]["labels"] |= {
        "app.kubernetes.io/name": "trainer",
        "app.kubernetes.io/instance": pod["metadata"]["name"],
        "app.kubernetes.io/part-of": "research-platform",
        "pod-template-hash": "6d5f9c7b84",
    }
    pod["metadata"]["annotations"] |= {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}
    return pod


def small_pod(name: str, namespace: str) -> Manifest:
    """One card."""
    return real_size(make_pod(name, namespace, resources={GPU: "1", "cpu": "2", "memory": "16Gi"}))


def whole_node_pod(name: str, namespace: str) -> Manifest:
    """All cards of a node."""
    return real_size(make_pod(name, namespace, resources={GPU: str(CARDS), "cpu": "32", "memory": "256Gi"}))


def cpu_pod(name: str, namespace: str) -> Manifest:
    """No card."""
    return real_size(make_pod(name, namespace, resources={"cpu": "100m", "memory": "64Mi"}))


def device_pod(name: str, namespace: str) -> Manifest:
    """No card, but another device: a pod that an extender cannot leave out before it knows what counts as a card."""
    return real_size(make_pod(name, namespace, resources={_OTHER_DEVICE: "1", "cpu": "2", "memory": "16Gi"}))


@dataclass(frozen=True)
class BigFleet:
    """`nodes` nodes of 8 cards with 8 pods each: most with one card, the rest with another device; a seeded mix.

    So the extender must keep every pod, its worst case, and still there are cards left.

    The first 60 % of the nodes are a pool for small pods, the others one for whole nodes, lent to teams with an
    agreement. 2 % of the nodes are held for claims.
    """

    nodes: int
    seed: int

    def node_names(self) -> list[str]:
        """As kube-scheduler would name all of them."""
        return [one["metadata"]["name"] for one in make_nodes(self.nodes, CARDS, _PREFIX)]

    def node_objects(self) -> Iterator[Manifest]:
        """Nodes with the labels, images and conditions that kubelets report."""
        source = random.Random(self.seed)
        for index, node in enumerate(make_nodes(self.nodes, CARDS, _PREFIX)):
            small = index < self.nodes * _SMALL_PART
            node["metadata"]["labels"] |= {
                "pool": "small" if small else "big",
                "topology.kubernetes.io/zone": f"zone-{index % 3}",
                "topology.kubernetes.io/rack": f"rack-{index // 16:03d}",
                "node.kubernetes.io/instance-type": "gpu-8x",
                "nvidia.com/cuda.driver-version.full": "580.65.06",
                "nvidia.com/gpu.count": str(CARDS),
                "nvidia.com/gpu.machine": "example-gpu-server",
            }
            if source.random() < _HELD_PART:
                taint = {"key": "wholenode.io/claim", "value": f"claim-{index}", "effect": "NoSchedule"}
                node["spec"]["taints"] = [taint]
            node["status"]["images"] = [
                {"names": [f"registry.example.com/base/image-{number:02d}:2026.01"], "sizeBytes": 10**8 + number}
                for number in range(_IMAGES)
            ]
            yield node

    def pod_objects(self) -> Iterator[Manifest]:
        """Pods that name their node, so that no scheduler is needed."""
        source = random.Random(self.seed)
        for name in self.node_names():
            (with_card,) = source.choices(_CARD_PODS, _CARD_PODS_WEIGHTS)
            for slot in range(PODS_PER_NODE):
                make = small_pod if slot < with_card else device_pod
                pod = make(f"{name}-{slot}", source.choice(TEAMS))
                pod["spec"]["nodeName"] = name
                yield pod

    def namespaces(self) -> list[Manifest]:
        """A namespace for each team."""
        names = (BENEFICIARY, *TEAMS)
        return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]

    def rules(self) -> list[Manifest]:
        """Pools and agreements; every team but the last agreed."""
        return rules(TEAMS[:-1])


def rules(teams: Iterable[str]) -> list[Manifest]:
    """One pool of each kind, by the label `pool`, and an agreement of each team."""
    shared: dict[str, Any] = {"cardsPerNode": CARDS}
    specs: dict[str, dict[str, Any]] = {
        "small": {"accepts": "Small"},
        "big": {"accepts": "WholeNode", "overflow": "Reclaimable", "drain": "Agreed"},
    }
    pools: list[Manifest] = [
        {
            "apiVersion": API,
            "kind": "GPUPool",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"matchLabels": {"pool": name}}, **shared, **spec},
        }
        for name, spec in specs.items()
    ]
    agreements: list[Manifest] = [
        {
            "apiVersion": API,
            "kind": "DrainAgreement",
            "metadata": {"name": "whole-nodes", "namespace": team},
            "spec": {"beneficiaries": [{"namespace": BENEFICIARY}]},
        }
        for team in teams
    ]
    return [*pools, *agreements]


async def fill(admin: Admin, objects: Iterable[Mapping[str, Any]]) -> int:
    """Create the objects as fast as the API server takes them; return how many. Raises APIError."""
    source = iter(objects)

    async def worker() -> int:
        made = 0
        for one in source:
            body = msgspec.json.encode(one)
            async with admin.session.post(
                path_of(one, collection=True), data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                said = await answer.read()
                if answer.status >= OK_BELOW:
                    raise APIError(answer.status, msgspec.json.decode(said))
            made += 1
        return made

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(worker()) for _ in range(_PARALLEL)]
    return sum(one.result() for one in workers)
