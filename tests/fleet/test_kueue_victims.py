"""Victims that are Kueue's: whole jobs are stopped through their Workload, all of them asked, and queued again."""

from datetime import timedelta
from typing import Any

import pytest

from fleet.actions import Answer, Decision, Evict, EvictionAnswer, ResumeWorkload, StopWorkload, Timing, WriteStatus
from fleet.agreements import Consent, Verdict
from fleet.costs import gang_loss, victims_of
from fleet.kueue.disruptions import shortage
from fleet.kueue.objects import DEACTIVATED_FOR, GATE, MANAGED, WORKLOAD, PodSet, Workload, WorkloadSpec
from fleet.kueue.victims import leaving, workload_of
from fleet.limits import drain_limit
from fleet.names import GANG, GANG_MIN_SIZE, GANG_SIZE, JOBSET_UID, KUEUE_POD_GROUP
from fleet.objections import objections
from fleet.objects import (
    BudgetSpec,
    BudgetStatus,
    DisruptionBudget,
    LabelSelector,
    Metadata,
    OwnerReference,
    Pod,
    Requirement,
)
from fleet.occupants import occupants
from fleet.planning import choose
from fleet.regret import Regret
from fleet.resources import Budget, Checkpoint, Outcome, Phase
from fleet.statuses import entered_at
from fleet.upkeep import Context
from tests.fleet.builders import agreement, at, claim, job, node, owned, pod, view
from tests.fleet.kueue import Kueue, kueue_job, with_conditions, workload
from tests.fleet.scenes import all_bound, gang
from tests.fleet.simulation import Simulation
from tests.fleet.world import replace

NAMES = [f"train4-{index}" for index in range(4)]


def fleet(*objects: Any, admits_after: float | None = None, **simulation: Any) -> Simulation:
    """Node n1 in a pool of whole nodes, two small nodes beside it, and Kueue; a gang of one waits."""
    made = Simulation(**simulation)
    Kueue(made, admits_after)
    return made.add(node("n1"), node("s1", "small"), node("s2", "small"), gang(), *objects)


def four_pods(**more: Any) -> list[Any]:
    """A job of four pods, one of them on n1."""
    return kueue_job("train4", "n1", "s1", "s2", "s2", **more)


def stops(scene: Simulation) -> list[StopWorkload]:
    return [one for one in scene.done if isinstance(one, StopWorkload)]


def resumed(scene: Simulation) -> list[str]:
    return [one.workload.metadata.name for one in scene.done if isinstance(one, ResumeWorkload)]


def reasons(scene: Simulation) -> list[str]:
    return [one.status.reason for one in scene.done if isinstance(one, WriteStatus)]


