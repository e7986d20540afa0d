"""Pools: which nodes they have, what class a pod is, and what their status says."""

import pytest

from fleet.agreements import consenting_namespaces
from fleet.names import CLAIM_KEY
from fleet.objects import Container, Pod, Resources, Taint
from fleet.pools import Membership
from fleet.requests import Classifier, RequestClass
from fleet.resources import Accepts
from fleet.selectors import label_problem
from fleet.summaries import agreement_status, pool_status
from tests.fleet.builders import agreement, at, container, node, pod, pool, view
from tests.fleet.shares import shared_node, sharing

BIG = pool("big")
SMALL = pool("small", accepts=Accepts.SMALL)


def test_a_node_belongs_where_all_labels_match() -> None:
    strict = pool("strict", labels={"pool": "big", "disk": "ssd"})
    found = Membership.of([strict], [node("n1"), node("n2", labels={"disk": "ssd"}), node("n3", "")])
    assert [found.pool_of(name) for name in ("n1", "n2", "n3", "unknown")] == [None, strict, None, None]


def test_p09_an_empty_selector_has_no_node() -> None:
    assert Membership.of([pool("all", labels={})], [node("n1")]).pool_of("n1") is None


def test_p08_a_node_of_two_pools_is_in_none_and_shown_on_both() -> None:
    other = pool("other", labels={"pool": "big"})
    nodes = [node("n1"), node("n2", "small")]
    found = Membership.of([BIG, other, SMALL], nodes)
    assert found.pool_of("n1") is None
    assert found.conflicting("n1")
    assert found.conflicts_of("big") == found.conflicts_of("other") == ("n1",)
    assert found.conflicts_of("small") == ()
    seen = view(BIG, other, SMALL, nodes)
    for one in (BIG, other):
        condition = pool_status(seen, one, at(0)).conditions[0]
        assert (condition.type, condition.status, condition.reason) == ("Ready", "False", "NodesInSeveralPools")
        assert "n1" in condition.message
        assert pool_status(seen, one, at(0)).cards_free == 0
    assert pool_status(seen, SMALL, at(0)).conditions[0].status == "True"


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (pod("p", 0), RequestClass.NONE),
        (pod("p", 1), RequestClass.SMALL),
        (pod("p", 8), RequestClass.WHOLE_NODE),
        (pod("p", containers=(container(4), container(4))), RequestClass.WHOLE_NODE),
        (pod("p", 1, inits=(container(8),)), RequestClass.WHOLE_NODE),
        (pod("p", 9), RequestClass.IMPOSSIBLE),
        (pod("p", containers=(container("1.5"),)), RequestClass.NONE),
    ],
)
def test_p04_p05_p06_the_class_of_a_pod(one: Pod, wanted: RequestClass) -> None:
    assert Classifier.of([BIG, SMALL]).classify(one).request_class is wanted


def test_eight_cards_are_a_whole_node_only_where_whole_nodes_are_served() -> None:
    assert Classifier.of([SMALL]).classify(pod("p", 8)).request_class is RequestClass.SMALL
    assert Classifier.of([]).classify(pod("p", 8)).request_class is RequestClass.SMALL
    assert Classifier.of([pool("half", cards=4), SMALL]).classify(pod("p", 4)).request_class is RequestClass.WHOLE_NODE


def test_each_pool_counts_its_own_resource() -> None:
    odd = pool("odd", cards=4, resource="amd.com/gpu")
    assert Classifier.of([odd]).classify(pod("p", 4)).request_class is RequestClass.SMALL
    assert Classifier.of([odd]).classify(pod("p", 4)).resource == "nvidia.com/gpu"


def test_p17_what_is_free_in_a_pool() -> None:
    nodes = [
        node("free-1"),
        node("free-2"),
        node("touched"),
        node("full"),
        node("cordoned", cordoned=True),
        node("sick", ready=False),
        node("held", taints=(Taint(CLAIM_KEY, "NoSchedule", "u"),)),
        node("broken", cards=7),
    ]
    pods = [pod("a", 3, on="touched"), pod("b", 8, on="full", going=9), pod("c", 8, on="free-1", phase="Succeeded")]
    status = pool_status(view(nodes, pods), BIG, at(0))
    assert status.nodes == 8
    assert status.cards_free == 8 + 8 + 5 + 0 + 7
    assert status.whole_nodes_free == status.largest_gang == 2


