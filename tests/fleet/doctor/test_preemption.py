"""Preemption without topology: quota back, no whole node."""

import msgspec

from fleet.doctor.checkup import CheckRule
from fleet.doctor.findings import Code, Verdict
from fleet.doctor.preemption import check
from fleet.kueue.objects import WORKLOAD
from fleet.objects import Pod
from tests.fleet.builders import node, owned, pod
from tests.fleet.doctor.pictures import codes, flavor, only, our_check, placed, queue, seen, workload

NODES = [node(f"n{index}") for index in range(4)]
SMALL = [placed(f"p{index}", f"n{index}", bound=1) for index in range(4)]
ADMITTED = workload("big", said=("QuotaReserved", "Admitted"))
VICTIMS = [workload(f"v{index}", said=("Evicted",), by="team-b") for index in range(3)]


def waiting(name: str = "big-0") -> Pod:
    return pod(name, 8, ns="team-a", notes={WORKLOAD: "big"})


def test_admitted_and_no_node_is_whole() -> None:
    kueue = {"flavors": (flavor(),), "workloads": (ADMITTED, *VICTIMS)}
    found = only(
        check(seen(NODES, SMALL, waiting(), kueue=kueue, queues=(queue(reclaim="Any"),))), Code.RECLAIMED_IN_VAIN
    )
    assert found.verdict is Verdict.PROBLEM
    assert found.evidence["admittedWithoutNode"] == ["team-a/big"]
    assert found.evidence["workloadsEvicted"] == 3
    assert "admissionChecks: [{name: vacate-node, onFlavors: [cards]}]" in found.fix
    assert "kind: AdmissionCheck" in found.fix


def test_the_fix_names_the_check_that_is_there() -> None:
    kueue = {"flavors": (flavor(),), "checks": (our_check("ours"),)}
    fix = only(check(seen(NODES, kueue=kueue, queues=(queue(reclaim="Any"),))), Code.RECLAIM_WITHOUT_TOPOLOGY).fix
    assert "admissionChecks: [{name: ours, onFlavors: [cards]}]" in fix
    assert "kind: AdmissionCheck" not in fix


def test_a_job_whose_victims_are_still_ending_does_not_wait_in_vain() -> None:
    kueue = {"flavors": (flavor(),), "workloads": (ADMITTED,)}
    new = pod("big-0", 8, ns="team-a", notes={WORKLOAD: "big"}, created=590)
    for now, code in ((600, Code.RECLAIM_WITHOUT_TOPOLOGY), (606, Code.RECLAIMED_IN_VAIN)):
        picture = seen(NODES, SMALL, new, kueue=kueue, queues=(queue(reclaim="Any"),), now=now)
        assert codes(check(picture)) == {code}


def test_the_pod_is_found_by_its_job_too() -> None:
    of_job = pod("big-0", 8, ns="team-a", owner=owned("Job", "big", "u1"))
    meta = msgspec.structs.replace(ADMITTED.metadata, owner_references=(owned("Job", "big", "u1"),))
    kueue = {"flavors": (flavor(),), "workloads": (msgspec.structs.replace(ADMITTED, metadata=meta),)}
    assert codes(check(seen(NODES, SMALL, of_job, kueue=kueue, queues=(queue(within="LowerPriority"),)))) == {
        Code.RECLAIMED_IN_VAIN
    }


def test_while_a_node_is_whole_it_is_a_warning() -> None:
    kueue = {"flavors": (flavor(),), "workloads": (ADMITTED,)}
    picture = seen(NODES, SMALL[:2], waiting(), kueue=kueue, queues=(queue(reclaim="Any"),))
    assert only(check(picture), Code.RECLAIM_WITHOUT_TOPOLOGY).verdict is Verdict.WARNING


def test_topology_or_our_check_or_no_preemption_is_fine() -> None:
    blind = queue(reclaim="Any")
    ours = queue(reclaim="Any", checks=(CheckRule("vacate", ("cards",)),))
    other = queue(reclaim="Any", checks=(CheckRule("vacate", ("elsewhere",)),))
    kueue = {"flavors": (flavor(),), "checks": (our_check(),)}
    assert codes(check(seen(NODES, kueue=kueue, queues=(blind,))))
    assert codes(check(seen(NODES, kueue=kueue, queues=(other,))))
    assert not codes(check(seen(NODES, kueue=kueue, queues=(ours,))))
    assert not codes(check(seen(NODES, kueue={"flavors": (flavor(topology="racks"),)}, queues=(blind,))))
    assert not codes(check(seen(NODES, kueue={"flavors": (flavor(),)}, queues=(queue(),))))


def test_pods_that_are_held_back_are_not_stranded() -> None:
    gated = pod("big-0", 8, ns="team-a", notes={WORKLOAD: "big"}, gates=("wholenode.io/claim",))
    kueue = {"flavors": (flavor(),), "workloads": (ADMITTED,)}
    picture = seen(NODES, SMALL, gated, kueue=kueue, queues=(queue(reclaim="Any"),))
    assert codes(check(picture)) == {Code.RECLAIM_WITHOUT_TOPOLOGY}
