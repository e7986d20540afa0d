"""What an eviction rests on, looked at once more right before it is sent: it may have waited its turn for a while."""

from collections.abc import Collection
from datetime import datetime

from fleet.agreements import Consent
from fleet.consents import consent
from fleet.kueue.disruptions import shortage
from fleet.kueue.objects import Workload
from fleet.kueue.victims import admitted, pods_of
from fleet.marks import HOLDING
from fleet.objects import Pod
from fleet.records import standing
from fleet.resources import Victim, WholeNodeClaim
from fleet.view import View


def still_stands_whole(
    view: View, claim_uid: str, workload: Workload, victims: Collection[Victim], now: datetime
) -> bool:
    """Whether the view still shows everything that allows a whole job to be stopped through Kueue for the claim.

    It is admitted, no pod runs of it that is not among the `victims`, the claim holds a node of one of these, each may
    be stopped, and the disruption budgets that cover them allow as many at once: Kueue asks none.
    """
    claim, known = view.claims.get(claim_uid), view.workloads.get(workload.metadata.uid)
    if claim is None or known is None or not admitted(known):
        return False
    pods, wanted = pods_of(view, known), {one.uid: one for one in victims}
    held = {one.name for one in claim.status.nodes}
    if any(pod.metadata.uid not in wanted for pod in pods) or all(one.node not in held for one in victims):
        return False
    if shortage(view, pods) is not None:
        return False
    return all(still_stands(view, claim_uid, wanted[pod.metadata.uid], pod, now, whole=True) for pod in pods)


def still_stands(view: View, claim_uid: str, victim: Victim, pod: Pod, now: datetime, *, whole: bool = False) -> bool:
    """Whether the view still shows everything that allows the pod to be stopped for the claim.

    The claim holds the node (or, of a `whole` job, that of another of its pods) and has the pod among its victims as it
    was decided; the record is written; the agreement that the record names consents, and has budget for it.
    """
    claim = view.claims.get(claim_uid)
    if claim is None or claim.status.phase not in HOLDING or victim not in claim.status.victims:
        return False
    if not whole and all(held.name != victim.node for held in claim.status.nodes):
        return False
    if standing(view, claim, victim) is None:
        return False
    return _consents(view, claim, pod, victim, now) and _affords(view, claim_uid, victim, now)


def _consents(view: View, claim: WholeNodeClaim, pod: Pod, victim: Victim, now: datetime) -> bool:
    """Whether the very agreement that the victim was told of still allows it."""
    found = consent(view, claim, pod, now, under=victim.agreement).consent
    # The member that told of the gang's checkpoint may have been stopped before; then the victim's record tells of it.
    return found is Consent.GIVEN or (found is Consent.CHECKPOINT and victim.saved_at is not None)


def _affords(view: View, claim_uid: str, victim: Victim, now: datetime) -> bool:
    """The budget may have been lowered since: the pod is counted anew, against all that is spent without it."""
    agreed = [one for one in view.in_force(now).get(victim.namespace, ()) if one.metadata.name == victim.agreement]
    valid = {(victim.namespace, one.metadata.name): one for one in agreed}
    if all(one.spec.budget is None for one in valid.values()):
        return True
    return not view.spending(now).without([victim.uid]).overdrafts([victim], valid, claim_uid)
