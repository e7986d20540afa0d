"""Why a whole-node gang waits: its claim's status is the authority, the figures come from the view."""

from datetime import datetime

from fleet.agreements import Consent
from fleet.cards import terminating
from fleet.consents import consent
from fleet.errors import FleetError
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.requests import Request
from fleet.resources import Phase, Policy, WholeNodeClaim
from fleet.times import parse_duration
from fleet.why.admission import admitted, foreign_gates
from fleet.why.answers import Answer, Finding, No, Yes, beside, counted, ends_at, first_no, left_out, listed, only_free
from fleet.why.attempts import scheduler_no
from fleet.why.case import GangCase, gang_case
from fleet.why.explanations import Stage, Told, Wait
from fleet.why.small import holder_text
from fleet.why.supply import Ground, serves

_SOMEBODYS_WORD = frozenset(
    {
        Reason.AGREEMENT_MISSING,
        Reason.AGREEMENT_TERMS,
        Reason.DRAIN_DISABLED,
        Reason.UNEVICTABLE,
        Reason.GRACE_TOO_LONG,
        Reason.BUDGET,
        Reason.KEEP_READY,
        Reason.AGREEMENT_BUDGET,
        Reason.CHECKPOINT_MISSING,
    }
)
"""Reasons that somebody's word mends, whatever time does: what the claim says of them is worth more than figures."""

_WORDS = {
    Reason.AGREEMENT_TERMS: "the owners of the pods in the way change the terms of their agreements",
    Reason.DRAIN_DISABLED: "the pool's administrator writes drain: Agreed",
    Reason.UNEVICTABLE: "whoever owns the pods in the way keeps them off its nodes: stopped, they come straight back",
    Reason.GRACE_TOO_LONG: "the pods' terminationGracePeriodSeconds is shortened",
    Reason.KEEP_READY: "the service gets another ready replica elsewhere, or its owner lets fewer be kept ready",
    Reason.BUDGET: "the PodDisruptionBudget lets a pod go",
    Reason.AGREEMENT_BUDGET: "enough of the budget has aged out, or the agreement's owner grants more",
    Reason.CHECKPOINT_MISSING: "the owners of the pods in the way report a checkpoint (wholenode.io/last-checkpoint)",
}
_BY_KUEUE = frozenset({Reason.KEY_TAKEN, Reason.OUTSIDE_POOLS, Reason.NOT_TOLERATED})
"""What the Workload says against every node, empty or not."""


def gang_finding(ground: Ground, pod: Pod, request: Request, told: Told, now: datetime) -> Finding:
    """The stage at which a waiting whole-node pod's gang stands."""
    case = gang_case(ground, pod, request, told, now)
    given_up, never = _given_up(case), _never(case)
    if given_up is not None:
        stage, no, checks = first_no([(given_up[0], lambda: given_up[1])], lambda: scheduler_no(pod, told))
    elif never is not None:
        stage, no, checks = first_no([(Stage.CAPACITY, lambda: never)], lambda: scheduler_no(pod, told))
    else:
        questions = [
            (Stage.ADMISSION, lambda: _admission(case)),
            (Stage.GANG, lambda: _gang(case)),
            (Stage.CAPACITY, lambda: _capacity(case)),
            (Stage.TOPOLOGY, lambda: _topology(case)),
            (Stage.RESERVED, lambda: _reserved(case)),
            (Stage.AGREEMENT, lambda: _agreement(case)),
        ]
        stage, no, checks = first_no(questions, lambda: _last(case))
    holders = case.holders if stage is Stage.RESERVED and not case.advanced else ()
    return Finding(stage, no, checks, _numbers(case), case.supply, case.claim, holders)


def _given_up(case: GangCase) -> tuple[Stage, No] | None:
    if case.claim is None or case.acting:
        return None
    status = case.claim.status
    text = f"Its claim {_name(case.claim)} has failed and is not tried again for these pods: {case.message}."
    start = status.reason in {Reason.START_FAILED, Reason.LANDING_TIMED_OUT}
    stage = Stage.START if start else Stage.RESERVED
    return stage, No(status.reason, text, "the gang is deleted and submitted anew; waiting does not help")


