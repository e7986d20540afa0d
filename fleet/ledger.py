"""Lost GPU-seconds: what stopping a gang throws away."""

from collections.abc import Iterable
from datetime import datetime

from fleet.errors import FleetError
from fleet.names import LAST_CHECKPOINT, RESTART_COST
from fleet.objects import Pod
from fleet.times import parse_duration, parse_time


def lost_gpu_seconds(members: Iterable[tuple[Pod, int]], now: datetime) -> float:
    """Work lost when the gang is stopped at `now`; members are (pod, cards).

    Cards of the whole gang x (time since its last checkpoint, else its start, plus the restart cost). A gang has
    one state, so the newest checkpoint any member reports counts. A checkpoint that cannot be read, lies in the
    future or before the start does not.
    """
    members = tuple(members)
    cards = sum(count for _, count in members)
    starts = [pod.status.start_time for pod, _ in members if pod.status.start_time]
    restart = max((_restart_seconds(pod) for pod, _ in members), default=0.0)
    if not starts:
        return cards * restart
    since = min(starts)
    for pod, _ in members:
        checkpoint = _checkpoint(pod)
        if checkpoint is not None and since < checkpoint <= now:
            since = checkpoint
    return cards * (max(0.0, (now - since).total_seconds()) + restart)


def _checkpoint(pod: Pod) -> datetime | None:
    text = pod.metadata.annotation(LAST_CHECKPOINT)
    try:
        return parse_time(text) if text else None
    except FleetError:
        return None


def _restart_seconds(pod: Pod) -> float:
    text = pod.metadata.annotation(RESTART_COST)
    try:
        return parse_duration(text).total_seconds() if text else 0.0
    except FleetError:
        return 0.0
