"""All nodes of a gang in one topology domain: which one, and what is said if there is none."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.actions import Timing, WriteStatus
from fleet.gangs import gangs
from fleet.lifecycle import decide
from fleet.marks import taint
from fleet.names import CLAIM_KEY, KUEUE_REQUIRED_TOPOLOGY, TOPOLOGY_KEY
from fleet.naming import claim_spec
from fleet.objects import Node, Pod
from fleet.planning import Choice, choose
from fleet.reasons import Reason
from fleet.resources import HeldNode, Phase, Policy, WholeNodeClaim
from fleet.view import View
from tests.fleet.builders import agreement, at, claim, members, node, pod, ref, view
from tests.fleet.scenes import EVICT, all_bound, gang, small
from tests.fleet.simulation import Simulation

NOW = at(1000)
RACK = "example.com/rack"


def racks(**counts: int) -> list[Node]:
    """Nodes `<rack>-0`, `<rack>-1`, … with the label of their rack; those of the rack `none` have no label."""
    return [
        node(f"{rack}-{index}", labels={} if rack == "none" else {RACK: rack})
        for rack, count in counts.items()
        for index in range(count)
    ]


def racked(count: int, **more: Any) -> WholeNodeClaim:
    return claim(nodes=count, topology=RACK, **more)


def chosen(seen: View, one: WholeNodeClaim, **reserved: str) -> Choice:
    return choose(seen, one, reserved, NOW)


def names(found: Choice) -> list[str]:
    return [one.node.metadata.name for one in found.taken]


def busy(*nodes: str, **more: Any) -> list[list[Pod]]:
    return [small(1, name, **{"started": 900, **more}) for name in nodes]


def test_all_nodes_are_of_one_domain() -> None:
    seen = view(racks(a=2, b=3), members(3))
    assert names(chosen(seen, racked(3))) == ["b-0", "b-1", "b-2"]
    assert names(chosen(seen, claim(nodes=3))) == ["a-0", "a-1", "b-0"], "nobody asked for one domain"


def test_the_domain_is_the_one_whose_nodes_do_least_harm_together() -> None:
    def best(*pods: Any) -> str:
        seen = view(racks(a=2, b=2), pods, agreement(max_priority=9), members(2))
        return names(chosen(seen, racked(2)))[0][0]

    assert best() == "a", "by name, if all else is equal"
    assert best(busy("a-0")) == "b", "free nodes first"
    assert best(busy("a-0", "a-1"), busy("b-1", priority=5, started=0)) == "b", "one that is stopped, not two"
    assert best(busy("a-1", priority=5), busy("b-1", started=0)) == "b", "then the highest priority"
    assert best(busy("a-1", started=500), busy("b-1", started=900)) == "b", "then what is lost"
    assert best(pod("x", 2, on="b-1", started=900), small(2, "a-1", started=900, grace=5)) == "b", "then pods"


def test_a_gang_hit_on_two_nodes_of_a_domain_counts_once() -> None:
    pair = [pod(f"g-{index}", 4, on=f"b-{index}", gang="g", size=2, started=900) for index in range(2)]
    singles = [pod(f"s-{index}", 5, on=f"a-{index}", started=900) for index in range(2)]
    found = chosen(view(racks(a=2, b=2), pair, singles, agreement(), members(2)), racked(2))
    assert names(found) == ["b-0", "b-1"], "8 cards are lost there, 10 in the other rack; each node alone looks worse"


def test_g11_enough_nodes_but_not_in_one_rack_is_a_matter_of_topology() -> None:
    found = chosen(view(racks(a=3, b=3), busy("a-2", "b-2"), members(3)), racked(3))
    assert (names(found), found.reason) == ([], Reason.TOPOLOGY)
    assert found.message == (
        "needs 3 whole node(s) in one example.com/rack; 4 could be taken across domains, but the best domain, a, has "
        "2 of 3 (the others there: 1 AgreementMissing)"
    )
    assert found.wanted == ("a-0", "a-1", "a-2"), "what is kept from younger claims is of one domain too"


def test_g11_it_is_said_when_stopping_others_would_help() -> None:
    seen = view(racks(a=3, b=3), busy("a-2", "b-2"), agreement(), members(3))
    found = chosen(seen, racked(3, policy=Policy.WAIT))
    assert found.reason is Reason.TOPOLOGY
    assert "stopping others would help: policy is Wait" in found.message
    waits = chosen(seen, racked(3, patience="1h"))
    assert (waits.reason, waits.wake_at) == (Reason.TOPOLOGY, at(3600))
    assert names(chosen(seen, racked(3))) == ["a-0", "a-1", "a-2"]


def test_too_few_free_nodes_in_all_is_no_matter_of_topology() -> None:
    found = chosen(view(racks(a=3, b=1), busy("a-1", "a-2"), members(3)), racked(3))
    assert found.reason is Reason.AGREEMENT_MISSING
    assert "in example.com/rack a, 1 of 3 may be taken" in found.message


def test_what_no_domain_could_have_even_with_everybodys_consent_is_topology() -> None:
    nodes = [*racks(a=2, b=2), node("a-9", labels={RACK: "a"}, ready=False), node("b-9", labels={RACK: "b"}, cards=7)]
    found = chosen(view(nodes, busy("a-0", "a-1", "b-0", "b-1"), members(3)), racked(3))
    assert found.reason is Reason.TOPOLOGY
    assert "4 could be taken across domains" in found.message


def test_more_nodes_than_any_domain_has_is_told_at_once() -> None:
    found = chosen(view(racks(a=3, b=4), busy("b-0"), members(5)), racked(5))
    assert (found.reason, found.wanted) == (Reason.TOO_FEW_NODES, ())
    assert found.message == "needs 5 whole node(s) in one example.com/rack; the largest, b, has 4"
    none = chosen(view(racks(none=3), members(1)), racked(1))
    assert (none.reason, none.message.split("; ")[1]) == (Reason.TOO_FEW_NODES, "no node has that label")


def test_a_node_without_the_label_is_counted_as_such() -> None:
    seen = view(racks(a=1, none=2), node("empty", labels={RACK: ""}), busy("a-0"), members(1))
    plan = chosen(seen, racked(1)).plan
    assert plan is not None
    assert [(one.reason, one.nodes) for one in plan.refused] == [("AgreementMissing", 1), ("NoTopologyDomain", 3)]


def bound(name: str, on: str) -> Pod:
    return pod(name, 8, ns="team-b", gang="train", size=3, on=on)


def test_a_recreated_member_must_join_the_others_domain() -> None:
    rest = [bound("train-1", "b-0"), bound("train-2", "b-1")]
    seen = view(racks(a=3, b=3), rest, members(1, size=3))
    assert names(chosen(seen, racked(1))) == ["b-2"]
    waits = chosen(view(racks(a=3, b=3), rest, members(1, size=3), busy("b-2")), racked(1))
    assert (names(waits), waits.reason, waits.wanted) == ([], Reason.TOPOLOGY, ("b-2",))
    assert "in example.com/rack b, where its other members run; 3 could be taken across domains" in waits.message
    assert waits.plan is not None
    assert [(one.reason, one.nodes) for one in waits.plan.refused] == [
        ("AgreementMissing", 1),
        ("OtherTopologyDomain", 3),
        ("OwnGangRunsThere", 2),
    ]


def test_a_recreated_member_whose_domain_is_full_of_its_own_gang_is_told_at_once() -> None:
    rest = [bound("train-1", "b-0"), bound("train-2", "b-1")]
    found = chosen(view(racks(a=3, b=2), rest, members(1, size=3)), racked(1))
    assert found.reason is Reason.TOO_FEW_NODES
    assert found.message.endswith("the largest, b, has 0 beside those its members run on")


@pytest.mark.parametrize("rest", [("a-0", "b-0"), ("a-0", "none-0")])
def test_members_that_are_in_several_domains_already_are_told_so(rest: tuple[str, str]) -> None:
    pods = [bound(f"train-{index + 1}", name) for index, name in enumerate(rest)]
    found = chosen(view(racks(a=3, b=3, none=1), pods, members(1, size=3)), racked(1))
    assert (found.taken, found.wanted, found.reason) == ((), (), Reason.TOPOLOGY)


@pytest.mark.parametrize(
    ("notes", "key"),
    [
        ({TOPOLOGY_KEY: RACK}, RACK),
        ({KUEUE_REQUIRED_TOPOLOGY: "cloud/block"}, "cloud/block"),
        ({TOPOLOGY_KEY: "zone", KUEUE_REQUIRED_TOPOLOGY: "cloud/block"}, "zone"),
        ({TOPOLOGY_KEY: "not a key"}, None),
        ({TOPOLOGY_KEY: "/x"}, None),
        ({TOPOLOGY_KEY: "a" * 318}, None),
        ({TOPOLOGY_KEY: "zone\n"}, None),
        ({}, None),
    ],
)
def test_the_topology_key_is_what_the_pods_say(notes: dict[str, str], key: str | None) -> None:
    pods = tuple(members(2, notes=notes))
    (found,) = gangs(pods, {}).values()
    assert claim_spec(found, pods).topology_key == key


def test_g11_the_gang_waits_and_starts_when_its_rack_is_free() -> None:
    scene = Simulation().add(racks(a=3, b=3), small(1, "a-2"), small(1, "b-2"))
    scene.add(gang(3, notes={**EVICT, TOPOLOGY_KEY: RACK}))
    scene.run(20)
    waits = scene.the_claim()
    assert (waits.status.phase, waits.status.reason, waits.status.nodes) == (Phase.PENDING, Reason.TOPOLOGY, ())
    scene.end("team-v.b-2-0")
    scene.go_on(20, until=lambda: all_bound(scene))
    assert scene.where("train") == ["b-0", "b-1", "b-2"]


def test_nodes_that_are_moved_to_another_rack_while_they_are_held_are_given_back() -> None:
    scene = Simulation().add(racks(a=2), small(2, "a-0", grace=10), agreement())
    scene.add(gang(2, notes={**EVICT, TOPOLOGY_KEY: RACK})).run(5)
    assert scene.marked() == ["a-0", "a-1"]
    labels = dict(scene.nodes["a-1"].metadata.labels or {})
    scene.change_node("a-1", labels={**labels, RACK: "b"})
    scene.go_on(2)
    given_back = scene.the_claim().status
    assert (given_back.phase, given_back.reason, scene.marked()) == (Phase.BLOCKED, Reason.NODE_UNFIT, [])
    assert given_back.message == "the nodes are not of one example.com/rack any more: a-0, a-1"
    scene.go_on(15)
    assert scene.the_claim().status.reason == Reason.TOO_FEW_NODES
    assert scene.where("train") == []


@pytest.mark.parametrize(("landed", "given_back"), [(True, False), (False, True)])
def test_nodes_whose_labels_change_once_a_member_has_landed_are_not_given_back(landed: bool, given_back: bool) -> None:
    uid = "uid-team-b-c"
    nodes = [
        node(f"a-{index}", labels={RACK: rack, CLAIM_KEY: uid}, taints=(taint(uid),)) for index, rack in enumerate("ab")
    ]
    held = [HeldNode(one.metadata.name, one.metadata.uid, NOW, NOW) for one in nodes]
    first = pod("train-0", 8, ns="team-b", gang="train", size=2, on="a-0" if landed else None)
    seen = view(nodes, first, members(2)[1], racked(2, phase=Phase.LANDING, held=held))
    written = [one.status for one in decide(seen, {}, {}, NOW, Timing()).actions if isinstance(one, WriteStatus)]
    assert any(one.reason == Reason.NODE_UNFIT for one in written) is given_back


def test_a_younger_gang_takes_the_rack_that_the_older_one_does_not_wait_for() -> None:
    scene = Simulation().add(racks(a=3, b=3), small(1, "a-2"), small(1, "b-2"))
    scene.add(gang(3, notes={**EVICT, TOPOLOGY_KEY: RACK})).run(1)
    scene.add(gang(2, "late", created=1)).run(20)
    assert scene.where("late") == ["b-0", "b-1"]


fleets = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", ""]),  # the node's rack
        st.sampled_from(["free", "free", "agreed", "refused", "cordoned"]),
        st.integers(0, 999),  # start of what runs there
    ),
    min_size=1,
    max_size=9,
)


def fleet(shape: list[tuple[str, str, int]]) -> list[Any]:
    made: list[Any] = [agreement()]
    for index, (rack, state, started) in enumerate(shape):
        labels = {RACK: rack} if rack else {}
        made.append(node(f"n{index}", labels=labels, cordoned=state == "cordoned"))
        if state in {"agreed", "refused"}:
            made.extend(small(1, f"n{index}", ns="team-v" if state == "agreed" else "team-w", started=started))
    return made


@given(fleets, st.integers(1, 4), st.sampled_from([Policy.WAIT, Policy.WAIT_THEN_EVICT]))
def test_a_choice_is_in_one_domain_and_is_missed_in_none(
    shape: list[tuple[str, str, int]], count: int, policy: Policy
) -> None:
    """Against a count of each rack's nodes, written apart from the code."""
    seen = view(fleet(shape), members(count))
    found = chosen(seen, racked(count, policy=policy))
    usable = {"free", "agreed"} if policy is Policy.WAIT_THEN_EVICT else {"free"}
    sizes = [sum(rack == one and state in usable for one, state, _ in shape) for rack in "abc"]
    assert bool(found.taken) == (max(sizes) >= count)
    for some in (names(found), found.wanted):
        assert len({(seen.nodes[name].metadata.labels or {}).get(RACK) for name in some}) <= 1
    if found.taken:
        assert len(set(names(found))) == count
        fewest = min(
            max(0, count - sum(one == rack and state == "free" for one, state, _ in shape))
            for rack, size in zip("abc", sizes, strict=True)
            if size >= count
        )
        assert sum(one.occupied for one in found.taken) == fewest, "no other rack has more free nodes"
    elif sum(bool(rack) and state in usable for rack, state, _ in shape) >= count:
        everywhere = max(sum(rack == one for one, _, _ in shape) for rack in "abc")
        assert found.reason is (Reason.TOPOLOGY if everywhere >= count else Reason.TOO_FEW_NODES)


@given(fleets, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_domain_does_not_depend_on_the_order_of_anything(
    shape: list[tuple[str, str, int]], count: int, chance: random.Random
) -> None:
    objects = [*fleet(shape), *members(count)]
    first = chosen(view(objects), racked(count))
    chance.shuffle(objects)
    assert chosen(view(objects), racked(count)) == first


def test_another_gangs_topology_is_its_own_affair() -> None:
    seen = view(racks(a=1, b=1), members(2, gang="free"))
    found = chosen(seen, claim(nodes=2, gang=ref("free")))
    assert names(found) == ["a-0", "b-0"]
