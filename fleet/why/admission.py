"""Whether a pod is let in at all: scheduling gates of others, and what Kueue says about its Workload."""

from fleet.cards import gated_by
from fleet.kueue.objects import GROUP, CheckState
from fleet.names import CLAIM_KEY
from fleet.objects import Condition, Pod
from fleet.reasons import Reason
from fleet.why.answers import Answer, No, Yes
from fleet.why.explanations import Wait, Workload

_KUEUE = f"{GROUP}/"


def foreign_gates(pod: Pod) -> tuple[str, ...]:
    return tuple(name for name in gated_by(pod) if name != CLAIM_KEY)


def admitted(pod: Pod, workload: Workload | None) -> Answer:
    """Not while anybody else's gate is closed; for Kueue's gate its own words are given."""
    gates = foreign_gates(pod)
    if not gates:
        return Yes("no other scheduling gate is closed")
    names = ", ".join(gates)
    if any(name.startswith(_KUEUE) for name in gates) and workload is not None:
        return _kueue(workload, names)
    unread = "; its Kueue Workload could not be read" if any(name.startswith(_KUEUE) for name in gates) else ""
    text = f"Scheduling gate {names} is closed{unread}."
    return No(Reason.FOREIGN_GATE, text, "whoever set the gate removes it")


def _kueue(workload: Workload, gates: str) -> No:
    evicted, reserved, passed = (workload.condition(name) for name in ("Evicted", "QuotaReserved", "Admitted"))
    if not _true(reserved):
        said = _said("QuotaReserved", reserved)
        if _true(evicted):
            text = f"Kueue took the quota of workload {workload.name} back: {_said('Evicted', evicted)}; {said}."
            return No(Wait.KUEUE_EVICTED, text, "Kueue reserves quota for it again")
        text = f"Kueue has reserved no quota for workload {workload.name}: {said}."
        return No(Wait.QUOTA, text, "Kueue reserves quota: others of the queue end, or the quota grows")
    if not _true(passed):
        open_ = [one for one in workload.checks if one.state != "Ready"]
        said = "; ".join(f"admission check {one.name} is {one.state}{_because(one)}" for one in open_)
        said = said or _said("Admitted", passed)
        text = f"Kueue has reserved quota for workload {workload.name} but not admitted it: {said}."
        return No(Wait.CHECKS, text, "the admission checks of its queue become ready")
    text = f"Kueue has admitted workload {workload.name}, and scheduling gate {gates} is still closed."
    return No(Reason.FOREIGN_GATE, text, "whoever set the gate removes it")


def _because(check: CheckState) -> str:
    """What its controller says: of our own check, the reason of the gang's claim."""
    return f" ({check.message.rstrip('.')})" if check.message else ""


def _true(condition: Condition | None) -> bool:
    return condition is not None and condition.status == "True"


def _said(name: str, condition: Condition | None) -> str:
    if condition is None:
        return f"no condition {name} yet"
    words = ": ".join(part for part in (condition.reason, condition.message) if part)
    return f"{name} is {condition.status}" + (f" ({words.rstrip('.')})" if words else "")
