"""Why a pod waits while nodes are there: held for others, being vacated for it, or not to be had without a word."""

from typing import Any

import msgspec
import pytest

from fleet.marks import taint
from fleet.names import CLAIM_KEY
from fleet.reasons import Reason
from fleet.resources import Budget, Checkpoint, Drain, HeldNode, Phase, PhaseTime, Policy
from fleet.why.explanations import Kind, Result, Stage, Wait
from tests.fleet.asking import BIG, NOW, SMALL, planned, waiting_claim, why
from tests.fleet.builders import agreement, at, claim, members, node, owned, pod, pool, ref, view
from tests.fleet.scenes import small


def held(name: str, uid: str, **more: Any) -> Any:
    return node(name, taints=(taint(uid),), **more)


def test_a_small_pod_waits_for_a_node_that_is_held_for_a_gang() -> None:
    other = claim("other", phase=Phase.DRAINING, held=[HeldNode("n1", "node-n1")])
    found = why(view(held("n1", other.metadata.uid), other, agreement(), pod("p")), "p")
    assert (found.stage, found.reason) == (Stage.RESERVED, Wait.HELD)
    assert [(one.name, one.phase, one.nodes) for one in found.holders] == [("other", "Draining", ("n1",))]
    assert "claim team-b/other (Draining)" in found.text
    orphan = why(view(held("n1", "nobody"), agreement(), pod("p")), "p")
    assert "nobody, which does not exist" in orphan.text


def test_a_gang_waits_for_nodes_that_are_held_for_another() -> None:
    other = claim("other", gang=ref("first"), phase=Phase.DRAINING, held=[HeldNode("n1", "node-n1")])
    fleet = [held("n1", other.metadata.uid), other, small(2, "n1"), members(1)]
    one = claim(created=50)
    found = why(view(*fleet, planned(view(*fleet, one), one)))
    assert (found.stage, found.reason) == (Stage.RESERVED, Wait.HELD)
    assert [one.name for one in found.holders] == ["other"]


def test_a_younger_claim_waits_for_the_older_one() -> None:
    old, young = claim("old", gang=ref("first")), claim("young", created=50)
    fleet = [node("n1"), small(3, "n1"), members(1, gang="first"), members(1)]
    older = planned(view(*fleet, old), old)
    younger = planned(view(*fleet, older, young), young, n1=str(Reason.OLDER_CLAIM))
    found = why(view(*fleet, older, younger))
    assert (found.stage, found.reason) == (Stage.RESERVED, Reason.OLDER_CLAIM)
    assert [(one.name, one.nodes) for one in found.holders] == [("old", ("n1",))]
    assert "n1 is kept for claim team-b/old (Pending)" in found.text


def test_its_own_drain_says_what_is_left_on_the_nodes_and_until_when() -> None:
    own = claim(
        phase=Phase.DRAINING,
        held=[HeldNode("n1", "node-n1", NOW)],
        reason=str(Reason.TERMINATING),
        message="2 of 2 card holder(s) left are terminating",
    )
    going = [pod(f"v-{index}", on="n1", going=1010 + index) for index in range(2)]
    found = why(view(held("n1", own.metadata.uid), own, going, members(1, gates=[CLAIM_KEY])))
    assert (found.kind, found.stage, found.reason) == (Kind.NOT_ATTEMPTED, Stage.RESERVED, Reason.TERMINATING)
    assert "2 pods with cards left there" in found.text
    assert found.ends is not None
    assert found.ends.at == at(1011)


def test_nodes_whose_pods_are_left_to_end_say_until_when() -> None:
    held_nodes = [HeldNode("n1", "node-n1", NOW)]
    own = claim(phase=Phase.DRAINING, held=held_nodes, reason=str(Reason.SOFT_VACATE), message="left alone")
    own = msgspec.structs.replace(own, status=msgspec.structs.replace(own.status, stop_nobody_until=at(1200)))
    found = why(view(held("n1", own.metadata.uid), own, small(2, "n1"), members(1, gates=[CLAIM_KEY])))
    assert (found.stage, found.reason) == (Stage.RESERVED, Reason.SOFT_VACATE)
    assert found.ends is not None
    assert found.ends.at == at(1200)


def test_a_claim_that_gave_its_nodes_back_says_when_it_is_tried_again() -> None:
    own = claim(phase=Phase.BLOCKED, reason=str(Reason.EVICTION_REFUSED), message="refused", retry_at=at(1010))
    found = why(view(node("n1"), own, small(2, "n1"), node("n2"), members(1)))
    assert (found.stage, found.reason) == (Stage.RESERVED, Reason.EVICTION_REFUSED)
    assert found.ends is not None
    assert found.ends.at == at(1010)


def test_a_claim_that_gave_its_nodes_back_says_why_though_pods_run_there_now() -> None:
    gone = claim(phase=Phase.BLOCKED, reason=str(Reason.PROTECTED_POD), message="x", retry_at=at(1100))
    for cards in (1, 5):
        busy = [node("n1"), node("n2"), small(cards, "n1"), small(cards, "n2")]
        found = why(view(BIG, busy, members(1), gone))
        assert (found.stage, found.reason) == (Stage.RESERVED, Reason.PROTECTED_POD)
        assert found.ends is not None
        assert found.ends.at == at(1100)


