"""Writing a claim's status: entering a phase, conditions, and giving nodes back."""

from datetime import datetime, timedelta

import msgspec

from fleet.actions import Timing
from fleet.marks import HOLDING
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Avoided, ClaimStatus, Phase, PhaseTime, ResourceCondition, WholeNodeClaim

_KEPT_PHASES = 40
_TAKEN = frozenset({Phase.PLANNED, Phase.CORDONING, Phase.DRAINING, Phase.PROVING_EMPTY})
"""Phases in which nodes are on their way to being empty: what says by when, and who is left alone, ends with them."""
MAX_MESSAGE = 2000


def enter(
    claim: WholeNodeClaim, phase: Phase, reason: Reason, message: str, now: datetime, **changes: object
) -> ClaimStatus:
    """The claim's status once it is in `phase`. Entering the phase it is in already only renews the texts."""
    old = claim.status
    phases = old.phases
    if not phases or phases[-1].phase is not phase:
        phases = _kept((*phases, PhaseTime(phase, now)))
    status = msgspec.structs.replace(
        old,
        phase=phase,
        reason=str(reason),
        message=message[:MAX_MESSAGE],
        phases=phases,
        observed_generation=claim.metadata.generation,
        **changes,
    )
    if phase not in _TAKEN:
        status = msgspec.structs.replace(status, stop_nobody_until=None)
    if phase is not Phase.DRAINING:
        status = msgspec.structs.replace(status, drained_by=None)
    names = ",".join(held.name for held in status.nodes)
    return msgspec.structs.replace(status, node_names=names, conditions=_conditions(claim, status, now))


def _kept(phases: tuple[PhaseTime, ...]) -> tuple[PhaseTime, ...]:
    """The last of them, and of each phase the last in any case: limits run from when a phase was entered."""
    if len(phases) <= _KEPT_PHASES:
        return phases
    last = {one.phase: index for index, one in enumerate(phases)}
    first = next(index for index, one in enumerate(phases) if last[one.phase] != index)
    return _kept(phases[:first] + phases[first + 1 :])


def entered_at(status: ClaimStatus, phase: Phase) -> datetime | None:
    """When the claim last entered the phase."""
    return next((one.at for one in reversed(status.phases) if one.phase is phase), None)


def failed_for(claim: WholeNodeClaim, pod: Pod) -> bool:
    """Whether the claim has failed for this very pod, and not for one whose place it took since.

    Objects tell when they were made in whole seconds. One of the second of the failure counts as made afterwards,
    unless it was there when the claim was made.
    """
    failed_at, made = entered_at(claim.status, Phase.FAILED), pod.metadata.creation_timestamp
    if claim.status.phase is not Phase.FAILED or failed_at is None or made is None:
        return False
    begun = claim.metadata.creation_timestamp
    return made < failed_at.replace(microsecond=0) or (begun is not None and made <= min(begun, failed_at))


def _conditions(claim: WholeNodeClaim, status: ClaimStatus, now: datetime) -> tuple[ResourceCondition, ...]:
    facts = {
        "NodesHeld": status.phase in HOLDING and status.phase is not Phase.CORDONING,
        "Bound": status.phase is Phase.BOUND,
        "Failed": status.phase is Phase.FAILED,
    }
    old = {one.type: one for one in claim.status.conditions}
    found = []
    for name, true in facts.items():
        text = "True" if true else "False"
        before = old.get(name)
        changed = now if before is None or before.status != text else before.last_transition_time
        found.append(
            ResourceCondition(
                name, text, status.reason or "Waiting", status.message, changed, claim.metadata.generation
            )
        )
    return tuple(found)


def give_back(
    claim: WholeNodeClaim,
    reason: Reason,
    message: str,
    now: datetime,
    timing: Timing,
    *,
    avoid: tuple[str, ...] = (),
    avoid_for: timedelta | None = None,
) -> ClaimStatus:
    """Blocked: every node is given back, `avoid` is not tried again for a while, the claim is tried again soon."""
    kept = tuple(one for one in claim.status.avoid if one.until > now and one.node not in avoid)
    avoided = tuple(Avoided(node, str(reason), now + (avoid_for or timing.avoid_for)) for node in avoid)
    return enter(
        claim,
        Phase.BLOCKED,
        reason,
        message,
        now,
        nodes=(),
        retry_at=now + timing.retry_after,
        avoid=(*kept, *avoided)[-64:],
    )
