"""Each node as a choice for one claim: free, vacatable at a cost, or refused for a countable reason."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from fleet.agreements import Consent, Verdict
from fleet.backfill import Ahead
from fleet.cards import asks
from fleet.choosing import Hit
from fleet.consents import Consents, consent
from fleet.costs import GangLoss, victims_of
from fleet.fitness import Obstacle, lack_of_room, obstacle
from fleet.gangs import Gang
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod
from fleet.occupants import Occupants, Press, grace, occupants, unevictable
from fleet.readiness import Shortfall
from fleet.reasons import Reason
from fleet.relocation import Homes
from fleet.resources import Accepts, Drain, DrainAgreement, GPUPool, Victim, WholeNodeClaim
from fleet.selectors import node_wanted
from fleet.spending import Overdraft
from fleet.view import View

__all__ = ["Candidate", "candidates", "consent", "grace", "unevictable"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node and what taking it would mean.

    `refused` is None if the node may be taken now: free if it has no GPU pod, else by stopping `victims`.
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
    gangs: tuple[GangLoss, ...] = ()
    hits: tuple[Hit, ...] = ()
    idle: float = 0.0
    cost: float = 0.0
    presses: tuple[Press, ...] = ()
    homeless: int = 0

    @property
    def order(self) -> tuple[bool, int, bool, int, int, bool, float, int, str]:
        """Free nodes first, those nobody waits for before others; then as sets are compared (`choosing.Found`)."""
        excess = sum(max(0, press.pods - press.allowed) for press in self.presses)
        harm = (excess, self.top_priority, self.homeless > 0, self.cost, len(self.gangs))
        return (self.occupied, 0 if self.occupied else self.leaving, self.kept, *harm, self.node.metadata.name)


_TERMS = {
    Consent.MISSING: Reason.AGREEMENT_MISSING,
    Consent.PRIORITY: Reason.AGREEMENT_TERMS,
    Consent.NOT_SELECTED: Reason.AGREEMENT_TERMS,
    Consent.PATIENCE: Reason.AGREEMENT_TIME,
    Consent.MIN_RUNTIME: Reason.AGREEMENT_TIME,
    Consent.WINDOW: Reason.AGREEMENT_TIME,
    Consent.CHECKPOINT: Reason.CHECKPOINT_MISSING,
    Consent.COOL_DOWN: Reason.COOL_DOWN,
    Consent.BUDGET: Reason.AGREEMENT_BUDGET,
    Consent.KEEP_READY: Reason.KEEP_READY,
}
_FOR_GOOD = (Reason.AGREEMENT_MISSING, Reason.AGREEMENT_TERMS, Reason.KEEP_READY, Reason.CHECKPOINT_MISSING)
"""Refusals that no known moment ends, the plainest first."""
_FOR_NOW = (Reason.AGREEMENT_TIME, Reason.COOL_DOWN, Reason.AGREEMENT_BUDGET)
"""Refusals that end with time, if it is known when. The first that applies is named, the last to end says when."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one claim's candidates are judged by beside the nodes themselves.

    `longest_grace`: a pod that may take longer to end is not worth stopping, the drain would be over before.
    `cool_down`: how long a job that was stopped is left alone.
    """

    now: datetime
    longest_grace: timedelta
    cool_down: timedelta = timedelta(0)


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
    rules: Rules,
    ahead: Ahead,
) -> Iterator[Candidate]:
    """Every node of the pools as a candidate, by name. `reserved`: node name -> why it is not to be had.

    `ahead` are the nodes that other claims wait for or hold.
    """
    names = {pool.metadata.name for pool in pools}
    judge = _Judge.of(view, claim, gang, reserved, rules, ahead)
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
        elif (blocked := obstacle(node, pool, judge.kinds, claim.metadata.uid) or reserved.get(name)) is not None:
            one = _blocked(node, pool, judge.kinds, blocked, ahead)
        else:
            one = judge.occupied(node, pool)
            one = _kept(one, ahead) if name in ahead.kept else one
        yield replace(one, domain=domain) if domain else one


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


@dataclass(frozen=True, slots=True)
class _Judge:
    """Looks at nodes for one claim: its members, one of each kind, and all that the pods on a node are asked about."""

    view: View
    claim: WholeNodeClaim
    members: tuple[Pod, ...]
    kinds: tuple[Pod, ...]
    asked: tuple[tuple[tuple[str, int], ...], ...]
    rules: Rules
    consents: Consents
    homes: Homes
    vacated: frozenset[str]
    agreements: Mapping[tuple[str, str], DrainAgreement] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        view: View,
        claim: WholeNodeClaim,
        gang: Gang | None,
        reserved: Mapping[str, str],
        rules: Rules,
        ahead: Ahead,
    ) -> "_Judge":
        members = view.takers(gang)
        alike = kinds(members)
        # An older claim may stop what runs on the nodes it waits for: that is not there to make up for a younger's.
        kept = frozenset(pod.metadata.uid for one in ahead.kept for pod in view.gpu_pods_on(one))
        return cls(
            view,
            claim,
            members,
            alike,
            tuple(tuple(sorted(asks(pod).items())) for pod in alike),
            rules,
            Consents.of(view, claim, rules.now, rules.cool_down),
            Homes(view, frozenset(reserved) | frozenset(ahead.kept)),
            being_vacated(view, reserved) | kept,
            with_budget(view, rules.now),
        )

    def occupied(self, node: Node, pool: GPUPool) -> Candidate:
        name, resource = node.metadata.name, pool.spec.resource_name
        there = occupants(self.view, name, self.rules.now)
        short = self._lack_of_room(node, there, resource)
        if short is not None:
            return Candidate(node, refused=short, never=_never(node, pool, self.kinds))
        if not there.holders:
            return Candidate(node)
        if any(pod.spec.node_name == name for pod in self.members):
            return Candidate(node, refused=Obstacle.OWN_GANG)
        if there.booked:
            return Candidate(node, refused=Reason.BOOKED, soft=True)
        if not there.running:
            return Candidate(node, leaving=len(there.holders), free_at=there.free_at)
        return self._with_victims(node, pool, there)

    def _lack_of_room(self, node: Node, there: Occupants, resource: str) -> Obstacle | None:
        """Shared by claims whose members ask the same."""
        memo, key = self.view.memo, ("lack of room", node.metadata.name, resource, self.asked)
        if key not in memo:
            memo[key] = lack_of_room(node, there.staying, self.kinds, resource)
        found: Obstacle | None = memo[key]
        return found

    def _with_victims(self, node: Node, pool: GPUPool, there: Occupants) -> Candidate:
        name, running = node.metadata.name, there.running
        verdicts = [self.consents.of_pod(pod, kind) for pod, kind in zip(running, there.kinds, strict=True)]
        victims, overdrafts = self._under(name, there, tuple([one.agreement for one in verdicts]))
        keeps: tuple[tuple[Pod, int], ...] = ()
        needed: Mapping[str, Shortfall] = {}
        if any(one.keep_ready for one in verdicts):
            keeps = tuple((pod, one.keep_ready) for pod, one in zip(running, verdicts, strict=True))
            needed = shortfalls(self.view, keeps, self.vacated)
            short = Verdict(Consent.KEEP_READY)
            verdicts = [
                short if pod.metadata.uid in needed else one for pod, one in zip(running, verdicts, strict=True)
            ]
        refused, from_, missing = self._refusal(pool, there, verdicts, overdrafts)
        idle = pool.spec.cards_per_node * there.grace.total_seconds()
        return Candidate(
            node,
            victims,
            occupied=True,
            leaving=len(there.holders) - len(running),
            lost_gpu_seconds=there.lost,
            top_priority=there.priority,
            refused=refused,
            soft=refused is not None,
            from_=from_,
            consent_missing=missing,
            free_at=there.free_at,
            detail=_detail(refused, needed, overdrafts, self.consents),
            keeps=keeps,
            gangs=there.gangs,
            hits=there.hits,
            idle=idle,
            cost=idle + there.loss,
            presses=there.presses,
            homeless=self.homes.homeless((name,)) if refused is None else 0,
        )

    def _under(
        self, name: str, there: Occupants, agreements: tuple[str, ...]
    ) -> tuple[tuple[Victim, ...], Mapping[str, Overdraft]]:
        """The victims as they would be stopped under these agreements, and for whom there is no budget."""
        memo, key = self.view.memo, ("victims", name, self.rules.now, agreements)
        if key not in memo:
            pairs = zip(there.victims, agreements, strict=True)
            victims = tuple(msgspec.structs.replace(one, agreement=by) if by else one for one, by in pairs)
            spends = any((one.namespace, one.agreement) in self.agreements for one in victims)
            spending = self.view.spending(self.rules.now) if spends else None
            memo[key] = victims, spending.overdrafts(victims, self.agreements) if spending else {}
        found: tuple[tuple[Victim, ...], Mapping[str, Overdraft]] = memo[key]
        return found

    def _refusal(
        self, pool: GPUPool, there: Occupants, verdicts: Sequence[Verdict], overdrafts: Mapping[str, Overdraft]
    ) -> tuple[str | None, datetime | None, tuple[str, ...]]:
        if pool.spec.drain is not Drain.AGREED:
            return Reason.DRAIN_DISABLED, None, ()
        if there.unevictable:
            return Reason.UNEVICTABLE, None, ()
        against = [one for one in verdicts if one.consent is not Consent.GIVEN]
        silent = (pod for pod, one in zip(there.running, verdicts, strict=True) if one.consent is Consent.MISSING)
        missing = tuple(sorted({pod.metadata.namespace for pod in silent})) if against else ()
        reasons = {_TERMS[one.consent] for one in against}
        for reason in _FOR_GOOD:
            if reason in reasons:
                return reason, None, missing
        moments = [one.from_ for one in against]
        if overdrafts:
            reasons.add(Reason.AGREEMENT_BUDGET)
            moments += [one.from_ for one in overdrafts.values()]
        for reason in _FOR_NOW:
            if reason in reasons:
                known = [moment for moment in moments if moment is not None]
                return reason, max(known) if known and len(known) == len(moments) else None, missing
        if there.grace > self.rules.longest_grace:
            return Reason.GRACE_TOO_LONG, None, ()
        return (Reason.BUDGET if there.forbidden else None), None, ()


def _detail(
    refused: str | None, needed: Mapping[str, Shortfall], overdrafts: Mapping[str, Overdraft], consents: Consents
) -> str:
    match refused:
        case Reason.KEEP_READY:
            return str(next(iter(needed.values())))
        case Reason.AGREEMENT_BUDGET:
            return next((one.text for one in overdrafts.values()), "")
        case Reason.COOL_DOWN:
            return consents.cooling
        case _:
            return ""


def kinds(members: Iterable[Pod]) -> tuple[Pod, ...]:
    """One of each kind of members: those that ask the same of a node are alike to it."""
    found: dict[object, Pod] = {}
    for pod in members:
        selector = tuple(sorted((pod.spec.node_selector or {}).items()))
        key = (selector, pod.spec.affinity, pod.spec.tolerations, tuple(sorted(asks(pod).items())))
        found.setdefault(key, pod)
    return tuple(found.values())


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


def victim_of(view: View, pod: Pod, agreement: str, now: datetime, *, already_counted: bool) -> Victim:
    """The record of a pod that is, or would be, stopped at `now`."""
    counted = (view.gang_key_of(pod),) if already_counted else ()
    return victims_of(view, (pod,), {pod.metadata.uid: agreement}, now, counted)[0]
