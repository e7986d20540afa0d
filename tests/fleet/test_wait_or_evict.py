"""Each course at work in the simulated cluster: waiting, holding without stopping, awaiting a checkpoint, stopping."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleet.actions import Action, WriteStatus
from fleet.names import CHECKPOINT_EVERY, EXPECTED_RUN, LAST_CHECKPOINT, POLICY, RESTART_COST
from fleet.objects import Pod
from fleet.planning import choose
from fleet.resources import Checkpoint, Course, Phase, Policy, Weighing, Window
from fleet.times import format_time
from fleet.why.explain import explain
from fleet.why.explanations import Told
from tests.fleet.books import record
from tests.fleet.builders import agreement, at, claim, members, node, pod, view
from tests.fleet.history import MINUTE, ended
from tests.fleet.scenes import gang
from tests.fleet.simulation import Simulation

HOUR = 3600.0


def worker(name: str = "train-7", *, run: str = "", every: str = "", cards: int = 4, **more: Any) -> Pod:
    """A pod with 4 of the node's 8 cards that has run for two hours: worth 28,800 GPU-s, an hour of the whole node."""
    notes = {key: text for key, text in ((EXPECTED_RUN, run), (CHECKPOINT_EVERY, every)) if text}
    return pod(name, cards, **{"on": "n1", "started": -2 * HOUR, "notes": notes, **more})


def cluster(*more: Any, **simulation: Any) -> Simulation:
    return Simulation(**simulation).add(node("n1"), agreement(), *more)


def weighing(simulation: Simulation) -> Weighing:
    plan = simulation.the_claim().status.plan
    assert plan is not None
    assert plan.weighing is not None
    return plan.weighing


def told(simulation: Simulation) -> tuple[str, str]:
    status = simulation.the_claim().status
    return str(status.phase), status.reason


def later_on(simulation: Simulation, seconds: float) -> Simulation:
    """The same cluster when nothing has happened until then."""
    simulation.now = at(seconds)
    return simulation


def bound(simulation: Simulation) -> bool:
    return simulation.the_claim().status.phase is Phase.BOUND


def test_what_a_gang_that_was_stopped_before_loses_after_its_next_checkpoint_is_its_restart() -> None:
    """100 s of work on a card, 90 on another, and a restart of 600: no checkpoint is worth a wait for eight cards."""
    notes = {RESTART_COST: "10m", CHECKPOINT_EVERY: "20m"}
    left = pod("v-0", on="n1", gang="v", size=2, started=0, notes=notes)
    new = pod("v-9", on="n2", gang="v", size=2, started=1010, notes=notes)
    hit = record("v-1", 2000, gang="team-v/Gang/v/", seconds=1000)
    waits = (members(1), claim())
    seen = view(node("n1"), node("n2", cordoned=True), left, new, agreement(), *waits, hit)
    found = choose(seen, waits[1], {}, at(1100), timedelta(minutes=10)).plan.weighing
    assert found is not None
    assert found.evict_cost == pytest.approx(100 + 90 + 2 * 600)
    assert found.course is Course.EVICT


def test_without_any_known_end_nobody_is_waited_for() -> None:
    simulation = cluster(worker(), gang()).run(60)
    assert simulation.evicted() == ["train-7"]
    assert simulation.evictions[0].at < at(2)
    found = weighing(simulation)
    assert (found.course, found.wait_cost) == (Course.EVICT, None)
    assert found.evict_cost == pytest.approx(28800, abs=1)
    assert found.break_even_at is not None
    assert abs(found.break_even_at - at(HOUR)).total_seconds() < 1


def test_a_node_that_frees_up_in_time_is_held_and_nobody_is_stopped() -> None:
    simulation = cluster(worker(run="2h5m"), gang())
    simulation.later(5 * MINUTE, lambda: simulation.end("team-v.train-7"))
    simulation.run(4 * MINUTE)
    assert told(simulation) == ("Draining", "PodsEndByThemselves")
    assert simulation.the_claim().status.stop_nobody_until == at(10 * MINUTE)
    assert simulation.marked() == ["n1"]
    found = weighing(simulation)
    assert found.course is Course.SOFT_VACATE
    assert found.cost == found.wait_cost == pytest.approx(8 * 300, abs=1)
    simulation.run(5 * MINUTE + 10)
    assert bound(simulation)
    assert simulation.where("train-0") == ["n1"]
    status = simulation.the_claim().status
    assert (simulation.evicted(), status.victims, status.lost_gpu_seconds) == ([], (), 0)


