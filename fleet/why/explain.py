"""Why one pod waits: one true answer with the figures behind it, from a view of the cluster and what others told.

Nothing is guessed: what a scheduler, Kueue or a kubelet says is given in its own words, and what is not known is
left out.
"""

from dataclasses import replace
from datetime import datetime

from fleet.cards import gated_by, waiting
from fleet.objects import Pod
from fleet.requests import Request, RequestClass
from fleet.resources import WholeNodeClaim
from fleet.view import View
from fleet.why.answers import Finding, blocker, counted, ends_at, listed, until
from fleet.why.attempts import attempted, scheduled_condition, scheduler_said
from fleet.why.explanations import BestNode, Blocker, ClaimFacts, Ends, Explanation, Kind, Stage, Told, Wait
from fleet.why.gangs import gang_finding
from fleet.why.small import small_finding
from fleet.why.starts import placed
from fleet.why.supply import Ground, Seat, Supply

_NOTHING_TOLD = Told()
_SHOWN_BLOCKERS = 20
_ABOUT_ROOM = frozenset({Stage.CAPACITY, Stage.TOPOLOGY, Stage.AGREEMENT})
_ABOUT_NODES = frozenset({Stage.CAPACITY, Stage.TOPOLOGY, Stage.RESERVED, Stage.AGREEMENT})


def explain(view: View, pod: Pod, told: Told, now: datetime) -> Explanation:
    """The one answer for a pod, which the view need not hold yet. Never raises; equal facts give equal answers."""
    if pod.metadata.uid not in view.pods:
        view = replace(view, pods={**view.pods, pod.metadata.uid: pod})
    return explain_on(Ground(view), pod, told, now)


def explain_on(ground: Ground, pod: Pod, told: Told, now: datetime) -> Explanation:
    """As `explain`, over nodes that were looked at before; the view must hold the pod."""
    request = ground.view.classify(pod)
    if request.request_class is RequestClass.NONE:
        text = "It asks for no GPU cards: wholenode has no say in where it runs." + _uncounted(ground, pod)
        return Explanation(
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            kind=Kind.NOT_OURS,
            reason=Wait.NO_CARDS,
            text=text,
            at=now,
            scheduler=scheduler_said(pod, told),
        )
    if not waiting(pod):
        return _placed(pod, request, told, now)
    finding = find(ground, pod, request, told, now)
    best = _best(ground, request, finding)
    text = finding.no.text + _uncounted(ground, pod)
    if best and best.free < request.cards and finding.stage in _ABOUT_ROOM:
        text += _best_text(best)
    return Explanation(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        at=now,
        kind=Kind.NO_PLACE if attempted(pod, told) else Kind.NOT_ATTEMPTED,
        stage=finding.stage,
        reason=str(finding.no.reason),
        text=text,
        ends=_ends(ground, request, finding),
        since=pod.metadata.creation_timestamp,
        numbers=dict(finding.numbers),
        best_node=best,
        holders=finding.holders,
        claim=_claim_facts(finding.claim),
        scheduler=scheduler_said(pod, told),
        checked=finding.checks,
        unread=told.unread,
    )


def find(ground: Ground, pod: Pod, request: Request, told: Told, now: datetime) -> Finding:
    """Where a waiting pod with cards stands."""
    about = gang_finding if request.request_class is RequestClass.WHOLE_NODE else small_finding
    return about(ground, pod, request, told, now)


def kind_and_reason(ground: Ground, pod: Pod, now: datetime) -> tuple[Kind, str]:
    """The two words that waits are counted by, from caches alone: nothing about containers, events and quota."""
    request = ground.view.classify(pod)
    if request.request_class is RequestClass.NONE:
        return Kind.NOT_OURS, Wait.NO_CARDS
    if not waiting(pod):
        kind, no = placed(pod, _NOTHING_TOLD)
        return kind, str(no.reason)
    kind = Kind.NO_PLACE if attempted(pod, _NOTHING_TOLD) else Kind.NOT_ATTEMPTED
    if request.request_class is RequestClass.WHOLE_NODE:
        return kind, str(find(ground, pod, request, _NOTHING_TOLD, now).no.reason)
    condition = scheduled_condition(pod)
    said = condition.reason if condition is not None else None
    alike = (id(ground.supply(pod, request)), pod.metadata.namespace, gated_by(pod), kind, said)
    if alike not in ground.words:
        ground.words[alike] = str(find(ground, pod, request, _NOTHING_TOLD, now).no.reason)
    return kind, ground.words[alike]


