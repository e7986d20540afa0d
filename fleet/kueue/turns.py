"""Whose turn it is: Workloads that have Kueue's quota and stand before our admission check, or have passed it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fleet.kueue.objects import CONTROLLER_NAME, GATE, TOPOLOGY_GATE, AdmissionCheck, CheckState, Workload
from fleet.names import CLAIM_KEY
from fleet.objects import Pod
from fleet.view import View

GATES: Final = frozenset({GATE, TOPOLOGY_GATE})
"""Kueue's gates on pods that exist before it starts them; only it may lift them."""
PENDING: Final = "Pending"
READY: Final = "Ready"
RETRY: Final = "Retry"
TURNS: Final = "kueue turns"
"""Where a picture keeps what `turns` has found in it."""


def our_checks(checks: Iterable[AdmissionCheck]) -> frozenset[str]:
    """Names of the AdmissionChecks that we look after."""
    return frozenset(one.metadata.name for one in checks if one.spec.controller_name == CONTROLLER_NAME)


@dataclass(frozen=True, slots=True)
class Turn:
    """A Workload that holds its quota and has an entry of ours: still `pending`, or passed.

    `since`: when the quota was reserved. `claims`: UIDs of the claims whose nodes our entry sends its pods to.
    `others`: checks of other controllers that are not Ready yet, as long as ours is pending. Nodes are emptied last,
    when nothing else stands between the Workload and its start.
    """

    workload: Workload
    check: str
    pending: bool
    since: datetime | None
    claims: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()


def turn_of(workload: Workload, ours: frozenset[str]) -> Turn | None:
    """Where the Workload stands with us; None if it has no quota, no entry of ours, or one that was sent back.

    Kueue says when our entry may be written: the quota is reserved, and the Workload is not admitted, evicted,
    finished, inactive or deleted. Written at any other time it strands the Workload (kueue#3543), or ends a running
    job.
    """
    entries = [one for one in workload.status.admission_checks or () if one.name in ours]
    if not entries or not _holds_quota(workload):
        return None
    waits = next((one for one in entries if one.state == PENDING), None)
    if waits is not None and workload.is_true("Admitted"):
        return None
    if waits is None and any(one.state != READY for one in entries):
        return None
    claims = frozenset(uid for one in entries for uid in _claims(one))
    foreign = (one for one in workload.status.admission_checks or () if one.name not in ours and one.state != READY)
    others = tuple(sorted(one.name for one in foreign)) if waits is not None else ()
    return Turn(workload, (waits or entries[0]).name, waits is not None, _reserved_at(workload), claims, others)


def _holds_quota(workload: Workload) -> bool:
    return (
        workload.active
        and workload.metadata.deletion_timestamp is None
        and workload.is_true("QuotaReserved")
        and not workload.is_true("Evicted")
        and not workload.is_true("Finished")
    )


def _claims(entry: CheckState) -> Iterable[str]:
    for update in entry.pod_set_updates or ():
        if (uid := (update.node_selector or {}).get(CLAIM_KEY)) is not None:
            yield uid


def _reserved_at(workload: Workload) -> datetime | None:
    conditions = (one for one in workload.status.conditions or () if one.type == "QuotaReserved")
    return next((one.last_transition_time for one in conditions), workload.metadata.creation_timestamp)


def turns(view: View) -> tuple[Turn, ...]:
    """All Workloads that stand before our check or have passed it; found once a picture."""
    known: tuple[Turn, ...] | None = view.memo.get(TURNS)
    if known is None:
        ours, recall = our_checks(view.checks), view.memory.recall
        found = (recall(("kueue turn", uid), turn_of, one, ours) for uid, one in view.workloads.items()) if ours else ()
        known = view.memo[TURNS] = tuple(turn for turn in found if turn is not None)
    return known


def of_pods(workload: Workload) -> bool:
    """Whether the Workload's pods exist before it is admitted: a plain pod, or a group of such."""
    owners = workload.metadata.owner_references or ()
    return any(one.kind in {"Pod", "LeaderWorkerSet", "StatefulSet"} for one in owners)


def gated_by_kueue(pod: Pod) -> bool:
    return any(gate.name in GATES for gate in pod.spec.scheduling_gates or ())