def test_p17_three_of_five_touched() -> None:
    seen = view([node(f"n{index}") for index in range(5)], [pod(f"p{index}", on=f"n{index}") for index in range(3)])
    status = pool_status(seen, BIG, at(0))
    assert (status.cards_free, status.whole_nodes_free, status.largest_gang) == (37, 2, 2)


def test_a_small_pool_offers_no_gang_and_an_empty_one_says_so() -> None:
    assert pool_status(view(SMALL, node("n1", "small")), SMALL, at(0)).largest_gang == 0
    empty = pool_status(view(SMALL), SMALL, at(0)).conditions[0]
    assert (empty.status, empty.reason) == ("False", "NoNodes")
    assert "pool=small" in empty.message


def test_of_several_gpu_resources_the_strictest_decides_and_all_are_counted() -> None:
    other = pool("amd", accepts=Accepts.SMALL, resource="amd.com/gpu")
    both = Container("c", Resources(limits={"nvidia.com/gpu": "8", "amd.com/gpu": "1"}))
    request = Classifier.of([other, BIG]).classify(pod("p", containers=(both,)))
    assert (request.resource, request.cards, request.extra) == ("nvidia.com/gpu", 8, 1)
    assert request.request_class is RequestClass.WHOLE_NODE
    few = Container("c", Resources(limits={"nvidia.com/gpu": "1", "amd.com/gpu": "9"}))
    assert Classifier.of([other, BIG]).classify(pod("p", containers=(few,))).request_class is RequestClass.IMPOSSIBLE
    holder = pod("h", on="n1", containers=(both,))
    assert view(other, BIG, node("n1"), holder).tally.touched == {"n1": 9}


@pytest.mark.parametrize(
    ("key", "value"), [("bad key", "x"), ("-a", "x"), ("UP.case/name", "x"), ("a/b/c", "x"), ("pool", "two words")]
)
def test_a_selector_that_can_never_match_is_said(key: str, value: str) -> None:
    never = pool("never", labels={key: value})
    found = pool_status(view(never), never, at(0)).conditions[0]
    assert (found.status, found.reason) == ("False", "SelectorCannotMatch")


@pytest.mark.parametrize(("key", "value"), [("pool", "big"), ("example.com/gpu_pool.v1", ""), ("a", "A-1_b.c")])
def test_a_label_that_a_node_can_carry_is_no_problem(key: str, value: str) -> None:
    assert label_problem(key, value) is None


def test_a_pool_whose_nodes_have_other_numbers_of_cards_says_so() -> None:
    fours = [node(f"n{index}", cards=4) for index in range(3)]
    found = pool_status(view(BIG, fours), BIG, at(0))
    assert (found.conditions[0].status, found.conditions[0].reason) == ("False", "CardsDiffer")
    assert "3 with 4" in found.conditions[0].message
    assert found.whole_nodes_free == found.largest_gang == 0
    mixed = pool_status(view(BIG, fours, node("seven", cards=7), node("eight")), BIG, at(0)).conditions[0]
    assert mixed.status == "True"
    assert "3 with 4, 1 with 7" in mixed.message


def test_free_cards_of_shared_nodes_are_those_nobody_touches() -> None:
    pods = [sharing(f"p{index}", "n1", {index % 2: (100, 1)}) for index in range(6)]
    found = pool_status(view(SMALL, shared_node("n1"), shared_node("n2", sick=(0,)), pods), SMALL, at(0))
    assert found.cards_free == 6 + 7


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    first = pool_status(view(node("n1")), BIG, at(0))
    known = BIG.__class__(BIG.metadata, BIG.spec, first)
    same = pool_status(view(known, node("n1")), known, at(50))
    turned = pool_status(view(known), known, at(60))
    assert same.conditions[0].last_transition_time == at(0)
    assert turned.conditions[0].last_transition_time == at(60)


def test_the_status_of_an_agreement_says_whether_it_is_in_force() -> None:
    good = agreement_status(view(), agreement(), at(0)).conditions[0]
    assert (good.type, good.status, good.reason) == ("Valid", "True", "InForce")
    assert "team-b" in good.message
    bad = agreement_status(view(), agreement(patience="soon"), at(0)).conditions[0]
    assert (bad.status, bad.reason) == ("False", "Void")
    assert "spec.patience" in bad.message


def test_only_a_valid_agreement_lends_idle_nodes() -> None:
    one, gone = agreement(ns="a"), agreement(ns="b", expires=5)
    assert consenting_namespaces([one, gone], at(4)) == {"a", "b"}
    assert consenting_namespaces([one, gone], at(5)) == {"a"}
