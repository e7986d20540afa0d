"""Taints, pods past the scheduler, node locks, agreements, our own parts; and how a report is put together."""

import textwrap
from dataclasses import replace

import msgspec
import pytest
import yaml

from fleet.doctor import bypass, consent, locks, own, taints
from fleet.doctor.checkup import Definition, LeaseSeen, Program, Seen, TaintWriter
from fleet.doctor.findings import Code, Finding, Verdict, worst
from fleet.doctor.registry import CHECKS, NAMES, examine
from fleet.hami import LOCK
from fleet.kueue.objects import AdmissionCheckSpec
from fleet.objects import Node
from fleet.resources import Accepts, Drain, DrainAgreement, DrainRecord, GPUPool, Phase, WholeNodeClaim
from fleet.times import format_time
from tests.fleet.builders import agreement, at, claim, node, owned, pod, pool
from tests.fleet.doctor.pictures import OURS, by_scheduler, codes, config, only, our_check, queue, seen
from tests.fleet.shares import shared_node, sharing

OURS_TAINT = TaintWriter("n1", "wholenode", applies=False)


def test_a_taint_that_was_taken_away() -> None:
    lost = claim("c", phase=Phase.BLOCKED, reason="TaintRemoved")
    picture = seen(node("n1"), lost, taint_writers=(OURS_TAINT, TaintWriter("n1", "fixer", applies=True)))
    found = only(taints.check(picture), Code.TAINT_REMOVED)
    assert found.verdict is Verdict.PROBLEM
    assert found.evidence["claimsThatLostTheirTaint"] == ["team-b/c"]
    assert "fixer" in found.summary
    again = claim("c", phase=Phase.PENDING, reason="TaintRemoved")
    assert not codes(taints.check(seen(node("n1"), again)))


def test_who_else_writes_taints() -> None:
    usual = (
        OURS_TAINT,
        TaintWriter("n1", "kube-controller-manager", applies=False),
        TaintWriter("n1", "kubectl-taint", applies=False),
    )
    assert not codes(taints.check(seen(node("n1"), taint_writers=usual)))
    others = (*usual, TaintWriter("n2", "gpu-health", applies=False))
    found = only(taints.check(seen(node("n1"), taint_writers=others)), Code.SEVERAL_TAINT_WRITERS)
    assert found.evidence["nodesByWriter"]["gpu-health"] == 1
    applied = (TaintWriter("n1", "kubectl", applies=True),)
    assert codes(taints.check(seen(node("n1"), taint_writers=applied))) == {Code.SEVERAL_TAINT_WRITERS}


def test_h07_a_card_that_hami_does_not_know_is_in_use() -> None:
    stray = by_scheduler(pod("stray", 2, on="h0"), "default-scheduler")
    found = only(bypass.check(seen(shared_node("h0"), stray, sharing("ok", "h0", {0: (1000, 10)}))), Code.BYPASSES_HAMI)
    assert found.evidence == {"pods": ["team-v/stray"], "cards": 2, "byScheduler": {"default-scheduler": 1}}
    assert "kubectl -n team-v delete pod stray" in found.fix
    assert not codes(bypass.check(seen(shared_node("h0"), pod("ended", on="h0", phase="Succeeded"))))


def test_pods_of_other_schedulers_and_of_daemonsets() -> None:
    picture = seen(
        node("n"),
        node("free", ""),
        by_scheduler(pod("v", on="n"), "volcano"),
        by_scheduler(pod("w", on="free"), "volcano"),
        pod("d", on="n", owner=owned("DaemonSet", "d")),
        scheduler_configs=(config(OURS),),
    )
    found = bypass.check(picture)
    assert only(found, Code.OTHER_SCHEDULER).evidence["pods"] == ["team-v/v"]
    assert only(found, Code.CARDS_OF_DAEMONSET).evidence["pods"] == ["team-v/d"]
    assert not codes(bypass.check(seen(node("n"), pod("p", on="n"), scheduler_configs=(config(OURS),))))


def locked(by: str, ago: float) -> Node:
    made = shared_node("h0")
    notes = {**(made.metadata.annotations or {}), LOCK: f"{format_time(at(600 - ago))},team-v,{by}"}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=notes))


def test_h11_the_lock_of_a_pod_that_is_gone() -> None:
    found = only(locks.check(seen(locked("gone", 12))), Code.LOCK_OF_GONE_POD)
    (lock,) = found.evidence["locks"]
    assert (lock["node"], lock["pod"], lock["ageSeconds"], lock["podExists"]) == ("h0", "team-v/gone", 12.0, False)
    assert "kubectl annotate node h0 hami.io/mutex.lock-" in found.fix
    assert found.verdict is Verdict.WARNING, "HAMi's next binding takes it over"
    assert not codes(locks.check(seen(locked("gone", 3)))), "its pod may have been made since the pods were read"
    ended = pod("p", on="h0", phase="Succeeded")
    held = only(locks.check(seen(locked("p", 3), ended)), Code.LOCK_OF_ENDED_POD)
    assert held.verdict is Verdict.PROBLEM


