"""Each node as a choice for one claim: free, vacatable at a cost, or refused for a countable reason."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from fleet.costs import GangLoss
from fleet.fitness import Obstacle
from fleet.objects import Node, Pod
from fleet.occupants import Occupants, Press
from fleet.options import Hit
from fleet.readiness import Shortfall
from fleet.resources import DrainAgreement, Victim
from fleet.view import View


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node and what taking it would mean.

    `refused` is None if the node may be taken now: free if it has no GPU pod, else by stopping the `occupants` that
    run, each under one of the `agreements`; `budgeted` of these say how much may be stopped.
    `soft` says that the refusal is about the pods on it, so it may end by itself; `from_` is when, if time decides.
    `occupied` means that somebody would have to be stopped; `leaving` counts pods that are going anyway.
    `kept`: it is refused because an older claim waits for it, which could start at `kept_until`, if that is known.
    `never` is what would rule it out even if it were empty; `domain` its value of the claim's topology label.
    `detail` says more about the refusal; `keeps` are the victims with the ready replicas their services must keep.
    `gangs` are the victims' gangs and `hits` what is hit of them, `idle` the GPU-seconds that cards stand idle while
    the slowest of them ends, `cost` all of it weighed for comparison; `presses` is on which budgets; `homeless` of them
    have no other place at once.
    """

    node: Node
    occupied: bool = False
    leaving: int = 0
    lost_gpu_seconds: float = 0.0
    top_priority: int = 0
    refused: str | None = None
    soft: bool = False
    from_: datetime | None = None
    consent_missing: tuple[str, ...] = ()
    free_at: datetime | None = None
    kept: bool = False
    kept_until: datetime | None = None
    never: Obstacle | None = None
    domain: str = ""
    detail: str = ""
    keeps: tuple[tuple[Pod, int], ...] = ()
    gangs: tuple[GangLoss, ...] = ()
    hits: tuple[Hit, ...] = ()
    idle: float = 0.0
    cost: float = 0.0
    presses: tuple[Press, ...] = ()
    homeless: int = 0
    occupants: Occupants | None = None
    agreements: tuple[str, ...] = ()
    budgeted: int = 0

    @property
    def victims(self) -> tuple[Victim, ...]:
        """Those who would be stopped on this node alone; put together when they are asked for."""
        return self.occupants.victims(self.agreements) if self.occupants else ()

    @property
    def order(self) -> tuple[bool, int, bool, int, int, bool, float, int, str]:
        """Free nodes first, those nobody waits for before others; then as sets are compared (`choosing.Found`)."""
        excess = self.occupants.excess if self.occupants else 0
        harm = (excess, self.top_priority, self.homeless > 0, self.cost, len(self.gangs))
        return (self.occupied, 0 if self.occupied else self.leaving, self.kept, *harm, self.node.metadata.name)


def with_budget(view: View, now: datetime) -> Mapping[tuple[str, str], DrainAgreement]:
    """The agreements in force that say how much may be stopped, by namespace and name."""
    return {
        (namespace, one.metadata.name): one
        for namespace, some in view.in_force(now).items()
        for one in some
        if one.spec.budget is not None
    }


def shortfalls(
    view: View, keeps: Iterable[tuple[Pod, int]], others: Collection[str] = frozenset()
) -> Mapping[str, Shortfall]:
    """Which of these pods their services cannot spare, if all of them are stopped; as `Replicas.shortfalls` has it."""
    keeps = tuple(keeps)
    return view.replicas.shortfalls(keeps, others) if any(kept for _, kept in keeps) else {}


def being_vacated(view: View, reserved: Mapping[str, str]) -> frozenset[str]:
    """UIDs of the pods on nodes that other claims have taken: none of them will stay."""
    return frozenset(
        pod.metadata.uid for name, why in reserved.items() if why == Obstacle.HELD for pod in view.gpu_pods_on(name)
    )
