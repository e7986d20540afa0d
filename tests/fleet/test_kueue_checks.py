"""Our admission check in the life of claims: quota first, then empty nodes, then Ready with what sends pods there."""

import pytest

from fleet.actions import CreateClaim, SetCheck, Steer
from fleet.kueue.expected import is_expected
from fleet.names import CLAIM_KEY, GANG, GANG_OWNER, GANG_SIZE, POLICY
from fleet.objects import Toleration
from fleet.reasons import Reason
from fleet.resources import Phase
from tests.fleet.admissions import Queued, check, entry_of, flavor, pod_set, replace, workload
from tests.fleet.builders import agreement, node, owned, pod
from tests.fleet.scenes import EVICT, all_bound, in_phase, small


def scene(nodes: int = 2, each: int = 3, **more: object) -> Queued:
    """Nodes with small pods of a team that has agreed on every one of them."""
    made = Queued(**more)
    for number in range(1, nodes + 1):
        made.add(node(f"n{number}"), small(each, f"n{number}"))
    made.add(agreement())
    return made


def test_k01_quota_is_held_while_one_node_is_vacated_and_the_job_starts_there() -> None:
    play = scene(4).queue(workload())
    play.run(60, lambda: all_bound(play))

    claim = play.the_claim()
    assert claim.status.phase is Phase.BOUND
    assert play.where("train") == [claim.status.node_names]
    assert play.states()[-1] == "Ready"
    assert "Retry" not in play.states()
    assert set(play.evicted()) == {f"{claim.status.node_names}-{number}" for number in range(3)}
    assert not [one for one in play.done if isinstance(one, Steer)], "Kueue has sent the pod there, nobody else"


def test_k01_small_jobs_are_admitted_all_the_while() -> None:
    play = scene(2).queue(workload())
    play.later(1, lambda: play.queue(workload("tiny", pod_set(cards=1))))
    play.run(3)

    assert entry_of(play.workloads["wl-tiny"]).state == "Ready"
    assert entry_of(play.workloads["wl-train"]).state == "Pending"


def test_k02_no_claim_before_the_quota_is_reserved() -> None:
    play = scene(2).queue(workload(reserved=None))
    play.run(5)
    assert not play.claims
    assert not play.answers_given


def test_k02_the_node_that_kueue_has_emptied_most_is_chosen_and_nobody_is_stopped_twice() -> None:
    play = Queued().add(agreement())
    for name, going in (("n1", 1), ("n2", 3), ("n3", 2)):
        play.add(node(name))
        play.add(pod(f"{name}-{i}", on=name, grace=3, going=4 if i < going else None) for i in range(4))
    play.queue(workload())
    play.run(60, lambda: all_bound(play))

    assert play.the_claim().status.node_names == "n2"
    assert play.evicted() == ["n2-3"]


def test_k03_quota_lost_while_pending_rolls_back_and_writes_neither_ready_nor_retry() -> None:
    play = scene(2, requeue=None).queue(workload())
    play.run(60, lambda: in_phase(play, Phase.DRAINING))
    written = play.states()
    play.evict("wl-train")
    play.go_on(10)

    claim = play.the_claim()
    assert (claim.status.phase, claim.status.reason) == (Phase.ROLLED_BACK, Reason.BENEFICIARY_GONE)
    assert play.marked() == []
    assert play.states() == written
    assert set(written) <= {"Pending"}


def test_k04_a_decision_on_an_older_version_is_not_written_and_is_made_anew() -> None:
    play = scene(1, 0).queue(workload())
    changed: list[int] = []

    def meanwhile(action: object) -> None:
        if isinstance(action, SetCheck) and action.state == "Ready" and not changed:
            changed.append(1)

    play.after = meanwhile
    old = play._set

    def conflicting(action: SetCheck) -> None:
        if action.state == "Ready" and not changed:
            play.change(play.the_workload())
        old(action)

    play._set = conflicting
    play.run(30, lambda: all_bound(play))

    ready = [one for one in play.answers_given if one.state == "Ready"]
    assert len(ready) == 2
    assert ready[0].workload.metadata.resource_version != ready[1].workload.metadata.resource_version
    assert all_bound(play)


