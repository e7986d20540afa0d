"""The checkpoint contract of an agreement: ask for a checkpoint, wait for it a while, then stop the pod or spare it.

All of it follows from annotations on the pods, so a controller that starts anew goes on where the last one was: we
write when a checkpoint was asked for, the pod's owner writes when the last one was made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from fleet.cards import finished, terminating
from fleet.errors import FleetError
from fleet.ledger import last_checkpoint
from fleet.names import CHECKPOINT_REQUESTED
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Checkpoint
from fleet.times import clock, format_duration, parse_duration, parse_time
from fleet.view import View

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Saving:
    """What is left to be done about checkpoints before anybody is stopped.

    `asks`: running pods that are still to be asked. `waiting`: gangs whose checkpoint is waited for, until `due`,
    which is unknown before they have been asked. `missing`: pods (by UID) that may not be stopped without one, and why.
    """

    asks: tuple[Pod, ...] = ()
    waiting: tuple[str, ...] = ()
    due: datetime | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        named = ", ".join(self.waiting[:_SHOWN]) + (", ..." if len(self.waiting) > _SHOWN else "")
        until = f", until {clock(self.due)} at the latest" if self.due else ""
        return f"{len(self.waiting)} gang(s) were asked for a checkpoint and get time for it{until}: {named}"


def saving(
    view: View,
    pods: Iterable[tuple[Pod, Checkpoint]],
    looked: Mapping[str, Pod],
    since: datetime,
    now: datetime,
    saved: Mapping[str, datetime] = MappingProxyType({}),
) -> Saving:
    """What the terms ask for before the pods are stopped. A request made before `since` is asked anew.

    `saved`: checkpoints (by gang) that pods were stopped after, and told of, since then; nobody else may know of them.
    `looked` are pods as the last looks at the nodes have them, by UID: the caches may be behind. Every running member
    of a gang is asked, on whatever node, because the work of all of them is lost; the newest checkpoint of any counts.
    """
    gangs: dict[str, list[tuple[Pod, Checkpoint]]] = {}
    for pod, terms in pods:
        if terms.required or terms.request:
            gangs.setdefault(view.gang_key_of(pod), []).append((pod, terms))
    asks: list[Pod] = []
    waiting: list[str] = []
    dues: list[datetime | None] = []
    missing: dict[str, str] = {}
    for key in sorted(gangs):
        some = gangs[key]
        members, wishes = _members(view, key, [pod for pod, _ in some]), [terms for _, terms in some]
        one = _of_gang(members, wishes, looked, since, now, saved.get(key))
        asks.extend(one.asks)
        if one.waits:
            waiting.append(key)
            dues.append(one.due)
        if one.missing:
            text = f"{Reason.CHECKPOINT_MISSING}: {one.missing}"
            missing.update({pod.metadata.uid: text for pod, terms in some if terms.required})
    known = [due for due in dues if due is not None]
    return Saving(tuple(asks), tuple(waiting), max(known) if known and len(known) == len(dues) else None, missing)


def longest_timeout(terms: Iterable[Checkpoint]) -> timedelta:
    """The longest wait that any of the terms grants for a checkpoint that is asked for."""
    return max((_timeout(one) for one in terms if one.request), default=timedelta(0))


@dataclass(frozen=True, slots=True)
class _Gang:
    asks: tuple[Pod, ...] = ()
    waits: bool = False
    due: datetime | None = None
    missing: str = ""


def _of_gang(
    members: list[Pod],
    terms: list[Checkpoint],
    looked: Mapping[str, Pod],
    since: datetime,
    now: datetime,
    known: datetime | None,
) -> _Gang:
    versions = [*members, *(looked[pod.metadata.uid] for pod in members if pod.metadata.uid in looked)]
    moments = [one for one in (last_checkpoint(versions, now), known) if one is not None]
    saved, required = max(moments, default=None), any(one.required for one in terms)
    if not any(one.request for one in terms):
        return _Gang(missing="it has made no checkpoint" if required and saved is None else "")
    # Owners may write whole seconds only; a checkpoint of the second in which it was asked for is fresh enough.
    since = since.replace(microsecond=0)
    asked = {
        pod.metadata.uid: moment
        for pod in versions
        if (moment := _requested(pod)) is not None and since <= moment <= now
    }
    asks = tuple(pod for pod in members if pod.metadata.uid not in asked)
    if not asked:
        return _Gang(asks, waits=True)
    first, timeout = min(asked.values()), longest_timeout(terms)
    if saved is not None and saved >= first.replace(microsecond=0):
        return _Gang()
    if now < first + timeout:
        return _Gang(asks, waits=True, due=first + timeout)
    if required:
        return _Gang(missing=f"it has made none within {format_duration(timeout)} after it was asked to")
    return _Gang()


def _members(view: View, key: str, pods: list[Pod]) -> list[Pod]:
    """The running members of the gang; a pod that only a look has seen is one, too."""
    gang = view.gangs.get(key)
    known = {pod.metadata.uid: pod for pod in (*pods, *(gang.pods if gang else ()))}
    return [pod for pod in known.values() if pod.spec.node_name and not finished(pod) and not terminating(pod)]


def _requested(pod: Pod) -> datetime | None:
    text = pod.metadata.annotation(CHECKPOINT_REQUESTED)
    try:
        return parse_time(text) if text else None
    except FleetError:
        return None


def _timeout(terms: Checkpoint) -> timedelta:
    try:
        return parse_duration(terms.timeout)
    except FleetError:
        return timedelta(0)
