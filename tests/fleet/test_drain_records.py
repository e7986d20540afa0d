"""The journal of a drain in the simulated cluster: status, record, eviction, and what the records say in the end."""

from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import Action, Answer, CreateRecord, Evict, EvictionAnswer, Timing, WriteStatus
from fleet.reasons import Reason
from fleet.resources import Budget, Outcome, Phase
from tests.fleet.builders import agreement, at, node, pod
from tests.fleet.scenes import all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation

BUDGET = Answer(EvictionAnswer.BUDGET, "not now")


def outcomes(scene: Simulation) -> dict[str, list[str]]:
    """What became of each pod that was written down, in time."""
    found: dict[str, list[str]] = {}
    for one in sorted(scene.records.values(), key=lambda record: record.spec.at):
        found.setdefault(one.spec.pod, []).append(str(one.status.outcome))
    return found


def test_everybody_is_written_down_twice_before_the_first_is_stopped() -> None:
    scene = busy(["n1", "n2"], each=3).add(gang(2))
    scene.run(60, until=lambda: all_bound(scene))
    kinds = [type(one) for one in scene.done]
    status = next(index for index, one in enumerate(scene.done) if isinstance(one, WriteStatus) and one.status.victims)
    records = [index for index, kind in enumerate(kinds) if kind is CreateRecord]
    assert status < records[0]
    assert records[-1] < kinds.index(Evict), "all six records, then the first eviction"
    assert len(records) == 6


def test_a_record_says_who_was_stopped_for_whom_and_outlives_the_claim() -> None:
    scene = busy(["n1"], each=1).add(gang())
    scene.run(60, until=lambda: all_bound(scene))
    scene.claims.clear()
    scene.go_on(5)
    (one,) = (record for record in scene.records.values())
    assert (one.metadata.namespace, one.spec.pod, one.spec.pod_uid, one.spec.node) == (
        "team-v",
        "n1-0",
        "team-v.n1-0",
        "n1",
    )
    assert (one.spec.beneficiary, one.spec.agreement, one.spec.job) == ("team-b", "yes", "Pod/team-v/n1-0")
    assert one.spec.agreement_uid == "agreement-team-v-yes"
    assert one.spec.beneficiary_gang == "team-b/Gang/train/"
    assert one.spec.claim.startswith("team-b/")
    assert one.status.outcome is Outcome.STOPPED


def test_d06_a_claim_deleted_in_the_middle_leaves_a_complete_ledger() -> None:
    scene = busy(["n1"], each=3).add(gang())

    def after(action: Action) -> None:
        if isinstance(action, Evict) and len(scene.evictions) == 2:
            scene.claims.clear()
            for uid in [uid for uid, one in scene.pods.items() if one.metadata.namespace == "team-b"]:
                del scene.pods[uid]

    scene.after = after
    scene.run(20)
    assert scene.marked() == []
    assert len(scene.evictions) == 2
    stopped = {one.spec.pod_uid for one in scene.records.values() if one.status.outcome is Outcome.STOPPED}
    assert stopped == {one.uid for one in scene.evictions}
    assert sorted(outcomes(scene).values()) == [["Spared"], ["Stopped"], ["Stopped"]]


def test_who_was_written_down_and_not_stopped_is_spared_and_may_be_chosen_again() -> None:
    quick = changed(Timing(), drain_timeout=timedelta(seconds=5), avoid_for=timedelta(seconds=5))
    scene = busy(["n1"], each=2, timing=quick).add(gang())
    scene.refusals = {"team-v.n1-0": BUDGET, "team-v.n1-1": BUDGET}
    scene.run(8)
    assert outcomes(scene) == {"n1-0": ["Spared"], "n1-1": ["Spared"]}
    scene.refusals = {}
    scene.run(60, until=lambda: all_bound(scene))
    assert outcomes(scene) == {"n1-0": ["Spared", "Stopped"], "n1-1": ["Spared", "Stopped"]}


def test_the_loss_of_a_gang_stands_with_the_pod_that_goes_first() -> None:
    """Of a gang of two on one node one may not go: as long as the loss is not booked, the other is not stopped."""
    pair = [pod(f"pair-{index}", on="n1", gang="pair", size=2, grace=2, started=-100) for index in range(2)]
    scene = Simulation().add(node("n1"), pair, agreement(), gang())
    scene.refusals = {"team-v.pair-0": BUDGET}
    scene.run(10)
    assert scene.evictions == []
    scene.refusals = {}
    scene.run(40, until=lambda: all_bound(scene))
    lost = {one.spec.pod: one.spec.lost_gpu_seconds for one in scene.records.values()}
    assert lost["pair-0"] >= 200
    assert lost["pair-1"] == 0


def test_a_gang_whose_loss_stands_with_a_pod_that_ended_by_itself_is_written_down_anew() -> None:
    pair = [pod(f"pair-{index}", on="n1", gang="pair", size=2, grace=2, started=-100) for index in range(2)]
    scene = Simulation().add(node("n1"), pair, agreement(), gang())
    scene.refusals = {"team-v.pair-0": BUDGET, "team-v.pair-1": BUDGET}
    scene.later(5, lambda: scene.end("team-v.pair-0"))
    scene.later(8, scene.refusals.clear)
    scene.run(60, until=lambda: all_bound(scene))
    scene.go_on(2)
    assert outcomes(scene) == {"pair-0": ["Spared"], "pair-1": ["Spared", "Stopped"]}
    booked = [one for one in scene.records.values() if one.status.outcome is Outcome.STOPPED]
    assert booked[0].spec.lost_gpu_seconds >= 100
    assert [one.name for one in scene.the_claim().status.victims] == ["pair-1"], "who ended by himself is no victim"