def _placed(pod: Pod, request: Request, told: Told, now: datetime) -> Explanation:
    kind, no = placed(pod, told)
    failed = kind is Kind.START_FAILED
    condition = scheduled_condition(pod)
    since = condition.last_transition_time if condition is not None and condition.status == "True" else None
    return Explanation(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        at=now,
        kind=kind,
        stage=Stage.START if failed else None,
        reason=str(no.reason),
        text=no.text,
        ends=Ends(no.how, no.at) if failed else None,
        since=since or pod.status.start_time or pod.metadata.creation_timestamp,
        numbers={"cardsNeeded": request.cards},
        scheduler=scheduler_said(pod, told),
        unread=told.unread,
    )


def _uncounted(ground: Ground, pod: Pod) -> str:
    classes = ground.view.classifier.ignored_device_classes(pod)
    return f" Devices of class {listed(classes)} are not counted as cards." if classes else ""


def _claim_facts(claim: WholeNodeClaim | None) -> ClaimFacts | None:
    if claim is None:
        return None
    status, plan = claim.status, claim.status.plan
    return ClaimFacts(
        claim.metadata.namespace,
        claim.metadata.name,
        str(status.phase),
        status.reason,
        status.message,
        tuple(held.name for held in status.nodes),
        plan.consent_missing if plan else (),
        plan.expected_free_at if plan else None,
    )


def _best(ground: Ground, request: Request, finding: Finding) -> BestNode | None:
    seat = finding.supply.best if finding.supply else None
    if seat is None or finding.stage not in _ABOUT_NODES or finding.no.reason == Wait.NEVER:
        return None
    pods = ground.view.gpu_pods_on(seat.name)
    every = [blocker(ground.view, pod, ground.cards_of(pod, request.resource)) for pod in pods]
    ends = [one.ends_at for one in every]
    known = [one for one in ends if one is not None]
    free_at = max(known) if known and len(known) == len(ends) else None
    return BestNode(seat.name, seat.cards, seat.free, free_at, tuple(every[:_SHOWN_BLOCKERS]))


def _best_text(best: BestNode) -> str:
    by = ""
    if best.blockers:
        shown = [f"{one.namespace}/{one.pod} ({one.cards}{_until(one)})" for one in best.blockers[:3]]
        more = len(best.blockers) - len(shown)
        by = f", the others held by {', '.join(shown)}" + (f" and {counted(more, 'more pod')}" if more else "")
    return f" Best node {best.name}: {best.free} of {best.cards} free{by}."


def _until(one: Blocker) -> str:
    return f"{until(one.ends_at)}, as its kind has run before" if one.learned else until(one.ends_at)


def _ends(ground: Ground, request: Request, finding: Finding) -> Ends:
    no = finding.no
    if no.at is None and finding.supply is not None and no.reason in {Wait.NOT_ENOUGH, Wait.FRAGMENTED}:
        wanted = finding.numbers.get("nodesNeeded", 1)
        return Ends(no.how, _natural(ground, request, finding.supply, wanted))
    return finding.ends


def _natural(ground: Ground, request: Request, supply: Supply, wanted: int) -> datetime | None:
    """When so many nodes have the cards as their pods are expected to end; None if that is known of too few."""
    already = sum(seat.room and not seat.held_for for seat in supply.seats)
    busy = (seat for seat in supply.seats if not seat.room and not seat.held_for)
    times = sorted(at for seat in busy if (at := _enough_at(ground, request, seat)) is not None)
    needed = wanted - already
    return times[needed - 1] if 0 < needed <= len(times) else None


def _enough_at(ground: Ground, request: Request, seat: Seat) -> datetime | None:
    free = seat.free
    ending = [(at, pod) for pod in ground.view.gpu_pods_on(seat.name) if (at := ends_at(ground.view, pod)) is not None]
    for at, pod in sorted(ending, key=lambda one: one[0]):
        free += ground.cards_of(pod, request.resource)
        if free >= request.cards:
            return at
    return None
