"""Why a pod waits: kinds never mixed, and the stages of admission, gang, capacity, topology and scheduler."""

import msgspec
import pytest

from fleet.fitness import Obstacle
from fleet.names import EXPECTED_RUN
from fleet.objects import Condition, Pod
from fleet.planning import choose
from fleet.reasons import Reason
from fleet.resources import Accepts, Policy
from fleet.why.explain import explain
from fleet.why.explanations import ContainerState, Event, Kind, Stage, Told, Wait, Workload
from tests.fleet.asking import KEPT, NOTHING, NOW, SMALL, conditions, refused, waiting_claim, why
from tests.fleet.builders import agreement, at, claim, job, members, node, owned, pod, pool, view
from tests.fleet.history import MINUTE, ended
from tests.fleet.scenes import small

# Kinds


def test_the_three_kinds_of_wait_are_told_apart() -> None:
    waits = pod("p", 4, gates=[])
    fleet = [SMALL, node("n1", "small"), small(8, "n1")]
    assert why(view(fleet, waits), "p").kind is Kind.NOT_ATTEMPTED
    assert why(view(fleet, refused(waits)), "p").kind is Kind.NO_PLACE
    event = Told(failed_scheduling=Event("FailedScheduling", "0/2", 3))
    assert why(view(fleet, waits), "p", event).kind is Kind.NO_PLACE
    gated = conditions(pod("p", 4, gates=["x.io/y"]), Condition("PodScheduled", "False", "SchedulingGated"))
    assert why(view(fleet, gated), "p", event).kind is Kind.NOT_ATTEMPTED, "a gated pod is never tried"
    started = Told(containers=(ContainerState("main", "ImagePullBackOff", "no such image"),))
    assert why(view(fleet, pod("p", 4, on="n1", phase="Pending")), "p", started).kind is Kind.START_FAILED


def test_pods_without_cards_and_pods_that_run_do_not_wait() -> None:
    seen = view(
        node("n1"), pod("cpu", 0), pod("run", on="n1"), pod("go", on="n1", going=1100), pod("ok", phase="Succeeded")
    )
    assert (why(seen, "cpu").kind, why(seen, "cpu").reason) == (Kind.NOT_OURS, Wait.NO_CARDS)
    reasons = {name: why(seen, name).reason for name in ("run", "go", "ok")}
    assert reasons == {"run": Wait.RUNNING, "go": Wait.ENDING, "ok": Wait.ENDED}
    for name in ("cpu", *reasons):
        assert why(seen, name).stage is None
        assert why(seen, name).ends is None
    starting = why(view(node("n1"), pod("p", on="n1", phase="Pending")), "p")
    assert (starting.kind, starting.reason) == (Kind.NOT_WAITING, Wait.STARTING)


@pytest.mark.parametrize(
    ("one", "told", "reason", "words"),
    [
        (
            pod("p", on="n1", phase="Pending"),
            Told(containers=(ContainerState("main", "ImagePullBackOff", "no such image"),)),
            Wait.CONTAINER,
            "container main does not start: ImagePullBackOff: no such image",
        ),
        (
            pod("p", on="n1"),
            Told(containers=(ContainerState("main", "CrashLoopBackOff", "back-off", ran=True),)),
            Wait.CONTAINER,
            "CrashLoopBackOff",
        ),
        (
            pod("p", on="n1", phase="Pending"),
            Told(kubelet=Event("FailedMount", "volume x is not there")),
            Wait.KUBELET,
            "FailedMount: volume x is not there",
        ),
    ],
)
def test_a_pod_that_was_placed_and_does_not_start(one: Pod, told: Told, reason: str, words: str) -> None:
    found = why(view(node("n1"), one), "p", told)
    assert (found.kind, found.stage, found.reason) == (Kind.START_FAILED, Stage.START, reason)
    assert words in found.text


def test_a_pod_that_the_kubelet_refused_is_a_failed_start_and_one_that_ran_and_failed_is_not() -> None:
    failed = pod("p", 8, on="n1", phase="Failed")
    status = msgspec.structs.replace(failed.status, reason="UnexpectedAdmissionError", message="no healthy devices")
    failed = msgspec.structs.replace(failed, status=status)
    found = why(view(node("n1"), failed), "p")
    assert (found.kind, found.reason) == (Kind.START_FAILED, Wait.KUBELET)
    assert "UnexpectedAdmissionError: no healthy devices" in found.text
    ran = Told(containers=(ContainerState("main", ran=True),))
    assert why(view(node("n1"), failed), "p", ran).kind is Kind.NOT_WAITING


