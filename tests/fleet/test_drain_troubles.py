"""Drains on which something goes on that should not: newcomers between looks, doubts that stay, a clock set back."""

from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet import hami
from fleet.actions import Action, Answer, Evict, EvictionAnswer, Timing, WriteStatus
from fleet.names import GANG_MIN_SIZE
from fleet.resources import Outcome, Phase
from tests.fleet.builders import agreement, at, node, pod
from tests.fleet.scenes import all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation, replace

AT_ONCE = changed(Timing(), cool_down=timedelta(0))


@pytest.mark.parametrize("after", [0.005, 0.05, 0.3, 0.9])
def test_d09_a_pod_that_hami_had_booked_and_binds_between_two_looks_is_seen(after: float) -> None:
    scene = Simulation().add(node("n1"), pod("v", on="n1", grace=3), agreement(), gang(1))
    scene.run(60, until=lambda: scene.evictions)
    booked = pod("booked", ns="stranger", notes={hami.BOOKED_NODE: "n1"}, gates=("hami",))
    scene.add(booked)
    scene.run(60, until=lambda: in_phase(scene, Phase.PROVING_EMPTY))
    scene.go_on(2)
    assert scene.the_claim().status.reason == "BookedByHAMi"

    def never_ready_with_it(action: Action) -> None:
        if isinstance(action, WriteStatus) and action.status.phase is Phase.READY:
            assert not scene.card_holders("n1")

    scene.after = never_ready_with_it
    bound = replace(booked, spec=replace(booked.spec, scheduling_gates=None))
    scene.later((scene.looks["n1"].at - at(0)).total_seconds() + 1 + after, lambda: scene.bind(bound, "n1"))
    scene.go_on(10)


def test_c07_a_list_knows_more_than_a_cache_whose_watch_is_silent() -> None:
    """The cache shows the victim running for as long as nothing is told it; the list that it is gone."""
    scene = busy(["n1"], each=1).add(gang(1))

    def silent_meanwhile(action: Action) -> None:
        if isinstance(action, Evict):
            scene.lag_seconds = 10_000
        elif isinstance(action, WriteStatus) and action.status.phase is Phase.READY:
            scene.lag_seconds = 0

    scene.after = silent_meanwhile
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)


def test_a_drain_that_comes_and_goes_ends_all_the_same() -> None:
    """A probe says no, and again and again somebody is bound there by hand: the ten minutes do not begin anew."""
    timing = changed(Timing(), probe_nodes=True)
    scene = Simulation(timing=timing, probe=lambda _: "a process is left").add(node("n1"), agreement(), gang(1))
    scene.add(pod("v", on="n1", grace=1))
    for turn in range(65):
        newcomer = pod(f"s{turn}", grace=1, created=10 + 10 * turn)
        scene.later(10 + 10 * turn, lambda newcomer=newcomer: scene.bind(newcomer, "n1"))  # type: ignore[misc]
    scene.run(700, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert in_phase(scene, Phase.BLOCKED)


@pytest.mark.parametrize("back_seconds", [30, 3600])
def test_c07_a_clock_that_was_set_back_holds_nothing_up(back_seconds: int) -> None:
    scene = busy(["n1"], each=2).add(gang(1))
    scene.run(60, until=lambda: scene.evictions)
    scene.now -= timedelta(seconds=back_seconds)
    for uid in [uid for uid, one in scene.pods.items() if one.metadata.deletion_timestamp]:
        del scene.pods[uid]
    scene.go_on(10, until=lambda: all_bound(scene))
    assert all_bound(scene)


def test_an_agreement_that_expires_before_its_patience_is_over_promises_nothing() -> None:
    scene = Simulation().add(node("n1"), small(1, "n1"), agreement(patience="2h", expires=3600), gang(1))
    scene.run(5)
    assert scene.the_claim().status.reason == "AgreementNotYet"
    assert "may change" not in scene.the_claim().status.message


# A gang that goes on with two of its four members


def elastic(scene: Simulation) -> Simulation:
    members = [
        pod(f"e-{index}", on="n1" if index < 3 else "n2", gang="e", size=4, grace=1, started=-1000, notes=TWO)
        for index in range(4)
    ]
    return scene.add(node("n1"), node("n2", cordoned=True), members, agreement())


TWO = {GANG_MIN_SIZE: "2"}


def stopped(scene: Simulation) -> list[float]:
    """What is booked with each pod that was stopped."""
    records = (one for one in scene.records.values() if one.status.outcome is Outcome.STOPPED)
    return [one.spec.lost_gpu_seconds for one in records]


def test_d06_a_cancel_after_the_first_of_three_leaves_the_others_work_unlost() -> None:
    waiting = gang(1, "a")
    scene = elastic(Simulation(timing=AT_ONCE)).add(waiting)

    def cancel(action: Action) -> None:
        if isinstance(action, Evict):
            scene.pods.pop(waiting[0].metadata.uid, None)

    scene.after = cancel
    scene.run(120)
    assert len(scene.evictions) == 1
    assert stopped(scene) == [pytest.approx(1000, abs=5)]
    scene.after = None
    scene.add(gang(1, "b", created=120))
    scene.run(300, until=lambda: scene.where("b-"))
    last = max(one.spec.at for one in scene.records.values())
    assert sum(stopped(scene)) == pytest.approx(1000 + 3 * (last - at(-1000)).total_seconds(), abs=10)


def test_a_successor_of_a_gang_whose_first_eviction_is_still_refused_is_not_booked_yet() -> None:
    first, other = (pod(f"v-{index}", on=f"n{index}", gang="v", size=2, grace=2, started=-1000) for index in range(2))
    scene = Simulation(timing=AT_ONCE).add(node("n0"), node("n1", cordoned=True), first, other, agreement())
    scene.add(gang(1, "a"))
    scene.refusals[first.metadata.uid] = Answer(EvictionAnswer.BUDGET, "not now")
    scene.run(20)
    scene.pods.pop(other.metadata.uid)
    scene.add(node("n3"))
    scene.bind(pod("v-2", gang="v", size=2, grace=2, created=20), "n3")
    scene.go_on(60)
    scene.add(gang(1, "b", created=80))
    scene.go_on(60)
    scene.refusals.clear()
    scene.go_on(60)
    assert sum(stopped(scene)) <= 2 * (scene.now - at(-1000)).total_seconds()
