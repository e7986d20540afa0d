"""Pods that come back to a held node however often they are stopped: their controller names the node itself."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from fleet.objects import Pod
from fleet.resources import Victim

_MOST_RETURNS: Final = 2


def comes_back(pod: Pod, job: str, node_name: str, victims: Iterable[Victim]) -> bool:
    """Whether the pod is the second return of its job to the node: to stop it once more would go on for ever.

    `victims` were stopped in this drain. A return is a pod made after one of its job was stopped there; replacements
    that were made together, and slipped in together, are one return (kubernetes#117843).
    """
    made = pod.metadata.creation_timestamp
    if made is None:
        return False
    rounds = {one.evicted_at for one in victims if one.job == job and one.node == node_name and one.evicted_at}
    return sum(_before(moment, made) for moment in rounds) >= _MOST_RETURNS


def _before(moment: datetime, made: datetime) -> bool:
    # The API server keeps the creation in whole seconds.
    return (moment if made.microsecond else moment.replace(microsecond=0)) <= made
