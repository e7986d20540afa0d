"""The admission policy on the real API server: which pods get our scheduling gate, and that they get it once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from fleet.objects import Pod
from fleet.requests import Classifier, RequestClass
from fleet.resources import GPUPool

GATE = "wholenode.io/claim"
Object = dict[str, Any]


def containers(cards: list[int], **more: Any) -> list[Object]:
    return [
        {
            "name": f"c{index}",
            "image": "work",
            **({"resources": {"limits": {"nvidia.com/gpu": str(count)}}} if count else {}),
            **more,
        }
        for index, count in enumerate(cards)
    ]


def pod(*cards: int, metadata: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "work-", **(metadata or {})},
        "spec": {"containers": containers(list(cards)), **spec},
    }


def starting(*cards: int, **more: Any) -> list[Object]:
    return [{**each, "name": f"i{index}"} for index, each in enumerate(containers(list(cards), **more))]


Gates = Callable[[Object], list[str]]


@pytest.fixture(scope="module")
def gates_in(kubectl: Any, installed: str) -> Callable[[str], Gates]:
    """`gates_in(namespace)(pod)`: the gates that a pod has after admission; nothing is stored."""

    def in_namespace(namespace: str) -> Gates:
        def gates(manifest: Object) -> list[str]:
            told = kubectl(
                "-n", namespace, "create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-",
                given=manifest,
            )  # fmt: skip
            return [gate["name"] for gate in json.loads(told)["spec"].get("schedulingGates", [])]

        return gates

    return in_namespace


def await_gates(gates: Gates, manifest: Object, wanted: list[str]) -> None:
    """The API server learns of policies and pools through watches: wait until it has."""
    deadline = time.monotonic() + 30
    while (found := gates(manifest)) != wanted:
        assert time.monotonic() < deadline, f"gates are {found}, not {wanted}"


class Pools:
    """Makes pools; they leave with the test."""

    def __init__(self, kubectl: Any) -> None:
        self._kubectl = kubectl
        self.names: list[str] = []

    def add(self, name: str, cards: int, accepts: str = "WholeNode", **spec: Any) -> None:
        self.names.append(name)
        spec = {"nodeSelector": {"matchLabels": {"pool": name}}, "accepts": accepts, "cardsPerNode": cards, **spec}
        manifest = {
            "apiVersion": "wholenode.io/v1alpha1", "kind": "GPUPool", "metadata": {"name": name}, "spec": spec,
        }  # fmt: skip
        self._kubectl("create", "-f", "-", given=manifest)

    def remove(self) -> None:
        if self.names:
            self._kubectl("delete", "gpupools", *self.names)


@pytest.fixture
def pools(kubectl: Any) -> Iterator[Pools]:
    """No pool at first."""
    made = Pools(kubectl)
    yield made
    made.remove()


@pytest.fixture
def gates(gates_in: Callable[[str], Gates], pools: Pools) -> Gates:
    """The gates of a pod in `default`, where a pool of 8-card whole nodes is known."""
    pools.add("big", 8)
    look = gates_in("default")
    await_gates(look, pod(8), [GATE])
    return look


WHOLE_NODE_PODS = (
    pod(8),
    pod(4, 4),
    pod(0, 8),
    pod(1, initContainers=starting(8)),
    pod(8, initContainers=starting(2)),
    pod(4, initContainers=starting(4, restartPolicy="Always")),
    pod(8, nodeSelector={"rack": "a"}),
    pod(8, metadata={"annotations": {"a": "b"}, "labels": {"c": "d"}}),
    pod(8, nodeName=""),
)


def class_of(manifest: Object) -> RequestClass:
    """What the controller takes the pod for, where a pool of 8-card whole nodes is known."""
    meta = {"name": "big", "uid": "u"}
    spec = {"nodeSelector": {"matchLabels": {"a": "b"}}, "accepts": "WholeNode", "cardsPerNode": 8}
    known = msgspec.convert({"metadata": meta, "spec": spec}, GPUPool)
    seen = msgspec.convert({**manifest, "metadata": {**manifest["metadata"], "name": "p"}}, Pod)
    return Classifier.of([known]).classify(seen).request_class


@pytest.mark.parametrize("manifest", WHOLE_NODE_PODS)
def test_the_controller_knows_what_is_gated_as_whole_node(manifest: Object) -> None:
    assert class_of(manifest) is RequestClass.WHOLE_NODE


@pytest.mark.parametrize("manifest", WHOLE_NODE_PODS)
def test_whole_node_pods_are_gated(gates: Gates, manifest: Object) -> None:
    assert gates(manifest) == [GATE]


@pytest.mark.parametrize(
    "manifest",
    [
        pod(0),
        pod(1),
        pod(4, 3),
        pod(16),
        pod(4, initContainers=starting(4)),
        pod(8, nodeSelector={GATE: "4f0c"}),
        pod(8, nodeName="n1"),
        pod(8, metadata={"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]}),
    ],
)
def test_other_pods_are_left_alone(gates: Gates, manifest: Object) -> None:
    assert gates(manifest) == []


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ({"gpumem": "1000"}, False),
        ({"gpumem-percentage": "50"}, False),
        ({"gpumem-percentage": "100"}, True),
        ({"gpumem": "0"}, True),
        ({"gpucores": "100"}, True),
        ({"gpucores": "10", "gpumem-percentage": "0"}, True),
    ],
)
def test_parts_of_cards_are_not_whole_cards_to_policy_and_controller_alike(
    gates: Gates, parts: dict[str, str], *, whole: bool
) -> None:
    shares = pod(8)
    limits = shares["spec"]["containers"][0]["resources"]["limits"]
    limits |= {f"nvidia.com/{name}": text for name, text in parts.items()}
    assert gates(shares) == ([GATE] if whole else [])
    assert (class_of(shares) is RequestClass.WHOLE_NODE) == whole


def test_gates_of_others_stay_and_ours_is_added_once(gates: Gates) -> None:
    assert gates(pod(8, schedulingGates=[{"name": "example.com/wait"}])) == ["example.com/wait", GATE]
    assert gates(pod(8, schedulingGates=[{"name": GATE}])) == [GATE]


def test_two_matching_pools_gate_once(gates: Gates, pools: Pools) -> None:
    pools.add("big-too", 8)
    pools.add("quad", 4)
    await_gates(gates, pod(4), [GATE])
    assert gates(pod(8)) == [GATE]


def test_what_a_whole_node_is_comes_from_the_pools(
    gates_in: Callable[[str], Gates], pools: Pools, kubectl: Any
) -> None:
    look = gates_in("default")
    pools.add("small", 4, accepts="Small")
    pools.add("quad", 4, resourceName="example.com/gpu")
    pools.add("big", 8)
    await_gates(look, pod(8), [GATE])
    assert look(pod(4)) == []
    kubectl("patch", "gpupool", "small", "--type=merge", "-p", json.dumps({"spec": {"accepts": "WholeNode"}}))
    await_gates(look, pod(4), [GATE])


def test_without_a_pool_nothing_is_gated(gates_in: Callable[[str], Gates], pools: Pools) -> None:
    look = gates_in("default")
    pools.add("big", 8)
    await_gates(look, pod(8), [GATE])
    pools.remove()
    pools.names.clear()
    await_gates(look, pod(8), [])


def test_system_namespaces_and_our_own_are_never_gated(
    gates: Gates, gates_in: Callable[[str], Gates], installed: str
) -> None:
    assert gates(pod(8)) == [GATE]
    assert gates_in("kube-system")(pod(8)) == []
    assert gates_in(installed)(pod(8)) == []
