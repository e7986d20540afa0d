"""The story of four cards (docs/four-cards.md): every wait has its reason, and nobody is stopped who need not be."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.cards import cards
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE, EXPECTED_RUN, POLICY
from fleet.objects import Pod
from fleet.resources import DrainAgreement, Phase, Window
from fleet.why.explain import explain
from fleet.why.explanations import Explanation, Stage, Told
from tests.fleet.builders import agreement, at, node, owned, pod, pool
from tests.fleet.simulation import Simulation

MINUTE = 60.0
LOW_PEAK = Window("12 20 * * *", "4h", "Asia/Shanghai")
"""The story begins at 12:00 UTC, which is 20:00 there: low peak is from minute 12 on."""
SERVICE = owned("ReplicaSet", "chat")


@dataclass
class Story(Simulation):
    """The cluster of the story; what must hold at every step is looked at at every step."""

    recreate: bool = True

    def until(self, minutes: float) -> "Story":
        self.run(minutes * MINUTE, until=self._watch)
        return self

    def _watch(self) -> None:
        for name in self.nodes:
            held = sum(cards(one, DEFAULT_RESOURCE) for one in self.card_holders(name))
            assert held <= 2, f"{held} of the 2 cards of {name} are held after {self.seconds} s"

    def runs(self) -> dict[str, list[str]]:
        """Who holds cards of which node."""
        return {name: sorted(one.metadata.name for one in self.card_holders(name)) for name in sorted(self.nodes)}

    def told(self) -> tuple[str, str, str]:
        """What the only claim says."""
        status = self.the_claim().status
        return str(status.phase), status.reason, status.message

    def explained(self) -> Explanation:
        """What B's owner is told."""
        return explain(self.view(), self.pods["team-b.b-train"], Told(), self.now)

    def why(self) -> tuple[Stage | None, str, datetime | None]:
        """The short of it: where B stands, why, and when that ends."""
        said = self.explained()
        return said.stage, said.reason, said.ends.at if said.ends else None


def a_agrees(**more: Any) -> DrainAgreement:
    return agreement("low-peak", ns="team-a", **{"windows": [LOW_PEAK], "keep_ready": 1, **more})


def b_train() -> Pod:
    """A pod that needs both cards of a node."""
    return pod("b-train", 2, ns="team-b", gates=(CLAIM_KEY,), notes={POLICY: "WaitThenEvict"}, owner=owned("Job", "b"))


def story(*more: Any) -> Story:
    """A's replicas on both nodes, C beside the first; C's job ends after 10 minutes."""
    chat = {"ns": "team-a", "owner": SERVICE, "ready": True}
    made = Story(pools=[pool("pair", cards=2)])
    made.add(
        node("node-1", "pair", cards=2),
        node("node-2", "pair", cards=2),
        pod("a-1", on="node-1", started=-50 * MINUTE, **chat),  # type: ignore[arg-type]
        pod("a-2", on="node-2", started=-20 * MINUTE, **chat),  # type: ignore[arg-type]
        pod("c-job", ns="team-c", on="node-1", started=0, notes={EXPECTED_RUN: "10m"}, owner=owned("Job", "c")),
        *more,
    )
    made.later(10 * MINUTE, lambda: made.end("team-c.c-job"))
    return made


C_AGREES = agreement("always", ns="team-c")
NEXT = "that may change from 2027-01-04T12:12:00Z"


