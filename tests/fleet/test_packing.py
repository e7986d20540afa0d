"""Which of the nodes a small pod may have it gets: the fullest with room, so that others stay whole."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.board import Board, Refused
from fleet.hami import BOOKED_NODE, cards_of, wishes
from fleet.objects import Condition, Node, Pod, PodStatus
from fleet.placement import judge, prefer
from fleet.requests import Classifier, RequestClass
from fleet.resources import Accepts, DrainAgreement, GPUPool, Overflow, WholeNodeClaim
from fleet.tally import Tally
from tests.fleet.builders import T0, agreement, container, node, pod, pool
from tests.fleet.shares import CARD_MIB, asking, shared_node, sharing

SMALL = pool("small", accepts=Accepts.SMALL)
LENT = pool("big", overflow=Overflow.RECLAIMABLE)
TENTH = asking(1, memory=2456, cores=10)


def preferred(one: Pod, *objects: Any) -> list[str]:
    """The nodes let through, of all there are."""

    def of(kind: Any) -> list[Any]:
        return [each for each in objects if isinstance(each, kind)]

    classifier = Classifier.of(of(GPUPool))
    where = Board.of(classifier, of(Node), of(WholeNodeClaim), of(DrainAgreement), T0)
    tally = Tally((each, classifier.classify(each)) for each in of(Pod))
    for name, rank in where.ranks.items():
        tally.rank(name, rank)
    names = [each.metadata.name for each in of(Node)]
    placement = prefer(one, names, where, tally)
    allowed = judge(one, names, where)
    assert set(placement.passed) <= set(allowed.passed)
    assert bool(placement.passed) == bool(allowed.passed), "preference never takes the last place away"
    held_back = set(allowed.passed) - set(placement.passed)
    assert {name for name, why in placement.refused.items() if why is Refused.EMPTIER} == held_back
    return placement.passed


def tenth(name: str = "t") -> Pod:
    return pod(name, containers=(TENTH,))


def refused(one: Pod) -> Pod:
    said = Condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
    return msgspec.structs.replace(one, status=PodStatus("Pending", conditions=(said,)))


def test_p07_a_small_pod_goes_to_the_fullest_node_it_may_have() -> None:
    nodes = [node(name, "small") for name in ("a", "b", "c")]
    busy = [pod("p1", 6, on="a"), pod("p2", 7, on="b"), pod("p3", 7, on="c")]
    assert preferred(pod("one"), SMALL, *nodes, *busy) == ["b", "c"]


def test_p15_a_pools_own_nodes_go_before_nodes_of_no_pool_and_those_before_lent_ones() -> None:
    own, nobodys, lent = node("s", "small"), node("none", ""), node("b", "big")
    busy = [pod("p", 7, on="b"), pod("q", 1, on="none")]
    yes = agreement(ns="team-v")
    assert preferred(pod("one"), SMALL, LENT, yes, lent, nobodys, own, *busy) == ["s"]
    assert preferred(pod("one"), SMALL, LENT, yes, lent, nobodys, *busy) == ["none"]
    assert preferred(pod("one"), SMALL, LENT, yes, lent, *busy) == ["b"]


def test_a_whole_node_pod_and_a_pod_without_cards_are_not_steered_by_fullness() -> None:
    nodes = [node(name, "small") for name in ("a", "b")]
    assert preferred(pod("web", 0), SMALL, *nodes, pod("p", 6, on="a")) == ["a", "b"]


def test_pods_that_come_faster_than_they_are_seen_to_land_touch_one_lent_node_and_not_all() -> None:
    """Nothing of the first is known when the second is asked about; the scheduler itself knows when a node is full."""
    lent, own = [node(name, "big") for name in ("b2", "b1", "b3")], [node(name, "small") for name in ("s2", "s1")]
    yes = agreement(ns="team-v")
    assert preferred(pod("one"), LENT, yes, *lent) == ["b1"]
    assert preferred(pod("two"), LENT, yes, lent[0], lent[2]) == ["b2"], "once b1 is full it is not asked about"
    assert preferred(pod("one"), SMALL, *own) == ["s2", "s1"], "nothing is to be kept whole there"
    shared = [shared_node(name, "big") for name in ("h2", "h1")]
    assert preferred(tenth(), LENT, yes, *shared) == ["h1"]
    assert preferred(refused(tenth()), LENT, yes, *shared) == ["h2", "h1"]


def test_shares_go_to_cards_in_use_before_untouched_cards_before_untouched_nodes() -> None:
    dirty_card, dirty_node, idle = (shared_node(name) for name in ("dirty-card", "dirty-node", "idle"))
    partly = sharing("p", "dirty-card", {0: (2456, 10)})
    whole_card = sharing("q", "dirty-node", {0: (CARD_MIB, 100)})
    assert preferred(tenth(), SMALL, idle, dirty_node, dirty_card, partly, whole_card) == ["dirty-card"]
    assert preferred(tenth(), SMALL, idle, dirty_node, whole_card) == ["dirty-node"]
    assert preferred(tenth(), SMALL, idle) == ["idle"]


def test_a_whole_card_goes_to_a_touched_node_with_an_untouched_card() -> None:
    one_left = [sharing(f"p{index}", "full", {index: (CARD_MIB, 100)}) for index in range(8)]
    touched = sharing("q", "touched", {0: (100, 1)})
    nodes = [shared_node(name) for name in ("idle", "full", "touched")]
    whole_card = pod("w", containers=(asking(1, cores=100),))
    assert preferred(whole_card, SMALL, *nodes, *one_left, touched) == ["touched"]


def test_enough_memory_on_the_node_but_on_no_single_card_is_no_room() -> None:
    half = [sharing(f"p{index}", "spread", {index: (13_000, 10)}) for index in range(8)]
    nodes = [shared_node("spread"), shared_node("idle")]
    assert preferred(pod("h", containers=(asking(1, memory=13_000),)), SMALL, *nodes, *half) == ["idle"]


def test_where_we_see_no_room_at_all_hami_has_the_last_word() -> None:
    full = [sharing(f"p{index}", "a", {index: (CARD_MIB, 100)}) for index in range(8)]
    full += [sharing(f"q{index}", "b", {index: (CARD_MIB, 100)}) for index in range(8)]
    assert preferred(tenth(), SMALL, shared_node("a"), shared_node("b"), *full) == ["a", "b"]


def test_a_pod_that_was_refused_before_gets_every_shared_node_for_hami_may_know_better() -> None:
    nodes = [shared_node("dirty"), shared_node("idle")]
    busy = sharing("p", "dirty", {0: (2456, 10)})
    assert preferred(tenth(), SMALL, *nodes, busy) == ["dirty"]
    assert preferred(refused(tenth()), SMALL, *nodes, busy) == ["dirty", "idle"]


def test_a_pod_that_was_refused_before_gets_all_but_untouched_lent_nodes_for_whoever_refused_may_know_better() -> None:
    nodes = [node("dirty", "small"), node("idle", "small"), node("lent", "big")]
    known = [SMALL, LENT, agreement(ns="team-v"), *nodes, pod("p", 1, on="dirty")]
    assert preferred(pod("one"), *known) == ["dirty"]
    assert preferred(refused(pod("one")), *known) == ["dirty", "idle"]
    assert preferred(refused(pod("one")), *known, pod("q", 1, on="lent")) == ["dirty", "idle", "lent"]
    lent = [LENT, agreement(ns="team-v"), node("b1"), node("b2")]
    assert preferred(refused(pod("one")), *lent) == ["b1", "b2"]
    assert preferred(refused(pod("one")), *lent, pod("q", 1, on="b2")) == ["b2"]


def test_p07_nodes_hami_does_not_know_are_packed_beside_those_it_shares_out() -> None:
    nodes = [node("dirty", "small"), node("dirtier", "small"), node("idle", "small"), shared_node("shared")]
    busy = [pod("p", 1, on="dirty"), pod("q", 2, on="dirtier")]
    assert preferred(pod("one"), SMALL, *nodes, *busy) == ["dirtier"]
    assert preferred(tenth(), SMALL, *nodes, *busy) == ["shared"], "no parts of cards where HAMi is not"


def test_e06_the_nominated_node_is_not_lost_to_a_fuller_one() -> None:
    nodes = [node("dirty", "small"), node("idle", "small")]
    one = pod("one")
    one = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, nominated_node_name="idle"))
    classifier = Classifier.of([SMALL])
    where = Board.of(classifier, nodes, [], [], T0)
    tally = Tally([(busy := pod("p", 1, on="dirty"), classifier.classify(busy))])
    for name, rank in where.ranks.items():
        tally.rank(name, rank)
    placement = prefer(one, ["dirty", "idle"], where, tally)
    assert (placement.passed, placement.refused, placement.for_now) == (["dirty"], {}, {"idle": Refused.EMPTIER})


AMOUNTS = st.tuples(st.integers(0, 7), st.integers(1, CARD_MIB), st.integers(0, 100))


@given(
    wish=st.tuples(st.integers(1, 8), st.integers(1, CARD_MIB), st.integers(0, 100)),
    took=st.lists(st.tuples(st.sampled_from("abc"), AMOUNTS), max_size=20),
)
def test_no_node_without_room_is_preferred_to_one_with_room(
    wish: tuple[int, int, int], took: list[tuple[str, tuple[int, int, int]]]
) -> None:
    one = pod("p", containers=(asking(wish[0], memory=wish[1], cores=wish[2]),))
    busy = [
        sharing(f"p{number}", where, {card: (memory, cores)})
        for number, (where, (card, memory, cores)) in enumerate(took)
    ]
    nodes = [shared_node(name) for name in "abc"]
    passed = preferred(one, SMALL, *nodes, *busy)
    tally = Tally((each, Classifier.of([SMALL]).classify(each)) for each in busy)

    def roomy(name: str) -> bool:
        seen = next(each for each in nodes if each.metadata.name == name)
        return wishes(one.spec).fit_on(cards_of(seen) or (), tally.on(name).cards)

    with_room = {name for name in "abc" if roomy(name)}
    if with_room:
        assert set(passed) <= with_room
    else:
        assert passed == ["a", "b", "c"]


@pytest.mark.parametrize("cards", range(9))
def test_every_class_is_answered(cards: int) -> None:
    nodes = [node("s", "small"), node("b", "big")]
    one = pod("p", containers=(container(cards),))
    kind = Classifier.of([SMALL, LENT]).classify(one).request_class
    passed = preferred(one, SMALL, LENT, *nodes)
    assert bool(passed) == (kind is not RequestClass.WHOLE_NODE)


def test_nodes_without_cards_or_register_are_no_place_for_pods_that_hami_places() -> None:
    """HAMi's scheduler does not count cards: nodes that have none, or none left, are in question too."""
    cpu_only, full = node("cpu", "", cards=0), node("full", "small")
    busy = pod("p", 8, on="full")
    assert preferred(pod("one"), SMALL, shared_node("h", "small"), cpu_only, full, busy) == ["h"]
    assert preferred(pod("one"), LENT, agreement(ns="team-v"), shared_node("h", "big"), cpu_only) == ["h"]


@pytest.mark.parametrize("where", [{"on": "lent"}, {"notes": {BOOKED_NODE: "lent"}}])
def test_a_pod_that_says_it_has_any_number_of_cards_lets_nobody_onto_a_lent_node(where: dict[str, Any]) -> None:
    """Cards in use stand beside a node's rank: more of them than there is room for made it another rank."""
    stranger = pod("small", 1, ns="no-agreement")
    assert preferred(stranger, LENT, node("lent"), pod("huge", 70_000, ns="other", **where)) == []