def test_a_lock_that_stays() -> None:
    assert codes(locks.check(seen(locked("p", 45), pod("p", on="h0")))) == {Code.OLD_LOCK}
    assert not codes(locks.check(seen(locked("p", 2), pod("p", on="h0"))))


def test_a_fight_for_the_lock() -> None:
    def failed(pods: int, ago: float = 10) -> tuple[Seen, ...]:
        text = "node lock of h0 is held by another pod"
        return tuple(Seen("BindingFailed", f"team-v/p{index}", text, 2, at(600 - ago)) for index in range(pods))

    picture = seen(shared_node("h0"), sharing("p", "h0", {0: (1, 1)}), events=failed(4))
    found = only(locks.check(picture), Code.LOCK_CONTENTION)
    assert (found.evidence["failedBindings"], found.evidence["pods"]) == (8, 4)
    assert not codes(locks.check(seen(shared_node("h0"), events=failed(2))))
    assert not codes(locks.check(seen(shared_node("h0"), events=failed(4, ago=900))))
    assert locks.check(seen(node("n")))[0].code is Code.NOT_USED


def test_namespaces_that_have_not_agreed() -> None:
    pods = [pod("a", 3, on="n", ns="team-v"), pod("b", 2, on="n", ns="team-w"), pod("c", 8, on="m", ns="team-x")]
    nodes = [node("n"), node("m")]
    found = only(consent.check(seen(nodes, pods, agreement(ns="team-v"))), Code.NO_AGREEMENT)
    assert found.verdict is Verdict.WARNING
    assert found.evidence["namespaces"] == {"team-w": {"pods": 1, "cards": 2, "nodes": 1}}
    assert "namespace: team-w}" in found.fix
    going = pod("g", on="n", ns="team-z", going=500)
    assert not codes(consent.check(seen(nodes, pods[:1], going, agreement(ns="team-v"))))
    waits = consent.check(seen(nodes, pods, agreement(ns="team-v"), claim()))
    assert only(waits, Code.NO_AGREEMENT).verdict is Verdict.PROBLEM
    assert not codes(consent.check(seen(nodes, pods, agreement(ns="team-v"), agreement(ns="team-w"))))


@pytest.mark.parametrize(("now", "verdict"), [(314, Verdict.WARNING), (315, Verdict.PROBLEM)])
def test_a_claim_that_is_patient_yet_needs_nobody(now: float, verdict: Verdict) -> None:
    patient = claim(created=0, patience="5m")
    found = consent.check(seen(node("n"), pod("a", on="n", ns="team-w"), patient, now=now))
    assert only(found, Code.NO_AGREEMENT).verdict is verdict


def test_void_agreements_and_pools_that_are_never_vacated() -> None:
    expired = consent.check(seen(node("n"), pod("a", on="n"), agreement(expires=60)))
    assert codes(expired) == {Code.VOID_AGREEMENT, Code.NO_AGREEMENT}
    disabled = pool(drain=Drain.DISABLED)
    assert not codes(consent.check(seen(node("n"), disabled, pod("a", on="n"))))
    found = only(consent.check(seen(node("n"), disabled, claim())), Code.DRAIN_DISABLED)
    assert found.fix == 'kubectl patch gpupool big --type=merge -p \'{"spec":{"drain":"Agreed"}}\''
    assert not codes(consent.check(seen(node("n"), disabled, claim(phase=Phase.BOUND))))


def defined(lacks: str = "") -> tuple[Definition, ...]:
    found = []
    for kind in (GPUPool, DrainAgreement, WholeNodeClaim, DrainRecord):
        parts = {one.name: one.type for one in msgspec.structs.fields(kind)}
        spec, status = (
            frozenset(one.encode_name for one in msgspec.structs.fields(parts[name])) - {lacks}
            for name in ("spec", "status")
        )
        found.append(Definition(f"{kind.definition.plural}.wholenode.io", frozenset({"v1alpha1"}), spec, status))
    return tuple(found)


LEASE = LeaseSeen("wholenode-system/wholenode-controller", "me", at(598), 15)


def healthy(*objects: object, **more: object) -> set[Code]:
    given = {"definitions": defined(), "leases": (LEASE,), "gates": ("wholenode-gate",), **more}
    return codes(own.check(seen(node("n"), *objects, **given)))  # type: ignore[arg-type]


def test_our_own_parts_in_order() -> None:
    assert healthy() == set()
    assert healthy(definitions=()) == set()


