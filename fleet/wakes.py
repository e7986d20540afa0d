"""Which waiting pods kube-scheduler must be made to try again: nothing in the cluster that it watches tells it to."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from fleet.board import Refused
from fleet.cards import created, refused_before, scheduled, waiting
from fleet.errors import FleetError
from fleet.names import POKE
from fleet.objects import Pod
from fleet.requests import RequestClass
from fleet.times import parse_time
from fleet.view import View

_MOST_AT_ONCE = 100
_PASSING = (Refused.NOT_READY, Refused.NODE_UNKNOWN, Refused.EMPTIER)
_SOONEST = timedelta(seconds=2)
_AT_MOST_EVERY = timedelta(seconds=60)


def last_tried(pod: Pod, since: datetime, now: datetime) -> datetime:
    """When the pod was tried last: at `since`, or when we last poked it, if that can be read.

    Anybody may write that time: one that lies ahead is as good as now.
    """
    text = pod.metadata.annotation(POKE)
    try:
        poked = parse_time(text) if text else since
    except FleetError:
        poked = since
    return min(now, max(since, poked))


def refused_small_pods(view: View) -> tuple[Pod, ...]:
    """Small pods that kube-scheduler tried and found no place for, oldest first, at most 100."""
    return _oldest(
        view.pods[uid]
        for uid, request in view.requests.items()
        if request.request_class is RequestClass.SMALL and waiting(view.pods[uid]) and refused_before(view.pods[uid])
    )


def refused_in_passing(view: View, now: datetime) -> tuple[Pod, ...]:
    """Pods with cards that an extender refused for a reason that has passed by itself, oldest first, at most 100.

    An extender that has just started says so and changes nothing in the cluster when it knows more. Each is woken
    more and more rarely: if it is refused again, it is for the same reason.
    """
    return _oldest(view.pods[uid] for uid in view.requests if _due(view.pods[uid], now))


def _due(pod: Pod, now: datetime) -> bool:
    said = scheduled(pod)
    if not waiting(pod) or said is None or not refused_before(pod):
        return False
    if not any(text in (said.message or "") for text in _PASSING):
        return False
    first = min(now, said.last_transition_time or pod.metadata.creation_timestamp or now)
    return now - last_tried(pod, first, now) >= min(max(_SOONEST, (now - first) / 4), _AT_MOST_EVERY)


def _oldest(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(sorted(pods, key=lambda pod: (created(pod), pod.key))[:_MOST_AT_ONCE])
