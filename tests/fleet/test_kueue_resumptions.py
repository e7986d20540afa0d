"""When a job that Kueue stopped for a claim is queued again: behind the gang it made way for, but not for long."""

import msgspec
import pytest

from fleet.kueue.objects import DEACTIVATED_FOR, Workload, WorkloadStatus
from fleet.kueue.victims import RESUMED_WITHIN, resumptions
from fleet.objects import Condition
from fleet.resources import Phase
from fleet.view import View
from tests.fleet.builders import T0, at, claim, owned
from tests.fleet.kueue import workload

UID = "uid-train"


def stopped() -> Workload:
    """A job that we had stopped; Kueue evicted it at T0, and its quota is free."""
    one = workload("job-j", active=False, notes={DEACTIVATED_FOR: UID}, owner=owned("Job", "j"))
    evicted = Condition("Evicted", "True", last_transition_time=T0)
    return msgspec.structs.replace(one, status=WorkloadStatus((evicted, Condition("QuotaReserved", "False"))))


def resumed(phase: Phase | None, seconds: float, other: Phase = Phase.PENDING) -> list[str]:
    """Who is queued again `seconds` after the eviction, the claim being in this phase, or gone, and an`other` too."""
    one = stopped()
    claims = {"other": claim(uid="other", phase=other)}
    if phase is not None:
        claims[UID] = claim(uid=UID, phase=phase)
    view = View({}, {}, {}, (), (), claims, workloads={one.metadata.uid: one})
    return [found.workload.metadata.name for found in resumptions(view, at(seconds))]


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.PROVING_EMPTY, Phase.READY, Phase.LANDING])
def test_k07_a_stopped_job_is_queued_again_when_the_gang_has_landed(phase: Phase) -> None:
    assert resumed(phase, 1) == []
    assert resumed(Phase.BOUND, 1) == ["job-j"]


@pytest.mark.parametrize("phase", [Phase.ROLLED_BACK, Phase.FAILED, None])
def test_k07_nobody_waits_for_a_claim_that_is_over(phase: Phase | None) -> None:
    assert resumed(phase, 1) == ["job-j"]


def test_k07_a_gang_that_takes_long_keeps_nobody_waiting() -> None:
    limit = RESUMED_WITHIN.total_seconds()
    assert resumed(Phase.DRAINING, limit - 0.1) == []
    assert resumed(Phase.DRAINING, limit) == ["job-j"]


@pytest.mark.parametrize("phase", [Phase.BOUND, None])
def test_k07_nobody_is_started_while_nodes_are_vacated_for_other_gangs(phase: Phase | None) -> None:
    """It would be as much work for Kueue as the stops that those wait for."""
    limit = RESUMED_WITHIN.total_seconds()
    assert resumed(phase, 1, other=Phase.DRAINING) == []
    assert resumed(phase, limit, other=Phase.DRAINING) == ["job-j"]
    assert resumed(phase, 1, other=Phase.BLOCKED) == ["job-j"]
