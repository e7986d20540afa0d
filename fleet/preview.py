"""What a claim would do now, and if it might stop others: the controller's own decision, read off before it acts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from math import fsum

import msgspec

from fleet.actions import Timing, WriteStatus
from fleet.candidates import Candidate
from fleet.lifecycle import decide
from fleet.planning import Choice
from fleet.resources import ClaimPlan, ClaimStatus, Policy, Victim, WholeNodeClaim
from fleet.times import clock
from fleet.view import View
from fleet.wants import may_stop
from fleet.why.answers import counted
from fleet.wishes import Asked


class NotChosen(StrEnum):
    """Why a node is not among the chosen ones although nothing forbids it, or although no plan looks at it."""

    COSTS_MORE = "CostsMore"
    RANKS_LOWER = "RanksLower"
    """It costs no more, but something that counts before cost does not speak for it, or shared gangs do not."""
    NOT_NEEDED = "NotNeeded"
    OCCUPIED = "PodsRunThere"
    OTHER_POOL = "InAnotherPool"
    NO_POOL = "InNoPool"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why one node is not chosen. `from_`: when time alone may change that; `free_at`: when its pods should be gone.

    Victims, lost GPU-seconds and cost are what taking this node alone would mean; `more` is what it costs beyond the
    costliest of the chosen nodes, in place of which it would be taken.
    """

    node: str
    reason: str
    detail: str = ""
    from_: datetime | None = None
    free_at: datetime | None = None
    victims: int = 0
    lost_gpu_seconds: float = 0.0
    cost: float = 0.0
    more: float = 0.0


@dataclass(frozen=True, slots=True)
class TeamLoss:
    """What one team would lose under one agreement; a gang's loss counts once."""

    namespace: str
    agreement: str
    pods: int
    cards: int
    gangs: int
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Course:
    """One decision: `takes` says that the nodes would be taken now; else they are those it would have next, if any."""

    takes: bool
    nodes: tuple[str, ...]
    reason: str
    message: str
    plan: ClaimPlan
    teams: tuple[TeamLoss, ...]
    next_best: tuple[Verdict, ...]
    """The runners-up of the plan, best first; they are among `others` too."""
    others: tuple[Verdict, ...]
    consent_missing: tuple[tuple[str, int], ...]
    """Namespaces that would have to agree, and how many nodes wait for their word."""
    start_at: datetime | None = None
    wake_at: datetime | None = None
    stop_nobody_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """`now`: by the claim's own policy and patience; `if_allowed`: as if it might stop others at once.

    `if_allowed` is None if that makes no difference. Both are None if it does not look for nodes: `status` says what it
    does instead.
    """

    claim: WholeNodeClaim
    exists: bool
    at: datetime
    now: Course | None
    if_allowed: Course | None
    status: ClaimStatus


def preview(asked: Asked, now: datetime, timing: Timing) -> Preview:
    """Decide as the controller would at `now`, for all claims in their turn, and keep what it says of this one.

    `if_allowed` has the policy WaitThenEvict and no patience; what agreements ask, their own patience too, counts.
    """
    view, claim = asked.view, asked.claim
    choice, status = _decided(view, claim, now, timing)
    course = _course(view, choice) if choice else None
    allowed = None
    if choice is not None and not may_stop(claim, now)[0]:
        spec = msgspec.structs.replace(claim.spec, policy=Policy.WAIT_THEN_EVICT, patience="0s")
        freed = msgspec.structs.replace(claim, spec=spec)
        freed_view = replace(view, claims={**view.claims, claim.metadata.uid: freed})
        other, _ = _decided(freed_view, freed, now, timing)
        allowed = _course(freed_view, other) if other else None
        allowed = None if allowed == course else allowed
    return Preview(claim, asked.exists, now, course, allowed, status)


