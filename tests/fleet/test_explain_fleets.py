"""Every fleet: one stage for every wait, and figures that are right against brute force."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.fitness import Obstacle
from fleet.marks import taint
from fleet.names import CLAIM_KEY, EXPECTED_RUN, GANG_SIZE, PATIENCE, POLICY
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Drain, HeldNode, Overflow, Phase, PhaseTime, Policy
from fleet.view import View
from fleet.why.explain import explain, explain_on, kind_and_reason
from fleet.why.explanations import Explanation, Kind, Result, Stage, Wait
from fleet.why.supply import Ground
from tests.fleet.asking import BIG, NOTHING, NOW, SMALL, refused
from tests.fleet.builders import T0, agreement, at, claim, members, node, pod, pool, ref, view

POOLS = st.sampled_from(["big", "small", "", "kept"])
FOUR_POOLS = [BIG, SMALL, pool("kept", overflow=Overflow.NEVER, drain=Drain.DISABLED)]


@st.composite
def fleets(draw: st.DrawFn) -> list[Any]:
    """Nodes in all conditions, running and waiting pods, gangs, agreements, and claims in any phase."""
    names = [f"n{index}" for index in range(draw(st.integers(1, 5)))]
    found: list[Any] = [*FOUR_POOLS]
    free: dict[str, int] = {}
    for name in names:
        marks = draw(st.sampled_from([(), (), (), (taint("uid-team-b-c"),), (taint("uid-team-b-other"),)]))
        cards = draw(st.sampled_from([8, 8, 8, 4, 7]))
        made = node(name, draw(POOLS), cards=cards, cordoned=draw(st.integers(0, 9)) == 0, taints=marks)
        found.append(made)
        free[name] = cards
    for index in range(draw(st.integers(0, 12))):
        name, cards = draw(st.sampled_from(names)), draw(st.sampled_from([1, 1, 2, 4]))
        if free[name] >= cards:
            free[name] -= cards
            going = 1100 if draw(st.integers(0, 5)) == 0 else None
            notes = {EXPECTED_RUN: draw(st.sampled_from(["1h", "bad", "2h"]))}
            found.append(pod(f"run-{index}", cards, on=name, notes=notes, going=going))
    for index in range(draw(st.integers(0, 3))):
        one = pod(f"w-{index}", draw(st.sampled_from([1, 2, 4, 7, 9])), gates=draw(st.sampled_from([(), (), ("x/y",)])))
        found.append(refused(one) if draw(st.booleans()) and not one.spec.scheduling_gates else one)
    size = draw(st.integers(1, 3))
    notes = {POLICY: "WaitThenEvict", PATIENCE: "1h", GANG_SIZE: str(draw(st.integers(size, size + 1)))}
    found += members(size, notes=notes, size=None, gates=draw(st.sampled_from([(), (CLAIM_KEY,)])))
    found += draw(st.lists(st.sampled_from([agreement(), agreement("b", ns="team-b")]), max_size=2, unique_by=id))
    for name, gang in (("c", "train"), ("other", "elsewhere")):
        if draw(st.booleans()):
            phase, reason = draw(st.sampled_from(list(Phase))), str(draw(st.sampled_from(list(Reason))))
            policy = draw(st.sampled_from(list(Policy)))
            on = [
                HeldNode(one, f"node-{one}") for one in draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
            ]
            times = (PhaseTime(phase, at(10)),)
            found.append(
                claim(
                    name,
                    gang=ref(gang),
                    policy=policy,
                    phase=phase,
                    held=on,
                    reason=reason,
                    message="because",
                    phases=times,
                )
            )
    return found


def brute_force(seen: View, one: Pod) -> dict[str, int]:
    """The figures of a small pod, node by node and pod by pod."""
    seats = {}
    for name, each in seen.nodes.items():
        label = each.metadata.label("pool")
        if label == "kept" or each.spec.unschedulable:
            continue
        cards = int((each.status.allocatable or {})["nvidia.com/gpu"])
        for other in seen.pods.values():
            if other.spec.node_name == name and other.status.phase not in {"Succeeded", "Failed"}:
                cards -= int((other.spec.containers or ())[0].resources.requests["nvidia.com/gpu"])  # type: ignore[union-attr,index]
        seats[name] = cards
    return {
        "cardsFree": sum(seats.values()),
        "bestNodeFree": max(seats.values(), default=0),
        "nodesUsable": len(seats),
    }


@settings(max_examples=300)
@given(fleets(), st.randoms(use_true_random=False))
def test_every_waiting_gpu_pod_has_one_stage_with_right_figures_in_any_order(
    objects: list[Any], source: random.Random
) -> None:
    seen = view(objects)
    shuffled: list[Any] = [*objects]
    source.shuffle(shuffled)
    other = view(shuffled)
    for uid, one in seen.pods.items():
        found = explain(seen, one, NOTHING, NOW)
        assert found == explain(other, one, NOTHING, NOW)
        assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == found
        if one.spec.node_name:
            continue
        assert found.stage is not None, uid
        assert found.kind in {Kind.NOT_ATTEMPTED, Kind.NO_PLACE}
        assert found.text.endswith(".") or found.stage is Stage.SCHEDULER
        assert found.ends is not None
        failed = [check.stage for check in found.checked if check.result is Result.NOT_OK]
        assert failed[-1] is found.stage
        given_back = found.claim is not None and found.claim.phase == Phase.BLOCKED
        assert set(failed[:-1]) <= {Stage.TOPOLOGY, *((Stage.CAPACITY,) if given_back else ())}
        if one.metadata.name.startswith("w-"):
            wanted = brute_force(seen, one)
            assert {name: found.numbers[name] for name in wanted} == wanted
            check_small(found, wanted)


def check_small(found: Explanation, wanted: dict[str, int]) -> None:
    needed = found.numbers["cardsNeeded"]
    if found.stage is Stage.CAPACITY and found.reason != Wait.NEVER:
        assert wanted["cardsFree"] < needed
    elif found.stage is Stage.TOPOLOGY:
        assert wanted["bestNodeFree"] < needed <= wanted["cardsFree"]
        assert found.best_node is not None
        assert found.best_node.free == wanted["bestNodeFree"]
    elif found.stage in {Stage.RESERVED, Stage.AGREEMENT, Stage.SCHEDULER}:
        assert wanted["bestNodeFree"] >= needed


@settings(max_examples=100)
@given(fleets())
def test_the_words_that_are_counted_are_those_that_are_explained(objects: list[Any]) -> None:
    seen = view(objects)
    ground = Ground(seen)
    for one in seen.pods.values():
        found = explain_on(ground, one, NOTHING, NOW)
        assert kind_and_reason(ground, one, NOW) == (found.kind, found.reason)


def words(names: Iterable[str]) -> set[str]:
    return {str(name) for name in names}


def test_reasons_that_mean_the_same_are_the_same_word_and_others_are_not() -> None:
    assert words(Wait) & words(Reason) == set()
    assert words(Wait) & words(Obstacle) == {"HeldForAnotherClaim"}
    assert T0 < NOW