def test_a_gang_on_the_nodes_of_two_claims_is_lost_once() -> None:
    spread = [pod(f"v-{index}", on=f"n{index + 1}", gang="v", size=2, grace=2, started=-100) for index in range(2)]
    scene = Simulation().add(node("n1"), node("n2"), spread, agreement(), gang(1, "a"), gang(1, "b"))
    scene.run(60, until=lambda: len(scene.claims) == 2 and all_bound(scene))
    lost = sorted(one.spec.lost_gpu_seconds for one in scene.records.values())
    assert lost[0] < 1, "only what the other one ran on since"
    assert 200 <= lost[1] < 210


def test_what_survives_a_stop_and_is_stopped_much_later_loses_what_it_did_since() -> None:
    """Its job is made whole again by a new pod; an hour later another claim stops the pod that was left alone."""
    pair = [pod(f"v-{index}", on=f"n{index + 1}", gang="v", size=2, grace=2, started=-100) for index in range(2)]
    again = changed(Timing(), cool_down=timedelta(0))
    scene = Simulation(timing=again).add(node("n1"), node("n2"), node("n3", ready=False), pair, agreement())
    scene.add(gang(1, "a"))
    scene.run(60, until=lambda: all_bound(scene))
    (first,) = scene.records.values()
    (left,) = (one for one in pair if one.metadata.uid != first.spec.pod_uid)
    came = scene.now
    scene.bind(pod("v-new", gang="v", size=2, grace=2, created=scene.seconds), "n3")
    scene.go_on(1000)
    scene.add(gang(1, "b"))
    scene.run(1200, until=lambda: len(scene.claims) == 2 and all_bound(scene))
    (second,) = (one for one in scene.records.values() if one is not first and one.spec.pod_uid == left.metadata.uid)
    assert first.spec.lost_gpu_seconds == pytest.approx(2 * (first.spec.at - at(-100)).total_seconds(), abs=1)
    since = (second.spec.at - first.spec.at) + (second.spec.at - came)
    assert second.spec.lost_gpu_seconds == pytest.approx(since.total_seconds(), abs=1)


def test_a_pod_that_another_claim_has_not_cleared_up_yet_is_not_written_down() -> None:
    """The old claim is gone with its gang; until its record is resolved, the new claim does not touch the pod."""
    scene = busy(["n1"], each=1).add(gang(1, "old"))
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(5, until=lambda: bool(scene.records))
    scene.delete("team-b.old-0")
    scene.refusals = {}
    scene.add(gang(1, "new", created=scene.seconds))
    scene.run(40, until=lambda: in_phase(scene, Phase.BOUND))
    assert outcomes(scene) == {"n1-0": ["Spared", "Stopped"]}
    first, second = sorted(scene.records.values(), key=lambda one: one.spec.at)
    assert first.status.resolved_at is not None
    assert first.status.resolved_at <= second.spec.at


# Budgets at the moment


def test_d37_a_budget_cut_during_the_drain_protects_who_is_still_there() -> None:
    scene = busy(["n1"], each=3).add(gang())
    scene.refusals = {f"team-v.n1-{index}": BUDGET for index in range(3)}
    scene.run(5)
    assert in_phase(scene, Phase.DRAINING)
    scene.agreements[:] = [agreement(budget=Budget(evictions_per_hour=2))]
    scene.refusals = {}
    scene.run(6, until=lambda: in_phase(scene, Phase.BLOCKED))
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.BLOCKED, Reason.AGREEMENT_BUDGET)
    assert "2" in made.status.message
    assert scene.evictions == []


def test_d37_two_claims_in_one_pass_do_not_overspend_together() -> None:
    scene = Simulation().add(node("n1"), node("n2"), small(2, "n1"), small(2, "n2"))
    scene.add(agreement(budget=Budget(evictions_per_hour=3)), gang(1, "a"), gang(1, "b"))
    scene.run(40)
    assert len(scene.evictions) == 2
    assert in_phase(scene, Phase.BOUND)
    assert Reason.AGREEMENT_BUDGET in {one.status.reason for one in scene.done if isinstance(one, WriteStatus)}
    assert sum(one.status.phase is Phase.BOUND for one in scene.claims.values()) == 1


def test_d38_a_job_is_hit_no_more_often_than_agreed_whatever_its_pods_are_called() -> None:
    terms = agreement(budget=Budget(evictions_per_job_per_day=1))
    scene = Simulation(timing=changed(Timing(), cool_down=timedelta(0))).add(node("n1"), small(1, "n1"), terms, gang())
    scene.run(30, until=lambda: all_bound(scene))
    scene.delete("team-b.train-0")
    scene.go_on(10)
    scene.bind(pod("n1-0", created=scene.seconds, uid="another"), "n1")
    scene.add(gang(1, "more", created=scene.seconds))
    scene.go_on(20)
    assert len(scene.evictions) == 1
    waiting = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "more")
    assert waiting.status.reason == Reason.AGREEMENT_BUDGET


def test_an_agreement_replaced_by_another_is_the_one_that_is_booked() -> None:
    scene = busy(["n1"], each=1).add(gang())
    scene.refusals = {"team-v.n1-0": BUDGET}
    scene.run(5)
    scene.agreements[:] = [agreement("other")]
    scene.refusals = {}
    scene.run(40, until=lambda: all_bound(scene))
    scene.go_on(1)
    booked = {one.spec.agreement: one.status.outcome for one in scene.records.values()}
    assert booked == {"yes": Outcome.SPARED, "other": Outcome.STOPPED}
    assert scene.evictions[0].at > at(5)
