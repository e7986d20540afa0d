"""Records of stopped pods: one for each intention, open until it is known what became of the pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fleet.actions import Answer, EvictionAnswer, Look, ResolveRecord
from fleet.gangs import gang_ref
from fleet.objects import Pod
from fleet.records import job_key, pending_elsewhere, record_name, record_of, resolutions, standing
from fleet.resources import DrainRecord, HeldNode, Outcome, Phase, PhaseTime, Victim, WholeNodeClaim
from fleet.retention import Keep, outdated
from fleet.summaries import agreement_status
from tests.fleet.builders import agreement, at, claim, job, members, node, owned, pod, record, view

VICTIM = Victim(
    "team-v",
    "p",
    "team-v.p",
    "n1",
    2,
    priority=-5,
    gang="team-v/Pod/p/team-v.p",
    agreement="yes",
    lost_gpu_seconds=12.5,
    evicted_at=at(100),
    job="Pod/team-v/p",
    saved_at=at(40),
)
WRITTEN = msgspec.structs.replace(record_of(claim(), VICTIM, "train", agreement(), at(101)), status=record().status)
WRITTEN = msgspec.structs.replace(
    WRITTEN,
    metadata=msgspec.structs.replace(WRITTEN.metadata, uid="r"),
    status=msgspec.structs.replace(WRITTEN.status, outcome=Outcome.PENDING),
)


def holding(**more: Any) -> WholeNodeClaim:
    given = {"phase": Phase.DRAINING, "held": [HeldNode("n1", "node-n1")], "victims": (VICTIM,), **more}
    return claim(**given)


def outcome_of(*objects: Any, **known: Any) -> Outcome:
    """What the record of `VICTIM` is resolved to; Pending if it is left open."""
    found = list(resolutions(view(node("n1"), WRITTEN, *objects), at(200), **known))
    assert all((one.record, one.at) == (WRITTEN, at(200)) for one in found)
    return found[0].outcome if found else Outcome.PENDING


# What a record says


def test_it_says_who_was_stopped_for_whom_and_what_it_cost() -> None:
    spec = WRITTEN.spec
    assert (WRITTEN.metadata.namespace, spec.pod, spec.pod_uid, spec.node, spec.cards) == (
        "team-v",
        "p",
        "team-v.p",
        "n1",
        2,
    )
    assert (spec.claim, spec.claim_uid, spec.beneficiary, spec.beneficiary_gang) == (
        "team-b/c",
        "uid-team-b-c",
        "team-b",
        "train",
    )
    assert (spec.agreement, spec.agreement_uid) == ("yes", "agreement-team-v-yes")
    assert (spec.at, spec.saved_at, spec.lost_gpu_seconds, spec.job, spec.priority) == (
        at(100),
        at(40),
        12.5,
        "Pod/team-v/p",
        -5,
    )


def test_writing_an_intention_down_twice_is_one_record_and_another_intention_is_another() -> None:
    assert record_name("p", "c", at(1)) == record_name("p", "c", at(1))
    names = {record_name("p", "c", at(1)), record_name("q", "c", at(1)), record_name("p", "d", at(1))}
    assert len({*names, record_name("p", "c", at(2))}) == 4
    assert record_of(claim(), VICTIM, "train", None, at(150)).metadata.name == WRITTEN.metadata.name


@pytest.mark.parametrize(
    ("one", "key"),
    [
        (pod("a", on="n1"), "Pod/team-v/a"),
        (pod("a-x7", on="n1", owner=owned("ReplicaSet", "web", "u1")), "ReplicaSet/team-v/web/u1"),
        (pod("a", on="n1", gang="ring", size=2), "team-v/Gang/ring/"),
    ],
)
def test_d38_a_job_stays_the_same_when_its_pods_are_made_anew(one: Pod, key: str) -> None:
    again = msgspec.structs.replace(one.metadata, uid="another")
    assert job_key(one, gang_ref(one, {})) == key
    assert job_key(Pod(again, one.spec), gang_ref(Pod(again, one.spec), {})) == key


def test_the_pods_of_an_indexed_job_are_one_job() -> None:
    train = job("train", ns="team-v", parallelism=1)
    one = pod("train-0", on="n1", owner=owned("Job", "train"))
    assert job_key(one, gang_ref(one, {train.metadata.uid: train})) == "team-v/Job/train/job-train"


# Whether it allows a pod to be stopped


def test_only_the_record_of_this_very_intention_stands() -> None:
    seen = view(WRITTEN)
    assert standing(seen, claim(), VICTIM) == WRITTEN
    assert standing(seen, claim(uid="other"), VICTIM) is None
    assert standing(seen, claim(), msgspec.structs.replace(VICTIM, evicted_at=at(101))) is None
    spared = msgspec.structs.replace(WRITTEN, status=record(outcome=Outcome.SPARED).status)
    assert standing(view(spared), claim(), VICTIM) is None


def test_while_another_claims_record_is_open_the_pod_is_left_to_it() -> None:
    assert pending_elsewhere(view(WRITTEN), "team-v.p", "other") == WRITTEN
    assert pending_elsewhere(view(WRITTEN), "team-v.p", "uid-team-b-c") is None
    assert pending_elsewhere(view(record()), "team-v.p", "other") is None


# What became of the pod


def test_a_pod_that_is_going_or_gone_was_stopped() -> None:
    assert outcome_of(holding(), pod("p", on="n1", going=205)) is Outcome.STOPPED
    assert outcome_of(pod("p", on="n1", going=205, phase="Failed")) is Outcome.STOPPED
    assert outcome_of(holding()) is Outcome.STOPPED
    assert outcome_of(holding(), pod("p", on="n1", uid="namesake")) is Outcome.STOPPED


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_by_itself_was_spared(phase: str) -> None:
    assert outcome_of(holding(), pod("p", on="n1", phase=phase)) is Outcome.SPARED


@pytest.mark.parametrize(
    "after",
    [
        [],
        [holding(phase=Phase.BLOCKED)],
        [holding(phase=Phase.ROLLED_BACK)],
        [holding(held=[HeldNode("n2", "node-n2")])],
        [holding(victims=())],
        [holding(victims=(msgspec.structs.replace(VICTIM, evicted_at=at(150)),))],
        [holding(uid="another")],
    ],
)
def test_a_pod_that_runs_and_nobody_means_to_stop_was_spared(after: list[WholeNodeClaim]) -> None:
    assert outcome_of(*after, pod("p", on="n1")) is Outcome.SPARED


def test_it_stays_open_while_the_claim_holds_the_node_and_lists_the_victim() -> None:
    assert outcome_of(holding(), pod("p", on="n1")) is Outcome.PENDING


def test_a_pod_that_only_a_look_has_seen_is_not_gone() -> None:
    looks = {"n1": Look(at(150), (pod("p", on="n1"),))}
    assert outcome_of(holding(), looks=looks) is Outcome.PENDING
    assert outcome_of(looks=looks) is Outcome.STOPPED, "nobody looks at a node that was given back"


def test_a_pod_whose_eviction_was_accepted_is_not_spared() -> None:
    answers = {"team-v.p": Answer(EvictionAnswer.ACCEPTED)}
    assert outcome_of(holding(phase=Phase.BLOCKED), pod("p", on="n1"), answers=answers) is Outcome.PENDING
    refused = {"team-v.p": Answer(EvictionAnswer.REFUSED)}
    assert outcome_of(holding(phase=Phase.BLOCKED), pod("p", on="n1"), answers=refused) is Outcome.SPARED


def test_what_is_resolved_stays_so() -> None:
    resolved = [record("a", outcome=Outcome.STOPPED), record("b", outcome=Outcome.SPARED)]
    found: list[ResolveRecord] = list(resolutions(view(resolved), at(200)))
    assert found == []


# What the agreement's status tells


def test_an_agreement_tells_what_was_spent_and_by_whom() -> None:
    used = [
        record("a", stopped=90_000, lost=10, claim="one"),
        record("b", stopped=99_000, lost=5, claim="one"),
        record("c", stopped=99_500, lost=0, claim="two", outcome=Outcome.PENDING),
        record("d", stopped=99_600, lost=9, claim="three", outcome=Outcome.SPARED),
        record("e", stopped=99_700, lost=9, under="other"),
    ]
    status = agreement_status(view(used), agreement(), at(100_000))
    assert (status.lost_gpu_seconds_last_day, status.evictions_last_hour) == (15, 2)
    assert [(one.claim, one.at, one.pods, one.lost_gpu_seconds) for one in status.last_uses] == [
        ("team-b/c", at(99_000), 2, 15)
    ]


def test_the_last_five_uses_are_shown_the_latest_first() -> None:
    used = [record(f"p{index}", stopped=index, claim=f"claim-{index}") for index in range(7)]
    moments = [one.at for one in agreement_status(view(used), agreement(), at(100)).last_uses]
    assert moments == [at(second) for second in (6, 5, 4, 3, 2)]


# What is old enough to go


def ended(name: str, phase: Phase = Phase.BOUND, when: float = 0, **more: Any) -> WholeNodeClaim:
    return claim(name, phase=phase, phases=(PhaseTime(phase, at(when)),), **more)


DAY = 86_400


def old(*objects: Any, days: float, keep: tuple[int, int] = (90, 7)) -> list[str]:
    seen = view(*objects)
    found: list[DrainRecord | WholeNodeClaim] = list(outdated(seen, at(days * DAY), Keep.of_days(*keep)))
    return [one.spec.pod if isinstance(one, DrainRecord) else one.metadata.name for one in found]


def test_records_go_once_they_are_resolved_and_old() -> None:
    records = [record("b", stopped=1), record("a"), record("open", outcome=Outcome.PENDING)]
    assert old(records, days=90) == []
    assert old(records, days=91) == ["a", "b"]
    assert old(records, days=10_000, keep=(0, 7)) == []


def test_ended_claims_go_once_their_gang_has_no_live_pods() -> None:
    claims = [ended("gone", Phase.FAILED), ended("late", when=DAY), claim("waiting"), ended("done", Phase.RELEASED, 10)]
    assert old(claims, days=7.5) == ["gone", "done"]
    assert old(claims, members(), days=7.5) == [], "the claim that failed for good keeps its pods from another"
    assert old(claims, days=10_000, keep=(90, 0)) == []