def _never(case: GangCase) -> No | None:
    supply, bound = case.supply, case.bound
    how = "nodes are added, or the gang asks for less; waiting does not help"
    if supply.nodes >= case.wanted + bound:
        if case.reason in {Reason.NO_POOL, Reason.TOO_FEW_NODES}:
            return No(case.reason, f"Its gang can never start as things are: {case.message}.", how)
        return None
    pool = case.claim.spec.pool if case.claim is not None else None
    pools = (one for one in case.ground.view.pools if pool in {None, one.metadata.name})
    reason = Reason.TOO_FEW_NODES if any(serves(one, case.request) for one in pools) else Reason.NO_POOL
    where = f"pool {pool} has" if pool else "its pools have"
    text = (
        f"Needs {_nodes(case.wanted + bound)} with {case.request.cards} {case.request.resource} each; {where} "
        f"{supply.nodes}."
    )
    return No(reason, text, how)


def _nodes(number: int) -> str:
    return counted(number, "whole node")


def _name(claim: WholeNodeClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _admission(case: GangCase) -> Answer:
    own = admitted(case.pod, case.told.workload)
    if isinstance(own, No):
        return own
    how = "whoever set the gate removes it"
    if case.reason == Reason.FOREIGN_GATE:
        return No(Reason.FOREIGN_GATE, f"Of its gang, {case.message}.", how)
    shut = sorted(pod.metadata.name for pod in (case.gang.pods if case.gang else ()) if foreign_gates(pod))
    if shut and not case.acting:
        return No(Reason.FOREIGN_GATE, f"Another scheduling gate is closed on pod {listed(shut)} of its gang.", how)
    return own


def _gang(case: GangCase) -> Answer:
    present, size = (len(case.gang.pods), case.gang.size) if case.gang else (1, 1)
    if case.reason == Reason.PINNED:
        return No(Reason.PINNED, f"The gang cannot start whole: {case.message}.", "that pod is deleted and made anew")
    if case.reason in _BY_KUEUE:
        text = f"No node can be taken for it: {case.message}."
        return No(case.reason, text, "its pod template or its queue's flavor is changed as said")
    unsized = case.gang.unsized if case.gang else ""
    if case.reason != Reason.GANG_INCOMPLETE and (case.acting or not case.ground.gangs_known):
        return Yes("the whole gang exists" if case.acting else "its claim will say", seen=case.acting)
    if present < size:
        text = f"Its gang starts whole or not at all, and {present} of {size} pods of it exist."
    elif unsized:
        text = f"Its gang starts whole or not at all; how many pods it has is not known: {unsized}."
    elif case.reason == Reason.GANG_INCOMPLETE:
        text = f"Its gang starts whole or not at all: {case.message}."
    else:
        return Yes("the whole gang exists" if size > 1 else "it is a gang of its own")
    return No(Reason.GANG_INCOMPLETE, text, "the missing pods are created")


def _wish(case: GangCase) -> str:
    each = " each" if case.wanted > 1 else ""
    return f"Needs {_nodes(case.wanted)} with {case.request.cards} {case.request.resource}{each}{beside(case.request)}"


def _capacity(case: GangCase) -> Answer:
    supply, needed = case.supply, case.wanted * case.request.cards
    if case.advanced:
        return Yes("its claim has taken its nodes")
    if len(supply.seats) < case.wanted:
        text = (
            f"{_wish(case)}; only {len(supply.seats)} of {counted(supply.nodes, 'node')} of its pools can be used"
            f"{left_out(supply)}."
        )
        return No(Wait.NODES_SHUT, text, "nodes come back or are mended, or selectors and tolerations are corrected")
    if case.structural:
        return Yes("there would be enough nodes if none were held or kept for others")
    if supply.cards_free < needed:
        text = f"{_wish(case)}, {needed} cards in all; {only_free(supply)}{left_out(supply)}."
        how, at = _busy_ends(case)
        return No(Wait.NOT_ENOUGH, text, how, at, passed_on=_given_back(case))
    return Yes(f"{supply.cards_free} free in its pools, {needed} needed")


def _topology(case: GangCase) -> Answer:
    supply = case.supply
    wholes = len(supply.fitting)
    if case.advanced:
        return Yes("its claim has taken its nodes")
    if case.reason == Reason.TOPOLOGY:
        how, at = _busy_ends(case)
        return No(Reason.TOPOLOGY, f"{_wish(case)}, all in one topology domain: {case.message}.", how, at)
    if case.structural:
        return Yes("there would be enough nodes if none were held or kept for others")
    if wholes >= case.wanted:
        return Yes(f"{_nodes(wholes)} free, {case.wanted} needed")
    free = f"{supply.cards_free} are free on {counted(len(supply.seats), 'node')} of its pools"
    nodes = "no node is" if wholes == 0 else f"only {counted(wholes, 'is', 'are')}"
    text = f"{_wish(case)}; {free}, but {nodes} wholly free{left_out(supply)}."
    how, at = _busy_ends(case)
    return No(Wait.FRAGMENTED, text, how, at, passed_on=_word_missing(case) or _given_back(case))


def _word_missing(case: GangCase) -> bool:
    """Whether the gang wants to use agreements, at once, and what is missing is somebody's word."""
    evicts = case.claim is not None and case.claim.spec.policy is Policy.WAIT_THEN_EVICT
    return evicts and case.reason in _SOMEBODYS_WORD


def _given_back(case: GangCase) -> bool:
    """Whether it had nodes a moment ago: why it has them no more says more than what runs there now."""
    return case.claim is not None and case.claim.status.phase is Phase.BLOCKED


def _busy_ends(case: GangCase) -> tuple[str, datetime | None]:
    """How a wait for busy nodes ends, and when."""
    claim = case.claim
    if claim is None:
        return "pods on its nodes end", None
    natural = claim.status.plan.expected_free_at if claim.status.plan else None
    if case.reason == Reason.PATIENCE:
        since = claim.metadata.creation_timestamp or case.now
        try:
            return "its own patience ends and agreements are used, or pods end", since + parse_duration(
                claim.spec.patience
            )
        except (FleetError, OverflowError):
            return "its patience is corrected, or pods end", natural
    weighing = claim.status.plan.weighing if claim.status.plan else None
    if weighing is not None and case.reason in {Reason.WAIT_IS_CHEAPER, Reason.CHECKPOINT_SOON}:
        return "waiting costs less than stopping others now: they end or save their work", weighing.wait_until
    if case.reason == Reason.AGREEMENT_TIME:
        return "agreements allow its nodes to be vacated later, or pods end", _allowed_from(case, claim) or natural
    if _word_missing(case):
        return f"pods on its nodes end; or {_word(claim)}", natural
    if claim.spec.policy is Policy.WAIT:
        how = "pods on its nodes end; or wholenode.io/policy: WaitThenEvict on its pods, to use agreements"
        return how, natural
    return "pods on its nodes end", natural


def _allowed_from(case: GangCase, claim: WholeNodeClaim) -> datetime | None:
    """From when the agreements let the pods on the nodes that the claim would have next be stopped."""
    view = case.ground.view
    pods = [pod for name in (claim.status.plan.nodes if claim.status.plan else ()) for pod in view.gpu_pods_on(name)]
    verdicts = [consent(view, claim, pod, case.now) for pod in pods if not terminating(pod)]
    times = [one.from_ for one in verdicts if one.consent is not Consent.GIVEN]
    known = [one for one in times if one is not None]
    return max(known) if known and len(known) == len(times) else None


def _reserved(case: GangCase) -> Answer:
    claim = case.claim
    if claim is not None and case.advanced:
        if claim.status.phase is Phase.LANDING:
            return Yes("its nodes are open to it")
        return _under_way(case, claim)
    if claim is not None and _given_back(case):
        text = f"Its claim {_name(claim)} gave its nodes back: {case.message}."
        return No(case.reason, text, "it is tried again", claim.status.retry_at)
    if not case.structural:
        return Yes("enough nodes are not held for others")
    reason = case.reason if case.reason == Reason.OLDER_CLAIM else Wait.HELD
    others = case.holders
    names = listed(holder_text(one) for one in others) or "an older claim"
    taken = sorted({name for one in others for name in one.nodes})
    verb = "kept" if reason == Reason.OLDER_CLAIM else "held"
    be = "is" if len(taken) == 1 else "are"
    text = f"{_wish(case)}; {listed(taken) or 'the nodes it could have'} {be} {verb} for {names}."
    return No(reason, text, "that claim's gang is bound and ends, or it gives nodes back")


def _under_way(case: GangCase, claim: WholeNodeClaim) -> No:
    """Its own nodes are being vacated: what is left there."""
    nodes = [held.name for held in claim.status.nodes]
    view = case.ground.view
    own = {pod.metadata.uid for pod in (case.gang.pods if case.gang else ())}
    left = [pod for name in nodes for pod in view.gpu_pods_on(name) if pod.metadata.uid not in own]
    going = sum(terminating(pod) for pod in left)
    what = f"{counted(len(left), 'pod')} with cards left there, {going} of them ending"
    if case.reason not in {Reason.TERMINATING, Reason.EVICTING}:
        what = f"{case.message}; {what}" if left else case.message
    text = f"Its own claim {_name(claim)} makes {listed(nodes)} ready ({claim.status.phase}): {what}."
    ends = [ends_at(view, pod) for pod in left if terminating(pod)]
    known = [one for one in ends if one is not None]
    return No(
        case.reason,
        text,
        "its nodes are proved empty and it lands there",
        max(known, default=claim.status.stop_nobody_until),
    )


def _agreement(case: GangCase) -> Answer:
    claim = case.claim
    if claim is None or not _word_missing(case):
        return Yes("nobody's word is missing")
    plan = claim.status.plan
    text = f"No solution as the agreements stand: {case.message}."
    return No(case.reason, text, f"{_word(claim)}; or pods end by themselves", plan.expected_free_at if plan else None)


def _word(claim: WholeNodeClaim) -> str:
    """Whose word the claim waits for, and which."""
    plan = claim.status.plan
    who = listed(plan.consent_missing, 10) if plan else ""
    if claim.status.reason == Reason.AGREEMENT_MISSING and who:
        return f"{who} would have to write a DrainAgreement for namespace {claim.metadata.namespace}"
    return _WORDS.get(Reason(claim.status.reason), "somebody agrees")


def _last(case: GangCase) -> tuple[Stage, No]:
    claim = case.claim
    if claim is None:
        text = f"{_wish(case)}, which are free; no claim was made for its gang yet."
        how = "the controller makes a claim within a second; if not, no controller acts"
        return Stage.RESERVED, No(Wait.NO_CLAIM, text, how)
    if claim.spec.policy is Policy.PREVIEW:
        text = f"Its policy is Preview: claim {_name(claim)} only plans, nothing is ever held for it ({case.message})."
        return Stage.RESERVED, No(Reason.PREVIEW, text, "its pods are made anew with another wholenode.io/policy")
    if claim.status.phase is Phase.LANDING:
        nodes = listed(held.name for held in claim.status.nodes)
        be = "is" if len(claim.status.nodes) == 1 else "are"
        text = f"{nodes} {be} proved empty and open to its gang; the scheduler has not bound it yet."
        return Stage.SCHEDULER, No(case.reason or Reason.LANDING, text, "the scheduler binds it, or after 5 minutes")
    if not case.reason:
        text = f"{_wish(case)}, which are free; its claim {_name(claim)} is new."
        return Stage.RESERVED, No(Wait.NO_CLAIM, text, "the controller plans it within a second")
    stage = Stage.AGREEMENT if case.reason in _SOMEBODYS_WORD else Stage.TOPOLOGY
    at = claim.status.plan.expected_free_at if claim.status.plan else None
    less = ", or its pods ask for less of what is short" if case.reason == Reason.NO_USABLE_NODE else ""
    how = f"its nodes change{less}"
    return stage, No(case.reason, f"Its claim {_name(claim)} takes no nodes: {case.message}.", how, at)


def _numbers(case: GangCase) -> dict[str, int]:
    supply, best = case.supply, case.supply.best
    return {
        "cardsNeeded": case.wanted * case.request.cards,
        "nodesNeeded": case.wanted,
        "nodes": supply.nodes,
        "nodesUsable": len(supply.seats),
        "cardsFree": supply.cards_free,
        "cardsFreeOnHeldNodes": supply.cards_held,
        "bestNodeFree": best.free if best else 0,
        "wholeNodesFree": len(supply.fitting),
        "nodesHeldForOthers": sum(bool(seat.held_for) for seat in supply.seats),
        "gangPresent": len(case.gang.pods) if case.gang else 1,
        "gangSize": case.gang.size if case.gang else 1,
    }
