"""The facts of a waiting whole-node gang: its members, the claim that acts for it, and the nodes it could have."""

from dataclasses import dataclass
from datetime import datetime

from fleet.cards import waiting
from fleet.gangs import Gang, candidate_refs, gang_key, gang_ref
from fleet.marks import ENDED, HOLDING
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.requests import Request
from fleet.resources import Phase, Policy, WholeNodeClaim
from fleet.statuses import failed_for
from fleet.view import View, age_key
from fleet.why.explanations import Holder, Told
from fleet.why.small import holders_of
from fleet.why.supply import Ground, Supply

_ACTIVE = HOLDING | {Phase.PLANNED}


@dataclass(frozen=True, slots=True)
class GangCase:
    """A waiting whole-node pod, its gang and claim, and the nodes there are for it."""

    ground: Ground
    pod: Pod
    request: Request
    told: Told
    now: datetime
    gang: Gang | None
    claim: WholeNodeClaim | None
    """The claim that acts for the gang, or the one that failed for good."""
    supply: Supply
    wanted: int
    """Whole nodes still wanted."""

    @property
    def acting(self) -> bool:
        return self.claim is not None and self.claim.status.phase not in ENDED

    @property
    def reason(self) -> str:
        return self.claim.status.reason if self.claim is not None and self.acting else ""

    @property
    def message(self) -> str:
        return self.claim.status.message.rstrip(".") if self.claim is not None else ""

    @property
    def advanced(self) -> bool:
        """Whether the claim has taken its nodes."""
        preview = self.claim is not None and self.claim.spec.policy is Policy.PREVIEW
        return self.claim is not None and not preview and self.claim.status.phase in _ACTIVE

    @property
    def bound(self) -> int:
        takers = self.ground.view.takers(self.gang)
        return sum(bool(pod.spec.node_name) for pod in takers)

    @property
    def structural(self) -> bool:
        """Whether others hold, or come first on, so many nodes that the rest would not do even if they were empty."""
        seats = self.supply.seats
        unheld = sum(not seat.held_for for seat in seats)
        return self.reason == Reason.OLDER_CLAIM or unheld < self.wanted <= len(seats)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Claims that nodes are held for, and older waiting claims that nodes are kept for."""
        held = {seat.name: set(seat.held_for) for seat in self.supply.seats if seat.held_for}
        mine = age_key(self.claim) if self.claim is not None else None
        names = {seat.name for seat in self.supply.seats}
        for claim in self.ground.view.claims.values():
            waits = claim.status.phase in {Phase.PENDING, Phase.BLOCKED} and claim.status.plan is not None
            if mine is None or not waits or age_key(claim) >= mine or claim.spec.policy is Policy.PREVIEW:
                continue
            for name in claim.status.plan.nodes if claim.status.plan else ():
                if name in names:
                    held.setdefault(name, set()).add(claim.metadata.uid)
        return holders_of(self.ground.view, {name: frozenset(uids) for name, uids in held.items()})


def gang_case(ground: Ground, pod: Pod, request: Request, told: Told, now: datetime) -> GangCase:
    """Put the facts of a waiting whole-node pod together."""
    view = ground.view
    gang = view.gangs.get(view.gang_key_of(pod))
    claim = _claim_of(view, pod)
    uid, pool = (claim.metadata.uid, claim.spec.pool) if claim is not None else ("", None)
    supply = ground.supply(pod, request, uid, pool)
    wanted = sum(waiting(one) for one in view.takers(gang)) or (claim.spec.nodes if claim is not None else 1)
    return GangCase(ground, pod, request, told, now, gang, claim, supply, wanted)


def _claim_of(view: View, pod: Pod) -> WholeNodeClaim | None:
    """The claim that acts for the pod's gang; else the last one that failed for good; else none."""
    refs = (gang_ref(pod, view.jobs), *candidate_refs(pod))
    keys = dict.fromkeys(gang_key(pod.metadata.namespace, ref) for ref in refs)
    every = [claim for key in keys for claim in view.claims_by_gang.get(key, ())]
    acting = [claim for claim in every if claim.status.phase not in ENDED]
    if acting:
        return min(acting, key=lambda claim: (claim.spec.policy is Policy.PREVIEW, age_key(claim)))
    failed = [claim for claim in every if failed_for(claim, pod)]
    return max(failed, key=age_key, default=None)
