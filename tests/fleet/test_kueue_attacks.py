"""Kueue's objects change under our hands: at each moment of a claim, by others' checks, twice over, and for hours."""

from collections.abc import Callable

import pytest

from fleet.actions import CreateClaim
from fleet.kueue.objects import CheckState
from fleet.names import CLAIM_KEY
from fleet.resources import Phase
from tests.fleet.admissions import Queued, check, entry_of, group, of_group, pod_set, replace, workload
from tests.fleet.builders import agreement, node, owned
from tests.fleet.scenes import all_bound, in_phase, small

MOST_STEPS = 24
"""More than a claim for one node has writes."""
OURS = CheckState("vacate", "Pending")


def scene(nodes: int = 2, each: int = 2, **more: object) -> Queued:
    """Nodes with small pods whose owner agrees, and our check; the Workloads come by `queue`."""
    made = Queued(**more)
    for number in range(1, nodes + 1):
        made.add(node(f"n{number}"), small(each, f"n{number}"))
    return made.add(agreement())


def at_step(play: Queued, step: int, happen: Callable[[], object]) -> None:
    """Let it happen right after that many of the controller's writes."""

    def look(_: object) -> None:
        if play.writes == step:
            play.later(play.seconds, happen)

    play.after = look


def gone(play: Queued, uid: str) -> None:
    """The Workload is deleted, and Kueue stops what it has started of it."""
    one = play.workloads.pop(uid)
    for pod in list(play.pods.values()):
        if pod.metadata.owner_references == one.metadata.owner_references:
            play.delete(pod.metadata.uid)


@pytest.mark.parametrize("step", range(1, MOST_STEPS))
def test_a_workload_made_anew_under_its_name_at_any_step_has_its_job_run_once(step: int) -> None:
    play = scene().queue(workload("train", pod_set(count=2)))

    def anew() -> None:
        if "wl-train" in play.workloads:
            gone(play, "wl-train")
            again = workload("train", pod_set(count=2), reserved=play.seconds + 1)
            again = replace(again, metadata=replace(again.metadata, uid="wl-again", creation_timestamp=play.now))
            play.later(play.seconds + 1, lambda: play.queue(again))

    at_step(play, step, anew)
    play.run(120, lambda: "wl-again" in play.workloads and all_bound(play))
    assert play.workloads["wl-again"].is_true("Admitted")
    assert play.where("train") == ["n1", "n2"]
    assert "Retry" not in play.states()


@pytest.mark.parametrize("step", range(1, MOST_STEPS))
def test_a_check_of_ours_deleted_and_made_anew_at_any_step_costs_no_job_its_start(step: int) -> None:
    play = scene(1).queue(workload("train"))

    def remade() -> None:
        play.checks.clear()
        play.later(play.seconds + 2, lambda: play.checks.append(check(active=False)))

    at_step(play, step, remade)
    play.run(120, lambda: bool(play.checks) and all_bound(play))
    assert play.where("train") == ["n1"]
    assert play.states().count("Ready") == 1
    assert "Retry" not in play.states()


def test_two_workloads_want_the_only_node_and_the_second_waits_for_the_end_of_the_first() -> None:
    play = scene(1)
    later = workload("later", owner=owned("Job", "later"), reserved=2)
    play.queue(workload("train")).later(2, lambda: play.queue(later))
    play.run(60, lambda: play.where("train") == ["n1"])
    assert play.where("train") == ["n1"]
    play.go_on(10)
    assert {one.state for one in play.answers_given if one.workload.metadata.name == "later"} == {"Pending"}
    (running,) = [one for one in play.pods.values() if one.key.startswith("team-b/train")]
    play.end(running.metadata.uid)
    play.conditions("wl-train", Finished=True)
    play.go_on(30, lambda: play.where("later") == ["n1"])
    assert play.where("later") == ["n1"]


