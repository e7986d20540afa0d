"""What `kwok.settled` calls unsettled: everything under way, and every wait without need or without a reason."""

from __future__ import annotations

from typing import Any

import pytest

from kwok.nodes import make_nodes
from kwok.readings import MARK, uid
from kwok.settled import Rest
from kwok.workloads import make_job, make_pod

POOLS = [
    {"metadata": {"name": name}, "spec": {"nodeSelector": {"matchLabels": {"pool": name}}, "cardsPerNode": 8, **spec}}
    for name, spec in (
        ("big", {"accepts": "WholeNode", "overflow": "Reclaimable", "drain": "Agreed"}),
        ("small", {"accepts": "Small"}),
    )
]
TRIED = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
RUNNING = {"phase": "Running"}


class Fleet:
    """Two nodes of each pool and what is put there; `lends` agreed to give nodes back to `team`."""

    def __init__(self) -> None:
        self.live: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in ("pods", "nodes", "jobs", "claims", "agreements")
        }
        for name in ("big", "small"):
            for node in make_nodes(2, 8, name, {"pool": name}):
                self.put("nodes", node)
        self.put(
            "agreements",
            {
                "metadata": {"name": "lend", "namespace": "lends"},
                "spec": {"beneficiaries": [{"namespace": "team"}]},
            },
        )

    def put(self, kind: str, item: dict[str, Any]) -> None:
        item["metadata"].setdefault("uid", item["metadata"]["name"])
        self.live[kind][uid(item)] = item

    def pod(self, name: str, cards: int, node: str = "", namespace: str = "team", **rest: Any) -> dict[str, Any]:
        pod = make_pod(name, namespace, cards=cards, **rest)
        pod["status"] = RUNNING if node else TRIED
        if node:
            pod["spec"]["nodeName"] = node
        self.put("pods", pod)
        return pod

    def claim(self, gang: str, reason: str, phase: str = "Pending", policy: str = "Wait", at: str = "t1") -> None:
        self.put(
            "claims",
            {
                "metadata": {"name": f"claim-{gang}", "namespace": "team", "creationTimestamp": at},
                "spec": {"gang": {"kind": "Gang", "name": gang, "uid": ""}, "policy": policy},
                "status": {"phase": phase, "reason": reason},
            },
        )

    def fill(self, *nodes: str, namespace: str = "team") -> None:
        for node in nodes:
            self.pod(f"on-{node}", 8, node, namespace)

    def says(self) -> str:
        rest = Rest(self.live, POOLS)
        found = list(rest.unsettled())
        assert rest.reached() == (not found)
        return "\n".join(found)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_an_idle_fleet_is_at_rest(fleet: Fleet) -> None:
    assert fleet.says() == ""


def test_what_is_under_way(fleet: Fleet) -> None:
    fleet.pod("ends", 1, "small-000")["metadata"]["deletionTimestamp"] = "now"
    fleet.pod("runs", 1, "small-000", duration_seconds=1)
    fleet.pod("starts", 1, "small-000")["status"] = {"phase": "Pending"}
    fleet.claim("gang", "ProvingEmpty", "ProvingEmpty")
    fleet.live["nodes"]["big-000"]["spec"] = {"taints": [{"key": MARK, "value": "x", "effect": "NoSchedule"}]}
    fleet.put("jobs", {**make_job("job", "team", pods=2), "status": {}})
    assert fleet.says().splitlines() == [
        "pod team/ends is ending",
        "pod team/runs still runs",
        "pod team/starts has not started on small-000",
        "claim team/claim-gang is ProvingEmpty: ProvingEmpty",
        "node big-000 carries marks of ['x']",
        "job team/job has 0 pods",
    ]


def test_a_small_pod_waits_only_where_there_is_no_room_for_it(fleet: Fleet) -> None:
    fleet.pod("one", 1)
    assert "pod team/one waits, though node small-000 has room for it" in fleet.says()
    fleet.fill("small-000", "small-001")
    assert fleet.says() == "", "idle whole nodes are not for those who lend none"
    fleet.pod("two", 1, namespace="lends")
    assert "pod lends/two waits, though node big-000 has room for it" in fleet.says()


def test_a_small_pod_that_was_never_tried(fleet: Fleet) -> None:
    fleet.fill("small-000", "small-001")
    fleet.pod("one", 1)["status"] = {"phase": "Pending"}
    assert fleet.says() == "pod team/one has not been tried"


def test_a_whole_node_pod_needs_a_claim_with_a_reason(fleet: Fleet) -> None:
    fleet.fill("big-000", "big-001")
    fleet.pod("g-0", 8, gang=("gang", 1))
    assert fleet.says() == "pod team/g-0 waits and no claim waits for it: []"
    fleet.claim("gang", "")
    assert "its claim does not say why" in fleet.says()
    fleet.claim("gang", "WaitingForNaturalEnd")
    assert fleet.says() == ""


def test_a_gang_that_could_have_its_nodes(fleet: Fleet) -> None:
    fleet.pod("g-0", 8, gang=("gang", 2))
    fleet.pod("g-1", 8, gang=("gang", 2))
    fleet.claim("gang", "NoUsableNode")
    assert "claim team/claim-gang says NoUsableNode, 2 nodes are to be had: ['big-000', 'big-001']" in fleet.says()
    fleet.fill("big-001", namespace="lends")
    assert fleet.says() == ""
    fleet.claim("gang", "AgreementMissing", policy="WaitThenEvict")
    assert "2 nodes are to be had" in fleet.says(), "all on big-001 agreed"
    fleet.fill("big-000")
    assert fleet.says() == "", "team did not"


def test_an_older_gang_may_keep_the_nodes(fleet: Fleet) -> None:
    fleet.fill("big-001")
    for name, size in (("old", 2), ("new", 1)):
        for index in range(size):
            fleet.pod(f"{name}-{index}", 8, gang=(name, size))
    fleet.claim("new", "OlderClaimFirst", at="t2")
    fleet.claim("old", "AgreementMissing", at="t1")
    assert fleet.says() == ""
    fleet.claim("old", "MoreNodesThanPoolHas", at="t1")
    assert "claim team/claim-new says OlderClaimFirst, 1 nodes are to be had" in fleet.says()


def test_incomplete_is_said_of_incomplete_gangs_only(fleet: Fleet) -> None:
    fleet.fill("big-000", "big-001")
    fleet.pod("g-0", 8, gang=("gang", 2))
    fleet.claim("gang", "AgreementMissing")
    assert "says AgreementMissing, 1 of 2 pods exist" in fleet.says()
    fleet.claim("gang", "GangIncomplete")
    assert fleet.says() == ""
    fleet.pod("g-1", 8, gang=("gang", 2))
    assert "says GangIncomplete, 2 of 2 pods exist" in fleet.says()