def test_the_story() -> None:
    cluster = story(a_agrees(), C_AGREES, b_train())
    cluster.until(1)
    assert cluster.runs() == {"node-1": ["a-1", "c-job"], "node-2": ["a-2"]}
    waits, low_peak = ("Pending", "AgreementNotYet"), at(12 * MINUTE)
    text = f"needs 1 whole node(s), 0 of 2 may be taken; the others: 2 AgreementNotYet; {NEXT}"
    assert cluster.told() == (*waits, text)
    assert cluster.why() == (Stage.CAPACITY, "NotEnoughCards", low_peak)
    assert "2 cards in all; only 1 is free on 2 nodes of its pools" in cluster.explained().text
    cluster.until(9.9)
    assert cluster.why() == (Stage.CAPACITY, "NotEnoughCards", low_peak)
    assert cluster.evicted() == [], "stopping C would not have helped: A's replica would have stayed"
    cluster.until(11.9)
    assert cluster.runs() == {"node-1": ["a-1"], "node-2": ["a-2"]}
    assert cluster.told() == (*waits, text)
    assert cluster.why() == (Stage.TOPOLOGY, "Fragmented", low_peak)
    assert "2 are free on 2 nodes of its pools, but no node is wholly free" in cluster.explained().text
    assert cluster.evicted() == []
    cluster.until(12.05)
    assert cluster.why()[:2] == (Stage.RESERVED, "WaitingForVictimsToEnd")
    cluster.until(12.5)
    assert cluster.evicted() == ["a-1"], "either would do: a service has no work to lose; the other serves meanwhile"
    assert cluster.evictions[0].at < at(12 * MINUTE + 2)
    assert cluster.runs()["node-1"] == ["b-train"]
    assert cluster.told() == ("Bound", "GangBound", "1 pod(s) bound to node-1")
    assert cluster.why() == (None, "Running", None)
    (victim,) = cluster.the_claim().status.victims
    assert (victim.name, victim.agreement, victim.cards) == ("a-1", "low-peak", 1)
    assert len(cluster.runs()["node-2"]) == 2, "A's new replica found the other card of node-2"
    cluster.later(32 * MINUTE, lambda: cluster.end("team-b.b-train"))
    cluster.until(33)
    assert cluster.the_claim().status.phase is Phase.RELEASED
    assert cluster.runs()["node-1"] == []
    assert cluster.marked() == []


def test_a_must_keep_both_replicas_there_is_no_solution_and_that_is_said() -> None:
    cluster = story(a_agrees(keep_ready=2), C_AGREES, b_train()).until(11.9)
    assert cluster.told()[:2] == ("Pending", "AgreementNotYet")
    assert cluster.why() == (Stage.TOPOLOGY, "Fragmented", at(12 * MINUTE))
    cluster.until(30)
    figures = "ReplicaSet team-a/chat has 2 ready replica(s), 1 would be left, its owner keeps 2"
    assert cluster.told() == (
        "Pending",
        "TooFewReadyReplicas",
        f"needs 1 whole node(s), 0 of 2 may be taken; the others: 2 TooFewReadyReplicas; {figures}",
    )
    assert cluster.why() == (Stage.AGREEMENT, "TooFewReadyReplicas", None)
    assert cluster.explained().text.startswith("No solution as the agreements stand: ")
    assert figures in cluster.explained().text
    assert cluster.evicted() == []
    assert cluster.marked() == []
    assert cluster.runs() == {"node-1": ["a-1"], "node-2": ["a-2"]}


def test_a_third_replica_elsewhere_is_the_solution() -> None:
    cluster = story(a_agrees(keep_ready=2), C_AGREES, b_train(), node("spare", "none", cards=1)).until(20)
    cluster.add(pod("a-3", ns="team-a", on="spare", owner=SERVICE, ready=True)).go_on(20)
    assert cluster.evicted() == ["a-1"]
    assert cluster.the_claim().status.phase is Phase.BOUND


def test_b_may_span_nodes_it_starts_when_c_has_ended_and_nobody_is_stopped() -> None:
    """Two pods of one card each are small pods; B's own agreement is what lets them have cards of idle whole nodes."""
    parts = [pod(f"b-part-{index}", 1, ns="team-b", owner=owned("Job", "b")) for index in (0, 1)]
    cluster = story(a_agrees(), C_AGREES, agreement(ns="team-b", to=["team-a"]), parts).until(9.9)
    assert cluster.runs()["node-2"] == ["a-2", "b-part-0"]
    cluster.until(10.1)
    assert cluster.runs() == {"node-1": ["a-1", "b-part-1"], "node-2": ["a-2", "b-part-0"]}
    cluster.until(30)
    assert (cluster.evicted(), cluster.claims) == ([], {})


def test_c_is_not_stopped_as_long_as_that_would_not_empty_a_node() -> None:
    """C would have agreed; A's agreement is for others."""
    cluster = story(a_agrees(to=["team-d"]), C_AGREES, b_train()).until(9)
    assert cluster.told() == (
        "Pending",
        "AgreementMissing",
        "needs 1 whole node(s), 0 of 2 may be taken; the others: 2 AgreementMissing; would have to consent: team-a",
    )
    plan = cluster.the_claim().status.plan
    assert plan is not None
    assert plan.consent_missing == ("team-a",)
    assert cluster.why()[:2] == (Stage.CAPACITY, "NotEnoughCards")
    cluster.until(30)
    assert cluster.why()[:2] == (Stage.AGREEMENT, "AgreementMissing")
    assert "would have to consent: team-a" in cluster.explained().text
    assert cluster.evicted() == []
