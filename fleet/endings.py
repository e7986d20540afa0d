"""How the card holders of a node come to their end: in words, and by when."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from fleet.cards import grace, terminating
from fleet.forecasts import natural_end
from fleet.limits import lodges
from fleet.objects import Pod
from fleet.resources import Victim, WholeNodeClaim
from fleet.upkeep import Context

_STEPS: Final = ((120, 60), (10, 10), (0, 5))
"""Above so many seconds the time left is told in steps of so many: each step is a write of the status."""
_STEADY: Final = timedelta(seconds=2)


def told(left: Iterable[Pod], now: datetime) -> str:
    """What the card holders that are left are doing: "2 of 2 card holder(s) left are terminating, 60 s left"."""
    left = tuple(left)
    ends = [pod.metadata.deletion_timestamp for pod in left if pod.metadata.deletion_timestamp]
    text = f"{len(ends)} of {len(left)} card holder(s) left are terminating"
    if not ends:
        return text
    seconds = math.ceil((max(ends) - now).total_seconds())
    text += f", {_in_steps(seconds)} s left" if seconds > 0 else ", their grace is over"
    finalizers = sorted({name for pod in left if terminating(pod) for name in pod.metadata.finalizers or ()})
    return f"{text}; finalizers: {', '.join(finalizers)}" if finalizers else text


def drained_by(
    context: Context, claim: WholeNodeClaim, left: Iterable[Pod], victims: Iterable[Victim]
) -> datetime | None:
    """When the last of the card holders is expected to be gone; None if that is not known of one of them.

    `victims` are those written down so far. Lodgers count for nothing: the drain does not wait longer for them.
    A moment that has hardly moved is left as it stood: it is not worth a write.
    """
    stopped = {one.uid: one.evicted_at for one in victims}
    ends: list[datetime] = []
    for pod in left:
        if not terminating(pod) and lodges(context, claim, pod):
            continue
        end = _end(context, claim, pod, stopped.get(pod.metadata.uid))
        if end is None or end <= context.now:
            return None
        ends.append(end)
    latest, before = max(ends, default=None), claim.status.drained_by
    if latest is not None and before is not None and abs(latest - before) < _STEADY:
        return before
    return latest


def _end(context: Context, claim: WholeNodeClaim, pod: Pod, stopped_at: datetime | None) -> datetime | None:
    if pod.metadata.deletion_timestamp is not None:
        return None if pod.metadata.finalizers else pod.metadata.deletion_timestamp
    until = claim.status.stop_nobody_until
    if until is not None and context.now < until:
        return natural_end(context.view, (pod,), context.now) or until
    return stopped_at + grace(pod) if stopped_at is not None else None


def _in_steps(seconds: int) -> int:
    step = next(step for above, step in _STEPS if seconds > above)
    return math.ceil(seconds / step) * step