def test_held_nodes_whose_pods_are_overdue_are_drained_like_others() -> None:
    simulation = cluster(worker(run="2h5m"), gang()).run(10 * MINUTE - 1)
    assert simulation.evicted() == []
    simulation.go_on(30)
    assert simulation.evicted() == ["train-7"]
    assert at(10 * MINUTE) <= simulation.evictions[0].at < at(10 * MINUTE + 3)
    assert bound(simulation)


def test_held_nodes_are_given_back_if_who_is_overdue_may_not_be_stopped_any_more() -> None:
    simulation = cluster(worker(run="2h5m"), gang()).run(5 * MINUTE)
    simulation.agreements.clear()
    simulation.run(11 * MINUTE)
    assert simulation.evicted() == []
    assert simulation.marked() == []
    assert simulation.the_claim().status.stop_nobody_until is None
    status = simulation.the_claim().status
    assert [(one.node, one.reason) for one in status.avoid] == [("n1", "ProtectedPodOnNode")]


def test_a_gang_that_is_gone_gives_the_held_node_back() -> None:
    simulation = cluster(worker(run="2h5m"), gang()).run(5 * MINUTE)
    simulation.delete("team-b.train-0")
    simulation.go_on(5)
    assert told(simulation) == ("RolledBack", "BeneficiaryGone")
    assert (simulation.marked(), simulation.evicted()) == ([], [])


@pytest.mark.parametrize("kill_after", [1, 2, 3, 4, 5, 6])
def test_a_controller_that_is_killed_goes_on_stopping_nobody(kill_after: int) -> None:
    simulation = cluster(worker(run="2h5m"), gang(), kill_after=kill_after)
    simulation.later(5 * MINUTE, lambda: simulation.end("team-v.train-7"))
    simulation.run(6 * MINUTE)
    assert bound(simulation)
    assert simulation.evicted() == []
    assert simulation.kills == 1


def test_a_later_end_is_waited_for_with_nothing_held() -> None:
    """50 min of 8 cards are worth less than what is thrown away."""
    simulation = cluster(worker(run="2h50m"), gang())
    simulation.later(50 * MINUTE, lambda: simulation.end("team-v.train-7"))
    simulation.run(30)
    assert told(simulation) == ("Pending", "WaitingIsCheaper")
    message = simulation.the_claim().status.message
    assert "in 50 min (2027-01-04T12:50:00Z) all pods there are expected to have ended" in message
    said = explain(simulation.view(), simulation.pods["team-b.train-0"], Told(), simulation.now)
    assert said.ends is not None
    assert (said.ends.how, said.ends.at) == (
        "waiting costs less than stopping others now: they end or save their work",
        at(55 * MINUTE),
    )
    assert simulation.marked() == []
    later_on(simulation, 49 * MINUTE).run(50 * MINUTE + 10)
    assert bound(simulation)
    assert simulation.evicted() == []


def test_it_switches_over_when_the_end_is_overdue() -> None:
    """2h50m may take 5 min longer."""
    simulation = cluster(worker(run="2h50m"), gang()).run(10)
    later_on(simulation, 49 * MINUTE).run(55 * MINUTE - 1)
    assert simulation.evicted() == []
    simulation.go_on(20)
    assert at(55 * MINUTE) <= simulation.evictions[0].at < at(55 * MINUTE + 3)
    assert bound(simulation)


def test_an_end_that_is_too_far_away_is_not_waited_for() -> None:
    assert cluster(worker(run="3h10m"), gang()).run(10).evicted() == ["train-7"]


def test_ever_new_promises_do_not_put_it_off_for_longer_than_break_even() -> None:
    """Ten minutes before its end the pod always says that it needs ten more."""
    simulation = cluster(worker(run="2h20m"), gang())

    def promise(minutes: int) -> None:
        now = simulation.pods.get("team-v.train-7")
        if now is not None:
            notes = {EXPECTED_RUN: f"{120 + minutes}m"}
            meta = msgspec.structs.replace(now.metadata, annotations=notes)
            simulation.pods["team-v.train-7"] = msgspec.structs.replace(now, metadata=meta)

    for minutes in range(10, 120, 10):
        simulation.later(minutes * MINUTE, lambda minutes=minutes: promise(minutes + 20))  # type: ignore[misc]
    for minutes in range(10, 60, 10):
        later_on(simulation, minutes * MINUTE).go_on(5)
    simulation.run(2 * HOUR, until=lambda: simulation.evictions)
    assert simulation.evicted() == ["train-7"]
    assert simulation.evictions[0].at < at(HOUR + 3)


