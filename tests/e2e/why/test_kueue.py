"""What `wholenode why` says of a pod that Kueue has not admitted, in Kueue's own words."""

from __future__ import annotations

import pytest

from kwok.admin import Admin
from tests.e2e.waits import Scene, make_workload, make_workload_kind


@pytest.mark.parametrize(
    ("name", "reason", "conditions"),
    [
        (
            "queued",
            "WaitingForQuota",
            [
                (
                    "QuotaReserved",
                    "False",
                    "Pending",
                    "couldn't assign flavors to pod set main: insufficient unused quota, 1 more needed",
                )
            ],
        ),
        (
            "checked",
            "WaitingForAdmissionChecks",
            [
                ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue gpus"),
                ("Admitted", "False", "NoReservation", "The workload has not all checks ready"),
            ],
        ),
        (
            "preempted",
            "EvictedByKueue",
            [
                ("QuotaReserved", "False", "Pending", "Preempted to accommodate a workload of higher priority"),
                ("Evicted", "True", "Preempted", "Preempted to accommodate a workload of higher priority"),
            ],
        ),
    ],
)
async def test_kueue(
    scene: Scene, admin: Admin, name: str, reason: str, conditions: list[tuple[str, str, str, str]]
) -> None:
    await make_workload_kind(admin)
    pod = await scene.waits(name, 1, gates=["kueue.x-k8s.io/admission"])
    await make_workload(admin, pod, conditions)
    await scene.nodes(small=1)
    await scene.told(f"team-b/{name}", "NotAttempted", "Admission", reason)
