"""Lost GPU-seconds: what stopping a gang throws away."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet.errors import FleetError
from fleet.names import CHECKPOINT_EVERY, LAST_CHECKPOINT, RESTART_COST
from fleet.objects import Pod
from fleet.times import parse_duration, parse_time

_SERVES = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController"})


@dataclass(frozen=True, slots=True)
class Loss:
    """What stopping a whole gang throws away: on each of its cards so many seconds.

    `saved_at` is its newest checkpoint; None if it has made none, or has no work to lose. `since` is what its work
    counts from, `restart_seconds` the part of the loss that a checkpoint saves nothing of.
    """

    cards: int
    seconds: float
    saved_at: datetime | None
    since: datetime
    restart_seconds: float

    @property
    def gpu_seconds(self) -> float:
        return self.cards * self.seconds


@dataclass(frozen=True, slots=True)
class Work:
    """What a gang has done so far, whatever the time: when it began, and the checkpoints that its members report."""

    began: datetime | None
    told: tuple[datetime, ...]
    renewed: datetime | None = None
    """When the youngest of its members began."""
    cards: int = 0
    restart_seconds: float = 0.0

    def lost(self, now: datetime, warm_up_seconds: float | None = None, hit_at: datetime | None = None) -> Loss:
        """What is lost when the gang is stopped at `now`.

        Cards of the whole gang x (time since its last checkpoint, else its start, plus the restart cost). A gang has
        one state, so the newest checkpoint any member reports counts. What was lost when it was hit before, at
        `hit_at`, is not lost again, nor is a restart that has not been since. A service has no work to lose, only the
        restart that it declares, else its `warm_up_seconds` as they were measured (None: no service).
        """
        if warm_up_seconds is not None:
            seconds = self.restart_seconds or warm_up_seconds
            return Loss(self.cards, seconds, None, now, seconds)
        saved_at = self.saved_at(now)
        since, restart = saved_at or self.began or now, self.restart_seconds
        if hit_at is not None:
            since = max(since, hit_at)
            restart = restart if self.renewed is not None and self.renewed > hit_at else 0.0
        return Loss(self.cards, max(0.0, (now - since).total_seconds()) + restart, saved_at, since, restart)

    def saved_at(self, now: datetime) -> datetime | None:
        """The newest checkpoint that can be believed: one in the future or before the start does not count."""
        if self.began is None or not self.told:
            return None
        return max((one for one in self.told if self.began < one <= now), default=None)


def work_of(pods: Sequence[Pod], cards: Iterable[int]) -> Work:
    """The work of a gang whose members are `pods`; `cards` are those of each."""
    renewed = max((pod.status.start_time for pod in pods if pod.status.start_time), default=None)
    return Work(_began(pods), _told(pods), renewed, sum(cards), max(map(_restart_seconds, pods), default=0.0))


def last_checkpoint(members: Iterable[Pod], now: datetime) -> datetime | None:
    """The newest checkpoint that any member of a gang reports and that can be believed; None if there is none.

    One that cannot be read, lies in the future or is not after the gang's start does not count.
    """
    pods = tuple(members)
    return Work(_began(pods), _told(pods)).saved_at(now)


def _began(pods: Iterable[Pod]) -> datetime | None:
    return min((pod.status.start_time for pod in pods if pod.status.start_time), default=None)


def _told(pods: Iterable[Pod]) -> tuple[datetime, ...]:
    return tuple([one for pod in pods if (one := _checkpoint(pod)) is not None])


def serves(pod: Pod) -> bool:
    """Whether a pod that is its own gang is a replica of a service: who saves work has work to lose."""
    owner = pod.metadata.controller()
    saves = any(pod.metadata.annotation(key) is not None for key in (LAST_CHECKPOINT, CHECKPOINT_EVERY))
    return owner is not None and owner.kind in _SERVES and not saves


def warm_up_seconds(pods: Iterable[Pod]) -> float:
    """How long a replica takes from its start until it is ready, as seen on these; 0 if none shows it.

    The shortest counts: a replica that was unready for a while, later, shows more than its start took.
    """
    seen = (
        (one.last_transition_time - pod.status.start_time).total_seconds()
        for pod in pods
        for one in pod.status.conditions or ()
        if one.type == "Ready" and one.status == "True" and one.last_transition_time and pod.status.start_time
    )
    return min((seconds for seconds in seen if seconds >= 0), default=0.0)


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
