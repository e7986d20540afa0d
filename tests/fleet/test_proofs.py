"""Proof of emptiness beyond the list of pods: cards not given back, devices, HAMi's lock, and the node's own probe."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fleet.actions import Probe, ProbeResult, Timing, WriteStatus
from fleet.hami import LOCK
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE
from fleet.objects import (
    Allocation,
    ClaimConsumer,
    DeviceRequest,
    DeviceRequests,
    DeviceResult,
    DeviceResults,
    Metadata,
    NamedDeviceRequest,
    Node,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from fleet.proofs import objection
from fleet.reasons import Reason
from fleet.resources import Phase
from fleet.times import format_time
from fleet.view import View
from tests.fleet.builders import T0, at, node, pool, view
from tests.fleet.scenes import all_bound, busy, gang, in_phase
from tests.fleet.shares import shared_node
from tests.fleet.simulation import Simulation, replace

PROBED = Timing(probe_nodes=True)


def reporting(offered: int | str, built_in: int | str | None) -> Node:
    one = node("n1")
    capacity = None if built_in is None else {DEFAULT_RESOURCE: built_in}
    return replace(one, status=replace(one.status, allocatable={DEFAULT_RESOURCE: offered}, capacity=capacity))


def locked(value: str) -> Node:
    one = shared_node("n1", "big")
    return replace(one, metadata=replace(one.metadata, annotations={**(one.metadata.annotations or {}), LOCK: value}))


def devices(
    count: int = 1, *, where: str = "n1", device_class: str = "gpu.nvidia.com", users: int = 0, only: str | None = None
) -> ResourceClaim:
    selector = None
    if only is not None:
        field = Requirement("metadata.name", "In", (only,))
        selector = NodeSelector((NodeSelectorTerm(match_fields=(field,)),))
    results = DeviceResults(tuple(DeviceResult("r", "gpu.nvidia.com", where, f"gpu-{one}") for one in range(count)))
    return ResourceClaim(
        Metadata("cards", "team-v", uid="claim-cards"),
        ResourceClaimSpec(DeviceRequests((DeviceRequest("r", NamedDeviceRequest(device_class)),))),
        ResourceClaimStatus(
            Allocation(results, selector), tuple(ClaimConsumer(f"p{one}") for one in range(users)) or None
        ),
    )


def said(seen: View, now: float = 0) -> str | None:
    found = objection(seen, seen.nodes["n1"], at(now))
    return None if found is None else found.text


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (reporting(8, 8), None),
        (reporting("8", 8), None),
        (reporting(8, None), None),
        (reporting(7, 8), "offers 7 of its 8 nvidia.com/gpu"),
        (reporting(8, "many"), "cannot be read"),
        (shared_node("n1", "big"), None),
        (shared_node("n1", "big", sick=[3]), "7 of 8 cards that HAMi may use"),
        (shared_node("n1", "big", cordon="n1-0,n1-1"), "6 of 8 cards that HAMi may use"),
    ],
)
def test_n05_a_card_that_is_not_reported_is_not_free(one: Node, expected: str | None) -> None:
    found = said(view(one))
    assert (found is None) if expected is None else (found is not None and expected in found)


def test_a_node_of_no_pool_has_no_cards_to_report() -> None:
    assert said(view(reporting(7, 8), pool("other"))) is None


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (devices(2), "team-v/cards has 2 device(s) of n1: nobody has it, it is not deallocated yet"),
        (devices(users=3), "team-v/cards has 1 device(s) of n1: 3 pod(s) have it"),
        (devices(where="n2"), None),
        (devices(where="fabric", only="n1"), "has 1 device(s)"),
        (devices(where="fabric", only="n2"), None),
        (devices(device_class="nic.example.com"), None),
        (replace(devices(), status=ResourceClaimStatus()), None),
    ],
)
def test_a_device_that_is_still_allocated_is_not_free(claim: ResourceClaim, expected: str | None) -> None:
    seen = view(node("n1"))
    found = said(View(seen.nodes, {}, {}, seen.pools, (), {}, device_claims=(claim,)))
    assert (found is None) if expected is None else (found is not None and expected in found)


def test_h11_a_lock_of_hami_counts_until_it_expires() -> None:
    seen = view(locked(f"{format_time(T0)},team-v,late"))
    found = objection(seen, seen.nodes["n1"], at(299))
    assert found is not None
    assert (found.reason, found.until) == (Reason.BOOKED, at(300))
    assert "pod team-v/late" in found.text
    assert objection(seen, seen.nodes["n1"], at(300)) is None
    assert "cannot read" in (said(view(locked("yesterday"))) or "")
    assert said(view(locked(""))) is None


def test_h11_a_locked_node_does_not_open_and_goes_on_when_the_lock_expires() -> None:
    scene = Simulation().add(shared_node("n1", "big"), gang())
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    notes = dict(scene.nodes["n1"].metadata.annotations or {})
    scene.change_node("n1", annotations={**notes, LOCK: f"{format_time(T0 + timedelta(seconds=1))},team-v,gone"})
    scene.run(295)
    assert (scene.the_claim().status.phase, scene.the_claim().status.reason) == (Phase.PROVING_EMPTY, Reason.BOOKED)
    assert CLAIM_KEY not in (scene.nodes["n1"].metadata.labels or {})
    scene.run(320, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]


def proving(change: Callable[[Simulation], Any], **more: Any) -> Simulation:
    """A node whose victims are gone, changed before that could be proved."""
    scene = busy(["n1"], each=2, **more).add(gang())
    scene.run(20, until=lambda: in_phase(scene, Phase.DRAINING))
    change(scene)
    return scene.run(60, until=lambda: scene.the_claim().status.reason == Reason.NOT_PROVED)


def test_n05_a_card_that_comes_back_late_is_waited_for_and_named() -> None:
    full = node("n1").status

    def capacity(scene: Simulation, cards: int) -> None:
        status = replace(full, capacity={**(full.capacity or {}), DEFAULT_RESOURCE: cards})
        scene.nodes["n1"] = replace(scene.nodes["n1"], status=status)

    scene = proving(lambda scene: capacity(scene, 9))
    assert scene.the_claim().status.phase is Phase.PROVING_EMPTY
    assert "8 of its 9 nvidia.com/gpu" in scene.the_claim().status.message
    assert CLAIM_KEY not in (scene.nodes["n1"].metadata.labels or {})
    capacity(scene, 8)
    scene.go_on(10, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]


def test_a_node_that_is_never_proved_empty_is_given_back_at_the_drains_deadline() -> None:
    scene = busy(["n1"], each=2, timing=Timing(probe_nodes=True, drain_timeout=timedelta(seconds=60))).add(gang())
    scene.probe = lambda name: f"pid 4711 has a card of {name}"
    scene.run(90, until=lambda: in_phase(scene, Phase.BLOCKED))
    status = scene.the_claim().status
    assert status.reason == Reason.DRAIN_TIMED_OUT
    assert "pid 4711 has a card of n1" in status.message
    assert scene.marked() == []


def test_the_nodes_own_probe_has_the_last_word_and_is_asked_again_every_second() -> None:
    busy_until = 30.0
    scene = busy(["n1"], each=2, timing=PROBED).add(gang())
    scene.probe = lambda name: "a process is left" if scene.seconds < busy_until else ""
    scene.run(60, until=lambda: all_bound(scene))
    assert busy_until <= scene.seconds < busy_until + 2
    assert 10 <= sum(isinstance(one, Probe) for one in scene.done) <= 30
    assert sum(isinstance(one, WriteStatus) for one in scene.done) < 15, "it says the same all the time"


def test_the_probe_is_asked_only_once_nobody_is_left_and_never_unless_that_is_wanted() -> None:
    asked: list[int] = []
    scene = busy(["n1"], each=2, timing=PROBED).add(gang())

    def probe(name: str) -> str:
        asked.append(len(scene.card_holders(name)))
        return ""

    scene.probe = probe
    scene.run(60, until=lambda: all_bound(scene))
    assert asked == [0]
    without = busy(["n1"], each=2).add(gang())
    without.run(60, until=lambda: all_bound(without))
    assert not any(isinstance(one, Probe) for one in without.done)


def test_an_answer_from_before_the_node_was_seen_empty_does_not_count() -> None:
    scene = busy(["n1"], each=2, timing=PROBED).add(gang())
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    scene.probes["n1"] = ProbeResult(scene.now, empty=True)
    scene.run(60, until=lambda: all_bound(scene))
    assert sum(isinstance(one, Probe) for one in scene.done) == 1


def test_an_empty_node_is_probed_anew_if_another_keeps_the_claim_waiting() -> None:
    """What one node's probe said is not good for ever: somebody may have started something there meanwhile."""
    scene = busy(["n1", "n2"], each=1, timing=PROBED).add(gang(2))
    scene.probe = lambda name: "a process is left" if name == "n2" and scene.seconds < 40 else ""
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)
    asked = [one.node.metadata.name for one in scene.done if isinstance(one, Probe)]
    assert 3 <= asked.count("n1") <= 6
