"""What the extender keeps count of as changes come, in whatever order they come."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from fleet.board import Refused
from fleet.marks import taint
from fleet.objects import Allocation, DeviceResult, DeviceResults, Node, OwnerReference, ResourceClaimStatus
from fleet.resources import Accepts, HeldNode, Phase
from tests.extender.asgi import Rig
from tests.fleet.builders import at, claim, node, pod, pool
from tests.fleet.shares import CARD_MIB, asking, shared_node, sharing
from tests.fleet.test_devices import using, wanted

SMALL = pool("small", accepts=Accepts.SMALL)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_devices_are_counted_in_whatever_order_pod_claim_and_allocation_arrive(order: tuple[int, ...]) -> None:
    holder = using("p", templates=("c",), on="n1")
    owner = OwnerReference("Pod", "p", holder.metadata.uid, controller=True)
    asked = wanted("c", count=2)
    asked = msgspec.structs.replace(asked, metadata=msgspec.structs.replace(asked.metadata, owner_references=(owner,)))
    results = DeviceResults((DeviceResult("r", "d", "n1", "gpu-0"), DeviceResult("r", "d", "n1", "gpu-1")))
    allocated = msgspec.structs.replace(asked, status=ResourceClaimStatus(Allocation(results)))
    changes: list[Any] = [SMALL, holder, asked, allocated]
    ordered = [changes[index] for index in order]
    if ordered.index(asked) > ordered.index(allocated):
        ordered.remove(asked)
    rig = Rig(*ordered)
    assert rig.state.tally.touched == {"n1": 2}
    rig.remove(allocated)
    assert rig.state.tally.touched == {}


def test_a_drain_that_is_expected_to_end_later_is_seen_by_the_next_question() -> None:
    draining = claim(uid="u", phase=Phase.DRAINING, held=[HeldNode("n1", "node-n1")])
    rig = Rig(SMALL, node("n1", "small", taints=(taint("u"),)), draining)
    assert rig.state.board().drained_by("n1") is None
    for seconds in (60, 90):
        rig.put(
            msgspec.structs.replace(draining, status=msgspec.structs.replace(draining.status, drained_by=at(seconds)))
        )
        assert rig.state.board().drained_by("n1") == at(seconds)
    rig.put(node("n1", "small"))
    assert rig.state.board().drained_by("n1") is None, "nobody holds it any more"


async def test_a_sick_card_and_a_new_register_are_seen_by_the_next_question() -> None:
    full = [sharing(f"p{index}", "n1", {index: (CARD_MIB, 100)}) for index in range(7)]
    rig = Rig(SMALL, shared_node("n1"), shared_node("n2"), *full)
    question = pod("w", containers=(asking(1, cores=100),))
    assert await passed(rig, question) == ["n1"]
    rig.put(shared_node("n1", sick=(7,)))
    assert await passed(rig, question) == ["n2"]


async def test_heartbeats_and_locks_do_not_touch_the_board() -> None:
    rig = Rig(SMALL, shared_node("n1"))
    before = rig.state.board().seats["n1"]
    beating: Node = shared_node("n1")
    notes = {**(beating.metadata.annotations or {}), "hami.io/mutex.lock": "2026-11-29T15:00:00Z,a,b"}
    rig.put(msgspec.structs.replace(beating, metadata=msgspec.structs.replace(beating.metadata, annotations=notes)))
    assert rig.state.board().seats["n1"] is before
    rig.put(shared_node("n1", cordon="n1-0"))
    assert rig.state.board().seats["n1"] is not before


async def test_p07_the_filter_alone_packs_small_pods() -> None:
    rig = Rig(SMALL, node("n1", "small"), node("n2", "small"), node("n3", "small"), pod("a", 6, on="n2"))
    answer = await rig.ask("filter", {"Pod": pod("one"), "Nodes": None, "NodeNames": ["n1", "n2", "n3"]})
    assert answer["NodeNames"] == ["n2"]
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(["n1", "n3"], str(Refused.EMPTIER))
    rig.put(pod("b", 7, on="n3"))
    assert await passed(rig, pod("one"), ["n1", "n2", "n3"]) == ["n3"]


async def passed(rig: Rig, question: Any, names: list[str] | None = None) -> list[str]:
    answer = await rig.ask("filter", {"Pod": question, "Nodes": None, "NodeNames": names or ["n1", "n2"]})
    found: list[str] = answer["NodeNames"]
    return found