def test_an_open_node_that_the_scheduler_has_not_used_yet() -> None:
    own = claim(phase=Phase.LANDING, held=[HeldNode("n1", "node-n1")], reason=str(Reason.LANDING))
    seen = view(held("n1", own.metadata.uid, labels={CLAIM_KEY: own.metadata.uid}), own, members(1))
    assert (why(seen).stage, why(seen).reason) == (Stage.SCHEDULER, Reason.LANDING)


@pytest.mark.parametrize(
    ("objects", "reason", "word"),
    [
        ([], Reason.AGREEMENT_MISSING, "team-v would have to write a DrainAgreement for namespace team-b"),
        ([agreement(max_priority=-1)], Reason.AGREEMENT_TERMS, "change the terms"),
        ([agreement(), pool(drain=Drain.DISABLED)], Reason.DRAIN_DISABLED, "drain: Agreed"),
        (
            [agreement(budget=Budget(evictions_per_hour=2))],
            Reason.AGREEMENT_BUDGET,
            "enough of the budget has aged out",
        ),
        ([agreement(checkpoint=Checkpoint(required=True))], Reason.CHECKPOINT_MISSING, "report a checkpoint"),
    ],
)
def test_a_gang_that_wants_to_use_agreements_is_told_whose_word_is_missing(
    objects: list[Any], reason: Reason, word: str
) -> None:
    fleet = [node("n1"), node("n2"), small(3, "n1"), small(3, "n2"), members(1), objects]
    found = why(waiting_claim(*fleet))
    assert (found.stage, found.reason) == (Stage.AGREEMENT, reason)
    assert found.text.startswith("No solution as the agreements stand")
    assert found.ends is not None
    assert word in found.ends.how
    results = {one.stage: one.result for one in found.checked}
    assert results[Stage.TOPOLOGY] is Result.NOT_OK, "that is why anybody is asked"


def test_too_few_free_cards_name_the_word_that_would_do_as_well() -> None:
    found = why(waiting_claim(node("n1"), node("n2"), small(7, "n1"), small(7, "n2"), members(1)))
    assert (found.stage, found.reason) == (Stage.CAPACITY, Wait.NOT_ENOUGH)
    assert found.ends is not None
    assert found.ends.how == (
        "pods on its nodes end; or team-v would have to write a DrainAgreement for namespace team-b"
    )


def test_a_service_that_must_keep_its_replicas_leaves_no_solution() -> None:
    """The four-card story's variant: both replicas are needed, one on each node."""
    cards = {"cards": 2}
    service = owned("ReplicaSet", "a")
    replicas = [pod(f"a-{n}", on=f"n{n}", owner=service, ready=True, ns="team-a") for n in (1, 2)]
    gang = [pod("train-0", 2, ns="team-b", gang="train", size=1)]
    keep = agreement(ns="team-a", keep_ready=2)
    found = why(waiting_claim(pool(cards=2), node("n1", **cards), node("n2", **cards), replicas, gang, keep))
    assert (found.stage, found.reason) == (Stage.AGREEMENT, Reason.KEEP_READY)
    assert found.text.startswith("No solution")


def test_a_small_pod_that_lacks_only_an_agreement_is_told_who_could_write_one() -> None:
    fleet = [SMALL, BIG, node("n1", "small"), small(8, "n1", ns="team-w"), node("n2"), pod("p")]
    found = why(view(fleet), "p")
    assert (found.stage, found.reason) == (Stage.AGREEMENT, Wait.NOT_LENT)
    assert "namespace team-v has none" in found.text
    assert found.ends is not None
    assert "namespace team-v makes a DrainAgreement there" in found.ends.how
    void = why(view(fleet, agreement("old", expires=500)), "p")
    assert "that of namespace team-v is void (old)" in void.text
    assert why(view(fleet, agreement()), "p").stage is Stage.SCHEDULER


def test_a_failed_claim_is_final_for_its_pods_and_not_for_new_ones() -> None:
    failed = claim(
        phase=Phase.FAILED,
        reason=str(Reason.START_FAILED),
        message="pod x could not start",
        phases=(PhaseTime(Phase.FAILED, at(100)),),
    )
    found = why(view(node("n1"), failed, members(1)))
    assert (found.stage, found.reason) == (Stage.START, Reason.START_FAILED)
    again = why(view(node("n1"), failed, members(1, created=200)))
    assert (again.stage, again.reason) == (Stage.RESERVED, Wait.NO_CLAIM)
    late = msgspec.structs.replace(failed, status=msgspec.structs.replace(failed.status, reason=str(Reason.DEADLINE)))
    assert why(view(node("n1"), late, members(1))).stage is Stage.RESERVED


def test_a_preview_never_holds_anything() -> None:
    one = claim(policy=Policy.PREVIEW, phase=Phase.PLANNED, reason=str(Reason.PREVIEW), message="1 free node(s)")
    found = why(view(node("n1"), one, members(1)))
    assert (found.stage, found.reason) == (Stage.RESERVED, Reason.PREVIEW)
    assert "only plans, nothing is ever held for it (1 free node(s))" in found.text
