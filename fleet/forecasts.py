"""What is known ahead of running pods: when they end by themselves, and when they save their work."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from fleet.backfill import expected_run, promised_end
from fleet.errors import FleetError
from fleet.names import CHECKPOINT_EVERY, EXPECTED_RUN
from fleet.objects import Pod
from fleet.resources import Policy
from fleet.times import parse_duration
from fleet.view import View

LEAST_SLACK = timedelta(seconds=30)
_MOST_SLACK = timedelta(minutes=5)
_END_SLACK = 1 / 20
_SAVE_SLACK = 1 / 10
_MISSED_AT_MOST = 2
_MOST_SAVES = 50
_SHORTEST_CADENCE = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is expected of a gang or a pod at `at`. It is believed in until `until`: plans are never exact."""

    at: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class ExpectedEnd(Event):
    """When a pod is expected to end by itself. `learned` from others of its kind; else its owner has declared it."""

    learned: bool = False


def expected_end(view: View, pod: Pod) -> ExpectedEnd | None:
    """When the pod is expected to end; None if nobody has said it and too few of its kind have finished.

    What its owner declared counts first: on the pod, or in the claim that its node was taken for. An end that is
    overdue says nothing any more; the caller compares `until` with its time.
    """
    going, uid = pod.metadata.deletion_timestamp, pod.metadata.uid
    if going is not None:
        return ExpectedEnd(going, going + LEAST_SLACK)
    ends: dict[str, tuple[Pod, ExpectedEnd | None]] = view.memo.setdefault("ends", {})
    known = ends.get(uid)
    if known is None or known[0] is not pod:
        # A look may show a pod otherwise than the caches do.
        known = ends[uid] = pod, _expected_end(view, pod)
    return known[1]


def _expected_end(view: View, pod: Pod) -> ExpectedEnd | None:
    started = pod.status.start_time
    declared = duration(pod, EXPECTED_RUN)
    if declared is not None and started is not None:
        return _after(started, declared)
    claimed = _claimed_end(view, pod)
    if claimed is not None:
        return claimed
    learned = view.runtimes.of_pod(pod) if started is not None else None
    return _after(started, learned, learned=True) if started is not None and learned is not None else None


def natural_end(view: View, pods: Iterable[Pod], now: datetime, *, late: bool = False) -> datetime | None:
    """When the last of the pods is expected to end by itself; None unless that is known of each of them.

    An end that has passed is not known, unless `late`: then it is expected as long as it is believed in, at the last
    moment of that.
    """
    ends = []
    for pod in pods:
        end = expected_end(view, pod)
        if end is None or (end.until if late else end.at) <= now:
            return None
        ends.append(end.at if end.at > now else end.until)
    return max(ends, default=None)


def saves(members: Iterable[Pod], base: datetime, now: datetime, until: datetime) -> tuple[Event, ...]:
    """When the gang is expected to save its work next, up to `until`; `base`: its last checkpoint, or its start.

    Only if a member declares how often; if several do, the longest time counts. Once two in a row have not been
    reported the declaration is not believed any more, until the next one is: a gang must not put off others for ever.
    """
    declared = [every for pod in members if (every := duration(pod, CHECKPOINT_EVERY)) and every >= _SHORTEST_CADENCE]
    if not declared:
        return ()
    every = max(declared)
    slack = max(LEAST_SLACK, every * _SAVE_SLACK)
    first = next((due for n in range(1, _MISSED_AT_MOST + 1) if (due := base + n * every) + slack > now), None)
    found: list[Event] = []
    while first is not None and first <= until and len(found) < _MOST_SAVES:
        found.append(Event(first, first + slack))
        first += every
    return tuple(found)


def duration(pod: Pod, key: str) -> timedelta | None:
    """A duration its owner has declared on the pod; what cannot be read has not been declared."""
    text = pod.metadata.annotation(key)
    try:
        return parse_duration(text) if text else None
    except FleetError:
        return None


def _after(started: datetime, run: timedelta, *, learned: bool = False) -> ExpectedEnd:
    at = started + run
    return ExpectedEnd(at, at + _slack(run), learned)


@lru_cache(maxsize=4096)
def _slack(run: timedelta) -> timedelta:
    return min(max(LEAST_SLACK, run * _END_SLACK), _MOST_SLACK)


def _claimed_end(view: View, pod: Pod) -> ExpectedEnd | None:
    claims = view.claims_by_gang.get(view.gang_key_of(pod), ())
    claim = next((one for one in reversed(claims) if one.spec.policy is not Policy.PREVIEW), None)
    run = expected_run(claim) if claim else None
    if claim is None or run is None:
        return None
    if pod.status.start_time is not None:
        return _after(pod.status.start_time, run)
    promised = promised_end(claim)
    return ExpectedEnd(promised, promised + LEAST_SLACK) if promised else None