def test_fixes_can_be_copied_as_they_stand() -> None:
    """Each line of a fix is indented where it is shown: the end of a here-document would not be seen."""
    pools = only(own.check(seen(node("n"), kueue={"pools": ()})), Code.POOL_EMPTY).fix
    made = yaml.safe_load(textwrap.indent(pools.partition("\n")[2], "    "))
    assert (made["kind"], made["spec"]["accepts"]) == ("GPUPool", "WholeNode")
    labels = {"app.kubernetes.io/part-of": "wholenode"}
    ours = Program("elsewhere/wholenode-extender", "extender", "wholenode", (), labels)
    gate = only(own.check(seen(node("n"), gates=(), programs=(ours,))), Code.NO_GATE).fix
    assert "--namespace elsewhere " in gate


def test_our_own_parts_out_of_order() -> None:
    assert healthy(definitions=defined("topologyKey")) == {Code.OLD_CRD}
    assert healthy(definitions=defined()[:3]) == {Code.OLD_CRD}
    old = tuple(replace(one, served=frozenset({"v1alpha0"})) for one in defined())
    assert healthy(definitions=old) == {Code.OLD_CRD}
    assert healthy(leases=(LeaseSeen("l", "me", at(0), 15),)) == {Code.LEASE_STALE}
    assert healthy(leases=(LeaseSeen("l", "", at(599), 15),)) == {Code.LEASE_STALE}
    assert healthy(leases=()) == {Code.LEASE_STALE}
    assert healthy(leases=(), missing={"leases": "forbidden"}) == set()
    assert healthy(gates=()) == {Code.NO_GATE}
    assert healthy(kueue={"checks": (our_check(active=False),)}) == {Code.CHECK_INACTIVE}
    assert healthy(kueue={"checks": (our_check(),)}, queues=(queue(), queue("b", active=False))) == {
        Code.QUEUE_INACTIVE
    }
    old_kueue = Definition("workloads.kueue.x-k8s.io", frozenset({"v1beta1"}), frozenset(), frozenset())
    assert healthy(definitions=(*defined(), old_kueue)) == {Code.OLD_KUEUE}
    both = replace(old_kueue, served=frozenset({"v1beta1", "v1beta2"}))
    assert healthy(definitions=(*defined(), both)) == set()
    assert healthy(absent=frozenset({"gpupools"})) == {Code.NOT_INSTALLED}
    labels = {"app.kubernetes.io/part-of": "wholenode"}
    half = Program("ns/wholenode-extender", "extender", "wholenode", (), labels, 2, 1)
    assert healthy(programs=(half,)) == {Code.NOT_READY}
    assert healthy(programs=(replace(half, ready=2),)) == set()
    foreign = msgspec.structs.replace(our_check(active=False), spec=AdmissionCheckSpec("somebody/else"))
    assert healthy(kueue={"checks": (foreign,)}) == set()
    assert healthy(programs=(Program("ns/x", "x", "x", (), {}, 2, 0),)) == set()


def test_pools_that_overlap_or_are_empty() -> None:
    same = pool("twin", labels={"pool": "big"})
    assert healthy(pool("big"), same) == {Code.POOLS_OVERLAP}
    assert healthy(pool("big"), pool("none")) == {Code.POOL_EMPTY}
    assert healthy(pool("big", cards=4)) == {Code.POOL_UNFIT}
    small = pool("small", accepts=Accepts.SMALL)
    assert healthy(pool("big"), small, node("s", "small"), node("x", ""), pod("p", on="x")) == {Code.POOL_UNFIT}


def test_a_check_without_what_it_needs_is_unknown_and_names_it() -> None:
    report = examine(seen(node("n"), missing={"pods": "pods is forbidden"}), ("node-locks",))
    [answer] = report.answers
    assert answer.verdict is Verdict.UNKNOWN
    assert answer.findings[0].code is Code.NOT_READ
    assert answer.unread == ("pods: pods is forbidden",)
    assert report.exit_code == 2


def test_a_problem_counts_more_than_what_could_not_be_checked() -> None:
    ended = pod("p", on="h0", phase="Succeeded")
    report = examine(seen(node("n"), locked("p", 1), ended, missing={"gpupools": "no"}))
    assert report.verdict is Verdict.PROBLEM
    assert report.exit_code == 1


def test_files_are_asked_only_what_they_can_answer() -> None:
    report = examine(seen(node("n"), saved=True))
    assert set(report.skipped) == {"quota-unit", "preemption", "scheduler-config", "taint-writers", "wholenode"}
    assert {one.check for one in report.answers} == set(NAMES) - set(report.skipped)
    assert report.exit_code == 0


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_every_check_says_something_of_an_empty_cluster(check: object) -> None:
    from fleet.doctor.registry import Check

    assert isinstance(check, Check)
    found = check.run(seen(now=0))
    assert found
    assert all(isinstance(one, Finding) and one.summary for one in found)
    assert all(one.fix for one in found if one.verdict is not Verdict.OK)


def test_verdicts_are_ordered() -> None:
    assert worst(()) is Verdict.OK
    assert worst((Verdict.WARNING, Verdict.UNKNOWN)) is Verdict.UNKNOWN
    assert worst((Verdict.PROBLEM, Verdict.UNKNOWN)) is Verdict.PROBLEM
