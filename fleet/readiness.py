"""Whether services keep enough ready replicas: counted now, over all pods that would be stopped together."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fleet.cards import finished, terminating
from fleet.objects import Pod
from fleet.resources import WholeNodeClaim

Service = tuple[str, str]
"""Namespace, and the UID of the pods' controller; a pod without controller is a service of one replica: itself."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A service that would keep too few ready replicas. `ready` leaves out those that are being stopped already."""

    name: str
    ready: int
    left: int
    kept: int

    def __str__(self) -> str:
        return f"{self.name} has {self.ready} ready replica(s), {self.left} would be left, its owner keeps {self.kept}"


@dataclass(frozen=True, slots=True)
class Replicas:
    """UIDs of the ready pods of each service, without those recorded as being stopped for any claim."""

    ready: Mapping[Service, frozenset[str]]

    @classmethod
    def of(cls, pods: Iterable[Pod], claims: Iterable[WholeNodeClaim]) -> "Replicas":
        stopped = {victim.uid for claim in claims for victim in claim.status.victims if victim.evicted_at is not None}
        found: dict[Service, set[str]] = {}
        for pod in pods:
            if is_ready(pod) and pod.metadata.uid not in stopped:
                found.setdefault(service_of(pod), set()).add(pod.metadata.uid)
        return cls({service: frozenset(uids) for service, uids in found.items()})

    def shortfalls(
        self, victims: Iterable[tuple[Pod, int]], others: Collection[str] = frozenset()
    ) -> Mapping[str, Shortfall]:
        """Victims (by UID) that must not be stopped with all the others, and why.

        `victims`: each pod with the ready replicas its service must keep, 0 for as many as you like; `others` are
        UIDs of further pods that will not stay.
        """
        victims = tuple(victims)
        going = {pod.metadata.uid for pod, _ in victims}
        found = {}
        for pod, kept in victims:
            if kept > 0:
                ready = self.ready.get(service_of(pod), frozenset()).difference(others)
                left = len(ready - going)
                if left < kept:
                    found[pod.metadata.uid] = Shortfall(_name(pod), len(ready), left, kept)
        return found


def service_of(pod: Pod) -> Service:
    owner = pod.metadata.controller()
    return pod.metadata.namespace, owner.uid if owner else pod.metadata.uid


def _name(pod: Pod) -> str:
    owner = pod.metadata.controller()
    return f"{owner.kind} {pod.metadata.namespace}/{owner.name}" if owner else f"pod {pod.key}"


def is_ready(pod: Pod) -> bool:
    """Whether the pod serves: its kubelet says Ready, and nobody has deleted it."""
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or ())
    return ready and bool(pod.spec.node_name) and not terminating(pod) and not finished(pod)
