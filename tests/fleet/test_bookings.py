"""Pods that HAMi has chosen a node for, but that are not bound yet: the node is neither free nor empty."""

from fleet.names import CLAIM_KEY
from fleet.planning import choose
from fleet.reasons import Reason
from fleet.resources import Phase
from tests.fleet.builders import agreement, at, claim, members, ref, view
from tests.fleet.scenes import all_bound, gang, in_phase
from tests.fleet.shares import shared_node, sharing
from tests.fleet.simulation import Simulation


def test_a_booked_node_is_not_chosen_and_says_so() -> None:
    booked = sharing("p", "n1", {0: (100, 1)}, bound=False)
    nodes = [shared_node("n1", "big")]
    found = choose(view(nodes, booked, agreement(), members(1)), claim(gang=ref()), {}, at(600))
    assert (found.taken, found.reason) == ((), Reason.BOOKED)
    free = choose(view(nodes, members(1)), claim(gang=ref()), {}, at(600))
    assert [one.node.metadata.name for one in free.taken] == ["n1"]


def test_a_node_that_hami_books_while_it_is_proved_empty_does_not_open_until_that_is_settled() -> None:
    scene = Simulation().add(shared_node("n1", "big"), gang())
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    booked = sharing("late", "n1", {0: (100, 1)}, bound=False, gates=("example.com/other",))
    scene.add(booked)
    scene.run(20, until=lambda: scene.the_claim().status.reason == Reason.BOOKED)
    assert scene.the_claim().status.phase is Phase.PROVING_EMPTY
    assert "team-v/late" in scene.the_claim().status.message
    assert CLAIM_KEY not in (scene.nodes["n1"].metadata.labels or {})
    scene.delete(booked.metadata.uid)
    scene.run(20, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
