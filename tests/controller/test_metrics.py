"""What the metrics say of claims and records: by phase, reason and parties, never by pod or claim."""

from __future__ import annotations

from controller.metrics import Metrics
from fleet.reasons import Reason
from fleet.resources import Outcome, Phase
from tests.fleet.builders import claim, record


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_waits_are_told_by_whose_they_are() -> None:
    metrics = Metrics()
    metrics.bound("team-b", 12.0)
    metrics.bound("team-b", 100.0)
    metrics.bound("team-c", 3.0)
    name, mine = "wholenode_claim_wait_seconds", {"beneficiary_namespace": "team-b"}
    assert (value(metrics, f"{name}_count", **mine), value(metrics, f"{name}_sum", **mine)) == (2, 112)
    assert value(metrics, f"{name}_bucket", le="30.0", **mine) == 1


def test_d31_a_claim_that_came_to_nothing_is_counted_as_that_and_waits_no_more() -> None:
    metrics = Metrics()
    metrics.claims(
        [
            claim("a", phase=Phase.FAILED, reason=str(Reason.DEADLINE)),
            claim("b", phase=Phase.ROLLED_BACK, reason=str(Reason.BENEFICIARY_GONE)),
            claim("c", phase=Phase.BLOCKED, reason=str(Reason.DRAIN_TIMED_OUT)),
        ]
    )
    counted = {str(phase): value(metrics, "wholenode_claims", phase=str(phase)) for phase in Phase}
    assert {phase: number for phase, number in counted.items() if number} == {
        "Failed": 1,
        "RolledBack": 1,
        "Blocked": 1,
    }
    assert value(metrics, "wholenode_claims_waiting", reason="DrainTimedOut") == 1
    assert value(metrics, "wholenode_claims_waiting", reason="DeadlineExceeded") is None


def test_what_was_lost_is_told_by_victim_beneficiary_and_agreement() -> None:
    metrics = Metrics()
    for lost, outcome in ((30.0, Outcome.STOPPED), (12.0, Outcome.STOPPED), (99.0, Outcome.SPARED)):
        metrics.resolved(record(f"p{lost}", lost=lost, outcome=outcome))
    parties = {"victim_namespace": "team-v", "beneficiary_namespace": "team-b", "agreement": "yes"}
    assert value(metrics, "wholenode_lost_gpu_seconds_total", **parties) == 42
    assert value(metrics, "wholenode_pods_stopped_total", **parties) == 2
    assert value(metrics, "wholenode_pods_spared_total", **parties) == 1


def test_no_label_is_a_pod_a_claim_or_a_node() -> None:
    metrics = Metrics()
    metrics.bound("team-b", 1.0)
    metrics.resolved(record("pod-name", lost=1))
    metrics.entered(Phase.BOUND, "GangBound")
    labels = {label for family in metrics.registry.collect() for sample in family.samples for label in sample.labels}
    assert labels <= {"phase", "reason", "le", "result", "error", "pool"} | {
        "victim_namespace",
        "beneficiary_namespace",
        "agreement",
    }