# The whole job


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("noted", [True, False])
def test_k07_a_job_of_four_is_stopped_once_through_its_workload_and_queued_again(indexed: bool, noted: bool) -> None:
    scene = fleet(four_pods(indexed=indexed, noted=noted), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert [one.workload.metadata.name for one in stops(scene)] == ["job-train4"]
    assert not [one for one in scene.done if isinstance(one, Evict)]
    assert scene.evicted() == NAMES
    assert resumed(scene) == ["job-train4"]
    stopped = scene.workloads["wl-job-train4"]
    assert stopped.active
    assert stopped.metadata.annotation(DEACTIVATED_FOR) is None


def test_k07_each_pod_of_the_job_has_a_record_and_the_loss_is_booked_once() -> None:
    scene = fleet(four_pods(), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    records = sorted(scene.records.values(), key=lambda one: one.spec.pod)
    assert [one.spec.pod for one in records] == NAMES
    assert {one.status.outcome for one in records} == {Outcome.STOPPED}
    assert sum(one.spec.lost_gpu_seconds > 0 for one in records) == 1
    # Four cards for as long as it had run when it was written down.
    first = records[0]
    assert first.spec.lost_gpu_seconds == pytest.approx(4 * (first.spec.at - at(0)).total_seconds(), abs=0.01)


def test_k07_pods_of_an_independent_job_are_lost_all_the_same() -> None:
    scene = fleet(four_pods(indexed=False), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    records = scene.records.values()
    assert len(records) == len(NAMES)
    assert all(one.spec.lost_gpu_seconds > 0 for one in records)
    assert len({one.spec.job for one in records}) == 1


def test_k07_an_elastic_minimum_helps_nobody_whose_whole_job_is_stopped() -> None:
    scene = fleet(four_pods(notes={GANG_MIN_SIZE: "1"}), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    lost = sum(one.spec.lost_gpu_seconds for one in scene.records.values())
    first = min(scene.records.values(), key=lambda one: one.spec.at)
    assert lost == pytest.approx(4 * (first.spec.at - at(0)).total_seconds(), abs=0.01)


def test_k07_the_dearer_node_is_the_one_whose_job_is_large_elsewhere() -> None:
    """One pod of a job of four against two lone pods of the same age: two cards are less than four."""
    lone = [pod(f"lone-{index}", on="n0", grace=3) for index in range(2)]
    scene = fleet(four_pods(indexed=False), lone, node("n0"), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    assert scene.where("train-") == ["n0"]
    assert not stops(scene)


def test_k07_a_job_with_pods_on_two_nodes_of_the_claim_is_stopped_once() -> None:
    made = Simulation()
    Kueue(made)
    terms = agreement(budget=Budget(evictions_per_hour=2))
    made.add(node("n1"), node("n2"), gang(2), kueue_job("pair", "n1", "n2"), terms)
    made.run(40, until=lambda: all_bound(made))
    assert all_bound(made)
    assert len(stops(made)) == 1
    assert made.evicted() == ["pair-0", "pair-1"]


def test_k07_new_pods_of_the_job_go_elsewhere_and_are_not_taken_for_returning() -> None:
    scene = fleet(four_pods(), agreement(), node("s3", "small"), admits_after=0.5)
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert "PodKeepsReturning" not in reasons(scene)
    again = {one.spec.node_name for one in scene.pods.values() if "again" in one.metadata.name}
    assert again <= {"s1", "s2", "s3", None}
    assert len(scene.evictions) == len(NAMES)


# Consent


def refused(scene: Simulation) -> dict[str, int]:
    plan = scene.the_claim().status.plan
    return {one.reason: one.nodes for one in plan.refused} if plan else {}


@pytest.mark.parametrize(
    ("terms", "of_one", "reason"),
    [
        ({}, {"priority": 5}, "AgreementTermsNotMet"),
        ({"min_runtime": "10m"}, {"started": -590}, "AgreementNotYet"),
        ({"select": LabelSelector({"may": "stop"})}, {"labels": {}}, "AgreementTermsNotMet"),
    ],
)
def test_k07_a_pod_on_another_node_that_may_not_be_stopped_rules_the_node_out(
    terms: dict[str, Any], of_one: dict[str, Any], reason: str
) -> None:
    """The other three would agree."""
    more = {"started": -3600, "labels": {"may": "stop"}}
    first, *others, job, of = four_pods(**more)
    odd = kueue_job("train4", "s1", **{**more, **of_one})[0]
    scene = fleet(first, odd.__class__(_named(odd), odd.spec, odd.status), others[1:], job, of, agreement(**terms))
    scene.run(5)
    assert not scene.evictions
    assert refused(scene) == {reason: 1}


def _named(odd: Any) -> Metadata:
    return Metadata(
        "train4-1",
        odd.metadata.namespace,
        uid="odd",
        labels=odd.metadata.labels,
        annotations=odd.metadata.annotations,
        owner_references=odd.metadata.owner_references,
    )


def test_k07_budgets_count_every_pod_of_the_job() -> None:
    scene = fleet(four_pods(), agreement(budget=Budget(evictions_per_hour=3)))
    scene.run(5)
    assert not scene.evictions
    assert refused(scene) == {"AgreementBudgetSpent": 1}


def test_k07_ready_replicas_on_other_nodes_are_kept() -> None:
    scene = fleet(four_pods(ready=True), agreement(keep_ready=1))
    scene.run(5)
    assert not scene.evictions
    assert refused(scene) == {"TooFewReadyReplicas": 1}


def test_k07_consent_that_is_withdrawn_elsewhere_protects_the_job_in_the_drain() -> None:
    scene = fleet(four_pods(), agreement())
    scene.run(0.3)
    scene.agreements[:] = [agreement(max_priority=0)]
    scene.pods["team-v.train4-3"] = odd = pod("train4-3", on="s2", priority=1, owner=owned("Job", "train4"))
    assert odd.metadata.uid == "team-v.train4-3"
    scene.go_on(3)
    assert not scene.evictions
    assert scene.marked() == []
    assert "ProtectedPodOnNode" in reasons(scene)
    said = [one.status.message for one in scene.done if isinstance(one, WriteStatus)]
    why = "Kueue would stop pod team-v/train4-3 on node s2 with it: PriorityAboveCeiling"
    assert any(why in text for text in said)


# Disruption budgets


def budget(name: str = "pdb", **labels: str) -> DisruptionBudget:
    return DisruptionBudget(Metadata(name, "team-v", uid=f"pdb-{name}"), BudgetSpec(LabelSelector(labels)))


def test_k07_a_budget_that_lets_three_of_four_go_rules_the_node_out() -> None:
    scene = fleet(four_pods(labels={"app": "x"}), agreement())
    scene.kept.append((budget(app="x"), 1))
    scene.run(5)
    assert not scene.evictions
    assert refused(scene) == {"PodDisruptionBudget": 1}


def test_k07_a_budget_that_shrinks_after_the_plan_is_waited_for() -> None:
    scene = fleet(four_pods(labels={"app": "x"}), agreement())
    spare = pod("spare", 0, on="s1", labels={"app": "x"})
    scene.add(spare)
    scene.kept.append((budget(app="x"), 1))
    scene.run(0.3)
    scene.delete(spare.metadata.uid)
    scene.go_on(6)
    assert not scene.evictions
    assert scene.the_claim().status.reason == "PodDisruptionBudget"
    assert "job-train4" in scene.the_claim().status.message
    scene.add(pod("other", 0, on="s2", labels={"app": "x"}))
    scene.go_on(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.evicted() == NAMES


def test_k07_two_jobs_under_one_budget_are_not_stopped_together() -> None:
    """It lets one of them go; the second waits until a replacement runs."""
    jobs = [kueue_job("a", "n1", labels={"app": "x"}), kueue_job("b", "n1", labels={"app": "x"})]
    scene = fleet(jobs, agreement(), pod("c", 0, on="s1", labels={"app": "x"}))
    scene.kept.append((budget(app="x"), 2))
    scene.run(15)
    assert len(scene.evictions) == 1
    scene.add(pod("d", 0, on="s2", labels={"app": "x"}))
    scene.go_on(40, until=lambda: all_bound(scene))
    assert all_bound(scene)


# Crashes, others' doings


def test_k08_killed_after_any_write_the_job_is_stopped_once_and_queued_again() -> None:
    def scene(**more: Any) -> Simulation:
        return fleet(four_pods(), agreement(), **more)

    whole = scene()
    whole.run(60, until=lambda: all_bound(whole))
    for writes in range(1, whole.writes + 1):
        one = scene(kill_after=writes)
        one.run(90, until=lambda one=one: all_bound(one))
        one.go_on(3)
        assert one.evicted() == NAMES, writes
        assert one.workloads["wl-job-train4"].active, writes
        assert one.marked() == [], writes
        assert [each.status.outcome for each in one.records.values()] == [Outcome.STOPPED] * 4, writes


def test_k08_a_stale_cache_of_pods_does_not_have_the_job_stopped_twice() -> None:
    scene = fleet(four_pods(), agreement(), admits_after=0.2, lag_seconds=1)
    scene.run(4.5)
    assert scene.workloads["wl-job-train4"].is_true("QuotaReserved"), "it is admitted again while others still end"
    scene.lag_seconds = 0
    scene.go_on(40, until=lambda: all_bound(scene))
    assert len(stops(scene)) == 1
    assert scene.evicted() == NAMES


def test_k08_marked_by_a_claim_that_is_gone_it_is_resumed_once_evicted() -> None:
    ours = workload("job-j", active=False, notes={DEACTIVATED_FOR: "uid-gone"}, owner=owned("Job", "j"))
    scene = Simulation()
    kueue = Kueue(scene, stopped=True)
    scene.add(node("n1"), ours).run(3)
    assert not scene.workloads["wl-job-j"].active
    kueue.start()
    scene.go_on(3)
    assert kueue.evicted == ["job-j"]
    assert scene.workloads["wl-job-j"].active
    assert resumed(scene) == ["job-j"]


def test_k08_made_inactive_by_somebody_else_it_stays_so() -> None:
    theirs = workload("job-j", active=False, true=("Evicted",), owner=owned("Job", "j"))
    scene = Simulation().add(node("n1"), theirs)
    scene.run(3)
    assert not scene.workloads["wl-job-j"].active
    assert scene.done == []


def test_k08_our_mark_on_an_active_one_is_taken_off() -> None:
    one = workload("job-j", notes={DEACTIVATED_FOR: "uid-gone", "theirs": "stays"}, owner=owned("Job", "j"))
    scene = Simulation().add(node("n1"), one)
    scene.run(3)
    assert scene.workloads["wl-job-j"].metadata.annotations == {"theirs": "stays"}
    assert resumed(scene) == ["job-j"]


def test_k08_a_workload_that_is_being_deleted_is_not_written_to() -> None:
    one = workload("job-j", active=False, true=("Evicted",), notes={DEACTIVATED_FOR: "uid-gone"}, going=True)
    scene = Simulation().add(node("n1"), one)
    scene.run(3)
    assert scene.done == []


def test_k08_the_claim_is_deleted_while_kueue_evicts() -> None:
    scene = fleet(four_pods(), agreement())
    scene.run(20, until=lambda: stops(scene))
    scene.claims.clear()
    scene.delete("team-b.train-0")
    scene.go_on(10)
    assert scene.workloads["wl-job-train4"].active
    assert {one.status.outcome for one in scene.records.values()} == {Outcome.STOPPED}


def test_k08_nobody_is_told_twice_while_kueue_is_away_and_the_drain_waits_for_pods() -> None:
    scene = fleet(four_pods(), agreement())
    scene.kueue.stopped = True
    scene.run(30)
    assert len(stops(scene)) == 1
    assert not resumed(scene)
    assert scene.the_claim().status.phase is Phase.DRAINING
    assert "Kueue is stopping 1 pod(s) of Workload team-v/job-train4" in scene.the_claim().status.message
    scene.kueue.start()
    scene.go_on(20, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.workloads["wl-job-train4"].active


# Who is not stopped through Kueue


@pytest.mark.parametrize("on", ["n1", None])
def test_k09_a_plain_pod_of_kueue_is_evicted_and_its_finalizer_is_not_ours(on: str | None) -> None:
    gates = () if on else (GATE,)
    plain = pod("plain", on=on, grace=2, finalizers=(MANAGED,), labels={MANAGED: "true"}, gates=gates)
    of = workload("pod-plain", owner=owned("Pod", "plain", plain.metadata.uid))
    scene = fleet(plain, of, pod("other", on="n1", grace=2), agreement())
    scene.run(8)
    assert scene.evicted() == (["other", "plain"] if on else ["other"])
    assert not stops(scene)
    if on:
        assert scene.pods["team-v.plain"].metadata.finalizers == (MANAGED,)
        assert "finalizers: kueue.x-k8s.io/managed" in scene.the_claim().status.message
        del scene.pods["team-v.plain"]
    scene.go_on(20, until=lambda: all_bound(scene))
    assert all_bound(scene)


def test_k11_quota_that_is_free_early_proves_nothing_while_a_pod_runs() -> None:
    """Finished at Kueue, but one pod more than it needed runs on: it is evicted like anybody else, and waited for."""
    pods = four_pods()
    done = with_conditions(pods.pop(), Finished=True, QuotaReserved=False)
    scene = fleet(pods, done, agreement())
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.evicted() == ["train4-0"]
    assert not stops(scene)


def test_k11_a_pod_that_does_not_go_keeps_the_node_whatever_its_workload_says() -> None:
    pods = four_pods(finalizers=("keep/it",))
    scene = fleet(pods, agreement())
    scene.run(30)
    assert scene.workloads["wl-job-train4"].active
    assert scene.the_claim().status.phase is Phase.DRAINING
    for one in pods[:4]:
        scene.pods.pop(one.metadata.uid)
    scene.go_on(10, until=lambda: all_bound(scene))
    assert all_bound(scene)


def plain_group(*nodes: str, **more: Any) -> list[Any]:
    """Plain pods on these nodes that are one group, and their Workload."""
    group = [
        pod(f"g-{index}", on=on, grace=2, labels={KUEUE_POD_GROUP: "g", MANAGED: "true"}, **more)
        for index, on in enumerate(nodes)
    ]
    owners = tuple(OwnerReference("Pod", one.metadata.name, one.metadata.uid) for one in group)
    of = workload("g")
    spec = WorkloadSpec(pod_sets=(PodSet(count=len(group)),))
    return [group, Workload(Metadata("g", "team-v", uid="wl-g", owner_references=owners), spec, of.status)]


def test_k17_a_group_of_plain_pods_is_stopped_as_a_whole() -> None:
    scene = fleet(plain_group("n1", "s1", "s2"), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert len(stops(scene)) == 1
    assert scene.evicted() == ["g-0", "g-1", "g-2"]


def test_k17_a_group_that_nobody_replaces_stays_inactive_and_holds_no_quota() -> None:
    scene = fleet(plain_group("n1", "s1"), agreement(), admits_after=0.5)
    scene.run(40, until=lambda: all_bound(scene))
    scene.go_on(5)
    written = scene.writes
    scene.go_on(60)
    of = scene.workloads["wl-g"]
    assert not of.active
    assert not of.is_true("QuotaReserved")
    assert scene.writes == written, "it is not written to again and again"


@pytest.mark.parametrize("leftover", ["Failed", None])
def test_k17_when_all_its_pods_are_replaced_it_is_queued_again(leftover: str | None) -> None:
    scene = fleet(plain_group("n1", "s1"), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    labels = {KUEUE_POD_GROUP: "g", MANAGED: "true"}
    if leftover:
        scene.add(pod("left", on="n1", phase=leftover, labels=labels))
    scene.add(pod("new-0", labels=labels, gates=(GATE,))).go_on(3)
    assert resumed(scene) == []
    scene.add(pod("new-1", labels=labels, gates=(GATE,))).go_on(3)
    assert resumed(scene) == ["g"]
    assert scene.workloads["wl-g"].active


def test_k17_a_group_whose_pods_somebody_controls_is_queued_again_at_once() -> None:
    scene = fleet(plain_group("n1", "s1", owner=owned("StatefulSet", "web")), agreement())
    scene.pods["behind"] = pod("g-2", uid="behind", labels={KUEUE_POD_GROUP: "g"}, owner=owned("StatefulSet", "web"))
    scene.run(40, until=lambda: bool(resumed(scene)))
    assert resumed(scene) == ["g"]


# What else may happen to the Workload


def test_k02_a_job_that_kueue_preempts_by_itself_is_waited_for_and_not_stopped_again() -> None:
    scene = fleet(four_pods(), agreement())
    scene.workloads["wl-job-train4"] = with_conditions(scene.workloads["wl-job-train4"], Evicted=True)
    scene.later(2, lambda: [scene.delete(one.metadata.uid) for one in list(scene.pods.values()) if "train4" in one.key])
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert not scene.evictions
    assert not scene.records


def test_k18_somebody_else_makes_the_victim_inactive_meanwhile() -> None:
    """His is to set it active again, and nobody is charged with the loss."""
    scene = fleet(four_pods(), agreement())
    scene.run(0.3)
    before = scene.workloads["wl-job-train4"]
    scene.workloads["wl-job-train4"] = before.__class__(before.metadata, type(before.spec)(active=False), before.status)
    scene.kueue.saw("wl-job-train4")
    scene.go_on(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert not scene.workloads["wl-job-train4"].active
    assert not stops(scene)
    assert not scene.records


def test_k07_the_workload_is_deleted_before_it_is_stopped() -> None:
    """Its pods are evicted as those of any job; who runs elsewhere is spared."""
    scene = fleet(four_pods(indexed=False), agreement())
    scene.after = lambda _: scene.workloads.clear() if len(scene.records) == len(NAMES) else None
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.evicted() == ["train4-0"]
    outcomes = {one.spec.pod: one.status.outcome for one in scene.records.values()}
    assert {name for name, outcome in outcomes.items() if outcome is Outcome.SPARED} == set(NAMES[1:])


def test_k19_without_kueue_its_annotations_mean_nothing() -> None:
    pods = four_pods()
    scene = fleet(pods[:5], agreement())
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.evicted() == ["train4-0"]


# The parts


def of_jobset(name: str, *nodes: str) -> list[Any]:
    """A JobSet of one Job with a pod on each of the nodes: the Workload is for the JobSet."""
    above, owner = owned("JobSet", name), owned("Job", f"{name}-w-0")
    pods = [pod(f"{name}-{index}", on=on, owner=owner, grace=3) for index, on in enumerate(nodes)]
    return [*pods, job(f"{name}-w-0", ns="team-v", owner=above), workload(f"jobset-{name}", owner=above)]


def test_k07_pods_of_a_jobset_are_stopped_through_the_workload_of_the_jobset() -> None:
    scene = fleet(of_jobset("set", "n1", "s1"), agreement())
    scene.run(40, until=lambda: all_bound(scene))
    assert all_bound(scene)
    assert scene.evicted() == ["set-0", "set-1"]
    assert [one.workload.metadata.name for one in stops(scene)] == ["jobset-set"]


def test_k07_a_jobset_is_known_by_its_pods_before_its_job_is() -> None:
    *pods, _, of = of_jobset("set", "n1")
    labels = {JOBSET_UID: "jobset-set"}
    one = pod("set-0", on="n1", owner=owned("Job", "set-w-0"), labels=labels)
    assert workload_of(view(one, of), one) == of
    assert workload_of(view(pods, of), pods[0]) is None


def test_k07_of_several_workloads_of_one_job_the_one_that_has_not_finished_counts() -> None:
    owner = owned("Job", "j")
    one = pod("j-0", on="n1", owner=owner)
    old = workload("old", owner=owner, true=("Finished",))
    new, waiting = workload("a-new", owner=owner), workload("z-waiting", owner=owner, true=())
    assert workload_of(view(one, old, new, waiting), one) == new
    assert workload_of(view(one, old), one) == old
    noted = pod("j-1", on="n1", owner=owner, notes={WORKLOAD: "old"})
    assert workload_of(view(noted, old, new), noted) == new


def test_k07_a_workload_of_that_name_in_another_namespace_is_another() -> None:
    one = pod("j-0", on="n1", owner=owned("Job", "j"), notes={WORKLOAD: "job-j"})
    assert workload_of(view(one, workload("job-j", ns="team-w", owner=owned("Job", "j"))), one) is None


@pytest.mark.parametrize(
    ("true", "active", "goes"),
    [
        (("QuotaReserved", "Admitted"), None, False),
        (("QuotaReserved", "Admitted"), True, False),
        (("QuotaReserved", "Admitted"), False, True),
        (("QuotaReserved", "Evicted"), None, True),
        (("Evicted",), True, True),
        ((), True, True),
        (("Finished",), False, False),
    ],
)
def test_k11_who_is_on_his_way_is_said_by_the_workload(true: tuple[str, ...], active: bool | None, goes: bool) -> None:
    one = pod("j-0", on="n1", owner=owned("Job", "j"))
    seen = view(one, node("n1"), workload("job-j", active=active, true=true, owner=owned("Job", "j")))
    assert leaving(seen, one) is goes
    assert len(occupants(seen, "n1", at(0)).tenants.running) == (0 if goes else 1)


def test_k07_what_is_lost_with_an_elastic_job_is_all_of_it() -> None:
    of = kueue_job("j", "n1", "s1", notes={GANG_MIN_SIZE: "1"})
    assert gang_loss(view(of), of[0], at(10)).lost(1, 1) == 20
    assert gang_loss(view(of[:-1]), of[0], at(10)).lost(1, 1) == 10, "without Kueue the other goes on"


def test_k07_a_job_on_two_nodes_of_the_plan_is_counted_once() -> None:
    terms = agreement(budget=Budget(gpu_seconds_per_day=25))
    big = gang(2)
    seen = view(node("n1"), node("n2"), kueue_job("j", "n1", "n2", indexed=False), big, terms, claim(nodes=2))
    choice = choose(seen, claim(nodes=2), {}, at(10))
    assert choice.plan is not None
    assert choice.plan.victim_count == 2
    assert choice.plan.lost_gpu_seconds == 20
    tight = agreement(budget=Budget(gpu_seconds_per_day=15))
    seen = view(node("n1"), node("n2"), kueue_job("j", "n1", "n2", indexed=False), big, tight)
    assert not choose(seen, claim(nodes=2), {}, at(10)).taken


def test_k07_a_job_that_the_waiting_gang_is_part_of_is_never_its_victim() -> None:
    """A small pod of the gang's own job runs on the node."""
    owner, notes = owned("Job", "own"), {GANG: "train", GANG_SIZE: "1"}
    lead = pod("lead", on="n1", ns="team-b", owner=owner, notes=notes, grace=1)
    scene = fleet(agreement(ns="team-b"))
    scene.pods.pop("team-b.train-0")
    scene.add(lead, gang(owner=owner, size=2), workload("job-own", ns="team-b", owner=owner))
    scene.run(5)
    assert not scene.evictions
    assert scene.the_claim().status.reason == "MoreNodesThanPoolHas"
    assert "beside those its members run on" in scene.the_claim().status.message
    seen, claimed = scene.view(), scene.the_claim()
    context = Context(seen, {}, {}, scene.now, scene.timing, Decision())
    against = objections(context, claimed, [lead], {lead.metadata.uid: Verdict(Consent.GIVEN)}, set())
    assert against[lead.metadata.uid].text == "OwnGangRunsThere"


def test_k07_a_status_of_a_budget_that_lags_behind_is_not_believed() -> None:
    """It still allows one; one of its three pods was deleted just now, and two are needed."""
    labels = {"app": "x"}
    of = kueue_job("j", "n1", labels=labels, ready=True)
    others = [pod("a", 0, on="s1", labels=labels, ready=True), pod("b", 0, on="s1", labels=labels, ready=True, going=5)]
    lags = DisruptionBudget(
        Metadata("pdb", "team-v", uid="pdb"), BudgetSpec(LabelSelector(labels)), BudgetStatus(1, 3, 2)
    )
    assert shortage(view(of, others, lags), of[:1]) is not None
    fresh = [others[0], pod("b", 0, on="s1", labels=labels, ready=True)]
    assert shortage(view(of, fresh, lags), of[:1]) is None


def test_k07_the_dearest_of_a_jobs_pods_says_when_the_job_goes() -> None:
    """A lone cheap pod goes first; the job, of one cheap pod and one dear one, after it has been told to."""
    owner = owned("Job", "j")
    cheap, dear = (
        pod("j-0", on="n1", owner=owner, started=-10, grace=3),
        pod("j-1", on="s1", owner=owner, started=-5000, grace=3),
    )
    lone = pod("lone", on="n1", started=-100, grace=3)
    of = [job("j", ns="team-v", parallelism=2, completions=2, indexed=False), workload("job-j", owner=owner)]
    scene = fleet(cheap, dear, lone, of, agreement())
    scene.run(40, until=lambda: all_bound(scene))
    order = [type(one).__name__ for one in scene.done if isinstance(one, Evict | StopWorkload)]
    assert order == ["Evict", "StopWorkload"]


def test_k07_a_refusal_by_the_server_gives_the_node_back() -> None:
    scene = fleet(four_pods(), agreement())
    refusal = Answer(EvictionAnswer.REFUSED, "workloads is forbidden")
    scene.after = lambda action: scene.answers.update({"team-v.train4-0": refusal})
    scene.run(5)
    assert not scene.evictions
    assert "EvictionRefused" in reasons(scene)


def test_k08_the_record_stays_open_until_the_pods_go_although_the_claim_is_gone_and_nobody_remembers() -> None:
    scene = fleet(four_pods(), agreement())
    scene.kueue.stopped = True
    scene.run(3)
    scene.claims.clear()
    scene.delete("team-b.train-0")
    scene.answers.clear()
    scene.go_on(3)
    assert {one.status.outcome for one in scene.records.values()} == {Outcome.PENDING}
    scene.kueue.start()
    scene.go_on(8)
    assert {one.status.outcome for one in scene.records.values()} == {Outcome.STOPPED}


def test_k07_ready_replicas_count_over_all_that_go_with_the_job() -> None:
    """One goes here and one elsewhere; one is to be kept, which was agreed upon during the drain."""
    pods = kueue_job("train4", "n1", "s1", ready=True)
    scene = fleet(pods, agreement())
    scene.run(0.3)
    scene.agreements[:] = [agreement(keep_ready=1)]
    scene.go_on(3)
    assert not [one for one in scene.done if isinstance(one, WriteStatus) and one.status.victims], "nobody is meant"
    assert "ProtectedPodOnNode" in reasons(scene)


def test_k08_a_drain_whose_job_kueue_is_stopping_has_begun_and_is_not_dropped_for_a_free_node() -> None:
    scene = fleet(four_pods(), agreement())
    scene.kueue.stopped = True
    scene.run(3)
    scene.answers.clear()
    scene.add(node("n0"))
    scene.go_on(2)
    assert scene.the_claim().status.node_names == "n1"


def test_k07_gangs_that_are_spread_over_two_jobs_do_not_wait_for_each_other() -> None:
    """The loss of the one stands with a pod of the first job, that of the other with one of the second."""
    jobs = [owned("Job", "a"), owned("Job", "b")]
    pods = [
        pod(f"{gang}-{owner.name}", on="n1", owner=owner, group=gang, started=-10)
        for gang, owner in (("g", jobs[0]), ("h", jobs[1]), ("g", jobs[1]), ("h", jobs[0]))
    ]
    seen = view(pods, [workload(f"job-{owner.name}", owner=owner) for owner in jobs])
    victims = victims_of(seen, pods, {}, at(0))
    due = Regret.of(victims).next_to_go(seen, pods, {one.uid: one for one in victims}, ())
    assert {one.key for one in due} == {one.key for one in pods}


def test_k08_whom_kueue_has_been_told_to_stop_stays_a_victim_when_the_drain_gives_up() -> None:
    """Kueue will stop them when it is back: that is no less of a loss."""
    scene = fleet(
        four_pods(), agreement(), timing=Timing(drain_timeout=timedelta(seconds=10), avoid_for=timedelta(hours=1))
    )
    scene.kueue.stopped = True
    scene.run(5)
    scene.answers.clear()
    scene.go_on(8)
    assert "DrainTimedOut" in reasons(scene)
    assert sorted(one.name for one in scene.the_claim().status.victims) == NAMES


@pytest.mark.parametrize(("elsewhere", "more_seconds"), [("5m", 300), ("10s", 30)])
def test_k07_a_drain_waits_for_the_longest_checkpoint_of_all_that_go_with_the_job(
    elsewhere: str, more_seconds: int
) -> None:
    """The pod on the node has half a minute to save, its fellow on another node as long as its own agreement says."""
    here, there, *rest = kueue_job("j", "n1", "s1", started=-100)
    assert isinstance(there, Pod)
    there = replace(there, metadata=replace(there.metadata, labels={"role": "saver"}))
    saver = LabelSelector({"role": "saver"})
    others = LabelSelector(match_expressions=(Requirement("role", "DoesNotExist"),))
    terms = [
        agreement("short", select=others, checkpoint=Checkpoint(request=True, timeout="30s")),
        agreement("long", select=saver, checkpoint=Checkpoint(request=True, timeout=elsewhere)),
    ]
    scene = fleet(here, there, rest, terms)
    scene.run(2, until=lambda: bool(scene.the_claim().status.nodes) and scene.the_claim().status.phase == "Draining")
    claimed = scene.the_claim()
    began = entered_at(claimed.status, Phase.CORDONING)
    assert began is not None
    late = began + scene.timing.drain_timeout + timedelta(seconds=1)
    context = Context(scene.view(), {}, {}, late, scene.timing, Decision())
    assert drain_limit(context, claimed) == began + scene.timing.drain_timeout + timedelta(seconds=more_seconds)


def test_k07_consent_that_ends_after_the_stop_is_too_late_and_the_job_comes_back_once() -> None:
    scene = fleet(four_pods(), agreement(), admits_after=0.5)
    withdrawn: list[float] = []

    def withdraw(action: Any) -> None:
        if isinstance(action, StopWorkload):
            scene.agreements.clear()
            withdrawn.append(scene.seconds)

    scene.after = withdraw
    scene.run(60, until=lambda: all_bound(scene))
    scene.go_on(3)
    assert len(withdrawn) == 1
    assert all_bound(scene)
    assert scene.evicted() == NAMES
    assert resumed(scene) == ["job-train4"]
    assert scene.workloads["wl-job-train4"].active
    assert {one.status.outcome for one in scene.records.values()} == {Outcome.STOPPED}


def test_k08_killed_after_every_write_the_job_is_stopped_once_and_queued_again() -> None:
    scene = fleet(four_pods(), agreement(), kill_always=True)
    scene.run(90, until=lambda: all_bound(scene))
    scene.go_on(3)
    assert scene.kills > 10
    assert scene.evicted() == NAMES
    assert len(stops(scene)) == 1
    assert scene.workloads["wl-job-train4"].active
    assert scene.marked() == []
