"""Which nodes a waiting claim takes, or why it takes none and how that ends."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fleet.backfill import Ahead, end_if_taken, expected_run
from fleet.candidates import Candidate, being_vacated, with_budget
from fleet.combining import Chosen, Together
from fleet.domains import Domain, grouped, joint_cost
from fleet.fitness import Obstacle
from fleet.judging import Rules, candidates, serving_pools
from fleet.kueue.gangs import unready_now
from fleet.objects import Pod
from fleet.outlook import Outlook, hopeful, natural_start, outlook
from fleet.plans import plan_of
from fleet.reasons import Reason
from fleet.relocation import Homes
from fleet.resources import ClaimPlan, Course, Policy, Weighing, WholeNodeClaim
from fleet.stakes import Elsewhere, Weighed, weigh_set
from fleet.times import clock
from fleet.view import View
from fleet.waits import behind_older, can_never_fit, fragmented, waits_until, why
from fleet.wants import may_stop, member_too_large, mixed_sizes, nodes_wanted, wish


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome for one claim at one moment.

    `taken` is empty while it waits; then `wanted` are the nodes it would have next, which no younger claim may take.
    `wake_at` is when time alone may change the answer, `start_at` the earliest moment it could start, if known.
    `every` node of its pools is there as it was judged, those of other topology domains refused as such.
    `stop_nobody_until`: those on the taken nodes are expected to end by themselves by then.
    """

    taken: tuple[Candidate, ...]
    wanted: tuple[str, ...]
    reason: Reason
    message: str
    plan: ClaimPlan | None = None
    wake_at: datetime | None = None
    start_at: datetime | None = None
    every: tuple[Candidate, ...] = ()
    stop_nobody_until: datetime | None = None


def choose(
    view: View,
    claim: WholeNodeClaim,
    reserved: Mapping[str, str],
    now: datetime,
    longest_grace: timedelta = timedelta(minutes=10),
    ahead: Ahead | None = None,
    *,
    cool_down: timedelta = timedelta(0),
    cost_ceiling: float = 0.0,
) -> Choice:
    """Choose all nodes of the claim or none, at the least harm. `reserved`: node name -> why it is not to be had.

    `ahead`: nodes that older claims wait for, and the ends that holders of nodes have promised. Free whole nodes come
    first and need nobody's consent; stopping anybody needs the policy WaitThenEvict, patience that is over, and the
    consent of every pod's owner. Jobs stopped less than `cool_down` ago are left alone; `cost_ceiling`: GPU-seconds
    that may be thrown away for each that the gang has declared to use, 0 for any number.
    """
    gang = view.gang_of(claim)
    missing = unready_now(view, claim, gang)
    if missing is not None:
        return Choice((), (), *missing)
    hopeless = member_too_large(view, gang)
    if hopeless is not None:
        return Choice((), (), Reason.NO_POOL, hopeless)
    mixed = mixed_sizes(view, gang)
    if mixed is not None:
        return Choice((), (), Reason.NO_POOL, mixed)
    resource, cards = wish(view, claim, gang)
    pools = serving_pools(view, claim, resource, cards)
    if not pools:
        where = f"pool {claim.spec.pool}" if claim.spec.pool else "a pool that accepts WholeNode"
        return Choice((), (), Reason.NO_POOL, f"needs nodes with {cards} {resource} in {where}; there is none")
    takers, key = view.takers(gang), claim.spec.topology_key
    ahead = ahead or Ahead()
    found = candidates(view, claim, gang, pools, reserved, Rules(now, longest_grace, cool_down), ahead)
    every = tuple(sorted(found, key=lambda one: one.order))
    domains, where, runs_in = grouped(every, key), f"one {key}" if key else "", _domains_of(view, key, takers)
    if runs_in:
        where = f"{key} {' and '.join(runs_in)}, where its other members run"
        if len(runs_in) > 1 or "" in runs_in:
            text = f"needs one {key} for all; its members run in several, or in none"
            return Choice((), (), Reason.TOPOLOGY, text, every=every)
        domains = tuple(domain for domain in domains if domain.name == runs_in[0])
    count = nodes_wanted(claim, takers)
    never = can_never_fit(domains, count, where)
    if never is not None:
        only = _only(every, domains)
        plan = None if never[0] is Reason.TOO_FEW_NODES else plan_of(only, ())
        return Choice((), (), *never, plan, every=only)
    together = Together(
        view,
        Homes(view, frozenset(reserved) | frozenset(ahead.kept)),
        view.spending(now),
        being_vacated(view, reserved),
        with_budget(view, now),
        _ceiling(claim, count * cards, cost_ceiling),
    )
    return _choose(_Search(claim, every, domains, where, count, now, together, longest_grace))


def _ceiling(claim: WholeNodeClaim, cards: int, factor: float) -> float | None:
    """The most GPU-seconds that may be thrown away for the claim; None for any number."""
    run = expected_run(claim)
    return factor * cards * run.total_seconds() if run is not None and factor > 0 else None


