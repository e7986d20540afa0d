"""Builders of what has finished already: pods that succeeded and Jobs that are complete, with their times."""

from typing import Any

import msgspec

from fleet.objects import ContainerState, ContainerStatus, Job, OwnerReference, Pod, Terminated
from tests.fleet.builders import at, job, pod

MINUTE = 60.0


def ended(name: str, minutes: float, *, after: float = 0, ns: str = "team-v", **more: Any) -> Pod:
    """A pod that ran for so many minutes, from `after` minutes on, and succeeded."""
    made = pod(name, ns=ns, on="n1", started=after * MINUTE, phase="Succeeded", **more)
    done = ContainerStatus(ContainerState(Terminated(at((after + minutes) * MINUTE))))
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, container_statuses=(done,)))


def ended_job(name: str, minutes: float, *, owner: OwnerReference | None = None, parallelism: int | None = None) -> Job:
    made = job(name, ns="team-v", ended="Complete", owner=owner, parallelism=parallelism, completions=4)
    times = {"start_time": at(0), "completion_time": at(minutes * MINUTE)}
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, **times))
