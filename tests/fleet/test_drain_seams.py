"""What happens between two steps of a drain, where records, looks and other claims do not wait for each other."""

from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import Action, Answer, AskCheckpoint, EvictionAnswer, Timing, WriteStatus
from fleet.names import LAST_CHECKPOINT
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Budget, Checkpoint, DrainRecord, Outcome, Phase, PhaseTime, RecordStatus
from fleet.times import format_time
from tests.fleet.builders import agreement, node, owned, pod
from tests.fleet.scenes import all_bound, gang, small
from tests.fleet.simulation import Simulation, replace

NOT_NOW = Answer(EvictionAnswer.BUDGET, "not now")
QUICK = changed(Timing(), avoid_for=timedelta(seconds=5))
ONCE = Budget(evictions_per_job_per_day=1)


def pair(*nodes: str, **more: object) -> list[Pod]:
    """A running gang of team-v: pair-0, pair-1, one card each."""
    return [
        pod(f"pair-{index}", on=name, gang="pair", size=2, grace=2, **more)  # type: ignore[arg-type]
        for index, name in enumerate(nodes)
    ]


def by_outcome(scene: Simulation, outcome: Outcome) -> list[DrainRecord]:
    return [one for one in scene.records.values() if one.status.outcome is outcome]


def stopped(scene: Simulation) -> dict[str, float]:
    """Names of all pods that the records call stopped, and what each lost."""
    return {one.spec.pod: one.spec.lost_gpu_seconds for one in by_outcome(scene, Outcome.STOPPED)}


def test_an_intention_that_is_left_of_an_earlier_drain_is_written_down_anew() -> None:
    """The claim gave the node back and took it again before what became of the pods could be written down."""
    scene = Simulation(timing=QUICK).add(node("n1"), small(2, "n1"), agreement(), gang())
    scene.refusals = {f"team-v.n1-{index}": NOT_NOW for index in range(2)}
    scene.run(3)
    claim, again = scene.the_claim(), PhaseTime(Phase.CORDONING, scene.now)
    anew = replace(claim.status, phases=(*claim.status.phases, again, PhaseTime(Phase.DRAINING, scene.now)))
    scene.claims[claim.metadata.uid] = replace(claim, status=anew)
    scene.refusals = {}
    scene.go_on(30)
    assert all_bound(scene)
    assert sorted(one.spec.pod for one in by_outcome(scene, Outcome.SPARED)) == ["n1-0", "n1-1"], "the one before"
    assert set(stopped(scene)) == {"n1-0", "n1-1"}
    assert scene.the_claim().status.lost_gpu_seconds == pytest.approx(sum(stopped(scene).values()))


def test_d38_two_claims_of_one_pass_do_not_both_hit_a_job_that_may_be_hit_once() -> None:
    web = owned("ReplicaSet", "web")
    scene = Simulation().add(node("n1"), node("n2"), agreement(budget=ONCE), gang(1, "one"), gang(1, "two"))
    scene.add(pod("web-a", on="n1", owner=web), pod("web-b", on="n2", owner=web)).run(30)
    assert len(scene.evictions) == 1


def test_d38_a_pod_that_slips_in_does_not_make_a_second_hit_of_a_job_that_may_be_hit_once() -> None:
    web = owned("ReplicaSet", "web")
    scene = Simulation().add(node("n1"), pod("web-a", on="n1", owner=web), agreement(budget=ONCE), gang())
    scene.refusals["team-v.web-a"] = NOT_NOW
    scene.run(3)
    scene.bind(pod("web-b", owner=web), "n1")
    scene.go_on(5)
    assert scene.evicted() == [], "neither of them: the node is given back"
    assert scene.the_claim().status.reason == Reason.AGREEMENT_BUDGET


