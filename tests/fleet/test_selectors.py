"""Selectors, affinity and tolerations, matched as the API server and kube-scheduler do."""

import pytest

from fleet.names import CLAIM_KEY
from fleet.objects import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodSpec,
    Requirement,
    Taint,
    Toleration,
)
from fleet.selectors import labels_match, node_wanted, requirement_matches, tolerates
from tests.fleet.builders import node

LABELS = {"app": "web", "size": "10", "odd": "1_0"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("app", "In", ("web", "db"), True),
        ("app", "In", ("db",), False),
        ("none", "In", ("db",), False),
        ("app", "NotIn", ("db",), True),
        ("app", "NotIn", ("web",), False),
        ("none", "NotIn", ("web",), True),
        ("app", "Exists", None, True),
        ("none", "Exists", None, False),
        ("none", "DoesNotExist", None, True),
        ("app", "DoesNotExist", None, False),
        ("size", "Gt", ("9",), True),
        ("size", "Gt", ("10",), False),
        ("size", "Lt", ("11",), True),
        ("size", "Lt", ("10",), False),
        ("none", "Gt", ("1",), False),
        ("app", "Lt", ("1",), False),
        ("size", "Gt", (), False),
        ("size", "Gt", ("x",), False),
        ("odd", "Gt", ("1",), False),
        ("app", "Like", ("web",), False),
    ],
)
def test_operators(key: str, operator: str, values: tuple[str, ...] | None, matches: bool) -> None:
    assert requirement_matches(Requirement(key, operator, values), LABELS) is matches


def test_a_label_selector_wants_all_it_names() -> None:
    both = LabelSelector({"app": "web"}, (Requirement("size", "Exists"),))
    assert labels_match(both, LABELS)
    assert not labels_match(both, {"app": "web"})
    assert not labels_match(both, {"size": "1"})
    assert labels_match(LabelSelector(), {}), "empty matches all: callers refuse it"


def affine(*terms: NodeSelectorTerm) -> PodSpec:
    return PodSpec(affinity=Affinity(NodeAffinity(NodeSelector(terms))))


def test_node_selector_and_affinity() -> None:
    one = node("n1", labels={"zone": "a"})
    zone_a = NodeSelectorTerm((Requirement("zone", "In", ("a",)),))
    zone_b = NodeSelectorTerm((Requirement("zone", "In", ("b",)),))
    by_name = NodeSelectorTerm(None, (Requirement("metadata.name", "In", ("n1",)),))
    both = NodeSelectorTerm((Requirement("zone", "In", ("a",)),), (Requirement("metadata.name", "In", ("n2",)),))
    assert node_wanted(PodSpec(), one, CLAIM_KEY)
    assert node_wanted(PodSpec(node_selector={"zone": "a"}), one, CLAIM_KEY)
    assert not node_wanted(PodSpec(node_selector={"zone": "b"}), one, CLAIM_KEY)
    assert node_wanted(affine(zone_b, zone_a), one, CLAIM_KEY), "one term is enough"
    assert not node_wanted(affine(zone_b), one, CLAIM_KEY)
    assert node_wanted(affine(by_name), one, CLAIM_KEY)
    assert not node_wanted(affine(both), one, CLAIM_KEY), "within a term all must match"
    assert not node_wanted(affine(NodeSelectorTerm()), one, CLAIM_KEY), "an empty term matches nothing"
    assert not node_wanted(affine(), one, CLAIM_KEY)


def test_our_own_selector_is_not_looked_at() -> None:
    steered = PodSpec(node_selector={CLAIM_KEY: "uid"})
    assert node_wanted(steered, node("n1"), CLAIM_KEY)
    assert not node_wanted(steered, node("n1"), "")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), True),
        (Toleration("k", None, "v"), True),
        (Toleration("k", "", "v"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("k", "Exists"), True),
        (Toleration("j", "Exists"), False),
        (Toleration(None, "Exists"), True),
        (Toleration("k", "Exists", None, "NoExecute"), False),
        (Toleration(None, "Equal", "v"), False),
        (Toleration("k", "Gt", "v"), False),
    ],
)
def test_tolerations(toleration: Toleration, covers: bool) -> None:
    assert tolerates((toleration,), Taint("k", "NoSchedule", "v")) is covers


def test_a_taint_without_value_is_covered_by_a_toleration_without() -> None:
    assert tolerates((Toleration("k", "Equal"),), Taint("k", "NoSchedule"))
    assert not tolerates(None, Taint("k", "NoSchedule"))