# Admission and gang


def test_another_gate_stands_before_everything_that_cards_could_say() -> None:
    found = why(view(SMALL, node("n1", "small"), small(8, "n1"), pod("p", gates=["example.com/quota"])), "p")
    assert (found.kind, found.stage, found.reason) == (Kind.NOT_ATTEMPTED, Stage.ADMISSION, Reason.FOREIGN_GATE)
    assert "example.com/quota" in found.text


@pytest.mark.parametrize(
    ("states", "reason", "words"),
    [
        (
            {"QuotaReserved": ("False", "Pending", "needs 8 more")},
            Wait.QUOTA,
            "QuotaReserved is False (Pending: needs 8 more)",
        ),
        ({}, Wait.QUOTA, "no condition QuotaReserved yet"),
        ({"QuotaReserved": ("True", "QuotaReserved", "ok")}, Wait.CHECKS, "no condition Admitted yet"),
        (
            {"QuotaReserved": ("False", "Pending", "evicted"), "Evicted": ("True", "Preempted", "to make room")},
            Wait.KUEUE_EVICTED,
            "Evicted is True (Preempted: to make room)",
        ),
        (
            {"QuotaReserved": ("True", "Q", ""), "Admitted": ("True", "A", "")},
            Reason.FOREIGN_GATE,
            "scheduling gate kueue.x-k8s.io/admission is still closed",
        ),
    ],
)
def test_kueues_own_words_say_why_a_pod_is_not_admitted(
    states: dict[str, tuple[str, str, str]], reason: str, words: str
) -> None:
    workload = Workload("job-x", tuple(Condition(name, *rest) for name, rest in states.items()))
    seen = view(node("n1"), pod("p", gates=["kueue.x-k8s.io/admission"]))
    found = why(seen, "p", Told(workload=workload))
    assert (found.stage, found.reason) == (Stage.ADMISSION, reason)
    assert words in found.text


def test_kueues_gate_without_a_workload_to_read_is_not_explained_by_guessing() -> None:
    found = why(view(node("n1"), pod("p", gates=["kueue.x-k8s.io/admission"])), "p")
    assert (found.reason, "could not be read" in found.text) == (Reason.FOREIGN_GATE, True)


def test_a_gang_that_is_not_whole_says_how_many_of_how_many() -> None:
    gang = members(2, size=3)
    nodes = [node(f"n{index}") for index in range(3)]
    for seen in (view(nodes, gang), waiting_claim(nodes, gang, nodes=3)):
        found = why(seen)
        assert (found.stage, found.reason) == (Stage.GANG, Reason.GANG_INCOMPLETE)
        assert "2 of 3 pods" in found.text
        assert (found.numbers["gangPresent"], found.numbers["gangSize"]) == (2, 3)


def test_a_gate_on_another_member_keeps_the_whole_gang_out() -> None:
    gang = [*members(1, size=2), pod("train-1", 8, ns="team-b", gang="train", size=2, gates=["x.io/y"])]
    for seen in (view(node("n1"), node("n2"), gang), waiting_claim(node("n1"), node("n2"), gang, nodes=2)):
        assert (why(seen).stage, why(seen).reason) == (Stage.ADMISSION, Reason.FOREIGN_GATE)


def test_the_gang_of_a_job_is_as_large_as_the_job_says() -> None:
    one = pod("j-0", 8, ns="team-b", owner=owned("Job", "j"), notes={"batch.kubernetes.io/job-completion-index": "0"})
    found = why(view(node("n1"), one, job("j", parallelism=4, completions=4)), "j-0")
    assert (found.stage, "1 of 4" in found.text) == (Stage.GANG, True)


# Capacity and topology


