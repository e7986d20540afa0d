"""Pods that Kueue will make, shown as pods: what they are like, how many are still to come, and of which gang."""

import pytest

from fleet.kueue.expected import is_expected, with_expected
from fleet.kueue.objects import CheckState, PodSetAssignment, PodSetUpdate, Workload
from fleet.kueue.topology import places
from fleet.kueue.turns import our_checks, turn_of
from fleet.names import CLAIM_KEY, GANG, GANG_SIZE, KUEUE_QUEUE
from fleet.objects import Pod, Requirement, Toleration
from fleet.resources import Phase
from fleet.view import View
from tests.fleet.admissions import at_check, check, flavor, pod_set, replace, workload
from tests.fleet.builders import at, claim, job, node, owned, pod, ref, view

SENT = CheckState("vacate", "Ready", pod_set_updates=(PodSetUpdate("main", node_selector={CLAIM_KEY: "c-1"}),))


def expected(seen: View) -> list[Pod]:
    return [one for one in seen.pods.values() if is_expected(one)]


def writable(one: Workload, ours: frozenset[str]) -> str | None:
    """The check whose entry may be written now."""
    turn = turn_of(one, ours)
    return turn.check if turn is not None and turn.pending else None


@pytest.mark.parametrize(
    ("changed", "turn"),
    [
        ({}, "vacate"),
        ({"reserved": None}, None),
        ({"true": ["Evicted"]}, None),
        ({"true": ["Finished"]}, None),
        ({"true": ["Admitted"]}, None),
        ({"active": False}, None),
        ({"entries": [CheckState("vacate", "Ready")]}, None),
        ({"entries": [CheckState("vacate", "Retry")]}, None),
        ({"entries": [CheckState("other", "Pending")]}, None),
        ({"entries": [CheckState("other", "Pending"), CheckState("vacate", "Pending")]}, "vacate"),
    ],
)
def test_k03_it_is_our_turn_only_when_kueue_says_so(changed: dict[str, object], turn: str | None) -> None:
    ours = our_checks([check(), check("other", ours=False)])
    assert ours == {"vacate"}
    assert writable(workload("train", **changed), ours) == turn


def test_a_workload_that_is_being_deleted_is_nobody_s_turn() -> None:
    one = workload()
    going = replace(one, metadata=replace(one.metadata, deletion_timestamp=at(1)))
    assert writable(going, frozenset({"vacate"})) is None


def test_an_expected_pod_is_like_the_real_one() -> None:
    one = workload("train", pod_set(count=2, labels={"app": "x"}), reserved=7, priority=9)
    tolerated = Toleration("gpu", "Exists")
    seen = at_check(view(node("n1")), one, flavor(labels={"model": "rtx"}, tolerations=(tolerated,)))

    first, second = expected(seen)
    assert first.metadata.labels is not None
    assert first.metadata.labels["app"] == "x"
    assert first.metadata.labels[KUEUE_QUEUE] == "research"
    assert (first.metadata.annotation(GANG), first.metadata.annotation(GANG_SIZE)) == ("train", "2")
    assert first.spec.node_selector == {"model": "rtx"}
    assert first.spec.tolerations == (tolerated,)
    assert first.spec.priority == 9
    assert first.metadata.creation_timestamp == at(7)
    real = pod("train-abc", 8, ns="team-b", owner=owned("Job", "train"), gang="train", size=2)
    assert seen.gang_key_of(first) == seen.gang_key_of(second) == seen.gang_key_of(real)
    assert seen.gangs[seen.gang_key_of(first)].size == 2


def test_a_template_that_names_its_gang_keeps_its_name() -> None:
    one = workload("train", pod_set(count=2, notes={GANG: "mine"}))
    (first, _) = expected(at_check(view(node("n1")), one))
    assert (first.metadata.annotation(GANG), first.metadata.annotation(GANG_SIZE)) == ("mine", "2")


def made(count: int, **more: object) -> list[Pod]:
    return [
        pod(f"t-{i}", 8, ns="team-b", owner=owned("Job", "train"), gang="train", size=3, created=1, **more)
        for i in range(count)
    ]


@pytest.mark.parametrize("there", range(4))
def test_only_what_is_missing_is_expected_after_ready(there: int) -> None:
    one = workload("train", pod_set(count=3), entries=[SENT], true=["Admitted"])
    holder = claim(gang=ref("train", uid="job-train"), uid="c-1", phase=Phase.LANDING)
    seen = view(node("n1"), made(there), holder)
    assert len(expected(at_check(seen, one))) == 3 - there


def test_ended_pods_of_this_start_are_counted_and_those_of_an_earlier_one_are_not() -> None:
    one = workload("train", pod_set(count=3), entries=[SENT], true=["Admitted"], reserved=100)
    holder = claim(gang=ref("train", uid="job-train"), uid="c-1", phase=Phase.LANDING)
    before = made(2, phase="Failed")
    now = pod("t-9", 8, ns="team-b", owner=owned("Job", "train"), gang="train", size=3, created=101, phase="Succeeded")
    going = pod("t-8", 8, ns="team-b", owner=owned("Job", "train"), gang="train", size=3, going=105)
    assert len(expected(at_check(view(node("n1"), before, now, going, holder), one))) == 2


@pytest.mark.parametrize("phase", [Phase.BOUND, Phase.RELEASED, Phase.FAILED, Phase.ROLLED_BACK, None])
def test_nothing_is_expected_once_the_claim_it_is_sent_to_has_ended(phase: Phase | None) -> None:
    one = workload("train", pod_set(count=3), entries=[SENT], true=["Admitted"])
    holders = [claim(gang=ref("train", uid="job-train"), uid="c-1", phase=phase)] if phase else []
    assert expected(at_check(view(node("n1"), holders), one)) == []


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
def test_a_job_that_has_finished_makes_none(ended: str) -> None:
    seen = view(node("n1"), job("train", ended=ended))
    assert expected(at_check(seen, workload())) == []
    assert len(expected(at_check(view(node("n1"), job("train", suspend=True)), workload()))) == 1


def test_k19_the_view_is_left_as_it_is_without_a_check_of_ours() -> None:
    seen = at_check(view(node("n1")), workload(), check(ours=False), expect=False)
    assert with_expected(seen) is seen


def test_k16_a_topology_is_read_as_requirements_of_the_nodes() -> None:
    assignment = PodSetAssignment(
        topology_assignment={
            "levels": ["rack", "kubernetes.io/hostname"],
            "slices": [
                {
                    "domainCount": 2,
                    "valuesPerLevel": [
                        {"universal": "r1"},
                        {"individual": {"prefix": "gpu-", "roots": ["1", "2"], "suffix": ".x"}},
                    ],
                    "podCounts": {"universal": 1},
                },
                {
                    "domainCount": 1,
                    "valuesPerLevel": [{"universal": "r2"}, {"universal": "gpu-7.x"}],
                    "podCounts": {"individual": [1]},
                },
            ],
        }
    )
    assert places(assignment) == (
        Requirement("rack", "In", ("r1", "r2")),
        Requirement("kubernetes.io/hostname", "In", ("gpu-1.x", "gpu-2.x", "gpu-7.x")),
    )


@pytest.mark.parametrize(
    "unread", [None, {}, {"levels": 3}, {"levels": ["a"], "domains": []}, {"levels": ["a"], "slices": [{}]}]
)
def test_k16_a_topology_that_cannot_be_read_says_nothing(unread: dict[str, object] | None) -> None:
    assert places(PodSetAssignment(topology_assignment=unread)) == ()
