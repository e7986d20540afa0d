"""Whether a scheduler has tried a pod, and what it said: read from the pod's condition and its event."""

from fleet.cards import gated_by
from fleet.names import CLAIM_KEY
from fleet.objects import Condition, Pod
from fleet.why.answers import No
from fleet.why.explanations import SchedulerSaid, Stage, Told, Wait

_TRIED = frozenset({"Unschedulable", "SchedulerError"})
_DEFAULT_SCHEDULER = "default-scheduler"


def scheduled_condition(pod: Pod) -> Condition | None:
    return next((one for one in pod.status.conditions or () if one.type == "PodScheduled"), None)


def attempted(pod: Pod, told: Told) -> bool:
    """Whether a scheduler has tried it: it says so in the condition or in an event. A gated pod is not tried."""
    if gated_by(pod):
        return False
    condition = scheduled_condition(pod)
    tried = condition is not None and condition.status == "False" and condition.reason in _TRIED
    return tried or told.failed_scheduling is not None


def scheduler_said(pod: Pod, told: Told) -> SchedulerSaid:
    condition = scheduled_condition(pod)
    name = pod.spec.scheduler_name or _DEFAULT_SCHEDULER
    if condition is None:
        return SchedulerSaid(name, event=told.failed_scheduling)
    return SchedulerSaid(
        name,
        condition.status,
        condition.reason or "",
        condition.message or "",
        condition.last_transition_time,
        told.failed_scheduling,
    )


def scheduler_no(pod: Pod, told: Told) -> tuple[Stage, No]:
    """What is left when cards are no obstacle: the scheduler's own reason, word for word, or its silence."""
    said = scheduler_said(pod, told)
    words = said.message or (told.failed_scheduling.message if told.failed_scheduling else "")
    if not attempted(pod, told):
        if CLAIM_KEY in gated_by(pod):
            text = f"Cards are there, and scheduling gate {CLAIM_KEY} is still closed."
            return Stage.SCHEDULER, No(Wait.TURN, text, "the controller opens the gate; if not, no controller acts")
        text = f"Nothing of wholenode is in its way; scheduler {said.name} has not tried it yet."
        how = f"scheduler {said.name} tries it; if it does not soon, see whether a scheduler of that name runs"
        return Stage.SCHEDULER, No(Wait.TURN, text, how)
    if said.reason == "SchedulerError":
        text = f"Scheduler {said.name} could not finish trying: {words}"
        return Stage.SCHEDULER, No(Wait.SCHEDULER_ERROR, text, "the scheduler, or the extender it asks, is mended")
    text = f"Cards are not what is missing; scheduler {said.name} said: {words}"
    how = "what the scheduler names is given; it tries again when something changes, at the latest after 5 minutes"
    return Stage.SCHEDULER, No(Wait.OTHER, text, how)