def test_fewer_free_cards_than_needed_is_a_matter_of_capacity() -> None:
    found = why(view(SMALL, node("n1", "small"), small(7, "n1"), pod("p", 2)), "p")
    assert (found.stage, found.reason) == (Stage.CAPACITY, Wait.NOT_ENOUGH)
    assert (found.numbers["cardsNeeded"], found.numbers["cardsFree"]) == (2, 1)
    whole = why(waiting_claim(node("n1"), small(3, "n1"), members(1)))
    assert (whole.stage, whole.reason) == (Stage.CAPACITY, Wait.NOT_ENOUGH)


def test_enough_cards_but_not_on_one_node_names_the_best_node_and_who_blocks_it() -> None:
    declared = [pod(f"a-{index}", 2, on="n1", notes={EXPECTED_RUN: f"{index + 1}h"}) for index in range(2)]
    others = small(5, "n2")
    found = why(view(SMALL, node("n1", "small"), node("n2", "small"), declared, others, pod("p", 6)), "p")
    assert (found.stage, found.reason) == (Stage.TOPOLOGY, Wait.FRAGMENTED)
    assert found.best_node is not None
    assert (found.best_node.name, found.best_node.free, found.best_node.free_at) == ("n1", 4, at(7200))
    assert [(one.pod, one.cards, one.ends_at) for one in found.best_node.blockers] == [
        ("a-0", 2, at(3600)),
        ("a-1", 2, at(7200)),
    ]
    assert found.ends is not None
    assert found.ends.at == at(3600), "the first of them is enough"
    assert "Best node n1: 4 of 8 free, the others held by team-v/a-0 (2 until 2027-01-04T13:00:00Z)" in found.text


def test_who_blocks_a_node_ends_as_its_kind_has_run_before_and_it_is_said_so() -> None:
    history = [ended(f"x-{index}", 40, ns="team-v") for index in range(3)]
    silent, unknown = pod("x-9", 4, on="n1"), small(5, "n2")
    found = why(view(SMALL, node("n1", "small"), node("n2", "small"), history, silent, unknown, pod("p", 6)), "p")
    assert found.best_node is not None
    assert [(one.ends_at, one.learned) for one in found.best_node.blockers] == [(at(40 * MINUTE), True)]
    assert found.ends is not None
    assert found.ends.at == at(40 * MINUTE)
    assert "team-v/x-9 (4 until 2027-01-04T12:40:00Z, as its kind has run before)" in found.text


def test_a_whole_node_gang_on_a_fragmented_fleet_waits_for_a_whole_node() -> None:
    found = why(waiting_claim(node("n1"), node("n2"), small(3, "n1"), small(3, "n2"), members(1), policy=Policy.WAIT))
    assert (found.stage, found.reason) == (Stage.TOPOLOGY, Wait.FRAGMENTED)
    assert found.claim is not None
    assert found.claim.reason in {Reason.POLICY_WAIT, Reason.AGREEMENT_MISSING}
    assert "no node is wholly free" in found.text
    assert found.ends is not None
    assert "WaitThenEvict" in found.ends.how


def test_p03_three_nodes_with_one_small_pod_each_are_no_whole_node_and_the_best_has_seven_of_eight_free() -> None:
    busy = [pod(f"p{index}", on=f"n{index}") for index in range(3)]
    nodes = [node(f"n{index}") for index in range(3)]
    found = why(waiting_claim(members(1), nodes, busy, policy=Policy.WAIT))
    assert (found.kind, found.stage) == (Kind.NOT_ATTEMPTED, Stage.TOPOLOGY)
    assert found.best_node is not None
    assert (found.best_node.free, found.numbers["cardsFree"], found.numbers["wholeNodesFree"]) == (7, 21, 0)
    assert "7 of its 8" in found.text or "7 of 8" in found.text
    untouched = choose(view(members(1), nodes, busy, node("n3")), claim(), {}, NOW)
    assert [one.node.metadata.name for one in untouched.taken] == ["n3"]


def test_an_agreement_that_applies_later_leaves_it_topology_and_says_from_when() -> None:
    fleet = [node("n1"), node("n2"), small(3, "n1"), small(3, "n2"), members(1), agreement(patience="30m")]
    found = why(waiting_claim(*fleet))
    assert found.claim is not None
    assert (found.stage, found.claim.reason) == (Stage.TOPOLOGY, Reason.AGREEMENT_TIME)
    assert found.ends is not None
    assert found.ends.at == at(1800)
    patient = why(waiting_claim(*fleet[:-1], agreement(), patience="40m"))
    assert patient.claim is not None
    assert (patient.stage, patient.claim.reason) == (Stage.TOPOLOGY, Reason.PATIENCE)
    assert patient.ends is not None
    assert patient.ends.at == at(2400)


