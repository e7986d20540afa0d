"""Each node as a choice for one claim: free, vacatable at a cost, or refused for a countable reason."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fleet.agreements import Consent, Verdict, by_agreements
from fleet.backfill import Ahead, expected_run, promised_end
from fleet.budgets import forbidden
from fleet.cards import terminating
from fleet.errors import FleetError
from fleet.fitness import Obstacle, lack_of_room, obstacle
from fleet.gangs import Gang
from fleet.names import CLAIM_KEY, EXPECTED_RUN, MIRROR_POD
from fleet.objects import Node, Pod
from fleet.readiness import Shortfall
from fleet.reasons import Reason
from fleet.resources import Accepts, Drain, GPUPool, Policy, Victim, WholeNodeClaim
from fleet.selectors import node_wanted
from fleet.times import parse_duration
from fleet.view import View


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node and what taking it would mean.

    `refused` is None if the node may be taken now: free if it has no GPU pod, else by stopping `victims`.
    `soft` says that the refusal is about the pods on it, so it may end by itself; `from_` is when, if time decides.
    `occupied` means that somebody would have to be stopped; `leaving` counts pods that are going anyway.
    `kept`: it is refused because an older claim waits for it, which could start at `kept_until`, if that is known.
    `never` is what would rule it out even if it were empty; `domain` its value of the claim's topology label.
    `detail` says more about the refusal; `keeps` are the victims with the ready replicas their services must keep.
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
    kept: bool = False
    kept_until: datetime | None = None
    never: Obstacle | None = None
    domain: str = ""
    detail: str = ""
    keeps: tuple[tuple[Pod, int], ...] = ()

    @property
    def order(self) -> tuple[bool, int, bool, int, float, int, str]:
        """Free nodes first, those nobody waits for before others; then by priority, cost, number of victims, name."""
        harm = (self.top_priority, self.lost_gpu_seconds, len(self.victims))
        return (self.occupied, 0 if self.occupied else self.leaving, self.kept, *harm, self.node.metadata.name)


_DEFAULT_GRACE_SECONDS = 30
_TERMS = {
    Consent.MISSING: Reason.AGREEMENT_MISSING,
    Consent.PRIORITY: Reason.AGREEMENT_TERMS,
    Consent.NOT_SELECTED: Reason.AGREEMENT_TERMS,
    Consent.PATIENCE: Reason.AGREEMENT_TIME,
    Consent.MIN_RUNTIME: Reason.AGREEMENT_TIME,
    Consent.WINDOW: Reason.AGREEMENT_TIME,
    Consent.KEEP_READY: Reason.KEEP_READY,
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
    ahead: Ahead,
) -> Iterator[Candidate]:
    """Every node of the pools as a candidate, by name. `reserved`: node name -> why it is not to be had.

    `ahead` are the nodes that other claims wait for or hold. `longest_grace`: a pod that may take longer to end is
    not worth stopping, the drain would be over before.
    """
    # An older claim may stop what runs on the nodes it waits for: that is not there to make up for a younger's victims.
    vacated = being_vacated(view, reserved) | {pod.metadata.uid for one in ahead.kept for pod in view.gpu_pods_on(one)}
    names = {pool.metadata.name for pool in pools}
    members = view.takers(gang)
    for name in sorted(view.nodes):
        in_pools = view.membership.by_node.get(name, ())
        pool = next((one for one in in_pools if one.metadata.name in names), None)
        if pool is None:
            continue
        node = view.nodes[name]
        domain = (node.metadata.label(claim.spec.topology_key) or "") if claim.spec.topology_key else ""
        if len(in_pools) > 1:
            one = Candidate(node, refused=Obstacle.POOL_CONFLICT)
        elif claim.spec.topology_key and not domain:
            one = Candidate(node, refused=Obstacle.NO_TOPOLOGY_DOMAIN, never=Obstacle.NO_TOPOLOGY_DOMAIN)
        elif (blocked := obstacle(node, pool, members, claim.metadata.uid) or reserved.get(name)) is not None:
            one = _blocked(node, pool, members, blocked, ahead)
        else:
            one = _occupied(view, claim, members, pool, node, now, longest_grace, vacated)
            one = _kept(one, ahead) if name in ahead.kept else one
        yield replace(one, domain=domain)


def _blocked(node: Node, pool: GPUPool, members: tuple[Pod, ...], why: str, ahead: Ahead) -> Candidate:
    """A node that is out of the question now. One held by a claim that says when it is done may be waited for."""
    name, never = node.metadata.name, _never(node, pool, members)
    until = ahead.ends.get(name) if why == Obstacle.HELD and name not in ahead.kept and never is None else None
    return Candidate(node, refused=why, soft=until is not None, occupied=until is not None, free_at=until, never=never)


def _never(node: Node, pool: GPUPool, members: tuple[Pod, ...]) -> Obstacle | None:
    """What rules the node out for these members even if nothing ran on it and nobody kept it."""
    if not all(node_wanted(pod.spec, node, CLAIM_KEY) for pod in members):
        return Obstacle.NOT_WANTED
    return lack_of_room(node, (), members, pool.spec.resource_name)


def _kept(one: Candidate, ahead: Ahead) -> Candidate:
    """The same node when an older claim waits for it: no younger one counts on it, whatever runs there."""
    if one.refused is not None and not one.soft:
        return one
    until = ahead.kept[one.node.metadata.name]
    kept = replace(one, refused=Reason.OLDER_CLAIM, soft=False, from_=None, detail="", consent_missing=())
    return replace(kept, kept=True, kept_until=until)


def _occupied(
    view: View,
    claim: WholeNodeClaim,
    members: tuple[Pod, ...],
    pool: GPUPool,
    node: Node,
    now: datetime,
    longest_grace: timedelta,
    vacated: frozenset[str],
) -> Candidate:
    name = node.metadata.name
    on_node = view.gpu_pods_on(name)
    leaving = {pod.metadata.uid for pod in on_node}
    staying = (pod for pod in view.pods_by_node.get(name, ()) if pod.metadata.uid not in leaving)
    short = lack_of_room(node, staying, members, pool.spec.resource_name)
    if short is not None:
        return Candidate(node, refused=short, never=_never(node, pool, members))
    if not on_node:
        return Candidate(node)
    if any(pod.spec.node_name == name for pod in members):
        return Candidate(node, refused=Obstacle.OWN_GANG)
    if any(pod.spec.node_name is None for pod in on_node):
        return Candidate(node, refused=Reason.BOOKED, soft=True)
    running = tuple(pod for pod in on_node if not terminating(pod))
    free_at = _natural_end(view, on_node)
    verdicts = {pod.metadata.uid: consent(view, claim, pod, now) for pod in running}
    keeps = tuple((pod, verdicts[pod.metadata.uid].keep_ready) for pod in running)
    needed = shortfalls(view, keeps, vacated)
    for uid in needed:
        verdicts[uid] = Verdict(Consent.KEEP_READY, verdicts[uid].agreement)
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
        detail=str(next(iter(needed.values()))) if refused is Reason.KEEP_READY else "",
        keeps=keeps,
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
    for reason in (Reason.AGREEMENT_MISSING, Reason.AGREEMENT_TERMS, Reason.KEEP_READY):
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
    valid = view.in_force(now).get(pod.metadata.namespace, ())
    return by_agreements(pod, claim.metadata.namespace, valid, since, now)


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
        key = view.gang_key_of(pod)
        yield victim_of(view, pod, verdicts[pod.metadata.uid].agreement, now, already_counted=key in counted)
        counted.add(key)


def victim_of(view: View, pod: Pod, agreement: str, now: datetime, *, already_counted: bool) -> Victim:
    """The record of a pod that is, or would be, stopped at `now`."""
    lost = 0.0 if already_counted else view.lost_gpu_seconds(pod, now)
    return Victim(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or "",
        cards=_cards(view, pod),
        priority=pod.spec.priority or 0,
        gang=view.gang_key_of(pod),
        agreement=agreement,
        lost_gpu_seconds=round(lost, 3),
    )


def _cards(view: View, pod: Pod) -> int:
    # A pod that a look has found may not have reached the caches yet.
    return view.classify(pod).cards


def _natural_end(view: View, pods: tuple[Pod, ...]) -> datetime | None:
    """When the last of the pods is expected to end by itself; None unless that is known of each of them."""
    ends = []
    for pod in pods:
        end = pod.metadata.deletion_timestamp or _declared_end(view, pod)
        if end is None:
            return None
        ends.append(end)
    return max(ends, default=None)


def _declared_end(view: View, pod: Pod) -> datetime | None:
    """The end that the pod's owner has declared, on the pod or in the claim that the pod's node was taken for."""
    declared, started = pod.metadata.annotation(EXPECTED_RUN), pod.status.start_time
    try:
        if declared and started:
            return started + parse_duration(declared)
    except FleetError:
        return None
    claims = view.claims_by_gang.get(view.gang_key_of(pod), ())
    claim = next((one for one in reversed(claims) if one.spec.policy is not Policy.PREVIEW), None)
    run = expected_run(claim) if claim else None
    if claim is None or run is None:
        return None
    return started + run if started else promised_end(claim)
