"""Who holds cards of a node, and what follows from that for everybody: worked out once a pass, shared by all claims."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

import msgspec

from fleet.budgets import forbidden, matching
from fleet.cards import grace, terminating
from fleet.consents import Look, kind_of, look_of
from fleet.costs import GangLoss, bare, each_lost, gang_loss, hits_of, joint_loss, priced, since_they_came
from fleet.forecasts import natural_end
from fleet.kueue.disruptions import shortage
from fleet.kueue.victims import fellows, leaving, through_kueue, workloads_of
from fleet.names import MIRROR_POD
from fleet.objects import DisruptionBudget, Pod
from fleet.options import Hit
from fleet.resources import Victim
from fleet.view import View


@dataclass(frozen=True, slots=True)
class Press:
    """So many pods that a PodDisruptionBudget covers would be stopped, where it lets `allowed` go."""

    budget: str
    allowed: int
    pods: int


@dataclass(frozen=True, slots=True)
class Tenants:
    """The pods on one node and what is true of them whatever the time.

    Of the `holders` of cards nobody is stopping the `running` ones, `grace` is their longest. The `stopped` are those
    who would be stopped to empty the node: who runs on it, then whoever Kueue stops with them, wherever it runs. `bare`
    are these as victims without a loss, `hits` what of their gangs they are, `priority` their highest. `staying` are
    pods without cards. `booked`: HAMi has chosen the node for a pod that is not bound yet.
    """

    holders: tuple[Pod, ...]
    running: tuple[Pod, ...]
    stopped: tuple[Pod, ...]
    staying: tuple[Pod, ...]
    bare: tuple[Victim, ...]
    hits: tuple[Hit, ...]
    looks: tuple[Look, ...]
    priority: int
    grace: timedelta
    booked: bool
    unevictable: bool


@dataclass(frozen=True, slots=True)
class Occupants:
    """The pods on one node, and what stopping those that run would mean now.

    `forbidden`: which disruption budget, or two on one pod, lets none go, or not all of a whole job; `presses` are the
    budgets it presses on, `excess` the pods beyond them. `kinds` tell pods apart that agreements can tell apart.
    `gangs` are what is lost with each gang, `lost` GPU-seconds in all and `loss` as it is compared. `workloads`: UIDs
    of those that Kueue would stop. `free_at`: when all are expected to have ended; if that is not known, `late_at` says
    it with ends that are overdue but still believed in.
    """

    tenants: Tenants
    hits: tuple[Hit, ...]
    forbidden: str
    presses: tuple[Press, ...]
    excess: int
    kinds: tuple[int, ...]
    gangs: tuple[GangLoss, ...]
    lost: float
    loss: float
    workloads: frozenset[str]
    free_at: datetime | None
    late_at: datetime | None
    _priced: dict[tuple[str, ...], tuple[Victim, ...]] = field(default_factory=dict, compare=False, repr=False)

    def victims(self, agreements: tuple[str, ...]) -> tuple[Victim, ...]:
        """All who would be stopped, as they would be; `agreements` has a name for each of them, empty for none."""
        found = self._priced.get(agreements)
        if found is None:
            pairs = zip(self.tenants.bare, agreements, strict=True)
            named = [msgspec.structs.replace(one, agreement=by) if by else one for one, by in pairs]
            found = self._priced[agreements] = priced(named, {one.key: one for one in self.gangs})
        return found


def occupants(view: View, node_name: str, now: datetime) -> Occupants:
    """Who is on the node, as all claims see it in this pass."""
    known: Occupants | None = view.memo.get(("occupants", node_name, now))
    if known is None:
        known = view.memo["occupants", node_name, now] = _occupants(view, node_name, now)
    return known


def _occupants(view: View, node_name: str, now: datetime) -> Occupants:
    there = view.pods_by_node.get(node_name, ())
    holders = tuple([pod for pod in there if pod.metadata.uid in view.requests])
    running = tuple([pod for pod in holders if not terminating(pod) and not leaving(view, pod)])
    stopped = (*running, *fellows(view, running))
    victims = tuple([bare(view, pod) for pod in stopped])
    tenants = view.memory.recall(("tenants", node_name), _tenants, there, holders, running, stopped, victims)
    losses = {one.key: one for one in [gang_loss(view, pod, now) for pod in stopped]}
    gangs = tuple(losses.values())
    covering = [_covering(view, pod, look) for pod, look in zip(stopped, tenants.looks, strict=True)]
    presses = _presses(covering)
    free_at = natural_end(view, holders, now)
    hits = since_they_came(tenants.hits, tenants.bare, losses)
    return Occupants(
        tenants,
        hits,
        _forbidden(view, stopped, covering),
        presses,
        sum(max(0, one.pods - one.allowed) for one in presses),
        tuple([kind_of(view, pod, look, now) for pod, look in zip(stopped, tenants.looks, strict=True)]),
        gangs,
        sum(each_lost(tenants.bare, losses)),
        joint_loss(hits, gangs),
        workloads_of(view, running),
        free_at,
        natural_end(view, holders, now, late=True) if free_at is None else None,
    )


def _forbidden(view: View, stopped: Iterable[Pod], covering: Iterable[tuple[DisruptionBudget, ...]]) -> str:
    """Why disruption budgets would hold up the node; empty if they do not. A whole job must fit in all at once."""
    jobs: dict[str, list[Pod]] = {}
    for pod, some in zip(stopped, covering, strict=True):
        workload = through_kueue(view, pod) if some else None
        if workload is not None:
            jobs.setdefault(workload.metadata.uid, []).append(pod)
        elif some and (why := forbidden((pod,), some)) is not None:
            return why
    return next((why for pods in jobs.values() if (why := shortage(view, pods)) is not None), "")


def _tenants(
    there: tuple[Pod, ...],
    holders: tuple[Pod, ...],
    running: tuple[Pod, ...],
    stopped: tuple[Pod, ...],
    victims: tuple[Victim, ...],
) -> Tenants:
    asked = {pod.metadata.uid for pod in holders}
    return Tenants(
        holders,
        running,
        stopped,
        tuple(pod for pod in there if pod.metadata.uid not in asked),
        victims,
        hits_of(victims),
        tuple(map(look_of, stopped)),
        max((one.priority for one in victims), default=0),
        max((grace(pod) for pod in running), default=timedelta(0)),
        any(pod.spec.node_name is None for pod in holders),
        any(unevictable(pod) for pod in running),
    )


def unevictable(pod: Pod) -> bool:
    """Whether stopping the pod would not free the node: its owner puts it straight back there."""
    owner = pod.metadata.controller()
    return pod.metadata.annotation(MIRROR_POD) is not None or (
        owner is not None and owner.kind in {"DaemonSet", "Node"}
    )


def _covering(view: View, pod: Pod, look: Look) -> tuple[DisruptionBudget, ...]:
    """The disruption budgets that cover the pod: the same ones for all that look alike."""
    budgets = _budgets(view).get(pod.metadata.namespace)
    if budgets is None:
        return ()
    known: dict[Look, tuple[DisruptionBudget, ...]] = view.memo.setdefault("covering", {})
    found = known.get(look)
    if found is None:
        found = known[look] = matching(pod, budgets)
    return found


def _budgets(view: View) -> Mapping[str, tuple[DisruptionBudget, ...]]:
    known: dict[str, tuple[DisruptionBudget, ...]] | None = view.memo.get("budgets")
    if known is None:
        known = view.memo["budgets"] = {}
        for one in view.budgets:
            known[one.metadata.namespace] = (*known.get(one.metadata.namespace, ()), one)
    return known


def _presses(covering: Iterable[tuple[DisruptionBudget, ...]]) -> tuple[Press, ...]:
    found: dict[str, Press] = {}
    for one in chain.from_iterable(covering):
        name = f"{one.metadata.namespace}/{one.metadata.name}"
        before = found[name].pods if name in found else 0
        found[name] = Press(name, one.status.disruptions_allowed, before + 1)
    return tuple(found.values())