def _decided(view: View, claim: WholeNodeClaim, now: datetime, timing: Timing) -> tuple[Choice | None, ClaimStatus]:
    """What was chosen for the claim, if it looks for nodes, and its status afterwards."""
    decision = decide(view, {}, {}, now, timing)
    uid = claim.metadata.uid
    if uid in decision.failed:
        raise decision.failed[uid]
    written = (one.status for one in decision.actions if isinstance(one, WriteStatus) and one.claim.metadata.uid == uid)
    return decision.choices.get(uid), next(written, claim.status)


def _course(view: View, choice: Choice) -> Course:
    plan = choice.plan or ClaimPlan()
    nodes = tuple(one.node.metadata.name for one in choice.taken) or plan.nodes or choice.wanted
    others = {one.node: one for one in _others(view, choice, frozenset(nodes))}
    return Course(
        takes=bool(choice.taken),
        nodes=nodes,
        reason=str(choice.reason),
        message=choice.message,
        plan=plan,
        teams=tuple(_teams(plan.victims)),
        next_best=tuple(others[one.node] for one in plan.runners_up if one.node in others),
        others=tuple(others.values()),
        consent_missing=tuple(sorted(_consents(choice.every).items())),
        start_at=choice.start_at,
        wake_at=choice.wake_at,
        stop_nobody_until=choice.stop_nobody_until,
    )


def _teams(victims: Iterable[Victim]) -> Iterator[TeamLoss]:
    grouped: dict[tuple[str, str], list[Victim]] = {}
    for victim in victims:
        grouped.setdefault((victim.namespace, victim.agreement), []).append(victim)
    for (namespace, agreement), some in sorted(grouped.items()):
        lost = round(fsum(one.lost_gpu_seconds for one in some), 3)
        gangs = len({one.gang or one.uid for one in some})
        yield TeamLoss(namespace, agreement, len(some), sum(one.cards for one in some), gangs, lost)


def _others(view: View, choice: Choice, nodes: frozenset[str]) -> Iterator[Verdict]:
    """Every node that is not chosen, by name."""
    every = {one.node.metadata.name: one for one in choice.every}
    dearest = max((every[name].cost for name in nodes if name in every), default=0.0)
    for name in sorted(view.nodes):
        if name in nodes:
            continue
        one = every.get(name)
        if one is not None:
            yield _verdict(one, dearest, takes=bool(choice.taken))
        elif choice.every:
            pools = sorted(pool.metadata.name for pool in view.membership.by_node.get(name, ()))
            reason = NotChosen.OTHER_POOL if pools else NotChosen.NO_POOL
            yield Verdict(name, reason, f"pool {', '.join(pools)}" if pools else "")


def _verdict(one: Candidate, dearest: float, *, takes: bool) -> Verdict:
    more = round(one.cost - dearest, 3)
    if one.refused is not None:
        reason, detail = one.refused, _detail(one)
    elif one.occupied:
        worse = NotChosen.COSTS_MORE if more > 0 else NotChosen.RANKS_LOWER
        reason, detail = worse if takes else NotChosen.OCCUPIED, _pods(one)
    else:
        reason, detail = NotChosen.NOT_NEEDED, "free"
    return Verdict(
        one.node.metadata.name,
        reason,
        detail,
        one.from_,
        one.free_at,
        len(one.victims),
        round(one.lost_gpu_seconds, 3),
        round(one.cost, 3),
        more,
    )


def _detail(one: Candidate) -> str:
    parts = [one.detail] if one.detail else []
    if one.consent_missing:
        parts.append(f"would have to agree: {', '.join(one.consent_missing)}")
    elif one.victims and not one.detail:
        parts.append(_pods(one))
    if one.kept_until:
        parts.append(f"kept until {clock(one.kept_until)}")
    return "; ".join(parts)


def _pods(one: Candidate) -> str:
    namespaces = ", ".join(sorted({victim.namespace for victim in one.victims}))
    return f"{counted(len(one.victims), 'pod')} of {namespaces}"


def _consents(every: Iterable[Candidate]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for one in every:
        for namespace in one.consent_missing:
            found[namespace] = found.get(namespace, 0) + 1
    return found