def test_two_checks_of_ours_on_one_queue_are_answered_by_one_claim() -> None:
    play = scene(1, checks=[check("vacate"), check("also")])
    play.queue(workload("train", entries=(OURS, CheckState("also", "Pending"))))
    play.run(60, lambda: all_bound(play))
    assert play.where("train") == ["n1"]
    assert len(play.claims) == 1
    first, second = [one for one in play.answers_given if one.state == "Ready"]
    assert {first.check, second.check} == {"vacate", "also"}
    assert first.updates == second.updates


# Checks of others beside ours


@pytest.mark.parametrize("state", ["Pending", "Retry", "Rejected"])
@pytest.mark.parametrize("first", [True, False])
def test_nobody_is_stopped_and_no_node_held_before_others_checks_are_ready(state: str, first: bool) -> None:
    theirs = CheckState("theirs", state)
    play = scene(checks=[check(), check("theirs", ours=False)])
    play.queue(workload("train", entries=(theirs, OURS) if first else (OURS, theirs)))
    play.run(30)
    assert not play.claims
    assert [one.state for one in play.answers_given] == ["Pending"], "said once"
    assert entry_of(play.the_workload()).message.startswith("WaitingForOtherChecks: ")
    assert "theirs" in entry_of(play.the_workload()).message

    play.change(play.the_workload(), entries=[CheckState("theirs", "Ready"), entry_of(play.the_workload())])
    play.go_on(60, lambda: all_bound(play))
    assert play.where("train") == ["n1"]


def test_a_small_job_waits_for_others_checks_no_longer_than_they_take() -> None:
    play = scene(checks=[check(), check("theirs", ours=False)])
    play.queue(workload("tiny", pod_set(cards=1), entries=(CheckState("theirs", "Pending"), OURS)))
    play.run(2)
    assert [(one.state, one.updates) for one in play.answers_given] == [("Ready", ())]


def test_anothers_check_that_is_taken_back_in_the_drain_gives_the_nodes_back() -> None:
    play = scene(checks=[check(), check("theirs", ours=False)])
    play.queue(workload("train", entries=(CheckState("theirs", "Ready"), OURS)))
    play.run(30, lambda: in_phase(play, Phase.DRAINING))
    play.change(play.the_workload(), entries=[CheckState("theirs", "Pending"), entry_of(play.the_workload())])
    play.go_on(20)
    assert play.marked() == []
    stopped = len(play.evictions)
    play.go_on(60)
    assert len(play.evictions) == stopped
    assert "Ready" not in play.states()


def test_a_group_of_plain_pods_waits_for_others_checks_with_their_reason() -> None:
    play, pods = scene(checks=[check(), check("theirs", ours=False)]), group()
    play.add(pods).queue(of_group(pods, entries=(CheckState("theirs", "Pending"), OURS)))
    play.run(20)
    assert play.evicted() == []
    assert play.marked() == []
    assert entry_of(play.the_workload()).message.startswith("WaitingForOtherChecks: ")


# Hours


@pytest.mark.parametrize("agreed", [True, False])
def test_an_hour_of_waiting_costs_few_writes(agreed: bool) -> None:
    """Its nodes are held by somebody who may not be stopped; figures in the reason change all the while."""
    play = Queued()
    play.add(node("n1"), small(8, "n1"), *([agreement(min_runtime="10h")] if agreed else []))
    play.queue(workload("train"))
    play.run(60)
    begun = play.writes
    play.go_on(3600)
    assert play.states() == ["Pending"]
    assert play.writes - begun < 10
    assert sum(isinstance(one, CreateClaim) for one in play.done) == 1


def test_a_flavor_that_is_gone_has_no_nodes_chosen_blindly() -> None:
    play = Queued(flavors=[]).add(node("n1")).queue(workload("train"))
    play.run(10)
    assert not play.claims
    assert entry_of(play.the_workload()).message.startswith("FlavorMissing: ")
    assert "rtx" in entry_of(play.the_workload()).message
    assert CLAIM_KEY not in str(play.the_workload().status)
