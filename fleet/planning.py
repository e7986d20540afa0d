"""Which nodes a waiting claim takes, or why it takes none and how that ends."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from fleet.candidates import Candidate, candidates, serving_pools
from fleet.cards import gated_by, waiting
from fleet.errors import FleetError
from fleet.gangs import Gang
from fleet.names import CLAIM_KEY
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import ClaimPlan, GPUPool, Policy, Refusal, RunnerUp, Victim, WholeNodeClaim
from fleet.times import format_duration, format_time, parse_duration
from fleet.view import View

_SHOWN_RUNNERS_UP = 5
_SHOWN_VICTIMS = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome for one claim at one moment.

    `taken` is empty while it waits; then `wanted` are the nodes it would have next, which no younger claim may take.
    `wake_at` is when time alone may change the answer.
    """

    taken: tuple[Candidate, ...]
    wanted: tuple[str, ...]
    reason: Reason
    message: str
    plan: ClaimPlan | None = None
    wake_at: datetime | None = None


def choose(
    view: View,
    claim: WholeNodeClaim,
    reserved: Mapping[str, str],
    now: datetime,
    longest_grace: timedelta = timedelta(minutes=10),
) -> Choice:
    """Choose all nodes of the claim or none, at the least harm. `reserved`: node name -> why it is not to be had.

    Free whole nodes come first and need nobody's consent; stopping anybody needs the policy WaitThenEvict,
    patience that is over, and the consent of every pod's owner.
    """
    gang = view.gang_of(claim)
    missing = unready(claim, gang)
    if missing is not None:
        return Choice((), (), *missing)
    resource, cards = _wish(view, claim, gang)
    pools = serving_pools(view, claim, resource, cards)
    if not pools:
        where = f"pool {claim.spec.pool}" if claim.spec.pool else "a pool that accepts WholeNode"
        return Choice((), (), Reason.NO_POOL, f"needs nodes with {cards} {resource} in {where}; there is none")
    found = candidates(view, claim, gang, pools, reserved, now, longest_grace)
    every = sorted(found, key=lambda one: one.order)
    count = nodes_wanted(claim, view.takers(gang))
    if len(every) < count:
        return Choice((), (), Reason.TOO_FEW_NODES, f"needs {count} whole nodes; its pools have {len(every)}")
    return _choose(claim, every, count, now)


def _choose(claim: WholeNodeClaim, every: list[Candidate], count: int, now: datetime) -> Choice:
    open_now = [one for one in every if one.refused is None]
    allowed, reason, message, patient_until = may_stop(claim, now)
    if sum(not one.occupied for one in open_now) >= count or (allowed and len(open_now) >= count):
        taken = tuple(open_now[:count])
        victims = sum(len(one.victims) for one in taken)
        text = (
            f"{count} node(s) chosen, {victims} pod(s) of other teams to stop" if victims else f"{count} free node(s)"
        )
        plan = _plan(every, taken, open_now[count:])
        return Choice(taken, tuple(one.node.metadata.name for one in taken), Reason.PLANNED, text, plan)
    hopeful = sorted((one for one in every if one.refused is None or one.soft), key=lambda one: one.order)
    wanted = tuple(hopeful[:count])
    expected = _expected(wanted, count)
    plan = _plan(every, wanted, hopeful[count:], expected)
    names = tuple(one.node.metadata.name for one in wanted)
    ends = f"; expected to end by itself at {format_time(expected)}" if expected else ""
    if len(open_now) >= count:
        return Choice((), names, reason, message + ends, plan, patient_until)
    later = min((one.from_ for one in every if one.from_), default=None)
    reason, message = _why(every, open_now, count)
    return Choice((), names, reason, message + ends, plan, later)


def nodes_wanted(claim: WholeNodeClaim, takers: tuple[Pod, ...]) -> int:
    """One node for each member that takes one and waits: those that are bound have theirs."""
    return sum(waiting(pod) for pod in takers) or claim.spec.nodes


def unready(claim: WholeNodeClaim, gang: Gang | None) -> tuple[Reason, str] | None:
    """Why the gang could not start whole, even on empty nodes; None if all of it is there and free of other gates."""
    if claim.spec.policy is Policy.PREVIEW and gang is None:
        return None
    present = len(gang.pods) if gang else 0
    size = gang.size if gang else claim.spec.nodes
    if gang is None or present < size:
        return Reason.GANG_INCOMPLETE, f"{present} of {size} pods of the gang exist; it starts whole or not at all"
    foreign = sorted({name for pod in gang.pods if waiting(pod) for name in gated_by(pod)} - {CLAIM_KEY})
    if foreign:
        return Reason.FOREIGN_GATE, f"another scheduling gate is still closed: {', '.join(foreign)}"
    own = (None, claim.metadata.uid)
    pinned = sorted(pod.metadata.name for pod in gang.pods if waiting(pod) and _pin(pod) not in own)
    if pinned:
        text = f"pod {pinned[0]} selects the nodes of a claim that is gone, for good: delete the pod, create it anew"
        return Reason.PINNED, text
    return None


def _pin(pod: Pod) -> str | None:
    return (pod.spec.node_selector or {}).get(CLAIM_KEY)