def test_k05_a_small_job_is_ready_at_once_with_one_write_and_no_updates() -> None:
    play = scene(1).queue(workload("tiny", pod_set(count=3, cards=1)))
    play.run(5)

    assert [(one.state, one.updates) for one in play.answers_given] == [("Ready", ())]
    assert play.answers_given[0].workload.metadata.resource_version == "1", "in the first pass"
    assert not play.claims


def test_k06_a_failed_claim_gives_the_quota_back_three_times_at_most() -> None:
    play = scene(1)
    play.agreements.clear()
    play.queue(workload("train", pod_set(notes={"wholenode.io/deadline": "5s"})))
    play.run(120)

    assert play.states().count("Retry") == 2
    assert len(play.claims) == 3
    assert {one.status.phase for one in play.claims.values()} == {Phase.FAILED}
    last = entry_of(play.the_workload())
    assert last.state == "Pending"
    assert last.message.startswith("GivenUp: 3 claims have failed")
    assert last.retry_count == 2


def test_k06_one_failure_is_one_retry_even_if_kueue_reserves_again_in_the_same_second() -> None:
    play = scene(1, requeue=0)
    play.agreements.clear()
    play.queue(workload("train", pod_set(notes={"wholenode.io/deadline": "5s"})))
    play.run(7)
    assert play.states().count("Retry") == 1
    assert len(play.claims) == 2


@pytest.mark.parametrize("grace", [20, 60])
def test_k10_no_ready_before_the_last_terminating_pod_is_gone(grace: int) -> None:
    play = Queued().add(node("n1"), agreement())
    play.add(pod(f"v-{i}", on="n1", grace=grace, going=grace if i == 0 else None) for i in range(4))
    play.queue(workload())
    early: list[float] = []

    def watch(action: object) -> None:
        if isinstance(action, SetCheck) and action.state == "Ready" and play.card_holders("n1"):
            early.append(play.seconds)

    play.after = watch
    play.run(grace + 30, lambda: all_bound(play))
    assert early == []
    assert all_bound(play)
    assert play.seconds >= grace


def test_k11_the_quota_of_the_victims_job_says_nothing_its_pods_do() -> None:
    """Kueue has admitted both Workloads at once; what stands on the node decides."""
    play = Queued().add(node("n1"), pod("old", 8, on="n1", grace=3, going=15))
    play.queue(workload(), workload("old", true=["Finished"]))
    play.run(14)
    assert "Ready" not in play.states()
    play.go_on(20, lambda: all_bound(play))
    assert all_bound(play)


def test_k12_partial_admission_needs_only_as_many_nodes() -> None:
    play = scene(4, 0).queue(workload("train", pod_set(count=4), counts={"main": 2}))
    play.run(30, lambda: all_bound(play))

    assert play.the_claim().spec.nodes == 2
    assert len(play.where("train")) == 2
    updates = play.answers_given[-1].updates
    assert [one.annotations for one in updates] == [{GANG: "train", GANG_SIZE: "2"}]


@pytest.mark.parametrize(
    ("pods", "flavors"),
    [
        (pod_set(node_selector={CLAIM_KEY: "mine"}), [flavor()]),
        (pod_set(tolerations=(Toleration(CLAIM_KEY, "Exists"),)), [flavor()]),
        (pod_set(), [flavor(labels={CLAIM_KEY: "x"})]),
        (pod_set(), [flavor(tolerations=(Toleration(CLAIM_KEY, "Exists"),))]),
    ],
)
def test_k13_our_key_in_template_or_flavor_is_never_ready_and_stops_nobody(pods: object, flavors: list[object]) -> None:
    play = scene(2, flavors=flavors).queue(workload("train", pods))
    play.run(30)

    assert play.states() == ["Pending"], "said once"
    assert entry_of(play.the_workload()).message.startswith(f"{Reason.KEY_TAKEN}: ")
    assert play.the_claim().status.reason == Reason.KEY_TAKEN
    assert play.evicted() == []
    assert play.marked() == []


def test_k14_evicted_between_ready_and_start_leaves_no_marks_and_the_next_admission_gets_its_own() -> None:
    play = scene(1, slow=5, requeue=3).queue(workload())
    play.run(60, lambda: "Ready" in play.states())
    first = dict(play.answers_given[-1].updates[0].node_selector or {})
    play.evict("wl-train")
    play.go_on(2)
    assert play.marked() == []
    assert {one.status.reason for one in play.claims.values()} == {Reason.BENEFICIARY_GONE}

    play.go_on(60, lambda: in_phase(play, Phase.BOUND))
    second = [one for one in play.answers_given if one.state == "Ready"][-1].updates[0].node_selector
    assert second != first
    assert play.where("train") == ["n1"]


