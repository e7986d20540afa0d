"""Every kind of gang alike: which mark wins, how many there must be, who is a member and who only says so."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.actions import CreateClaim, Timing
from fleet.gangs import Gang, belongs, candidate_refs, gang_ref
from fleet.lifecycle import decide
from fleet.names import CLAIM_KEY, JOB_COMPLETION_INDEX, KUEUE_POD_GROUP
from fleet.objects import Job, Pod
from fleet.reasons import Reason
from fleet.view import View
from fleet.wants import unready
from tests.fleet.builders import at, claim, coscheduling_group, job, node, owned, pod, pod_group, view
from tests.fleet.gang_kinds import (
    COSCHEDULING,
    KINDS,
    LWS,
    VOLCANO,
    Kind,
    coscheduled,
    in_tree,
    jobset_jobs,
    jobset_labels,
    lws_labels,
    marked,
    named,
    of_job,
    of_jobset,
    of_kueue,
    of_lws,
)

KUEUE_GATE = "kueue.x-k8s.io/admission"

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def gang_of(seen: View, member: Pod) -> Gang:
    """The one gang the pod is in."""
    (found,) = (gang for gang in seen.gangs.values() if member in gang.pods)
    return found


def verdict(gang: Gang) -> tuple[Reason, str] | None:
    return unready(claim(gang=gang.ref), gang)


def wanted(seen: View, seconds: float = 0) -> list[CreateClaim]:
    return [one for one in decide(seen, {}, {}, at(seconds), Timing()).actions if isinstance(one, CreateClaim)]


# Precedence

MARKS: list[tuple[str, str, dict[str, Any]]] = [
    ("Gang", "own", {"gang": "own"}),
    ("PodGroup", "tree", {"group": "tree"}),
    ("Gang", "kueue", {"labels": {KUEUE_POD_GROUP: "kueue"}}),
    ("PodGroup", "cosched", {"labels": {COSCHEDULING: "cosched"}}),
    ("PodGroup", "volcano", {"notes": {VOLCANO: "volcano"}}),
    ("LeaderWorkerSet", "lws-0", {"labels": lws_labels("lws"), "owner": owned("StatefulSet", "lws")}),
    ("JobSet", "js", {"labels": jobset_labels("js"), "owner": owned("Job", "js-w-0")}),
    ("Job", "plain", {"notes": {JOB_COMPLETION_INDEX: "0"}, "owner": owned("Job", "plain")}),
    ("Pod", "p", {}),
]


@pytest.mark.parametrize("level", range(len(MARKS) - 1))
def test_of_two_neighbouring_marks_the_first_wins(level: int) -> None:
    (kind, name, first), (_, _, second) = MARKS[level], MARKS[level + 1]
    both = {**second, **first}
    for key in ("labels", "notes"):
        both[key] = {**second.get(key, {}), **first.get(key, {})}
    ref = gang_ref(pod("p", 8, **both), {})
    assert (ref.kind, ref.name) == (kind, name)


@pytest.mark.parametrize("level", range(len(MARKS)))
def test_each_mark_alone_is_read(level: int) -> None:
    kind, name, mark = MARKS[level]
    ref = gang_ref(pod("p", 8, **mark), {})
    assert (ref.kind, ref.name) == (kind, name)


def test_a_name_too_long_to_be_one_counts_as_not_given() -> None:
    assert gang_ref(pod("p", gang="a" * 254, notes={VOLCANO: "v"}), {}).name == "v"


# Sizes


@each_kind
def test_g02_a_gang_is_whole_with_all_its_pods_and_incomplete_with_one_less(kind: Kind) -> None:
    pods = kind.three()
    gang = gang_of(view(pods, kind.needs()), pods[0])
    assert (gang.size, gang.pods, gang.unsized) == (3, tuple(pods), "")
    assert verdict(gang) is None
    fewer = verdict(gang_of(view(pods[:2], kind.needs()), pods[0]))
    assert fewer is not None
    assert fewer[0] is Reason.GANG_INCOMPLETE
    assert fewer[1].startswith("2 of 3 pods")
    assert [one.spec.nodes for one in wanted(view(pods[:2], kind.needs()))] == [3]


NUMBERLESS = {key: text for key, text in jobset_labels(index=1).items() if not key.endswith("global-replicas")}
UNSIZED = [
    (in_tree, [], "there is no PodGroup g of scheduling.k8s.io"),
    (in_tree, [coscheduling_group("g", 3)], "there is no PodGroup g of scheduling.k8s.io"),
    (in_tree, [pod_group("g", 3, ns="other")], "there is no PodGroup g of scheduling.k8s.io"),
    (coscheduled, [pod_group("g", 3)], "there is no PodGroup g of scheduling.x-k8s.io"),
    (of_jobset, [], "0 of 2 Jobs of JobSet g exist"),
    (of_jobset, jobset_jobs()[:1], "1 of 2 Jobs of JobSet g exist"),
    (lambda index: of_jobset(index, by="g-w-1", labels=NUMBERLESS), jobset_jobs(), "2 of all Jobs of JobSet g exist"),
    (of_job, [], "there is no Job g"),
]


@pytest.mark.parametrize(("make", "others", "why"), UNSIZED)
def test_a_gang_whose_size_nobody_has_told_is_incomplete_however_many_pods_it_has(
    make: Callable[..., Pod], others: list[Any], why: str
) -> None:
    pods = [make(index) for index in range(3)]
    gang = gang_of(view(pods, others), pods[0])
    assert (gang.size, gang.unsized) == (3, why)
    assert verdict(gang) == (Reason.GANG_INCOMPLETE, f"3 pod(s) of the gang exist, of how many is not known: {why}")


def test_the_size_of_a_volcano_gang_is_never_known_and_without_its_annotation_an_lws_groups_neither() -> None:
    volcano = pod("v", 8, ns="team-b", notes={VOLCANO: "g"})
    assert "not read" in gang_of(view(volcano, pod_group("g", 1), coscheduling_group("g", 1)), volcano).unsized
    nameless = of_lws(0, notes={f"{LWS}/size": "three"})
    assert f"{LWS}/size" in gang_of(view(nameless), nameless).unsized


def test_a_claim_that_says_so_comes_only_after_a_while_for_sizes_often_come_a_moment_later() -> None:
    pods = [in_tree(index) for index in range(2)]
    early = decide(view(node("n1"), pods), {}, {}, at(9), Timing())
    assert early.actions == []
    assert early.wake_at == at(10)
    late = decide(view(node("n1"), pods), {}, {}, at(10), Timing())
    assert [type(one) for one in late.actions] == [CreateClaim]
    assert late.wake_at is None
    assert [one.spec.nodes for one in wanted(view(pods, pod_group("g", 3)), 1)] == [3]


def test_a_pod_group_of_basic_policy_is_content_with_any_number() -> None:
    one = in_tree(0)
    assert gang_of(view(one, pod_group("g", None)), one).size == 1


def test_the_pods_of_a_jobset_are_those_that_its_jobs_still_need() -> None:
    first = of_jobset(0)
    owner = owned("JobSet", "g", "set-g")

    def size(*jobs: Job) -> int:
        gang = gang_of(view(first, jobs), first)
        return 0 if gang.unsized else gang.size

    done = job("g-w-1", parallelism=2, ended="Complete", owner=owner)
    assert size(job("g-w-0", parallelism=4, owner=owner), done) == 4
    partly = job("g-w-1", parallelism=3, completions=3, succeeded=2, owner=owner)
    assert size(job("g-w-0", owner=owner), partly) == 2
    going = job("g-w-1", parallelism=2, going=5, uid="old", owner=owner)
    assert size(job("g-w-0", owner=owner), going) == 0
    ended = job("g-w-0", ended="Failed", owner=owner)
    assert size(ended, done) == 1
    of_another = job("g-w-1", parallelism=2, owner=owned("JobSet", "g", "set-before"))
    assert size(job("g-w-0", owner=owner), of_another) == 0


# Members


@each_kind
def test_g04_a_recreated_member_of_a_running_gang_counts_with_the_running_ones(kind: Kind) -> None:
    running = [kind.make(index, on=f"n{index}") for index in range(2)]
    going = kind.make(2, on="n2", going=5, uid="old")
    again = kind.make(2, uid="new", created=9)
    seen = view(running, going, again, kind.needs())
    gang = gang_of(seen, again)
    assert gang.pods == (*running, again)
    assert gang_of(view(running, kind.make(2, on="n2"), kind.needs()), running[0]).key == gang.key
    assert verdict(gang) is None
    assert [one.spec.nodes for one in wanted(seen)] == [1]


@each_kind
def test_g05_a_member_behind_anothers_gate_keeps_all_waiting_and_ours_does_not(kind: Kind) -> None:
    gated = [kind.make(0, gates=(CLAIM_KEY,)), kind.make(1, gates=(CLAIM_KEY, KUEUE_GATE)), kind.make(2)]
    found = verdict(gang_of(view(gated, kind.needs()), gated[0]))
    assert found is not None
    assert found[0] is Reason.FOREIGN_GATE
    free = kind.three(gates=(CLAIM_KEY,))
    assert verdict(gang_of(view(free, kind.needs()), free[0])) is None


@each_kind
def test_g09_the_same_in_two_namespaces_is_two_gangs(kind: Kind) -> None:
    here, there = kind.three(), [kind.make(0, ns="other")]
    seen = view(here, there, kind.needs())
    gang = gang_of(seen, here[0])
    assert gang.pods == tuple(here)
    assert gang_of(seen, there[0]).pods == tuple(there)
    assert not belongs(there[0], gang.namespace, gang.ref)


@each_kind
def test_g10_a_pod_of_another_owner_with_the_gangs_marks_is_no_member(kind: Kind) -> None:
    assert kind.stranger is not None
    mine, stranger = kind.three(), kind.stranger()
    seen = view(mine, stranger, kind.needs())
    gang = gang_of(seen, mine[0])
    assert gang.pods == tuple(mine)
    assert not belongs(stranger, gang.namespace, gang.ref)
    assert all(belongs(one, gang.namespace, gang.ref) for one in mine)


@pytest.mark.parametrize("make", [in_tree, coscheduled])
def test_a_pod_group_takes_pods_of_several_owners(make: Callable[..., Pod]) -> None:
    launcher, worker = make(0, owner=owned("Job", "l")), make(1, owner=owned("MPIJob", "mpi"))
    assert gang_of(view(launcher, worker), worker).pods == (launcher, worker)


@pytest.mark.parametrize("make", [of_lws, of_jobset])
def test_annotations_of_ours_or_kueues_unite_the_pods_of_a_set_though_their_owners_differ(
    make: Callable[..., Pod],
) -> None:
    first, second = make(0, gang="x", size=2), make(1, gang="x", size=2)
    assert gang_of(view(first, second), first).pods == (first, second)
    other = make(0, gang="x", size=2, uid="u", labels={**lws_labels(group=1), **jobset_labels(uid="set-h")})
    assert other not in gang_of(view(first, second), first).pods
    assert not set(candidate_refs(other)) & set(candidate_refs(first))


def test_two_groups_of_one_leaderworkerset_are_two_gangs() -> None:
    def group(n: int) -> list[Pod]:
        owners = owned("StatefulSet", "g"), owned("StatefulSet", f"g-{n}")
        return [pod(f"g-{n}-{i}", 8, owner=one, labels=lws_labels(group=n)) for i, one in enumerate(owners)]

    assert [gang.pods for gang in view(group(0), group(1)).gangs.values()] == [tuple(group(0)), tuple(group(1))]


@each_kind
def test_extra_members_are_members(kind: Kind) -> None:
    four = [*kind.three(), kind.make(3)]
    gang = gang_of(view(four, kind.needs()), four[3])
    assert (gang.size, gang.pods) == (3, tuple(four))
    assert verdict(gang) is None


@each_kind
def test_a_member_deleted_while_waiting_leaves_the_gang_incomplete(kind: Kind) -> None:
    pods = [*kind.three()[:2], kind.make(2, going=5)]
    gang = gang_of(view(pods, kind.needs()), pods[0])
    assert gang.pods == tuple(pods[:2])
    assert verdict(gang) is not None


@each_kind
@pytest.mark.parametrize("cards", [0, 1])
def test_a_launcher_counts_and_takes_no_node(kind: Kind, cards: int) -> None:
    launcher, workers = kind.make(0, cards), [kind.make(index) for index in (1, 2)]
    seen = view(launcher, workers, kind.needs())
    gang = gang_of(seen, workers[0])
    assert gang.pods == (launcher, *workers)
    assert seen.takers(gang) == tuple(workers)
    assert verdict(gang) is None
    assert [one.spec.nodes for one in wanted(seen)] == [2]
    without = gang_of(view(workers, kind.needs()), workers[0])
    assert verdict(without) is not None


def test_pods_without_cards_make_no_gang_and_join_none_of_another_namespace() -> None:
    worker, elsewhere = in_tree(0), in_tree(1, 0, ns="other")
    assert [gang.pods for gang in view(worker, elsewhere).gangs.values()] == [(worker,)]
    assert view(in_tree(0, 0), pod("web", 0)).gangs == {}


@pytest.mark.parametrize("make", [named, in_tree, of_kueue, coscheduled])
def test_ended_members_of_an_owner_with_live_ones_are_not_waited_for(make: Callable[..., Pod]) -> None:
    groups = [pod_group("g", 3), coscheduling_group("g", 3)]
    owner = owned("ReplicaSet", "one")
    alive = make(0, owner=owner) if make in {in_tree, coscheduled} else make(0)
    ended = [pod("x", 8, ns="team-b", phase="Succeeded", uid=f"e{n}") for n in range(2)]
    mine = [marked(one, alive, owner.uid) for one in ended]
    assert gang_of(view(alive, mine, groups), alive).size == 1
    others = [marked(one, alive, "an earlier run") for one in ended]
    assert gang_of(view(alive, others, groups), alive).size == 3
    more = [marked(pod("y", uid=f"f{n}", ns="team-b", phase="Succeeded"), alive, owner.uid) for n in range(3)]
    assert gang_of(view(alive, mine, more, groups), alive).size == 1


def test_ended_members_without_owner_may_be_of_an_earlier_run() -> None:
    ended = [in_tree(index, phase="Succeeded") for index in (1, 2)]
    assert gang_of(view(in_tree(0), ended, pod_group("g", 3)), in_tree(0)).size == 3
