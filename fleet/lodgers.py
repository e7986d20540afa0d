"""Short jobs on a node that is being drained: they may use its free cards if they end before the drain does anyway.

A pod asks for that with a toleration of our very taint (`wholenode.io/claim`, operator `Exists`) and by declaring how
long it runs (`wholenode.io/expected-run`). One that tolerates everything has declared nothing and is not meant.
"""

from datetime import datetime, timedelta

from fleet.cards import grace
from fleet.errors import FleetError
from fleet.names import CLAIM_KEY, EXPECTED_RUN
from fleet.objects import Pod
from fleet.times import parse_duration

MARGIN = timedelta(seconds=30)
"""For the way from the filter's answer to the start of the pod's own work."""


def declared_run(pod: Pod) -> timedelta | None:
    """How long a pod that asks for a place on a draining node says it runs; None if it does not ask, or say."""
    text = pod.metadata.annotation(EXPECTED_RUN)
    if not text or not any(one.key == CLAIM_KEY and one.operator == "Exists" for one in pod.spec.tolerations or ()):
        return None
    try:
        return parse_duration(text)
    except FleetError:
        return None


def may_enter(pod: Pod, drained_by: datetime | None, now: datetime) -> bool:
    """Whether the pod, started now, is gone before the last victim is expected to be, with grace and a margin."""
    run = declared_run(pod)
    return run is not None and drained_by is not None and now + run + grace(pod) + MARGIN <= drained_by


def may_finish(pod: Pod, drained_by: datetime | None, now: datetime) -> bool:
    """Whether a pod on a draining node is left alone: it keeps its word, and its word ends before the drain does."""
    run = declared_run(pod)
    if run is None or drained_by is None:
        return False
    end = (pod.status.start_time or now) + run
    return now < end + MARGIN and end + grace(pod) <= drained_by