def test_k14_evicted_after_its_pods_were_made() -> None:
    play = scene(1, 0).queue(workload())
    play.run(60, lambda: in_phase(play, Phase.BOUND))
    play.evict("wl-train")
    play.go_on(60, lambda: in_phase(play, Phase.BOUND) and play.states().count("Ready") == 2)
    assert sorted(str(one.status.phase) for one in play.claims.values()) == ["Bound", "Released"]
    assert play.where("train") == ["n1"]


def test_k15_selector_and_toleration_come_in_one_write() -> None:
    play = scene(2, 0).queue(workload("train", pod_set(count=2)))
    play.run(30, lambda: "Ready" in play.states())

    uid = play.the_claim().metadata.uid
    (update,) = play.answers_given[-1].updates
    assert update.node_selector == {CLAIM_KEY: uid}
    assert update.tolerations == (Toleration(CLAIM_KEY, "Equal", uid, "NoSchedule"),)
    assert update.name == "main"


def hostname(*names: str) -> dict[str, object]:
    """A topology assignment by host, as v1beta2 has it."""
    values = {"individual": {"roots": list(names)}}
    return {
        "levels": ["kubernetes.io/hostname"],
        "slices": [{"domainCount": len(names), "valuesPerLevel": [values], "podCounts": {"universal": 1}}],
    }


