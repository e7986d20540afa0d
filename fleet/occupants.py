"""Who holds cards of a node, and what follows from that for everybody: worked out once a pass, shared by all claims."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.budgets import forbidden, matching
from fleet.cards import terminating
from fleet.choosing import Hit
from fleet.consents import kind_of
from fleet.costs import GangLoss, gang_loss, hits_of, joint_loss, victims_of
from fleet.forecasts import natural_end
from fleet.names import MIRROR_POD
from fleet.objects import DisruptionBudget, Pod
from fleet.resources import Victim
from fleet.view import View

_DEFAULT_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Press:
    """So many pods that a PodDisruptionBudget covers would be stopped, where it lets `allowed` go."""

    budget: str
    allowed: int
    pods: int


@dataclass(frozen=True, slots=True)
class Occupants:
    """The card holders of one node. `running` are those that nobody has deleted, `staying` are pods without cards.

    `victims` are all that run, `kinds` tell those apart that agreements can tell apart, `priority` is the highest;
    `gangs` and `hits` are what stopping them loses, `lost` GPU-seconds in all and `loss` as it is compared; `presses`
    are the budgets it presses on; `forbidden`: a budget, or two on one pod, lets none go. `booked`: HAMi has chosen the
    node for a pod that is not bound yet.
    """

    holders: tuple[Pod, ...]
    running: tuple[Pod, ...]
    staying: tuple[Pod, ...]
    booked: bool
    unevictable: bool
    forbidden: bool
    grace: timedelta
    free_at: datetime | None
    victims: tuple[Victim, ...]
    kinds: tuple[int, ...]
    lost: float
    priority: int
    gangs: tuple[GangLoss, ...]
    hits: tuple[Hit, ...]
    loss: float
    presses: tuple[Press, ...]


def occupants(view: View, node_name: str, now: datetime) -> Occupants:
    """Who is on the node, as all claims see it in this pass."""
    known: Occupants | None = view.memo.get(("occupants", node_name, now))
    if known is None:
        known = view.memo["occupants", node_name, now] = _occupants(view, node_name, now)
    return known


def _occupants(view: View, node_name: str, now: datetime) -> Occupants:
    there, asked = view.pods_by_node.get(node_name, ()), view.requests
    holders = tuple(pod for pod in there if pod.metadata.uid in asked)
    running = tuple(pod for pod in holders if not terminating(pod))
    gangs = tuple({(one := gang_loss(view, pod, now)).key: one for pod in running}.values())
    victims = victims_of(view, running, {}, now)
    hits = hits_of(victims)
    return Occupants(
        holders,
        running,
        tuple(pod for pod in there if pod.metadata.uid not in asked),
        any(pod.spec.node_name is None for pod in holders),
        any(unevictable(pod) for pod in running),
        any(forbidden((pod,), _budgets(view).get(pod.metadata.namespace, ())) is not None for pod in running),
        max((grace(pod) for pod in running), default=timedelta(0)),
        natural_end(view, holders, now),
        victims,
        tuple(kind_of(view, pod, now) for pod in running),
        sum(one.lost_gpu_seconds for one in victims),
        max((one.priority for one in victims), default=0),
        gangs,
        hits,
        joint_loss(hits, gangs),
        _presses(view, running),
    )


def grace(pod: Pod) -> timedelta:
    """How long the pod may take to end once it is stopped."""
    seconds = pod.spec.termination_grace_period_seconds
    return timedelta(seconds=_DEFAULT_GRACE_SECONDS if seconds is None else seconds)


def unevictable(pod: Pod) -> bool:
    """Whether stopping the pod would not free the node: its owner puts it straight back there."""
    owner = pod.metadata.controller()
    return pod.metadata.annotation(MIRROR_POD) is not None or (
        owner is not None and owner.kind in {"DaemonSet", "Node"}
    )


def _budgets(view: View) -> Mapping[str, tuple[DisruptionBudget, ...]]:
    known: dict[str, tuple[DisruptionBudget, ...]] | None = view.memo.get("budgets")
    if known is None:
        known = view.memo["budgets"] = {}
        for one in view.budgets:
            known[one.metadata.namespace] = (*known.get(one.metadata.namespace, ()), one)
    return known


def _presses(view: View, running: tuple[Pod, ...]) -> tuple[Press, ...]:
    found: dict[str, Press] = {}
    for pod in running:
        for one in matching(pod, _budgets(view).get(pod.metadata.namespace, ())):
            name = f"{one.metadata.namespace}/{one.metadata.name}"
            before = found[name].pods if name in found else 0
            found[name] = Press(name, one.status.disruptions_allowed, before + 1)
    return tuple(found.values())
