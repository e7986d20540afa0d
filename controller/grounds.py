"""What an eviction rests on, looked at once more right before it is sent: it may have waited its turn for a while."""

from collections.abc import Collection, Iterable
from datetime import datetime

from controller.caches import Caches
from fleet.agreements import Consent, in_force, queue_of, verdict
from fleet.gangs import belongs, gang_key, gang_ref
from fleet.kueue.disruptions import shortage
from fleet.kueue.objects import Workload
from fleet.kueue.victims import admitted, pods_of
from fleet.marks import HOLDING
from fleet.objects import Pod
from fleet.records import stands_for
from fleet.resources import DrainAgreement, Victim, WholeNodeClaim
from fleet.spending import Spending


def still_stands_whole(
    caches: Caches, claim_uid: str, workload: Workload, victims: Collection[Victim], now: datetime
) -> bool:
    """Whether the caches still show everything that allows a whole job to be stopped through Kueue for the claim.

    It is admitted, no pod runs of it that is not among the `victims`, the claim holds a node of one of these, each may
    be stopped, and the disruption budgets that cover them allow as many at once: Kueue asks none.
    """
    view, claim = caches.view({}), caches.claims.store.get(claim_uid)
    known = view.workloads.get(workload.metadata.uid)
    if claim is None or known is None or not admitted(known):
        return False
    pods, wanted = pods_of(view, known), {one.uid: one for one in victims}
    held = {one.name for one in claim.status.nodes}
    if any(pod.metadata.uid not in wanted for pod in pods) or all(one.node not in held for one in victims):
        return False
    if shortage(view, pods) is not None:
        return False
    return all(still_stands(caches, claim_uid, wanted[pod.metadata.uid], pod, now, whole=True) for pod in pods)


def still_stands(
    caches: Caches, claim_uid: str, victim: Victim, pod: Pod, now: datetime, *, whole: bool = False
) -> bool:
    """Whether the caches still show everything that allows the pod to be stopped for the claim.

    The claim holds the node (or, of a `whole` job, that of another of its pods) and has the pod among its victims as it
    was decided; the record is written; the agreement that the record names consents, and has budget for it.
    """
    claim = caches.claims.store.get(claim_uid)
    if claim is None or claim.status.phase not in HOLDING or victim not in claim.status.victims:
        return False
    if not whole and all(held.name != victim.node for held in claim.status.nodes):
        return False
    if not any(stands_for(record, claim, victim) for record in caches.records.store.values()):
        return False
    agreements = [one for one in caches.agreements.store.values() if one.metadata.name == victim.agreement]
    if not _consents(caches, claim, pod, victim, agreements, now):
        return False
    return _affords(caches, claim_uid, victim, agreements, now)


def _consents(
    caches: Caches,
    claim: WholeNodeClaim,
    pod: Pod,
    victim: Victim,
    agreements: Iterable[DrainAgreement],
    now: datetime,
) -> bool:
    pods, jobs = caches.pods.store.values(), caches.jobs.store
    namespace, gang, since = claim.metadata.namespace, claim.spec.gang, claim.metadata.creation_timestamp or now
    queue = queue_of(one for one in pods if belongs(one, namespace, gang)) if gang else ""
    key = gang_key(pod.metadata.namespace, gang_ref(pod, jobs))
    fellows = (
        one
        for one in pods
        if one.metadata.namespace == pod.metadata.namespace
        and gang_key(pod.metadata.namespace, gang_ref(one, jobs)) == key
    )
    found = verdict(pod, namespace, agreements, since, now, queue, fellows).consent
    # The member that told of the gang's checkpoint may have been stopped before; then the victim's record tells of it.
    return found is Consent.GIVEN or (found is Consent.CHECKPOINT and victim.saved_at is not None)


def _affords(
    caches: Caches, claim_uid: str, victim: Victim, agreements: Iterable[DrainAgreement], now: datetime
) -> bool:
    """The budget may have been lowered since: the pod is counted anew, against all that is spent without it."""
    valid = {(victim.namespace, one.metadata.name): one for one in in_force(agreements, now).get(victim.namespace, ())}
    if all(one.spec.budget is None for one in valid.values()):
        return True
    spending = Spending.of(caches.records.store.values(), caches.claims.store.values(), now)
    return not spending.without([victim.uid]).overdrafts([victim], valid, claim_uid)