def test_k16_a_flavor_with_topology_has_chosen_the_node() -> None:
    play = Queued()
    play.add(node(f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"}) for i in (1, 2, 3))
    two = pod_set(count=2, tolerations=(Toleration(CLAIM_KEY, "Exists"),))
    play.queue(workload("train", two, topology={"main": hostname("n2", "n3")}))
    play.run(30, lambda: all_bound(play))
    assert play.the_claim().status.node_names == "n2,n3"
    assert play.where("train") == ["n2", "n3"]


@pytest.mark.parametrize(
    "tolerated",
    [(), (Toleration(CLAIM_KEY, "Equal", "another"),), (Toleration(CLAIM_KEY, "Exists", effect="NoExecute"),)],
)
def test_k16_pods_that_kueue_would_fail_for_our_taint_are_told_so_and_no_node_is_held(
    tolerated: tuple[Toleration, ...],
) -> None:
    play = scene(2)
    play.nodes.update((f"n{i}", node(f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"})) for i in (1, 2))
    play.queue(workload("train", pod_set(tolerations=tolerated), topology={"main": hostname("n1")}))
    play.run(60)
    claim = play.the_claim()
    assert (claim.status.phase, claim.status.reason) == (Phase.PENDING, Reason.NOT_TOLERATED)
    assert play.states() == ["Pending"], "said once"
    assert play.evicted() == []
    assert play.marked() == []
    assert play.writes < 6, "nothing goes round in circles"


def test_k16_with_a_topology_of_racks_kueue_fails_nobody() -> None:
    play = Queued().add(node(f"n{i}", labels={"rack": "r1"}) for i in (1, 2))
    racks = {**hostname("r1"), "levels": ["rack"]}
    play.queue(workload("train", topology={"main": racks}))
    play.run(30, lambda: all_bound(play))
    assert play.the_claim().status.node_names == "n1"


def test_k16_without_our_check_a_pod_behind_our_gate_is_not_given_a_node_that_kueue_would_fail_it_for() -> None:
    play = Queued().add(node("n1", labels={"kubernetes.io/hostname": "n1"}))
    play.queue(workload("train", entries=(), true=("Admitted",), topology={"main": hostname("n1")}))
    notes = {**EVICT, "kueue.x-k8s.io/workload": "train"}
    waits = pod("train-0", 8, ns="team-b", notes=notes, gates=(CLAIM_KEY,), owner=owned("Job", "train"))
    play.add(waits).run(30)
    claim = play.the_claim()
    assert (claim.status.phase, claim.status.reason) == (Phase.PENDING, Reason.NOT_TOLERATED)
    assert play.marked() == []
    assert "train-0" in {one.metadata.name for one in play.pods.values()}


def test_k16_a_node_of_the_wrong_pool_is_a_stable_reason_and_nothing_is_reserved() -> None:
    play = scene(2, 0)
    play.add(node("s1", "small", labels={"kubernetes.io/hostname": "s1"}))
    play.queue(workload("train", topology={"main": hostname("s1")}))
    play.run(30)

    claim = play.the_claim()
    assert (claim.status.phase, claim.status.reason) == (Phase.PENDING, Reason.OUTSIDE_POOLS)
    assert "s1" in claim.status.message
    assert play.states() == ["Pending"], "said once"
    assert not claim.status.nodes
    assert play.marked() == []


@pytest.mark.parametrize("how", ["inactive", "stopped", "deleted", "unchecked", "removed"])
def test_k18_k19_the_end_of_the_workload_is_the_end_of_the_drain(how: str) -> None:
    play = scene(1, requeue=None).queue(workload())
    play.run(60, lambda: in_phase(play, Phase.DRAINING))
    now = play.the_workload()
    match how:
        case "inactive":
            play.workloads["wl-train"] = replace(now, spec=replace(now.spec, active=False))
        case "stopped":
            play.conditions("wl-train", Evicted=True, QuotaReserved=False)
        case "deleted":
            del play.workloads["wl-train"]
        case "unchecked":
            play.change(now, entries=[])
        case _:
            play.installed = False
    stopped = len(play.evictions)
    play.go_on(10)

    assert (play.the_claim().status.phase, play.the_claim().status.reason) == (
        Phase.ROLLED_BACK,
        Reason.BENEFICIARY_GONE,
    )
    assert play.marked() == []
    assert len(play.evictions) == stopped


def test_k19_nothing_happens_where_kueue_is_not_installed_or_the_check_is_another_s() -> None:
    play = scene(1, checks=[check(ours=False)]).queue(workload())
    play.run(5)
    assert not play.done


def test_our_check_is_made_active_and_another_s_is_left_alone() -> None:
    play = Queued(checks=[check(active=False), check("else", ours=False, active=False)])
    play.run(3)
    assert [type(one).__name__ for one in play.done] == ["ActivateCheck"]


def test_preview_stays_pending_with_the_plan_as_its_message() -> None:
    play = scene(1).queue(workload("train", pod_set(notes={POLICY: "Preview"})))
    play.run(20)
    said = entry_of(play.the_workload())
    assert said.state == "Pending"
    assert said.message.startswith("Preview (claim ")
    assert play.evicted() == []


def test_a_job_that_is_slow_to_make_its_pods_keeps_its_nodes() -> None:
    play = scene(2, 0, slow=400).queue(workload("train", pod_set(count=2)))
    play.run(900, lambda: all_bound(play))
    assert play.where("train") == ["n1", "n2"]
    assert len(play.claims) == 1


def test_pods_that_come_one_by_one_are_one_gang_with_those_still_to_come() -> None:
    play = scene(3, 0, slow=10_000).queue(workload("train", pod_set(count=3)))
    play.run(30, lambda: "Ready" in play.states())
    one = play.the_workload()
    for number in range(3):
        play.add(play.made(one, (one.spec.pod_sets or ())[0], entry_of(one).pod_set_updates or (), number))
        play.go_on(3)
        expected = sum(map(is_expected, play.view().pods.values()))
        assert expected == 2 - number
    assert all_bound(play)
    play.go_on(30)
    assert len(play.claims) == 1, "no further claim for a gang that is there"


def test_a_job_that_ends_early_needs_no_further_nodes() -> None:
    play = scene(1, 0).queue(workload())
    play.run(30, lambda: all_bound(play))
    play.end(next(one.metadata.uid for one in play.pods.values() if one.metadata.name.startswith("train")))
    play.go_on(5)
    play.conditions("wl-train", Finished=True)
    play.go_on(30)
    assert [str(one.status.phase) for one in play.claims.values()] == ["Released"]
    assert play.states().count("Ready") == 1
    assert "Retry" not in play.states()


def test_a_recreated_pod_of_a_single_node_job_is_made_anew_with_its_quota() -> None:
    """Its pod's selector names a claim that has ended: only Kueue can give it another."""
    play = scene(1, 0, recreate=True).queue(workload())
    play.run(30, lambda: all_bound(play))
    play.recreate = True
    play.delete(next(one.metadata.uid for one in play.pods.values() if one.metadata.name.startswith("train")))
    play.go_on(6, lambda: "Retry" in play.states())
    assert play.states().count("Retry") == 1
    play.recreate = False
    play.go_on(60, lambda: play.states().count("Ready") == 2 and in_phase(play, Phase.BOUND))
    assert play.where("train") == ["n1"]


def test_a_running_gang_is_never_sent_back_for_one_lost_member() -> None:
    play = scene(2, 0, recreate=True).queue(workload("train", pod_set(count=2)))
    play.run(30, lambda: all_bound(play))
    play.delete(next(one.metadata.uid for one in play.pods.values() if one.metadata.name.startswith("train")))
    play.go_on(60)
    assert "Retry" not in play.states()


def test_a_launcher_without_cards_and_its_workers_are_one_gang() -> None:
    sets = (pod_set("launcher", 1, 0), pod_set("worker", 2))
    play = scene(2, 0).queue(workload("mpi", *sets, owner=owned("JobSet", "mpi")))
    play.run(30, lambda: "Ready" in play.states())

    said = {one.name: one for one in play.answers_given[-1].updates}
    assert play.the_claim().spec.nodes == 2
    assert said["launcher"].annotations == said["worker"].annotations == {GANG: "mpi", GANG_SIZE: "3"}
    assert said["launcher"].node_selector is None
    assert said["launcher"].tolerations is None
    assert said["worker"].node_selector


def test_a_launcher_of_another_owner_is_not_waited_for() -> None:
    sets = (pod_set("launcher", 1, 0), pod_set("worker", 2))
    play = scene(2, 0).queue(workload("mpi", *sets, owner=owned("MPIJob", "mpi")))
    play.run(30, lambda: "Ready" in play.states())
    said = {one.name: one for one in play.answers_given[-1].updates}
    assert set(said) == {"worker"}
    assert said["worker"].annotations == {GANG: "mpi", GANG_SIZE: "2", GANG_OWNER: "mpijob-mpi"}


def test_a_changed_count_while_it_is_our_turn_changes_what_is_needed() -> None:
    play = scene(3, 0)
    play.add(small(1, "n3"))
    play.agreements.clear()
    play.queue(workload("train", pod_set(count=3)))
    play.run(5)
    assert "Ready" not in play.states()
    now = play.the_workload()
    assert now.status.admission is not None
    (assigned,) = now.status.admission.pod_set_assignments or ()
    play.change(now, admission=replace(now.status.admission, pod_set_assignments=(replace(assigned, count=2),)))
    play.go_on(30, lambda: all_bound(play))
    assert play.where("train") == ["n1", "n2"]


def test_the_message_of_a_waiting_workload_is_not_written_again_for_new_figures() -> None:
    play = scene(2)
    play.agreements.clear()
    play.queue(workload())
    play.later(3, lambda: play.end("team-v.n1-0"))
    play.run(30)
    assert play.states() == ["Pending"]
    assert entry_of(play.the_workload()).message.startswith("AgreementMissing (claim ")


@pytest.mark.parametrize("kill_after", range(1, 30))
def test_killed_after_any_write_the_next_start_ends_in_the_same_state(kill_after: int) -> None:
    play = scene(2, kill_after=kill_after).queue(workload("train", pod_set(count=2)))
    play.run(90, lambda: all_bound(play))
    assert play.where("train") == ["n1", "n2"]
    assert len(play.claims) == 1
    assert play.states().count("Ready") == 1


@pytest.mark.parametrize(("queue", "places"), [("other", []), ("research", ["n1"])])
def test_the_agreement_s_local_queue_is_the_workload_s(queue: str, places: list[str]) -> None:
    play = scene(1)
    play.agreements[:] = [agreement(queues=("research",))]
    play.queue(workload(queue=queue))
    play.run(30, lambda: in_phase(play, Phase.BOUND))
    assert play.where("train") == places


def test_a_claim_made_for_expected_pods_is_that_of_the_real_ones() -> None:
    play = scene(1, 0).queue(workload())
    play.run(30, lambda: all_bound(play))
    made = [one for one in play.done if isinstance(one, CreateClaim)]
    assert len(made) == 1
    assert made[0].spec.gang is not None
    assert (made[0].spec.gang.kind, made[0].spec.gang.name, made[0].spec.gang.uid) == ("Gang", "train", "job-train")
