"""Nodes whose kubelet has refused a member of a gang: which they are, for which claims, and for how long."""

import pytest

from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Avoided, HeldNode, WholeNodeClaim
from fleet.starts import refused_start, refusing_nodes
from tests.fleet.builders import at, claim, members, ref, view
from tests.fleet.simulation import replace

REFUSED = {"n1": str(Reason.START_FAILED)}


def refused(reason: str = "TopologyAffinityError", phase: str = "Failed", ns: str = "team-b") -> Pod:
    one = members(1, on="n1", ns=ns)[0]
    return replace(one, status=replace(one.status, phase=phase, reason=reason, message="no room"))


def given_back(reason: Reason = Reason.START_FAILED, until: float = 100, gang: str = "train") -> WholeNodeClaim:
    return claim("earlier", gang=ref(gang), avoid=(Avoided("n1", str(reason), at(until)),))


def test_n07_a_node_that_has_just_refused_a_member_is_named_before_any_claim_has_written_it_down() -> None:
    assert refusing_nodes(view(refused(), claim()), claim(), at(0)) == REFUSED


@pytest.mark.parametrize("pod", [refused("Evicted"), refused(phase="Running"), refused(ns="team-v")])
def test_a_pod_that_failed_otherwise_or_is_of_another_gang_says_nothing_of_the_node(pod: Pod) -> None:
    assert refusing_nodes(view(pod, claim()), claim(), at(0)) == {}


def test_n07_what_an_earlier_claim_of_the_gang_was_refused_counts_until_it_is_over() -> None:
    seen = view(given_back(), claim())
    assert refusing_nodes(seen, claim(), at(99)) == REFUSED
    assert refusing_nodes(seen, claim(), at(100)) == {}


def test_what_another_gang_was_refused_or_was_given_back_for_another_reason_does_not_count() -> None:
    assert refusing_nodes(view(given_back(gang="other"), claim()), claim(), at(0)) == {}
    assert refusing_nodes(view(given_back(Reason.NODE_UNFIT), claim()), claim(), at(0)) == {}


def test_a_claim_is_told_of_a_refusal_on_the_nodes_it_holds_only() -> None:
    seen = view(refused(), claim())
    assert refused_start(seen, claim(held=[HeldNode("n1")])) == (
        "n1",
        "pod team-b/train-0 was placed on node n1 and could not start: TopologyAffinityError: no room",
    )
    assert refused_start(seen, claim(held=[HeldNode("n2")])) is None
