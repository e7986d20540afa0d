"""Each node as a choice for one claim: free, vacatable at a cost, or refused for a countable reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.agreements import Consent, Verdict, verdict
from fleet.budgets import forbidden
from fleet.cards import terminating
from fleet.errors import FleetError
from fleet.fitness import Obstacle, lack_of_room, obstacle
from fleet.gangs import Gang, gang_key, gang_ref
from fleet.ledger import lost_gpu_seconds
from fleet.names import EXPECTED_RUN, MIRROR_POD
from fleet.objects import Node, Pod
from fleet.reasons import Reason
from fleet.resources import Accepts, Drain, GPUPool, Victim, WholeNodeClaim
from fleet.times import parse_duration
from fleet.view import View


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node and what taking it would mean.

    `refused` is None if the node may be taken now: free if it has no GPU pod, else by stopping `victims`.
    `soft` says that the refusal is about the pods on it, so it may end by itself; `from_` is when, if time decides.
    `occupied` means that somebody would have to be stopped; `leaving` counts pods that are going anyway.
    """

    node: Node
    victims: tuple[Victim, ...] = ()
    occupied: bool = False
    leaving: int = 0
    lost_gpu_seconds: float = 0.0
    top_priority: int = 0
    refused: str | None = None
    soft: bool = False
    from_: datetime | None = None
    consent_missing: tuple[str, ...] = ()
    free_at: datetime | None = None

    @property
    def order(self) -> tuple[bool, int, int, float, int, str]:
        """Free nodes first, then least harm: highest victim priority, cost, number of victims, name."""
        harm = (self.top_priority, self.lost_gpu_seconds, len(self.victims))
        return (self.occupied, 0 if self.occupied else self.leaving, *harm, self.node.metadata.name)


_DEFAULT_GRACE_SECONDS = 30
_TERMS = {
    Consent.MISSING: Reason.AGREEMENT_MISSING,
    Consent.PRIORITY: Reason.AGREEMENT_TERMS,
    Consent.NOT_SELECTED: Reason.AGREEMENT_TERMS,
    Consent.PATIENCE: Reason.AGREEMENT_TIME,
    Consent.MIN_RUNTIME: Reason.AGREEMENT_TIME,
}


def serving_pools(view: View, claim: WholeNodeClaim, resource: str, cards: int) -> tuple[GPUPool, ...]:
    """WholeNode pools whose nodes are exactly what one member asks for; only the claim's own pool if it names one."""
    return tuple(
        pool
        for pool in view.pools
        if pool.spec.accepts is Accepts.WHOLE_NODE
        and pool.spec.resource_name == resource
        and pool.spec.cards_per_node == cards
        and claim.spec.pool in (None, pool.metadata.name)
    )


def candidates(
    view: View,
    claim: WholeNodeClaim,
    gang: Gang | None,
    pools: tuple[GPUPool, ...],
    reserved: Mapping[str, str],
    now: datetime,
    longest_grace: timedelta,
) -> Iterator[Candidate]:
    """Every node of the pools as a candidate, by name. `reserved`: node name -> why it is not to be had.

    `longest_grace`: a pod that may take longer to end is not worth stopping, the drain would be over before.
    """
    names = {pool.metadata.name for pool in pools}
    members = view.takers(gang)
    for name in sorted(view.nodes):
        in_pools = view.membership.by_node.get(name, ())
        pool = next((one for one in in_pools if one.metadata.name in names), None)
        if pool is None:
            continue
        node = view.nodes[name]
        if len(in_pools) > 1:
            yield Candidate(node, refused=Obstacle.POOL_CONFLICT)
        elif (blocked := obstacle(node, pool, members, claim.metadata.uid)) is not None:
            yield Candidate(node, refused=blocked)
        elif name in reserved:
            yield Candidate(node, refused=reserved[name])
        else:
            yield _occupied(view, claim, members, pool, node, now, longest_grace)


def _occupied(
    view: View,
    claim: WholeNodeClaim,
    members: tuple[Pod, ...],
    pool: GPUPool,
    node: Node,
    now: datetime,
    longest_grace: timedelta,
) -> Candidate:
    name = node.metadata.name
    on_node = view.gpu_pods_on(name)
    leaving = {pod.metadata.uid for pod in on_node}
    staying = (pod for pod in view.pods_by_node.get(name, ()) if pod.metadata.uid not in leaving)
    short = lack_of_room(node, staying, members, pool.spec.resource_name)
    if short is not None:
        return Candidate(node, refused=short)
    if not on_node:
        return Candidate(node)
    if any(pod.spec.node_name == name for pod in members):
        return Candidate(node, refused=Obstacle.OWN_GANG)
    running = tuple(pod for pod in on_node if not terminating(pod))
    free_at = _natural_end(on_node)
    verdicts = {pod.metadata.uid: consent(view, claim, pod, now) for pod in running}
    victims = tuple(_victims(view, running, verdicts, now))
    lost = sum(victim.lost_gpu_seconds for victim in victims)
    top = max((victim.priority for victim in victims), default=0)
    refused, from_, missing = _refusal(view, pool, running, verdicts, longest_grace)
    return Candidate(
        node,
        victims,
        occupied=bool(running),
        leaving=len(on_node) - len(running),
        lost_gpu_seconds=lost,
        top_priority=top,
        refused=refused,
        soft=refused is not None,
        from_=from_,
        consent_missing=missing,
        free_at=free_at,
    )


