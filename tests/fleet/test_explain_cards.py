"""Why a pod waits: cards outside all pools, of several resources, and devices that no pool counts."""

import dataclasses

import msgspec

from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Container, Pod, Resources
from fleet.reasons import Reason
from fleet.view import View
from fleet.why.explanations import Kind, Stage, Wait
from tests.fleet.asking import BIG, SMALL, refused, why
from tests.fleet.builders import members, node, pod, pool, view
from tests.fleet.scenes import small
from tests.fleet.test_devices import NIC_CLASS, using, wanted

OTHER = "vendor.example/gpu"


def both(name: str, cards: int, others: int, on: str | None = None) -> Pod:
    """A pod that asks for cards of two resources."""
    asked: dict[str, str | int] = {DEFAULT_RESOURCE: str(cards), OTHER: str(others)}
    return pod(name, on=on, containers=(Container("c", Resources(requests=asked, limits=asked)),))


def with_nic(seen: View) -> View:
    return dataclasses.replace(seen, device_claims=(wanted("c", NIC_CLASS),))


# Devices


def test_devices_that_no_pool_counts_are_named() -> None:
    words = f"Devices of class {NIC_CLASS} are not counted as cards."
    none = why(with_nic(view(BIG, node("n"), using("p", "c"))), "p")
    assert (none.kind, none.reason) == (Kind.NOT_OURS, Wait.NO_CARDS)
    assert none.text.endswith(words)
    full = why(with_nic(view(SMALL, node("n", "small"), small(8, "n"), using("p", "c", cards=2))), "p")
    assert (full.reason, words in full.text) == (Wait.NOT_ENOUGH, True)
    assert "Devices" not in why(view(BIG, node("n"), pod("p", 0)), "p").text


# Outside all pools


def test_a_node_of_no_pool_may_have_what_no_pool_has() -> None:
    huge = pod("p", 16)
    found = why(view(BIG, node("n"), node("loose", "", cards=16), refused(huge, "0/2: 1 Insufficient cpu")), "p")
    assert (found.stage, found.reason) == (Stage.SCHEDULER, Wait.OTHER)
    assert "Insufficient cpu" in found.text
    assert (found.numbers["nodes"], found.numbers["cardsFree"]) == (1, 16), "only that node is one for it"
    full = why(view(BIG, node("n"), node("loose", "", cards=16), small(1, "loose"), huge), "p")
    assert (full.stage, full.reason) == (Stage.CAPACITY, Wait.NOT_ENOUGH)
    assert "only 15 are free on 1 node of no pool" in full.text
    shut = why(view(BIG, node("n"), node("loose", "", cards=16, cordoned=True), huge), "p")
    assert (shut.reason, "none of the 1 node of no pool can be used" in shut.text) == (Wait.NODES_SHUT, True)


def test_a_pool_refuses_more_cards_than_it_counts_even_where_a_node_has_them() -> None:
    found = why(view(BIG, node("n", cards=16), node("loose", "", cards=8), pod("p", 16)), "p")
    assert (found.stage, found.reason) == (Stage.CAPACITY, Wait.NEVER)
    assert "waiting does not help" in (found.ends.how if found.ends else "")


def test_pools_without_any_node_are_no_pools_that_cannot_serve() -> None:
    """The claim says the same: nodes can be added to a pool that is there."""
    found = why(view(BIG, members(1)))
    assert (found.stage, found.reason) == (Stage.CAPACITY, Reason.TOO_FEW_NODES)


# Several resources


def test_a_pod_of_two_resources_needs_room_for_both() -> None:
    pools = [SMALL, pool("also", labels={"pool": "none"}, resource=OTHER)]
    two = node("two", "small", extra={OTHER: "4"})
    short = why(view(pools, node("one", "small"), pod("p0"), both("p", 2, 1)), "p")
    assert (short.stage, short.reason, "1 CardsMissing" in short.text) == (Stage.CAPACITY, Wait.NODES_SHUT, True)
    assert "Needs 2 nvidia.com/gpu and 1 card of other resources on one node" in short.text
    free = why(view(pools, two, both("run", 4, 2, on="two"), both("p", 2, 2)), "p")
    assert (free.stage, free.numbers["cardsFree"]) == (Stage.SCHEDULER, 4), "each resource has its own free cards"
    full = why(view(pools, two, both("run", 4, 2, on="two"), both("p", 2, 3)), "p")
    assert (full.stage, full.reason) == (Stage.TOPOLOGY, Wait.FRAGMENTED)


def test_the_pods_in_the_way_hold_cards_of_the_resource_that_is_asked_for() -> None:
    pools = [SMALL, pool("also", labels={"pool": "none"}, resource=OTHER)]
    found = why(view(pools, node("n", "small", extra={OTHER: "4"}), both("run", 6, 4, on="n"), pod("p", 3)), "p")
    assert found.best_node is not None
    assert (found.best_node.free, [one.cards for one in found.best_node.blockers]) == (2, [6])


def test_cards_that_hami_has_booked_are_held_on_that_node() -> None:
    booked = pod("booked", 3, notes={"hami.io/vgpu-node": "n"})
    found = why(view(SMALL, node("n", "small"), booked, pod("p", 6)), "p")
    assert found.best_node is not None
    assert [(one.pod, one.node) for one in found.best_node.blockers] == [("booked", "n")]


def test_no_free_place_is_named_where_one_card_is_free_of_another_resource() -> None:
    one = msgspec.structs.replace(both("p", 8, 1), metadata=pod("p", ns="team-b").metadata)
    pools = [BIG, pool("also", labels={"pool": "none"}, resource=OTHER)]
    found = why(view(pools, node("n"), one), "p")
    assert (found.stage, found.reason) == (Stage.CAPACITY, Wait.NODES_SHUT)
    assert "Needs 1 whole node with 8 nvidia.com/gpu and 1 card of other resources" in found.text