@dataclass(frozen=True, slots=True)
class _Search:
    """One claim's search. `every` node is a candidate, its own are in one of `domains`; `where` says so in words.

    `together` is what holds for all nodes that are taken at once; `longest`: nodes are held for so long at most with
    nobody being stopped.
    """

    claim: WholeNodeClaim
    every: tuple[Candidate, ...]
    domains: tuple[Domain, ...]
    where: str
    count: int
    now: datetime
    together: Together
    longest: timedelta

    def weigh(self, chosen: Chosen, elsewhere: Elsewhere | None = None) -> Weighed | None:
        """Stopping the victims of the chosen nodes against waiting; None if there are none."""
        view, claim = self.together.view, self.claim
        return weigh_set(view, claim, chosen.nodes, chosen.victims, self.now, self.longest, elsewhere)

    def elsewhere(self) -> Elsewhere | None:
        """The nodes that are expected to be free first although nobody is stopped."""
        domains = tuple(Domain(one.name, tuple(map(self._if_late, one.nodes))) for one in self.domains)
        out = outlook(domains, self.count, self.now, None)
        return Elsewhere(out.wanted, out.start_at) if out.start_at is not None else None

    @staticmethod
    def _if_late(one: Candidate) -> Candidate:
        """The node with its natural end, if that may still come although it is overdue by a little."""
        late = one.occupants.late_at if one.occupants else None
        return one if late is None or not (one.refused is None or one.soft) else replace(one, free_at=late)

    def best(self, domains: Iterable[Domain], *, stopping: bool) -> Chosen | None:
        """Of all domains, the nodes that do least harm together."""
        found = [self.together.best(domain, self.count, stopping=stopping) for domain in domains]
        sets = [one for one in found if one is not None]
        best = min(sets, key=lambda one: one.rank, default=None)
        return best and replace(best, optimal=all(one.optimal for one in sets))

    def past_older(self, until: datetime | None) -> Chosen | None:
        """Free nodes, those kept for older claims among them if they are back by `until`; None for whenever.

        Nothing else: emptying a node may take longer than a claim that goes ahead has time to start.
        """

        def had(one: Candidate) -> bool:
            return one.kept and (until is None or (one.kept_until is not None and until <= one.kept_until))

        opened = (
            Domain(
                domain.name,
                tuple(replace(one, refused=None) if had(one) else one for one in domain.nodes if not one.leaving),
            )
            for domain in self.domains
        )
        return self.best(opened, stopping=False)


def _choose(search: _Search) -> Choice:
    claim, now, count, domains = search.claim, search.now, search.count, search.domains
    allowed, why_not, why_not_text, patient_until = may_stop(claim, now)
    end = end_if_taken(claim, now)
    sets = [
        search.best(domains, stopping=allowed),
        search.past_older(end) if end else None,
    ]
    taken = min((one for one in sets if one is not None), key=lambda one: one.rank, default=None)
    if taken is not None:
        return _taken_or_awaited(search, taken)
    out = outlook(domains, count, now, now if allowed else patient_until)
    expected = natural_start(domains, count, now)
    names = tuple(one.node.metadata.name for one in out.wanted)
    next_best = [one for one in hopeful(out.domain.nodes) if one not in out.wanted and one.refused != Obstacle.HELD]
    only = _only(search.every, domains)
    planned = _as_planned(search, out.wanted)
    weighed = search.weigh(planned) if len(out.wanted) == count else None
    plan = plan_of(only, next_best, planned, expected, weighed.weighing if weighed else None)
    reason, message, wake_at = _why(search, out, allowed=allowed, not_allowed=(why_not, why_not_text))
    moments = [moment for moment in (wake_at, patient_until) if moment is not None]
    text, wake_at = waits_until(message, expected), min(moments, default=None)
    return Choice((), names, reason, text, plan, wake_at, out.start_at, only)


def _as_planned(search: _Search, nodes: tuple[Candidate, ...]) -> Chosen:
    """The nodes a waiting claim would have next; nobody has compared all other sets with them."""
    victims = search.together.victims(nodes)
    lost = sum(victim.lost_gpu_seconds for victim in victims)
    return Chosen(nodes, victims, lost, joint_cost(nodes), not victims, search.together.homeless(nodes))


