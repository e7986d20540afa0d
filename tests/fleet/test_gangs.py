"""Gangs: who belongs together, how many there must be, and what their claims are called."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.actions import CreateClaim, Timing
from fleet.gangs import Gang, belongs, gang_ref, gangs
from fleet.lifecycle import decide
from fleet.names import (
    CLAIM_KEY,
    DEADLINE,
    GANG,
    GANG_SIZE,
    JOB_COMPLETION_INDEX,
    KUEUE_POD_GROUP,
    KUEUE_POD_GROUP_TOTAL,
    PATIENCE,
    POLICY,
)
from fleet.objects import Job, Pod
from fleet.resources import GangRef, Phase, PhaseTime, Policy
from fleet.view import View
from tests.fleet.builders import at, claim, job, members, node, owned, pod, ref, view

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def indexed(name: str, of: str = "train", index: int = 0, **more: object) -> Pod:
    notes = {JOB_COMPLETION_INDEX: str(index)}
    return pod(name, 8, ns="team-b", owner=owned("Job", of, f"job-{of}"), notes=notes, **more)  # type: ignore[arg-type]


def only(pods: list[Pod], *jobs: Job) -> Gang:
    found = gangs(pods, {one.metadata.uid: one for one in jobs})
    assert len(found) == 1
    return next(iter(found.values()))


def test_our_own_annotation_goes_first_then_kueues_group_then_the_job_then_the_pod() -> None:
    owner = owned("Job", "train", "job-train")
    known = {"job-train": job("train", parallelism=1)}
    group = {KUEUE_POD_GROUP: "group"}
    assert gang_ref(pod("p", owner=owner, gang="mine", labels=group), known) == GangRef("Gang", "mine", "job-train")
    assert gang_ref(pod("p", owner=owner, labels=group), known) == GangRef("Gang", "group", "job-train")
    assert gang_ref(pod("p", owner=owner), known) == GangRef("Job", "train", "job-train")
    assert gang_ref(pod("p"), known) == GangRef("Pod", "p", "team-v.p")


@pytest.mark.parametrize(
    ("parallelism", "completions", "kind"),
    [(1, None, "Job"), (None, None, "Job"), (1, 5, "Job"), (3, 3, "Pod"), (2, None, "Pod")],
)
def test_an_unordered_job_of_several_pods_is_no_gang(parallelism: int, completions: int, kind: str) -> None:
    one = pod("p", 8, owner=owned("Job", "train", "job-train"))
    known = {"job-train": job("train", parallelism=parallelism, completions=completions, indexed=False)}
    assert gang_ref(one, known).kind == kind


@pytest.mark.parametrize(
    ("parallelism", "completions", "size"), [(3, 3, 3), (3, None, 3), (4, 2, 2), (2, 6, 2), (None, None, 1)]
)
def test_the_size_of_an_indexed_job(parallelism: int, completions: int, size: int) -> None:
    assert only([indexed("p")], job("train", parallelism=parallelism, completions=completions)).size == size


def test_a_named_gang_is_as_large_as_it_says() -> None:
    assert only(members(2)[:1]).size == 2
    assert only([pod("p", gang="g")]).size == 1
    group = {KUEUE_POD_GROUP: "g"}
    assert only([pod("p", labels=group, notes={KUEUE_POD_GROUP_TOTAL: "4"})]).size == 4
    for nonsense in ("0", "-3", "many", "99999999", "٣"):
        assert only([pod("p", gang="g", notes={"wholenode.io/gang-size": nonsense})]).size == 1


def test_g04_members_of_the_same_owner_that_succeeded_are_not_waited_for() -> None:
    def member(name: str, owner: str, phase: str | None = None) -> Pod:
        on = "n1" if phase else None
        return pod(name, 8, owner=owned("ReplicaSet", owner), gang="g", size=3, on=on, phase=phase)

    done, other = member("a", "one", "Succeeded"), member("b", "two", "Succeeded")
    failed = member("c", "one", "Failed")
    sizes = {gang.size for gang in view(done, other, failed, member("d", "one")).gangs.values()}
    assert sizes == {2}


def test_g09_the_same_name_in_two_namespaces_is_two_gangs() -> None:
    found = gangs([*members(2, ns="a"), *members(2, ns="b")], {})
    assert sorted((one.namespace, one.size, len(one.pods)) for one in found.values()) == [("a", 2, 2), ("b", 2, 2)]


def test_g10_a_pod_of_another_owner_with_the_gangs_name_is_no_member() -> None:
    mine = pod("a", 8, owner=owned("ReplicaSet", "one"), gang="g", size=2)
    stranger = pod("b", 8, owner=owned("ReplicaSet", "two"), gang="g", size=2)
    assert len(gangs([mine, stranger], {})) == 2
    assert belongs(mine, "team-v", gang_ref(mine, {}))
    assert not belongs(stranger, "team-v", gang_ref(mine, {}))
    assert not belongs(mine, "team-b", gang_ref(mine, {}))


def test_a_recreated_member_belongs_and_a_namesake_of_the_job_does_not() -> None:
    target = GangRef("Job", "train", "job-train")
    assert belongs(indexed("train-1-xyz", index=1), "team-b", target)
    assert not belongs(pod("x", ns="team-b", owner=owned("Job", "train", "other")), "team-b", target)


def test_ended_and_terminating_pods_are_no_live_members() -> None:
    one, two, three, four = members(4)
    gone = pod("x", 8, ns="team-b", gang="train", going=5)
    ended = pod("y", 8, ns="team-b", gang="train", phase="Succeeded")
    seen = view(one, two, three, four, gone, ended)
    assert [len(gang.pods) for gang in seen.gangs.values()] == [4]


def test_members_come_oldest_first_whatever_the_order_they_are_given_in() -> None:
    pods = [pod("b", 8, gang="g", created=1), pod("a", 8, gang="g", created=1), pod("c", 8, gang="g", created=0)]
    assert [one.metadata.name for one in only(pods).pods] == ["c", "a", "b"]
    assert only(pods) == only(pods[::-1])


def created(seen: View) -> list[CreateClaim]:
    return [one for one in decide(seen, {}, {}, at(9), Timing()).actions if isinstance(one, CreateClaim)]


def test_a_gang_gets_one_claim_with_what_its_pods_say() -> None:
    notes = {POLICY: "WaitThenEvict", PATIENCE: "5m", DEADLINE: "2h"}
    made = created(view(node("n1"), members(3, notes=notes)))
    assert [(one.namespace, one.spec.nodes, one.spec.policy) for one in made] == [("team-b", 3, Policy.WAIT_THEN_EVICT)]
    assert (made[0].spec.patience, made[0].spec.deadline, made[0].spec.gang) == ("5m", "2h", ref())


@pytest.mark.parametrize(
    "notes", [{}, {POLICY: "Evict", PATIENCE: "soon", DEADLINE: "later"}, {PATIENCE: "", POLICY: ""}]
)
def test_what_cannot_be_read_counts_as_not_said(notes: dict[str, str]) -> None:
    spec = created(view(node("n1"), members(1, notes=notes)))[0].spec
    assert (spec.policy, spec.patience, spec.deadline) == (Policy.WAIT, "0s", None)


def test_a_deadline_within_the_patience_is_not_taken() -> None:
    spec = created(view(members(1, notes={PATIENCE: "10m", DEADLINE: "600s"})))[0].spec
    assert (spec.patience, spec.deadline) == ("10m", None)


def test_g04_only_the_members_that_wait_need_nodes() -> None:
    one, two, three = members(3)
    bound = pod("train-0", 8, ns="team-b", gang="train", size=3, on="n1")
    assert created(view(node("n1"), bound, two, three))[0].spec.nodes == 2
    assert one.metadata.uid == bound.metadata.uid


def test_p06_p18_no_claim_for_small_impossible_or_bound_pods() -> None:
    assert created(view(pod("a", 1), pod("b", 9), pod("c", 8, on="n1"), node("n1"))) == []


def test_the_jobs_size_is_waited_for() -> None:
    pods = [indexed("train-0")]
    assert created(view(pods)) == []
    assert created(view(pods, job("train", parallelism=3)))[0].spec.nodes == 3


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.BLOCKED, Phase.DRAINING, Phase.LANDING, Phase.BOUND])
def test_a_gang_with_a_claim_gets_no_other(phase: Phase) -> None:
    assert created(view(members(1), claim(phase=phase))) == []


def test_a_preview_does_not_stand_for_a_claim_unless_no_more_is_wanted() -> None:
    preview = claim(policy=Policy.PREVIEW, phase=Phase.PLANNED)
    assert len(created(view(members(1), preview))) == 1
    assert created(view(members(1, notes={POLICY: "Preview"}), preview)) == []


def test_a_claim_that_failed_is_not_renewed_for_the_same_pods() -> None:
    failed = claim(phase=Phase.FAILED, phases=(PhaseTime(Phase.FAILED, at(5)),))
    assert created(view(members(1), failed)) == []
    assert len(created(view(members(1, created=6), failed))) == 1


def test_c13_the_name_follows_from_the_gang_and_avoids_earlier_ones() -> None:
    first = created(view(members(1)))[0].name
    assert created(view(members(1)))[0].name == first
    second = created(view(members(1), claim(first, phase=Phase.RELEASED)))[0].name
    assert second == f"{first}-2"
    assert created(view(members(1), claim(second, phase=Phase.RELEASED)))[0].name == f"{first}-3"
    assert created(view(members(1, ns="other")))[0].name != first


@given(st.text(min_size=1, max_size=250))
def test_any_gang_name_makes_a_valid_claim_name(name: str) -> None:
    made = created(view(members(1, gang=name)))[0].name
    assert SUBDOMAIN.fullmatch(made), made
    assert len(made) <= 253


@pytest.mark.parametrize("name", ["a_.b", "x..y", "-", "...", "A" * 300, "a" * 199 + ".b", "Zug/Ost", "ÄÖ"])
def test_awkward_gang_names(name: str) -> None:
    test_any_gang_name_makes_a_valid_claim_name.hypothesis.inner_test(name)  # type: ignore[attr-defined]


def test_gates_and_names_do_not_change_who_belongs() -> None:
    gated = members(1, gates=(CLAIM_KEY,))[0]
    assert gang_ref(gated, {}) == ref()
    assert gated.metadata.annotation(GANG) == "train"


@pytest.mark.parametrize("text", ["1025", "8.0", "4 ", "four", "-1"])
def test_a_size_that_cannot_be_read_is_not_taken_for_none(text: str) -> None:
    one = pod("a", 8, gang="g", notes={GANG_SIZE: text})
    (found,) = gangs([one], {}).values()
    assert "its size must be a number" in found.unsized
