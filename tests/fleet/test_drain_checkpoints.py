"""The checkpoint contract in the simulated cluster: asked, waited for, then stopped or spared."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from fleet.actions import Action, AskCheckpoint, Evict, Timing
from fleet.names import CHECKPOINT_REQUESTED, LAST_CHECKPOINT
from fleet.reasons import Reason
from fleet.resources import Checkpoint, Phase
from fleet.times import format_time, parse_time
from tests.fleet.builders import agreement, at, node, pod
from tests.fleet.scenes import all_bound, gang, in_phase, small
from tests.fleet.simulation import Simulation

ASK = Checkpoint(request=True, timeout="30s")
MUST = Checkpoint(required=True, request=True, timeout="30s")


def running(terms: Checkpoint, **simulation: object) -> Simulation:
    """Two pods that have run for 100 s; nobody has saved anything."""
    scene = Simulation(**simulation)  # type: ignore[arg-type]
    return scene.add(node("n1"), small(2, "n1", started=-100), agreement(checkpoint=terms), gang())


def saving(scene: Simulation, after: float) -> None:
    """Owners save their work `after` seconds after they were asked, in whole seconds."""

    def look(action: Action) -> None:
        if isinstance(action, AskCheckpoint):
            scene.later(scene.seconds + after, lambda: save(scene, action.pod.metadata.uid))

    scene.after = look


def save(scene: Simulation, uid: str) -> None:
    if uid in scene.pods:
        scene.annotate(uid, LAST_CHECKPOINT, format_time(scene.now.replace(microsecond=0)))


def asked_at(scene: Simulation, uid: str) -> float:
    text = scene.pods[uid].metadata.annotation(CHECKPOINT_REQUESTED)
    assert text is not None
    return (parse_time(text) - at(0)).total_seconds()


def test_everybody_is_asked_and_stopped_once_all_have_saved() -> None:
    scene = running(ASK)
    saving(scene, 4)
    scene.run(3)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.DRAINING, Reason.CHECKPOINTING)
    assert "2 gang(s) were asked" in made.status.message
    assert "until 2027-01-04T12:00:30" in made.status.message
    assert scene.records == {}
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert 4 <= (scene.evictions[0].at - at(0)).total_seconds() < 7
    assert max(one.spec.lost_gpu_seconds for one in scene.records.values()) < 3, "counted from the new checkpoint"
    assert all(one.spec.saved_at is not None for one in scene.records.values())


def test_a_checkpoint_in_the_second_of_the_request_counts() -> None:
    scene = running(ASK)
    saving(scene, 0)
    scene.run(40, until=lambda: all_bound(scene))
    assert (scene.evictions[0].at - at(0)).total_seconds() < 2


def test_who_saves_nothing_is_stopped_when_the_time_is_over() -> None:
    scene = running(ASK)
    scene.run(60, until=lambda: all_bound(scene))
    begun = (scene.evictions[0].at - at(0)).total_seconds()
    assert 30 <= begun < 32
    assert min(one.spec.lost_gpu_seconds for one in scene.records.values()) > 100


def test_who_must_save_and_does_not_is_left_alone() -> None:
    scene = running(MUST)
    scene.run(50, until=lambda: in_phase(scene, Phase.BLOCKED))
    made = scene.the_claim()
    assert made.status.reason == Reason.CHECKPOINT_MISSING
    assert "within 30s" in made.status.message
    scene.go_on(5)
    assert scene.evictions == []
    assert scene.records == {}
    assert scene.marked() == []


@pytest.mark.parametrize("text", ["yesterday", format_time(at(9999)), "2027-01-04T12:00:05", format_time(at(-50))])
def test_a_checkpoint_that_cannot_be_believed_is_none(text: str) -> None:
    scene = running(MUST)
    scene.later(2, lambda: [scene.annotate(f"team-v.n1-{index}", LAST_CHECKPOINT, text) for index in range(2)])
    scene.run(50, until=lambda: in_phase(scene, Phase.BLOCKED))
    assert scene.the_claim().status.reason == Reason.CHECKPOINT_MISSING
    assert scene.evictions == []


def test_every_running_member_of_the_gang_is_asked_wherever_it_runs() -> None:
    pair = [pod(f"pair-{index}", on=f"n{index + 1}", gang="pair", size=3, started=-100) for index in range(2)]
    waits = pod("pair-2", gang="pair", size=3, selector={"pool": "none"})
    scene = Simulation().add(node("n1"), node("n2", cordoned=True), pair, waits, agreement(checkpoint=ASK), gang())
    scene.run(5)
    assert {one.pod.metadata.name for one in scene.done if isinstance(one, AskCheckpoint)} == {"pair-0", "pair-1"}
    save(scene, "team-v.pair-1")
    scene.run(20, until=lambda: all_bound(scene))
    assert scene.evicted() == ["pair-0"], "one state for the gang: the checkpoint of any member is its checkpoint"


def test_a_request_of_an_earlier_drain_is_made_anew() -> None:
    scene = running(ASK)
    for index in range(2):
        scene.annotate(f"team-v.n1-{index}", CHECKPOINT_REQUESTED, format_time(at(-3600)))
    scene.run(5)
    assert asked_at(scene, "team-v.n1-0") > 0
    assert scene.evictions == []


def test_checkpoints_are_asked_for_on_all_nodes_before_anybody_is_stopped() -> None:
    scene = Simulation().add(node("n1"), node("n2"), small(2, "n1"), small(2, "n2", ns="team-w"))
    scene.add(agreement(), agreement(ns="team-w", checkpoint=ASK), gang(2))
    saving(scene, 5)
    scene.run(60, until=lambda: all_bound(scene))
    kinds = [type(one) for one in scene.done]
    assert kinds.index(AskCheckpoint) < kinds.index(Evict)
    assert (scene.evictions[0].at - at(0)).total_seconds() >= 5


def test_the_wait_for_checkpoints_is_not_taken_from_the_time_to_end() -> None:
    """The drain may last 20 s, the wait for a checkpoint 30 s, the pods take 15 s to end: that is enough."""
    timing = replace(Timing(), drain_timeout=timedelta(seconds=20))
    scene = Simulation(timing=timing).add(node("n1"), small(1, "n1", grace=15), agreement(checkpoint=ASK), gang())
    scene.run(80, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.phases().count("Blocked") == 0


def test_a_pod_that_ends_while_its_checkpoint_is_waited_for_is_no_victim() -> None:
    scene = running(ASK)
    scene.later(3, lambda: [scene.end(f"team-v.n1-{index}") for index in range(2)])
    scene.run(30, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.evictions == []
    assert scene.records == {}


def test_a_gang_that_is_gone_while_checkpoints_are_waited_for_stops_nobody() -> None:
    scene = running(ASK)
    scene.later(3, lambda: scene.delete("team-b.train-0"))
    scene.run(60)
    assert scene.evictions == []
    assert scene.marked() == []


QUICK = Checkpoint(request=True, timeout="6s")
ENDS: dict[str, tuple[Checkpoint, Callable[[Simulation], None], Phase, list[str]]] = {
    "saved": (MUST, lambda scene: saving(scene, 4), Phase.BOUND, ["n1-0", "n1-1"]),
    "timed out": (QUICK, lambda _: None, Phase.BOUND, ["n1-0", "n1-1"]),
    "missing": (Checkpoint(required=True, request=True, timeout="6s"), lambda _: None, Phase.BLOCKED, []),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("lag_seconds", [0, 0.3])
def test_killed_after_any_write_it_ends_the_same(name: str, lag_seconds: float) -> None:
    terms, happen, phase, evicted = ENDS[name]

    def play(kill_after: int | None) -> Simulation:
        scene = running(terms, kill_after=kill_after, lag_seconds=lag_seconds)
        happen(scene)
        return scene.run(16)

    whole = play(None)
    for last in range(1, whole.writes + 1, 9 if lag_seconds else 1):
        scene = play(last)
        assert scene.kills == 1
        assert (scene.the_claim().status.phase, scene.evicted(), scene.marked()) == (phase, evicted, [])