def _wish(view: View, claim: WholeNodeClaim, gang: Gang | None) -> tuple[str, int]:
    """What one member asks for. A made-up gang (Preview) asks for the nodes of its pool, or of the first that fits."""
    for pod in view.takers(gang) or (gang.pods if gang else ()):
        request = view.requests.get(pod.metadata.uid)
        if request is not None:
            return request.resource, request.cards
    named = [pool for pool in _by_name(view.pools) if claim.spec.pool in (None, pool.metadata.name)]
    return (named[0].spec.resource_name, named[0].spec.cards_per_node) if named else ("GPU", 1)


def _by_name(pools: Iterable[GPUPool]) -> list[GPUPool]:
    whole = [pool for pool in pools if pool.spec.accepts == "WholeNode"]
    return sorted(whole, key=lambda pool: pool.metadata.name)


def may_stop(claim: WholeNodeClaim, now: datetime) -> tuple[bool, Reason, str, datetime | None]:
    """Whether the claim itself lets anybody be stopped now; if not, why, and from when if only time is missing."""
    if claim.spec.policy is Policy.WAIT:
        text = "policy is Wait: nobody is stopped; set wholenode.io/policy: WaitThenEvict to use agreements"
        return False, Reason.POLICY_WAIT, text, None
    since = claim.metadata.creation_timestamp or now
    try:
        until = since + parse_duration(claim.spec.patience)
    except FleetError as error:
        return False, Reason.PATIENCE, f"spec.patience: {error}", None
    if now < until and claim.spec.policy is not Policy.PREVIEW:
        return False, Reason.PATIENCE, f"waits {format_duration(until - since)} for natural ends first", until
    return True, Reason.PLANNED, "", None


def _why(every: list[Candidate], open_now: list[Candidate], count: int) -> tuple[Reason, str]:
    """The reason that stands between the claim and its nodes, and the figures behind it."""
    blocked = Counter(one.refused for one in every if one.refused)
    figures = ", ".join(
        f"{number} {reason}" for reason, number in sorted(blocked.items(), key=lambda kv: (-kv[1], kv[0]))
    )
    text = f"needs {count} whole node(s), {len(open_now)} of {len(every)} may be taken; the others: {figures}"
    missing = sorted({namespace for one in every for namespace in one.consent_missing})
    if missing:
        text += f"; would have to consent: {', '.join(missing)}"
    soft = Counter(one.refused for one in every if one.soft)
    for reason in (
        Reason.AGREEMENT_TIME,
        Reason.AGREEMENT_MISSING,
        Reason.AGREEMENT_TERMS,
        Reason.DRAIN_DISABLED,
        Reason.UNEVICTABLE,
        Reason.BUDGET,
        Reason.GRACE_TOO_LONG,
    ):
        if len(open_now) + soft[reason] >= count:
            return reason, text
    if len(open_now) + sum(soft.values()) >= count:
        return Reason(str(soft.most_common(1)[0][0])), text
    if blocked[Reason.OLDER_CLAIM]:
        return Reason.OLDER_CLAIM, text
    return Reason.NO_USABLE_NODE, text


def _expected(wanted: tuple[Candidate, ...], count: int) -> datetime | None:
    if len(wanted) < count:
        return None
    ends = [one.free_at for one in wanted if one.occupied]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _plan(
    every: list[Candidate], chosen: tuple[Candidate, ...], next_best: list[Candidate], expected: datetime | None = None
) -> ClaimPlan:
    examples: dict[str, str] = {}
    for one in sorted(every, key=lambda one: one.node.metadata.name):
        if one.refused:
            examples.setdefault(one.refused, one.node.metadata.name)
    counted = Counter(one.refused for one in every if one.refused)
    victims = _once(victim for one in chosen for victim in one.victims)
    return ClaimPlan(
        nodes=tuple(one.node.metadata.name for one in chosen),
        victims=victims[:_SHOWN_VICTIMS],
        victim_count=len(victims),
        lost_gpu_seconds=round(sum(victim.lost_gpu_seconds for victim in victims), 3),
        runners_up=tuple(
            RunnerUp(one.node.metadata.name, len(one.victims), round(one.lost_gpu_seconds, 3))
            for one in next_best[:_SHOWN_RUNNERS_UP]
        ),
        refused=tuple(Refusal(reason, counted[reason], examples[reason]) for reason in sorted(examples)),
        consent_missing=tuple(sorted({namespace for one in every for namespace in one.consent_missing})),
        expected_free_at=expected,
    )


def _once(victims: Iterable[Victim]) -> tuple[Victim, ...]:
    """A gang that is hit on several nodes is lost once: its later pods add nothing."""
    counted: set[str] = set()
    found = []
    for victim in victims:
        found.append(msgspec.structs.replace(victim, lost_gpu_seconds=0.0) if victim.gang in counted else victim)
        counted.add(victim.gang)
    return tuple(found)


def wants_claim(view: View, gang: Gang) -> bool:
    """Whether a gang needs whole nodes and has a member that still waits for one."""
    return any(waiting(pod) for pod in view.takers(gang))
