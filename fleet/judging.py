"""What one claim may do with each node of its pools, asked of all that is on it: fitness, pods, agreements, budgets."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from fleet.agreements import Consent, Verdict
from fleet.backfill import Ahead
from fleet.candidates import Candidate, being_vacated, with_budget
from fleet.cards import asks
from fleet.consents import Consents
from fleet.fitness import Obstacle, lack_of_room, obstacle
from fleet.gangs import Gang
from fleet.kueue.victims import workloads_of
from fleet.marks import holders
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod
from fleet.occupants import Occupants, occupants
from fleet.readiness import Shortfall
from fleet.reasons import Reason
from fleet.relocation import Homes
from fleet.resources import Accepts, Drain, DrainAgreement, GPUPool, WholeNodeClaim
from fleet.selectors import node_wanted
from fleet.spending import Overdraft
from fleet.view import View

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
    key = claim.spec.topology_key
    for name in sorted(view.nodes):
        in_pools = view.membership.by_node.get(name, ())
        pool = next((one for one in in_pools if one.metadata.name in names), None)
        if pool is None:
            continue
        node = view.nodes[name]
        domain = (node.metadata.label(key) or "") if key else ""
        if len(in_pools) > 1:
            one = Candidate(node, refused=Obstacle.POOL_CONFLICT)
        elif key and not domain:
            one = Candidate(node, refused=Obstacle.NO_TOPOLOGY_DOMAIN, never=Obstacle.NO_TOPOLOGY_DOMAIN)
        elif (blocked := judge.obstacle(node, pool) or reserved.get(name)) is not None:
            one = judge.blocked(node, pool, blocked, ahead)
        else:
            one = judge.occupied(node, pool)
            one = _kept(one, ahead) if name in ahead.kept else one
        yield replace(one, domain=domain) if domain else one


def _kept(one: Candidate, ahead: Ahead) -> Candidate:
    """The same node when an older claim waits for it: no younger one counts on it, whatever runs there."""
    if one.refused is not None and not one.soft:
        return one
    until = ahead.kept[one.node.metadata.name]
    kept = replace(one, refused=Reason.OLDER_CLAIM, soft=False, from_=None, detail="", consent_missing=())
    return replace(kept, kept=True, kept_until=until)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Looks at nodes for one claim. `kinds` are its members, one of each kind, which other claims' may share.

    `shared` is what was found for all claims with members of these kinds, by node; `own` are the nodes with a member,
    `workloads` the UIDs of its Workloads at Kueue.
    """

    view: View
    claim: WholeNodeClaim
    kinds: tuple[Pod, ...]
    shared: dict[tuple[str, str, str], Obstacle | None]
    own: frozenset[str | None]
    workloads: frozenset[str]
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
            tuple(alike.values()),
            view.memo.setdefault(("obstacles", tuple(alike)), {}),
            frozenset(pod.spec.node_name for pod in members),
            workloads_of(view, gang.pods if gang else ()),
            rules,
            Consents.of(view, claim, rules.now, rules.cool_down),
            Homes(view, frozenset(reserved) | frozenset(ahead.kept)),
            being_vacated(view, reserved) | kept,
            with_budget(view, rules.now),
        )

    def obstacle(self, node: Node, pool: GPUPool) -> Obstacle | None:
        """What about the node itself rules it out. Whose a node with our taint is depends on the claim."""
        if holders(node):
            return obstacle(node, pool, self.kinds, self.claim.metadata.uid)
        return self._found("obstacle", node, pool, lambda: obstacle(node, pool, self.kinds, ""))

    def blocked(self, node: Node, pool: GPUPool, why: str, ahead: Ahead) -> Candidate:
        """A node that is out of the question now. One held by a claim that says when it is done may be waited for."""
        name, never = node.metadata.name, self._never(node, pool)
        until = ahead.ends.get(name) if why == Obstacle.HELD and name not in ahead.kept and never is None else None
        soft = until is not None
        return Candidate(node, refused=why, soft=soft, occupied=soft, free_at=until, never=never)

    def occupied(self, node: Node, pool: GPUPool) -> Candidate:
        """A node that is fit, judged by who runs there."""
        there = occupants(self.view, node.metadata.name, self.rules.now)
        tenants, resource = there.tenants, pool.spec.resource_name
        short = self._found("short of", node, pool, lambda: lack_of_room(node, tenants.staying, self.kinds, resource))
        if short is not None:
            return Candidate(node, refused=short, never=self._never(node, pool))
        if not tenants.holders:
            return Candidate(node)
        if node.metadata.name in self.own:
            return Candidate(node, refused=Obstacle.OWN_GANG)
        if tenants.booked:
            return Candidate(node, refused=Reason.BOOKED, soft=True)
        if not tenants.running:
            return Candidate(node, leaving=len(tenants.holders), free_at=there.free_at)
        if not there.workloads.isdisjoint(self.workloads):
            return Candidate(node, refused=Obstacle.OWN_GANG)
        return self._with_victims(node, pool, there)

    def _never(self, node: Node, pool: GPUPool) -> Obstacle | None:
        """What rules the node out for these members even if nothing ran on it and nobody kept it."""

        def found() -> Obstacle | None:
            if not all(node_wanted(pod.spec, node, CLAIM_KEY) for pod in self.kinds):
                return Obstacle.NOT_WANTED
            return lack_of_room(node, (), self.kinds, pool.spec.resource_name)

        return self._found("never", node, pool, found)

    def _found(self, what: str, node: Node, pool: GPUPool, find: Callable[[], Obstacle | None]) -> Obstacle | None:
        key = what, node.metadata.name, pool.metadata.name
        if key not in self.shared:
            self.shared[key] = find()
        return self.shared[key]

    def _with_victims(self, node: Node, pool: GPUPool, there: Occupants) -> Candidate:
        name, tenants = node.metadata.name, there.tenants
        stopped = tenants.stopped
        verdicts = self.consents.of_each(stopped, there.kinds)
        agreements = tuple([one.agreement for one in verdicts])
        budgeted, overdrafts = self._drawn(name, there, agreements) if self.agreements else (0, {})
        keeps: tuple[tuple[Pod, int], ...] = ()
        needed: Mapping[str, Shortfall] = {}
        if any(one.keep_ready for one in verdicts):
            keeps = tuple([(pod, one.keep_ready) for pod, one in zip(stopped, verdicts, strict=True)])
            needed = self.view.replicas.shortfalls(keeps, self.vacated)
            if needed:
                short = Verdict(Consent.KEEP_READY)
                verdicts = [
                    short if pod.metadata.uid in needed else one for pod, one in zip(stopped, verdicts, strict=True)
                ]
        refused, from_, missing = self._refusal(pool, there, verdicts, overdrafts)
        idle = pool.spec.cards_per_node * tenants.grace.total_seconds()
        return Candidate(
            node,
            occupied=True,
            leaving=len(tenants.holders) - len(tenants.running),
            lost_gpu_seconds=there.lost,
            top_priority=tenants.priority,
            refused=refused,
            soft=refused is not None,
            from_=from_,
            consent_missing=missing,
            free_at=there.free_at,
            detail=there.forbidden if refused == Reason.BUDGET else _detail(refused, needed, overdrafts, self.consents),
            keeps=keeps,
            gangs=there.gangs,
            hits=there.hits,
            idle=idle,
            cost=idle + there.loss,
            presses=there.presses,
            homeless=self.homes.homeless((name,)) if refused is None else 0,
            occupants=there,
            agreements=agreements,
            budgeted=budgeted,
        )

    def _drawn(self, name: str, there: Occupants, agreements: tuple[str, ...]) -> tuple[int, Mapping[str, Overdraft]]:
        """How many of the victims are under an agreement that has a budget, and for whom that has too little left."""
        memo, key = self.view.memo, ("drawn", name, self.rules.now, agreements)
        if key not in memo:
            pairs = zip(there.tenants.bare, agreements, strict=True)
            budgeted = sum([(one.namespace, by) in self.agreements for one, by in pairs])
            spending, victims = self.view.spending(self.rules.now), there.victims(agreements) if budgeted else ()
            memo[key] = budgeted, spending.overdrafts(victims, self.agreements) if budgeted else {}
        found: tuple[int, Mapping[str, Overdraft]] = memo[key]
        return found

    def _refusal(
        self, pool: GPUPool, there: Occupants, verdicts: Sequence[Verdict], overdrafts: Mapping[str, Overdraft]
    ) -> tuple[str | None, datetime | None, tuple[str, ...]]:
        if pool.spec.drain is not Drain.AGREED:
            return Reason.DRAIN_DISABLED, None, ()
        tenants = there.tenants
        if tenants.unevictable:
            return Reason.UNEVICTABLE, None, ()
        against = [one for one in verdicts if one.consent is not Consent.GIVEN]
        if not against and not overdrafts:
            return self._hindered(there), None, ()
        silent = (pod for pod, one in zip(tenants.stopped, verdicts, strict=True) if one.consent is Consent.MISSING)
        missing = tuple(sorted({pod.metadata.namespace for pod in silent}))
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
        raise AssertionError(reasons)

    def _hindered(self, there: Occupants) -> Reason | None:
        """What stands against it although all owners agree."""
        if there.tenants.grace > self.rules.longest_grace:
            return Reason.GRACE_TOO_LONG
        return Reason.BUDGET if there.forbidden else None


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


def kinds(members: Iterable[Pod]) -> Mapping[Hashable, Pod]:
    """One of each kind of members, by what it asks of a node."""
    found: dict[Hashable, Pod] = {}
    for pod in members:
        selector = tuple(sorted((pod.spec.node_selector or {}).items()))
        key = (selector, pod.spec.affinity, pod.spec.tolerations, tuple(sorted(asks(pod).items())))
        found.setdefault(key, pod)
    return found