def test_learned_run_times_are_waited_for_too() -> None:
    history = [ended(f"train-{number}", 170, after=-600) for number in range(3)]
    assert told(cluster(worker(), gang(), history).run(10)) == ("Pending", "WaitingIsCheaper")
    assert cluster(worker(), gang(), history[:2]).run(10).evicted() == ["train-7"]


def saved(simulation: Simulation, seconds: float) -> None:
    """The worker reports a checkpoint."""
    now = simulation.pods["team-v.train-7"]
    notes = {**(now.metadata.annotations or {}), LAST_CHECKPOINT: format_time(at(seconds))}
    meta = msgspec.structs.replace(now.metadata, annotations=notes)
    simulation.pods["team-v.train-7"] = msgspec.structs.replace(now, metadata=meta)


def test_it_waits_for_a_checkpoint_and_stops_at_once_when_it_is_there() -> None:
    simulation = cluster(worker(every="2h12m"), gang())
    simulation.later(725, lambda: saved(simulation, 724))
    simulation.run(30)
    assert told(simulation) == ("Pending", "CheckpointSoon")
    found = weighing(simulation)
    assert (found.course, found.wait_until) == (Course.AWAIT_CHECKPOINT, at(720 + 792))
    assert "Pod team-v/train-7 saves its work: the cost falls by 100 %" in simulation.the_claim().status.message
    assert simulation.marked() == []
    later_on(simulation, 700).run(800, until=lambda: bound(simulation))
    assert simulation.evicted() == ["train-7"]
    assert at(725) <= simulation.evictions[0].at < at(728)
    assert simulation.the_claim().status.lost_gpu_seconds < 4 * 5
    assert bound(simulation)


def test_a_checkpoint_that_does_not_come_is_not_waited_for_again() -> None:
    simulation = cluster(worker(every="2h12m"), gang()).run(10)
    later_on(simulation, 700).run(730)
    later_on(simulation, 720 + 780).run(720 + 792 - 1)
    assert simulation.evicted() == []
    simulation.go_on(10)
    assert simulation.evicted() == ["train-7"]


def test_who_is_asked_for_a_checkpoint_is_not_waited_for() -> None:
    asks = agreement()
    asks = msgspec.structs.replace(
        asks, spec=msgspec.structs.replace(asks.spec, checkpoint=Checkpoint(request=True, timeout="60s"))
    )
    worker_ = worker(every="2h12m")
    notes = {**(worker_.metadata.annotations or {}), LAST_CHECKPOINT: format_time(at(-7000))}
    known = msgspec.structs.replace(worker_, metadata=msgspec.structs.replace(worker_.metadata, annotations=notes))
    simulation = Simulation().add(node("n1"), asks, known, gang()).run(5)
    assert weighing(simulation).course is Course.EVICT
    assert weighing(simulation).evict_cost == 4 * 60


def test_no_checkpoint_is_waited_for_that_comes_after_the_agreements_window() -> None:
    """It is noon; the window ends at 12:20."""
    window = [Window("0 11 * * *", "80m")]
    assert cluster(worker(every="2h30m"), gang()).run(10).evicted() == []
    simulation = Simulation().add(node("n1"), agreement(windows=window), worker(every="2h30m"), gang()).run(10)
    assert simulation.evicted() == ["train-7"]


def test_another_node_that_frees_up_sooner_is_waited_for_instead() -> None:
    """Stopping `short` costs 1,000 GPU-s; n2 is free in a minute, which 8 cards are missed for."""
    short = worker("short", cards=1, started=-1000)
    soon = worker("soon", run="2h1m", on="n2")
    simulation = cluster(node("n2"), short, soon, gang())
    simulation.later(60, lambda: simulation.end("team-v.soon"))
    simulation.run(30)
    assert told(simulation) == ("Draining", "PodsEndByThemselves")
    assert simulation.marked() == ["n2"]
    simulation.run(80)
    assert (simulation.where("train-0"), simulation.evicted()) == (["n2"], [])


