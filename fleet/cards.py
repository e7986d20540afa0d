"""How many cards a pod asks for and holds, and what else it needs: the one place that counts a pod's resources."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from fleet.hami import booked_node
from fleet.objects import Condition, Container, Pod, PodSpec
from fleet.quantities import amount, count, milli

_FINISHED = frozenset({"Succeeded", "Failed"})
_DEFAULT_GRACE_SECONDS = 30
_MOST_GRACE_SECONDS = 366 * 86_400


def requested(spec: PodSpec, resource: str, read: Callable[[str | int], int] = count) -> int:
    """What the scheduler reserves for a pod of one resource, by Kubernetes' own formula (KEP-753).

    Containers and sidecars run together; an ordinary init container runs alone beside the sidecars started
    before it; the pod needs the larger of the two, plus overhead. Limits count where a request is left out.
    Raises QuantityError.
    """
    together = sum(_of(container, resource, read) for container in spec.containers or ())
    sidecars = 0
    starting = 0
    for container in spec.init_containers or ():
        wanted = _of(container, resource, read)
        if container.restart_policy == "Always":
            sidecars += wanted
            starting = max(starting, sidecars)
        else:
            starting = max(starting, sidecars + wanted)
    overhead = read(spec.overhead[resource]) if spec.overhead and resource in spec.overhead else 0
    return max(together + sidecars, starting) + overhead


def _of(container: Container, resource: str, read: Callable[[str | int], int]) -> int:
    if container.resources is None:
        return 0
    for side in (container.resources.requests, container.resources.limits):
        if side and resource in side:
            return read(side[resource])
    return 0


def cards(pod: Pod, resource: str) -> int:
    """Whole cards the pod asks for of one GPU resource. Raises QuantityError."""
    return requested(pod.spec, resource)


def finished(pod: Pod) -> bool:
    """Whether the pod has ended for good; only then, or with its object gone, are its cards free."""
    return pod.status.phase in _FINISHED


def grace(pod: Pod) -> timedelta:
    """How long the pod may take to end once it is stopped; the API server sets no upper limit, a year is ours."""
    seconds = pod.spec.termination_grace_period_seconds
    return timedelta(seconds=_DEFAULT_GRACE_SECONDS if seconds is None else min(max(0, seconds), _MOST_GRACE_SECONDS))


def seat(pod: Pod) -> str | None:
    """The node on which the pod takes up room now: bound to it, or booked there by HAMi; None once it has ended.

    A terminating pod still does. HAMi counts a pod's cards from the moment it has chosen the node, bound or not.
    """
    return None if finished(pod) else pod.spec.node_name or booked_node(pod)


def terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def created(pod: Pod) -> float:
    """When the pod was made, in seconds since 1970; 0 if that is not known."""
    return pod.metadata.creation_timestamp.timestamp() if pod.metadata.creation_timestamp else 0.0


def gated_by(pod: Pod) -> tuple[str, ...]:
    return tuple(gate.name for gate in pod.spec.scheduling_gates or ())


def waiting(pod: Pod) -> bool:
    """Whether the pod still wants a node: not bound, not ended, not being deleted."""
    return not pod.spec.node_name and not finished(pod) and not terminating(pod)


def scheduled(pod: Pod) -> Condition | None:
    """The condition in which kube-scheduler says what came of its last try; None if it has not tried."""
    return next((one for one in pod.status.conditions or () if one.type == "PodScheduled"), None)


def refused_before(pod: Pod) -> bool:
    """Whether kube-scheduler has tried the pod and found no place for it."""
    said = scheduled(pod)
    return said is not None and said.status == "False" and said.reason == "Unschedulable"


Readers = Mapping[str, Callable[[str | int], int]]
READERS: Readers = {"cpu": milli, "memory": amount, "ephemeral-storage": amount}
"""How each ordinary resource is read: CPU in thousandths, memory in bytes; everything else is counted."""


def asks(pod: Pod) -> dict[str, int]:
    """Every resource the pod asks for, in the units of `READERS`. Raises QuantityError."""
    names: set[str] = set(pod.spec.overhead or ())
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        if container.resources:
            names.update(container.resources.requests or ())
            names.update(container.resources.limits or ())
    return {name: requested(pod.spec, name, READERS.get(name, count)) for name in names}
