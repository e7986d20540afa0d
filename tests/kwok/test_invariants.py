"""The rules of `kwok.invariants`, each with a short history that breaks it and one like it that does not."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from kwok.history import Change
from kwok.invariants import Invariants
from kwok.nodes import make_nodes
from kwok.readings import MARK
from kwok.workloads import make_pod

POOLS = [
    {
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"pool": name}}, "cardsPerNode": 8, **spec},
    }
    for name, spec in (
        ("big", {"accepts": "WholeNode", "overflow": "Reclaimable"}),
        ("kept", {"accepts": "WholeNode"}),
        ("small", {"accepts": "Small"}),
    )
]
LENT = {
    "metadata": {"name": "lend", "namespace": "team", "uid": "agreement"},
    "spec": {"beneficiaries": [{"namespace": "lab"}]},
}


class Story:
    """A history told step by step: nodes big-000, big-001, kept-000 and small-000, and an agreement of `team`."""

    def __init__(self) -> None:
        self.rules = Invariants(POOLS)
        self._revisions = count(1)
        self._nodes = {}
        for name in ("big", "kept", "small"):
            for node in make_nodes(2, 8, name, {"pool": name}):
                self._nodes[node["metadata"]["name"]] = node
                self._tell("nodes", node)
        self._tell("agreements", LENT)

    def _tell(self, kind: str, item: dict[str, Any], *, deleted: bool = False) -> None:
        item["metadata"].setdefault("uid", f"uid of {item['metadata']['name']}")
        self.rules.take([Change(next(self._revisions), kind, deleted, item)])

    def pod(self, name: str, cards: int, node: str = "", *, gang: tuple[str, int] | None = None, **status: Any) -> None:
        """Made, and bound by kube-scheduler if a node is given."""
        for at in dict.fromkeys(("", node)):
            pod = make_pod(name, "team", cards=cards, gang=gang, scheduler_name="default-scheduler")
            pod["status"] = status
            if at:
                pod["spec"]["nodeName"] = at
            self._tell("pods", pod)

    def by_hand(self, name: str, cards: int, node: str) -> None:
        pod = make_pod(name, "team", cards=cards, scheduler_name="default-scheduler")
        pod["spec"]["nodeName"] = node
        pod["status"] = {}
        self._tell("pods", pod)

    def mark(self, node: str, *, taint: bool = False, label: bool = False) -> None:
        changed = {**self._nodes[node], "spec": {}, "metadata": {**self._nodes[node]["metadata"]}}
        if taint:
            changed["spec"] = {"taints": [{"key": MARK, "value": "uid of gang", "effect": "NoSchedule"}]}
        if label:
            changed["metadata"]["labels"] = {**changed["metadata"]["labels"], MARK: "uid of gang"}
        self._tell("nodes", changed)

    def claim(self, phase: str, *nodes: str, name: str = "gang", reason: str = "", **more: Any) -> None:
        status = {"phase": phase, "reason": reason, "nodes": [{"name": node} for node in nodes], **more}
        spec = {"gang": {"kind": "Gang", "name": name, "uid": ""}}
        self._tell("claims", {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": status})

    def held(self, *nodes: str, upto: str = "Landing") -> None:
        """The claim `gang` goes its way to `upto` on these nodes."""
        for node in nodes:
            self.mark(node, taint=True)
        self.claim("Draining", *nodes, reason="WaitingForScheduler")
        for phase in ("ProvingEmpty", "Ready", "Landing"):
            if phase == "Landing":
                for node in nodes:
                    self.mark(node, taint=True, label=True)
            if upto != "Draining":
                self.claim(phase, *nodes)
            if phase == upto:
                return


@pytest.fixture
def story() -> Story:
    return Story()


def broken(story: Story, text: str) -> bool:
    return any(text in one for one in story.rules.violations)


def test_the_right_way_breaks_no_rule(story: Story) -> None:
    story.pod("one", 1, "small-000")
    story.pod("lent", 7, "big-000", phase="Succeeded")
    story.held("big-000", "big-001")
    story.pod("g-0", 8, "big-000", gang=("gang", 2))
    story.pod("g-1", 8, "big-001", gang=("gang", 2))
    assert story.rules.violations == []
    assert story.rules.partly_bound() == []
    assert story.rules.tally["whole-node pods bound"] == 2


def test_a_card_given_twice(story: Story) -> None:
    story.pod("one", 5, "small-000")
    story.pod("two", 4, "small-000")
    assert broken(story, "node small-000 has 8 nvidia.com/gpu, its pods hold 9")


def test_a_pod_by_hand_counts_for_those_that_come_after_it(story: Story) -> None:
    story.by_hand("hand", 5, "small-000")
    assert not story.rules.violations
    story.pod("two", 4, "small-000")
    assert broken(story, "its pods hold 9")


def test_a_stranger_on_a_held_node_is_no_fault(story: Story) -> None:
    story.held("big-000")
    story.by_hand("stranger", 1, "big-000")
    story.pod("g-0", 8, "big-000", gang=("gang", 1))
    assert story.rules.violations == []
    assert story.rules.tally["strangers"] == 1


def test_a_whole_node_pod_beside_another(story: Story) -> None:
    story.by_hand("before", 1, "kept-000")
    story.held("kept-000")
    story.pod("g-0", 8, "kept-000", gang=("gang", 1))
    assert broken(story, "is bound to kept-000 beside team/before")
    assert broken(story, "kept-000 is called empty for team/gang, team/before is there")


def test_a_whole_node_pod_on_a_node_that_is_not_open_to_its_gang(story: Story) -> None:
    story.held("big-000", upto="ProvingEmpty")
    story.pod("g-0", 8, "big-000", gang=("gang", 1))
    story.pod("alone", 8, "kept-000")
    assert broken(story, "g-0 is bound to big-000, which is open to no claim")
    assert broken(story, "alone is bound to kept-000, which is open to no claim")


def test_a_member_that_is_bound_before_the_other_places_are_held(story: Story) -> None:
    story.held("big-000", "big-001")
    story.mark("big-001")
    story.pod("g-0", 8, "big-000", gang=("gang", 2))
    assert broken(story, "node big-001 lost its taint while team/gang is Landing")
    assert broken(story, "bound while its gang's other nodes are not all held: ['big-001']")


def test_a_gang_that_stays_partly_bound(story: Story) -> None:
    story.held("big-000", "big-001")
    story.pod("g-1", 8, gang=("gang", 2))
    story.pod("g-0", 8, "big-000", gang=("gang", 2))
    assert story.rules.partly_bound() == ["gang team/Gang/gang is partly bound: team/g-1 waits"]


def test_a_small_pod_on_a_held_node(story: Story) -> None:
    story.pod("early", 1)
    story.held("big-000", upto="ProvingEmpty")
    story.pod("early", 1, "big-000")
    assert story.rules.violations == [], "a binding may have been under way"
    story.pod("late", 1, "big-000")
    assert broken(story, "small pod team/late is bound to big-000, ProvingEmpty for team/gang")


def test_a_small_pod_on_an_open_node(story: Story) -> None:
    story.pod("early", 1)
    story.held("big-000")
    story.pod("early", 1, "big-000")
    assert broken(story, "small pod team/early is bound to big-000, Landing for team/gang")


def test_a_claim_without_its_taint(story: Story) -> None:
    story.claim("Draining", "big-000", reason="WaitingForScheduler")
    assert broken(story, "team/gang is Draining, but big-000 does not carry its taint")


def test_a_node_of_two_claims(story: Story) -> None:
    story.claim("Planned", "big-000")
    story.claim("Planned", "big-000", name="other")
    assert broken(story, "node big-000 is chosen by team/other and by team/gang")


def test_a_node_that_opens_before_its_claim_is_ready(story: Story) -> None:
    story.held("big-000", upto="ProvingEmpty")
    story.mark("big-000", taint=True, label=True)
    assert broken(story, "node big-000 is opened for a claim that is not Ready: team/gang")


def test_a_small_pod_in_a_pool_that_is_kept_for_whole_nodes(story: Story) -> None:
    story.pod("one", 1, "kept-000")
    assert broken(story, "small pod team/one is bound to kept-000, which its pool keeps for others")


EVICTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
PREEMPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]


def test_an_eviction_without_a_record_or_consent(story: Story) -> None:
    story.pod("one", 1, "big-000")
    story.pod("one", 1, "big-000", conditions=EVICTED)
    assert broken(story, "pod team/one was evicted and stands in no claim")
    story.pod("two", 1, "big-000")
    story.claim("Draining", victims=[{"uid": "uid of two"}])
    story.pod("two", 1, "big-000", conditions=EVICTED)
    assert broken(story, "pod team/two was evicted for ['team'] without consent: it agreed to ['lab']")


def test_a_preemption(story: Story) -> None:
    story.pod("one", 1, "big-000")
    story.pod("one", 1, "big-000", conditions=PREEMPTED)
    assert broken(story, "pod team/one was stopped: PreemptionByScheduler")