def test_the_other_node_may_be_a_little_late() -> None:
    """Its owner agrees to nothing, so it cannot be held meanwhile."""
    simulation = cluster(
        node("n2"), worker("short", started=-HOUR), worker("later", run="2h15m", on="n2", ns="team-w"), gang()
    )
    simulation.later(15 * MINUTE + 20, lambda: simulation.end("team-w.later"))
    later_on(simulation.run(5), 14 * MINUTE).run(16 * MINUTE)
    assert (simulation.where("train-0"), simulation.evicted()) == (["n2"], [])


def test_a_deadline_that_could_not_be_met_is_not_waited_for() -> None:
    """The end in 50 min may be 5 min late; then the pod's grace and a minute to start are needed."""
    assert cluster(worker(run="2h50m"), gang(deadline="56m6s")).run(10).evicted() == []
    assert cluster(worker(run="2h50m"), gang(deadline="56m4s")).run(10).evicted() == ["train-7"]


def test_patience_comes_first_and_shows_what_stopping_would_cost() -> None:
    simulation = cluster(worker(run="2h50m"), gang(patience="20m")).run(60)
    assert told(simulation) == ("Pending", "PatienceNotOver")
    assert weighing(simulation).course is Course.WAIT
    later_on(simulation, 19 * MINUTE).run(20 * MINUTE + 5)
    assert told(simulation) == ("Pending", "WaitingIsCheaper")
    break_even_at = weighing(simulation).break_even_at
    assert break_even_at is not None
    assert abs(break_even_at - at(20 * MINUTE + 4 * (2 * HOUR + 20 * MINUTE) / 8)).total_seconds() < 2


@pytest.mark.parametrize("policy", [Policy.WAIT, Policy.PREVIEW])
def test_who_stops_nobody_is_shown_what_it_would_cost(policy: Policy) -> None:
    simulation = cluster(worker(run="2h50m"), gang(notes={POLICY: str(policy)})).run(10)
    found = weighing(simulation)
    assert found.evict_cost == pytest.approx(28800, abs=4)
    assert found.wait_cost == pytest.approx(24000, abs=8)
    assert told(simulation)[0] == ("Planned" if policy is Policy.PREVIEW else "Pending")
    assert (simulation.evicted(), simulation.marked()) == ([], [])


def test_who_slips_in_when_the_held_node_has_emptied_early_is_stopped_at_once() -> None:
    """Nobody was to be stopped before the expected end; that is over with the drain."""
    simulation = cluster(worker(run="2h5m"), gang())
    simulation.later(MINUTE, lambda: simulation.end("team-v.train-7"))

    def slip_in(action: Action) -> None:
        if isinstance(action, WriteStatus) and action.status.phase is Phase.READY and not simulation.where("late"):
            simulation.bind(pod("late", created=simulation.seconds), "n1")

    simulation.after = slip_in
    simulation.run(2 * MINUTE)
    assert simulation.evicted() == ["late"]
    assert bound(simulation)


def test_a_node_that_may_not_be_taken_is_not_held_until_it_frees_up() -> None:
    """It is free sooner than another, but its owner has not agreed to anything: it is waited for, with nothing held."""
    simulation = cluster(worker(run="2h40m"), node("n2"), worker("other", run="2h5m", on="n2", ns="team-x"), gang())
    simulation.run(30)
    assert weighing(simulation).course is Course.WAIT
    assert simulation.marked() == []


def test_what_may_not_be_taken_yet_is_not_shown_as_to_be_held() -> None:
    simulation = Simulation().add(node("n1"), worker(run="2h5m"), agreement(min_runtime="3h"), gang()).run(30)
    assert told(simulation) == ("Pending", "AgreementNotYet")
    assert weighing(simulation).course is Course.WAIT


def test_who_slips_in_on_a_free_node_that_is_taken_instead_of_the_held_one_is_stopped_at_once() -> None:
    simulation = cluster(worker(run="2h5m"), gang())
    simulation.later(MINUTE, lambda: simulation.add(node("n2")))

    def slip_in(action: Action) -> None:
        status = action.status if isinstance(action, WriteStatus) else None
        if status and status.phase is Phase.DRAINING and status.node_names == "n2" and not simulation.where("late"):
            simulation.bind(pod("late", created=simulation.seconds), "n2")

    simulation.after = slip_in
    simulation.run(MINUTE + 30)
    assert simulation.evicted() == ["late"]
    assert simulation.where("train-0") == ["n2"]