def test_what_can_never_fit_is_said_at_once_whatever_else_there_is() -> None:
    huge = pod("p", 9, gates=["x.io/y"])
    found = why(view(node("n1"), huge), "p")
    assert (found.stage, found.reason) == (Stage.CAPACITY, Wait.NEVER)
    assert found.ends is not None
    assert "waiting does not help" in found.ends.how
    gang = why(view(node("n1"), node("n2"), members(1, size=3)))
    assert (gang.stage, gang.reason) == (Stage.GANG, Reason.GANG_INCOMPLETE), "how many it wants is not known yet"
    gang = why(view(node("n1"), node("n2"), members(3)))
    assert (gang.stage, gang.reason) == (Stage.CAPACITY, Reason.TOO_FEW_NODES)
    assert "Needs 3 whole nodes with 8 nvidia.com/gpu each; its pools have 2." in gang.text
    middle = why(view(SMALL, KEPT, node("n1", "small", cards=4), node("n2"), node("n3", "", cards=2), pod("p", 9)), "p")
    assert middle.reason == Wait.NEVER
    four = pool("small", accepts=Accepts.SMALL, cards=4)
    middle = why(view(four, KEPT, node("n1", "small", cards=4), node("n2"), pod("p", 5)), "p")
    assert (middle.reason, "has more than 4" in middle.text) == (Wait.NEVER, True)


def test_a_claim_for_a_pool_that_cannot_serve_it_never_fits() -> None:
    found = why(waiting_claim(node("n1"), members(1), in_pool="other"))
    assert (found.stage, found.reason) == (Stage.CAPACITY, Reason.NO_POOL)


def test_nodes_that_cannot_be_used_are_counted_by_what_rules_them_out() -> None:
    fleet = [node("n1", "small", cordoned=True), node("n2", "small", ready=False), pod("p")]
    found = why(view(SMALL, fleet), "p")
    assert (found.stage, found.reason) == (Stage.CAPACITY, Wait.NODES_SHUT)
    assert "1 Cordoned, 1 NotReady" in found.text
    two = why(view(SMALL, pool("also", labels={"pool": "small"}), node("n1", "small"), pod("p")), "p")
    assert f"1 {Obstacle.POOL_CONFLICT}" in two.text


def test_nodes_of_no_pool_serve_small_pods() -> None:
    found = why(view(KEPT, node("n1"), node("n2", ""), small(8, "n2"), pod("p")), "p")
    assert (found.stage, found.numbers["nodes"], found.numbers["cardsFree"]) == (Stage.CAPACITY, 1, 0)


# The scheduler


def test_what_the_scheduler_said_is_given_word_for_word_when_cards_are_no_obstacle() -> None:
    message = "0/1 nodes are available: 1 Insufficient cpu."
    seen = view(SMALL, node("n1", "small"), refused(pod("p"), message))
    found = why(seen, "p", Told(failed_scheduling=Event("FailedScheduling", message, 7, at(900))))
    assert (found.kind, found.stage, found.reason) == (Kind.NO_PLACE, Stage.SCHEDULER, Wait.OTHER)
    assert message in found.text
    assert found.scheduler is not None
    assert (found.scheduler.message, found.scheduler.since) == (message, at(5))
    assert found.scheduler.event is not None
    assert found.scheduler.event.count == 7
    broken = why(view(SMALL, node("n1", "small"), refused(pod("p"), "connection refused", "SchedulerError")), "p")
    assert broken.reason == Wait.SCHEDULER_ERROR
    assert why(view(SMALL, node("n1", "small"), pod("p")), "p").reason == Wait.TURN


def test_a_pod_that_the_view_does_not_hold_yet_is_explained_too() -> None:
    first, second = members(2)
    found = explain(view(node("n1"), node("n2"), first), second, NOTHING, NOW)
    assert (found.stage, found.reason) == (Stage.RESERVED, Wait.NO_CLAIM)
    assert found.numbers["gangPresent"] == 2
