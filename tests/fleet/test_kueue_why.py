"""What people are told of a pod that waits for our admission check, or for the start of its job anew."""

from fleet.kueue.objects import WORKLOAD, CheckState
from fleet.names import CLAIM_KEY
from fleet.objects import Condition
from fleet.reasons import Reason
from fleet.wants import unready
from fleet.why.explain import explain
from fleet.why.explanations import Told, Wait, Workload
from tests.fleet.admissions import Queued, group, of_group, replace, workload
from tests.fleet.builders import at, claim, node, pod, ref, view
from tests.fleet.scenes import EVICT, small

RESERVED = (
    Condition("QuotaReserved", "True", "QuotaReserved", "ok"),
    Condition("Admitted", "False", "UnsatisfiedChecks", "The workload has not all checks ready"),
)


def test_the_claim_s_reason_is_given_for_a_pod_behind_kueue_s_gate() -> None:
    play, pods = Queued().add(node("n1"), small(2, "n1")), group(count=1)
    play.add(pods).queue(of_group(pods))
    play.run(5)
    said = play.answers_given[-1]
    checks = (CheckState("budget-office", "Ready"), CheckState(said.check, said.state, said.message))
    seen = explain(play.view(), pods[0], Told(workload=Workload("train", RESERVED, checks)), play.now)

    assert seen.reason == Wait.CHECKS
    assert f"admission check vacate is Pending ({Reason.AGREEMENT_MISSING} (claim " in seen.text
    assert "budget-office" not in seen.text
    assert seen.claim is not None
    assert seen.claim.reason == Reason.AGREEMENT_MISSING


def test_without_a_message_kueue_s_own_words_are_given() -> None:
    pods = group(count=1)
    told = Told(workload=Workload("train", RESERVED))
    text = explain(view(node("n1"), pods), pods[0], told, at(5)).text
    assert "Admitted is False (UnsatisfiedChecks: The workload has not all checks ready)" in text


def test_a_pod_of_kueue_s_that_is_pinned_for_good_is_told_what_helps() -> None:
    (one,) = group(count=1, selector={CLAIM_KEY: "gone"})
    notes = {**(one.metadata.annotations or {}), WORKLOAD: "job-train-1"}
    one = replace(one, metadata=replace(one.metadata, annotations=notes), spec=replace(one.spec, scheduling_gates=None))
    (gang,) = view(node("n1"), one).gangs.values()
    said = unready(claim(gang=ref()), gang)
    assert said is not None
    assert said[0] is Reason.PINNED
    assert said[1].endswith("spec.active of Workload job-train-1 false, then true")


def test_k16_a_pod_that_kueue_s_topology_keeps_from_every_node_is_told_so_even_if_all_nodes_are_full() -> None:
    play = Queued().add(node("n1", labels={"kubernetes.io/hostname": "n1"}), small(8, "n1"))
    values = {"individual": {"roots": ["n1"]}}
    on_host: dict[str, object] = {"levels": ["kubernetes.io/hostname"], "slices": [{"valuesPerLevel": [values]}]}
    play.queue(workload("train", entries=(), true=("Admitted",), topology={"main": on_host}))
    waits = pod("train-0", 8, ns="team-b", notes={**EVICT, WORKLOAD: "train"}, gates=(CLAIM_KEY,))
    play.add(waits).run(5)
    seen = explain(play.view(), waits, Told(), play.now)
    assert seen.reason == Reason.NOT_TOLERATED
    assert "tolerate wholenode.io/claim (operator Exists)" in seen.text
