"""Events that tell both sides what was stopped: the claim it was for, and the agreement it was done under."""

from collections.abc import Collection, Iterable
from math import fsum

from cluster.events import EventWriter, Reference, reference
from fleet.kueue.objects import Workload
from fleet.names import API_VERSION
from fleet.resources import DrainAgreement, DrainRecord, Outcome, Victim, WholeNodeClaim


def stopping(events: EventWriter, pod: Reference, claim: WholeNodeClaim, victim: Victim) -> None:
    """Tell it on the pod, as soon as its end has been asked for."""
    nodes = [one.name for one in claim.status.nodes]
    node = victim.node if victim.node in nodes else ", ".join(nodes)
    note = (
        f"stopped for claim {claim.metadata.namespace}/{claim.metadata.name} under agreement {victim.agreement}: "
        f"node {node} is vacated for a whole-node gang; {victim.lost_gpu_seconds:.0f} GPU-seconds of work lost"
    )
    events.record(pod, "VacatedByAgreement", note, "Warning", "Evict")


def stopping_job(events: EventWriter, workload: Workload, claim: WholeNodeClaim, victims: Collection[Victim]) -> None:
    """Tell it on the Workload that Kueue stops, and that it is queued anew by itself."""
    agreements = ", ".join(sorted({one.agreement for one in victims}))
    lost = fsum(one.lost_gpu_seconds for one in victims)
    note = (
        f"its {len(victims)} pod(s) are stopped for claim {claim.metadata.namespace}/{claim.metadata.name} under "
        f"agreement {agreements}; {lost:.0f} GPU-seconds of work lost; Kueue queues it again"
    )
    events.record(reference(workload), "VacatedByAgreement", note, "Warning", "Evict")


def stopped_under(events: EventWriter, record: DrainRecord, records: Iterable[DrainRecord]) -> None:
    """Tell it on the claim and on the agreement, once nothing is open between the two any more.

    `record` was just resolved; `records` are all there are. What they have in common is told as one sum.
    """
    spec, namespace = record.spec, record.metadata.namespace
    parties = (spec.claim_uid, namespace, spec.agreement)
    others = {
        one.metadata.uid: one
        for one in records
        if (one.spec.claim_uid, one.metadata.namespace, one.spec.agreement) == parties
    }
    found = {**others, record.metadata.uid: record}.values()
    stopped = [one for one in found if one.status.outcome is Outcome.STOPPED]
    if record not in stopped or any(one.status.outcome is Outcome.PENDING for one in found):
        return
    lost = fsum(one.spec.lost_gpu_seconds for one in stopped)
    pods = f"{len({one.spec.pod_uid for one in stopped})} pod(s) of {namespace}"
    sums = f"under agreement {namespace}/{spec.agreement}; {lost:.0f} GPU-seconds lost"
    claim_namespace, _, claim_name = spec.claim.partition("/")
    claim = Reference(API_VERSION, WholeNodeClaim.__name__, claim_namespace, claim_name, spec.claim_uid)
    events.record(claim, "StoppedByAgreement", f"stopped {pods} {sums}", "Normal", "Evict")
    if spec.agreement_uid:
        agreement = Reference(API_VERSION, DrainAgreement.__name__, namespace, spec.agreement, spec.agreement_uid)
        text = f"claim {spec.claim} had {pods} stopped {sums}"
        events.record(agreement, "UsedByClaim", text, "Normal", "Evict")