def _refusal(
    view: View, pool: GPUPool, running: tuple[Pod, ...], verdicts: Mapping[str, Verdict], longest_grace: timedelta
) -> tuple[str | None, datetime | None, tuple[str, ...]]:
    if not running:
        return None, None, ()
    if pool.spec.drain is not Drain.AGREED:
        return Reason.DRAIN_DISABLED, None, ()
    if any(unevictable(pod) for pod in running):
        return Reason.UNEVICTABLE, None, ()
    against = [(pod, verdicts[pod.metadata.uid]) for pod in running]
    against = [(pod, one) for pod, one in against if one.consent is not Consent.GIVEN]
    if not against:
        return _hindrance(view, running, longest_grace), None, ()
    missing = tuple(sorted({pod.metadata.namespace for pod, one in against if one.consent is Consent.MISSING}))
    reasons = {_TERMS[one.consent] for _, one in against}
    for reason in (Reason.AGREEMENT_MISSING, Reason.AGREEMENT_TERMS):
        if reason in reasons:
            return reason, None, missing
    return Reason.AGREEMENT_TIME, max(one.from_ for _, one in against if one.from_), missing


def _hindrance(view: View, pods: tuple[Pod, ...], longest_grace: timedelta) -> str | None:
    """What would keep pods whose owners agreed from going, found out before the first of them is stopped."""
    if any(grace(pod) > longest_grace for pod in pods):
        return Reason.GRACE_TOO_LONG
    return Reason.BUDGET if forbidden(pods, view.budgets) is not None else None


def grace(pod: Pod) -> timedelta:
    """How long the pod may take to end once it is stopped."""
    seconds = pod.spec.termination_grace_period_seconds
    return timedelta(seconds=_DEFAULT_GRACE_SECONDS if seconds is None else seconds)


def consent(view: View, claim: WholeNodeClaim, pod: Pod, now: datetime) -> Verdict:
    """What the agreements say about stopping the pod for this claim, now."""
    since = claim.metadata.creation_timestamp or now
    return verdict(pod, claim.metadata.namespace, view.agreements, since, now)


def unevictable(pod: Pod) -> bool:
    """Whether stopping the pod would not free the node: its owner puts it straight back there."""
    owner = pod.metadata.controller()
    return pod.metadata.annotation(MIRROR_POD) is not None or (
        owner is not None and owner.kind in {"DaemonSet", "Node"}
    )


def _victims(view: View, pods: tuple[Pod, ...], verdicts: Mapping[str, Verdict], now: datetime) -> Iterator[Victim]:
    """A gang's whole loss stands with the first of its pods here; the others add nothing."""
    counted: set[str] = set()
    for pod in pods:
        key = gang_key(pod.metadata.namespace, gang_ref(pod, view.jobs))
        yield victim_of(view, pod, verdicts[pod.metadata.uid].agreement, now, already_counted=key in counted)
        counted.add(key)


def victim_of(view: View, pod: Pod, agreement: str, now: datetime, *, already_counted: bool) -> Victim:
    """The record of a pod that is, or would be, stopped at `now`."""
    lost = 0.0
    if not already_counted:
        gang = view.gangs.get(gang_key(pod.metadata.namespace, gang_ref(pod, view.jobs)))
        members = gang.pods if gang else (pod,)
        lost = lost_gpu_seconds(((one, _cards(view, one)) for one in members if one.spec.node_name), now)
    return Victim(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or "",
        cards=_cards(view, pod),
        priority=pod.spec.priority or 0,
        gang=gang_key(pod.metadata.namespace, gang_ref(pod, view.jobs)),
        agreement=agreement,
        lost_gpu_seconds=round(lost, 3),
    )


def _cards(view: View, pod: Pod) -> int:
    # A pod that a look has found may not have reached the caches yet.
    return view.classify(pod).cards


def _natural_end(pods: tuple[Pod, ...]) -> datetime | None:
    """When the last of the pods is expected to end by itself; None unless each of them says so."""
    ends = []
    for pod in pods:
        declared, started = pod.metadata.annotation(EXPECTED_RUN), pod.status.start_time
        try:
            if not declared or started is None:
                return None
            ends.append(started + parse_duration(declared))
        except FleetError:
            return None
    return max(ends, default=None)