def test_a_record_that_somebody_has_closed_is_written_anew_before_its_pod_is_stopped() -> None:
    scene = Simulation().add(node("n1"), small(1, "n1"), agreement(), gang())
    scene.refusals["team-v.n1-0"] = NOT_NOW
    scene.run(3)
    first = next(iter(scene.records.values()))
    scene.records[first.metadata.uid] = replace(first, status=RecordStatus(Outcome.SPARED, scene.now))
    scene.refusals = {}
    scene.go_on(30)
    assert all_bound(scene)
    assert set(stopped(scene)) == {"n1-0"}


def test_a_gang_goes_whole_although_the_member_that_told_of_its_checkpoint_is_stopped_first() -> None:
    """Only one member reports the checkpoint, as is usual; its grace is over before the other may go."""
    scene = Simulation().add(node("n1"), pair("n1", "n1"), agreement(checkpoint=Checkpoint(required=True)), gang())
    scene.later(1, lambda: scene.annotate("team-v.pair-0", LAST_CHECKPOINT, format_time(scene.now)))
    scene.refusals["team-v.pair-1"] = NOT_NOW
    scene.run(8)
    assert scene.evicted() == ["pair-0"]
    scene.refusals = {}
    scene.go_on(20)
    assert scene.evicted() == ["pair-0", "pair-1"]
    assert all_bound(scene)


def test_a_checkpoint_that_was_asked_for_counts_for_the_rest_of_the_gang_when_who_made_it_is_gone() -> None:
    terms = Checkpoint(request=True, required=True, timeout="4s")
    scene = Simulation().add(node("n1"), node("n2"), pair("n1", "n2"), agreement(checkpoint=terms), gang(2))

    def save(action: Action) -> None:
        if isinstance(action, AskCheckpoint) and action.pod.metadata.name == "pair-0":
            scene.annotate("team-v.pair-0", LAST_CHECKPOINT, format_time(scene.now))

    scene.after = save
    scene.refusals["team-v.pair-1"] = NOT_NOW
    scene.run(10)
    assert scene.evicted() == ["pair-0"]
    scene.refusals = {}
    scene.go_on(20)
    assert all_bound(scene)


def test_a_loss_is_booked_with_the_others_if_its_pod_ended_by_itself_and_was_cleaned_away() -> None:
    scene = Simulation().add(node("n1"), pair("n1", "n1"), agreement(), gang())
    scene.refusals = {f"team-v.pair-{index}": NOT_NOW for index in range(2)}
    scene.run(5)
    carrier = next(one.uid for one in scene.the_claim().status.victims if one.lost_gpu_seconds)
    scene.end(carrier)
    scene.go_on(0.01)
    del scene.pods[carrier]
    scene.refusals = {}
    scene.go_on(20)
    assert all_bound(scene)
    assert stopped(scene) == {"pair-1": pytest.approx(5, abs=0.1)}, "one card, since the gang began"


def test_a_loss_is_booked_with_the_others_if_the_owner_took_its_pod_away_before_it_was_recorded() -> None:
    """Nobody but its owner has stopped it, so no record is made of it any more."""
    scene = Simulation().add(node("n1"), pair("n1", "n1"), agreement(), gang())

    def take_away(action: Action) -> None:
        if isinstance(action, WriteStatus) and action.status.reason == Reason.EVICTING and not scene.records:
            scene.delete("team-v.pair-0")

    scene.after = take_away
    scene.run(30)
    assert all_bound(scene)
    assert stopped(scene) == {"pair-1": pytest.approx(0.55, abs=0.1)}
    assert scene.the_claim().status.lost_gpu_seconds == pytest.approx(0.55, abs=0.1)


def test_a_look_that_shows_a_pod_which_the_cache_knows_to_be_gone_is_taken_anew() -> None:
    scene = Simulation().add(node("n1"), small(2, "n1"), agreement(), gang())
    scene.refusals["team-v.n1-1"] = NOT_NOW
    scene.run(2.3)
    del scene.pods["team-v.n1-1"]
    scene.go_on(0.02)
    assert [one.metadata.name for one in scene.looks["n1"].pods] == ["n1-0"]