def _taken_or_awaited(search: _Search, chosen: Chosen) -> Choice:
    """Take the nodes, unless waiting is cheaper than stopping their victims (decision 0016)."""
    weighed = search.weigh(chosen, search.elsewhere() if chosen.victims else None)
    if weighed is None:
        return _taken(search, chosen)
    weighing, course = weighed.weighing, weighed.weighing.course
    if course is Course.EVICT or search.claim.spec.policy is Policy.PREVIEW:
        return _taken(search, chosen, weighing)
    text = f"waiting is cheaper than stopping {len(chosen.victims)} pod(s) of other teams: {weighing.note}"
    if weighed.nodes != chosen.nodes:
        chosen = _as_planned(search, weighed.nodes)
    if course is Course.SOFT_VACATE:
        return _taken(search, chosen, weighing, weighing.wait_until)
    names = tuple(one.node.metadata.name for one in chosen.nodes)
    only, expected = _only(search.every, search.domains), natural_start(search.domains, search.count, search.now)
    next_best = [one for one in hopeful(search.every) if one.node.metadata.name not in names]
    start_at = expected if weighing.cost == weighing.wait_cost else None
    wake_at = min((one for one in (weighing.wait_until, weighing.break_even_at) if one is not None), default=None)
    plan = plan_of(only, next_best, chosen, expected, weighing)
    return Choice((), names, weighed.reason, text, plan, wake_at, start_at, only)


def _taken(
    search: _Search, chosen: Chosen, weighing: Weighing | None = None, stop_nobody_until: datetime | None = None
) -> Choice:
    taken = chosen.nodes
    names = tuple(one.node.metadata.name for one in taken)
    text = f"{search.count} free node(s)"
    if stop_nobody_until is not None:
        text = f"{search.count} node(s) chosen, their {len(chosen.victims)} pod(s) are expected to end by themselves"
    elif chosen.victims:
        text = f"{search.count} node(s) chosen, {len(chosen.victims)} pod(s) of other teams to stop"
    if taken[0].domain:
        text += f", all in {search.claim.spec.topology_key} {taken[0].domain}"
    known = [one.kept_until for one in taken if one.kept and one.kept_until]
    if known:
        text += f"; ahead of an older claim that cannot start before {clock(min(known))}"
    others = [
        one
        for domain in search.domains
        if domain.name == taken[0].domain
        for one in domain.nodes
        if one.refused is None
    ]
    next_best = [one for one in others if one.node.metadata.name not in names]
    only = _only(search.every, search.domains)
    plan = plan_of(only, next_best, chosen, weighing=weighing)
    return Choice(taken, names, Reason.PLANNED, text, plan, every=only, stop_nobody_until=stop_nobody_until)


def _why(
    search: _Search, out: Outlook, *, allowed: bool, not_allowed: tuple[Reason, str]
) -> tuple[Reason, str, datetime | None]:
    """Why nothing is taken, from what is nearest: another claim, topology, the claim's own terms, the nodes."""
    behind = search.past_older(None)
    if behind is not None:
        return *behind_older(search.claim, behind.nodes), None
    would_do = any(_open(domain.nodes) >= search.count for domain in search.domains)
    if search.where and search.best((Domain("", search.every),), stopping=allowed) is not None:
        elsewhere = sum(one.refused is None and (allowed or not one.occupied) for one in search.every)
        reason, text = fragmented(search.domains, search.count, search.where, elsewhere, may_stop=allowed)
        return (
            reason,
            f"{text}; stopping others would help: {not_allowed[1]}" if would_do and not allowed else text,
            None,
        )
    if would_do and not allowed:
        return *not_allowed, None
    later = min((one.from_ for domain in search.domains for one in domain.nodes if one.from_), default=None)
    if len(out.wanted) >= search.count:
        reason, text = _of_domain(search, out.domain)
    elif search.where and len(hopeful(search.every)) >= search.count:
        elsewhere = len(hopeful(search.every))
        reason, text = fragmented(search.domains, search.count, search.where, elsewhere, may_stop=True)
    else:
        reason, text = why(_only(search.every, search.domains), search.count, None, search.where)
    if later is not None:
        text += f"; that may change from {clock(later)}"
    return reason, text, later


def _of_domain(search: _Search, domain: Domain) -> tuple[Reason, str]:
    open_now = [one for one in domain.nodes if one.refused is None]
    hindered = search.together.hindrance(open_now[: search.count]) if len(open_now) >= search.count else None
    where = f"{search.claim.spec.topology_key} {domain.name}" if domain.name else ""
    return why(domain.nodes, search.count, hindered, where)


def _open(nodes: Iterable[Candidate]) -> int:
    return sum(one.refused is None for one in nodes)


def _only(every: tuple[Candidate, ...], domains: tuple[Domain, ...]) -> tuple[Candidate, ...]:
    """Every candidate, those in a domain out of the question refused for that."""
    names = {domain.name for domain in domains}
    return tuple(
        one
        if one.domain in names or not one.domain
        else replace(one, refused=Obstacle.OTHER_DOMAIN, soft=False, from_=None, detail="", consent_missing=())
        for one in every
    )


def _domains_of(view: View, topology_key: str | None, takers: tuple[Pod, ...]) -> tuple[str, ...]:
    """Domains in which members run already; one without a name for a node that lacks the label."""
    if topology_key is None:
        return ()
    nodes = [view.nodes.get(pod.spec.node_name) for pod in takers if pod.spec.node_name]
    return tuple(sorted({node.metadata.label(topology_key) or "" for node in nodes if node is not None}))
