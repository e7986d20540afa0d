"""Pods on a node that are neither stopped nor waited for, and pods that keep a node from being vacated at all."""

import pytest

from fleet.actions import Evict, Hold, WriteStatus
from fleet.names import MIRROR_POD
from fleet.objects import BudgetSpec, DisruptionBudget, LabelSelector, Metadata, Pod
from fleet.reasons import Reason
from fleet.resources import Phase
from tests.fleet.builders import agreement, node, owned, pod
from tests.fleet.scenes import all_bound, busy, gang, small
from tests.fleet.simulation import Simulation

NODES = ("n1", "n2", "n3")
MIRROR = {MIRROR_POD: "a1b2c3"}


def static(name: str, cards: int, on: str) -> Pod:
    """A pod that a kubelet runs from a file of its own; the API server holds its mirror only."""
    return pod(name, cards, on=on, ns="kube-system", notes=MIRROR, owner=owned("Node", on))


def test_d12_where_a_daemon_set_has_a_card_on_every_node_none_can_be_vacated_and_the_claim_says_so() -> None:
    scene = Simulation().add(agreement(), gang())
    for name in NODES:
        scene.add(node(name), small(2, name), pod(f"agent-{name}", on=name, owner=owned("DaemonSet", "agent")))
    scene.run(30)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.PENDING, Reason.UNEVICTABLE)
    assert "0 of 3 may be taken; the others: 3 UnevictablePod" in made.status.message
    assert made.status.plan is not None
    assert [(one.reason, one.nodes) for one in made.status.plan.refused] == [("UnevictablePod", 3)]
    assert not [one for one in scene.done if isinstance(one, Hold | Evict)]


def test_d12_a_daemon_set_without_cards_is_neither_evicted_nor_waited_for() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.add(pod("logs", 0, on="n1", ns="kube-system", owner=owned("DaemonSet", "logs"), grace=600))
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert scene.evicted() == ["n1-0", "n1-1"]
    assert scene.where("logs") == ["n1"]


def test_d26_a_mirror_pod_without_cards_is_passed_over() -> None:
    scene = busy(["n1"], each=1).add(static("proxy-n1", 0, "n1"), gang())
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert scene.evicted() == ["n1-0"]
    assert scene.where("proxy") == ["n1"]


@pytest.mark.parametrize("owner", [True, False])
def test_d26_a_node_with_a_mirror_pod_that_has_a_card_cannot_be_vacated(owner: bool) -> None:
    """Not even under an agreement that covers it: its kubelet would start it again."""
    mirror = pod("gpu-n1", on="n1", notes=MIRROR, owner=owned("Node", "n1") if owner else None)
    scene = busy(["n1", "n2"], each=1).add(mirror, small(2, "n2", prefix="more"), gang())
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"], "the dearer node, for the other one would not become free"
    plans = [one.status.plan for one in scene.done if isinstance(one, WriteStatus) and one.status.plan]
    assert {("UnevictablePod", "n1")} == {(one.reason, one.example) for plan in plans[:1] for one in plan.refused}
    assert scene.where("gpu-n1") == ["n1"]
    assert scene.where("n1-") == ["n1"]


def test_d27_cpu_pods_stay_and_nothing_waits_for_them_though_a_budget_covers_them_all() -> None:
    """One of them is on its way out for an hour; another is under a budget that lets nobody go."""
    scene = busy(["n1"], each=1).add(gang())
    scene.add(pod("web", 0, on="n1", labels={"app": "web"}), pod("slow", 0, on="n1", ns="team-w", going=3600))
    covered = BudgetSpec(LabelSelector({"app": "web"}))
    scene.kept.append((DisruptionBudget(Metadata("web", "team-v", uid="web"), covered), 1))
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert scene.eviction_calls == ["team-v.n1-0"]
    assert {"team-v.web", "team-w.slow"} <= set(scene.pods)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_d28_a_pod_that_has_ended_with_all_cards_is_neither_evicted_nor_waited_for(phase: str) -> None:
    """It is still listed, of a team that never agreed, and even on its way out."""
    scene = Simulation().add(node("n1"), gang())
    scene.add(pod("dead", 8, on="n1", ns="team-w", phase=phase), pod("late", 8, on="n1", phase=phase, going=3600))
    scene.run(10, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert scene.eviction_calls == []
    assert scene.records == {}
