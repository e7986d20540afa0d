"""Whether the stopped would find another place at once, by the rules the extender goes by."""

from typing import Any

import pytest

from fleet.names import CLAIM_KEY
from fleet.objects import Taint, Toleration
from fleet.planning import choose
from fleet.relocation import Homes
from fleet.resources import Accepts, Overflow
from tests.fleet.builders import agreement, at, claim, members, node, pod, pool, view
from tests.fleet.scenes import small

HELD = Taint(CLAIM_KEY, "NoSchedule", "another")
DEAR = Taint("dear", "NoSchedule")
SMALL = pool("small", accepts=Accepts.SMALL)


def homeless(*objects: Any, emptied: tuple[str, ...] = ("n1",), taken: tuple[str, ...] = ()) -> int:
    return Homes(view(pool(), *objects), frozenset(taken)).homeless(emptied)


def test_the_node_itself_is_no_place() -> None:
    assert homeless(node("n1"), small(2, "n1")) == 2


def test_free_cards_elsewhere_are() -> None:
    assert homeless(node("n1"), small(2, "n1"), node("n2"), pod("x", 7, on="n2")) == 1
    assert homeless(node("n1"), small(2, "n1"), node("n2"), pod("x", 6, on="n2")) == 0


def test_pods_compete_for_room_and_scattered_cards_are_no_room_for_large_ones() -> None:
    some = [pod("a", 4, on="n1"), pod("b", 2, on="n1")]
    scattered = [[node(f"m{index}"), pod(f"x{index}", 6, on=f"m{index}")] for index in range(3)]
    assert homeless(node("n1"), some, scattered) == 1, "six cards are free, no four of them on one node"
    assert homeless(node("n1"), some, node("n2"), pod("y", 3, on="n2")) == 1, "five are: for one of the two"
    assert homeless(node("n1"), some, node("n2"), pod("y", 2, on="n2")) == 0


@pytest.mark.parametrize(
    "other",
    [
        node("n2", cordoned=True),
        node("n2", ready=False),
        node("n2", taints=(HELD,)),
        node("n2", taints=(DEAR,)),
        [node("n2", "lone"), pool("lone", overflow=Overflow.NEVER)],
        [node("n2", labels={"pool2": "x"}), pool("x", labels={"pool2": "x"})],
    ],
)
def test_a_node_that_takes_nobody_new_is_no_place(other: Any) -> None:
    assert homeless(node("n1"), small(1, "n1"), other) == 1


def test_nodes_of_small_pools_and_of_none_are_places() -> None:
    assert homeless(SMALL, node("n1"), small(1, "n1"), node("n2", "small")) == 0
    assert homeless(node("n1"), small(1, "n1"), node("n2", "")) == 0


def test_nodes_that_others_take_are_not() -> None:
    assert homeless(node("n1"), small(1, "n1"), node("n2"), taken=("n2",)) == 1
    assert homeless(node("n1"), small(1, "n1"), node("n2"), small(1, "n2"), emptied=("n1", "n2")) == 2


def test_selectors_and_tolerations_of_the_pod_count() -> None:
    picky = pod("a", on="n1", selector={"kind": "x"})
    assert homeless(node("n1"), picky, node("n2")) == 1
    assert homeless(node("n1"), picky, node("n2", labels={"kind": "x"})) == 0
    bold = pod("a", on="n1", tolerations=(Toleration("dear", "Exists"),))
    assert homeless(node("n1"), bold, node("n2", taints=(DEAR,))) == 0


def test_who_has_a_whole_node_needs_a_free_one() -> None:
    whole = pod("w", 8, on="n1")
    assert homeless(node("n1"), whole, node("n2"), small(1, "n2")) == 1
    assert homeless(node("n1"), whole, SMALL, node("n2", "small")) == 1, "small pools have no whole nodes"
    assert homeless(node("n1"), whole, node("n2")) == 0


def test_victims_with_another_place_are_preferred_to_cheaper_ones_without() -> None:
    room = [node("m"), pod("x", 7, on="m", ns="team-w")]
    cheap, dear = pod("a", 8, on="n1", started=990), pod("b", 1, on="n2", started=0)
    seen = view(node("n1"), node("n2"), room, cheap, dear, agreement(), members(1))
    found = choose(seen, claim(), {}, at(1000))
    assert [one.node.metadata.name for one in found.taken] == ["n2"]
    assert found.plan is not None
    assert found.plan.homeless == 0
    full = view(node("n1"), node("n2"), cheap, pod("b", 8, on="n2", started=0), agreement(), members(1))
    found = choose(full, claim(), {}, at(1000))
    assert [one.node.metadata.name for one in found.taken] == ["n1"], "none has a place: the cheaper one"
    assert found.plan is not None
    assert found.plan.homeless == 1
