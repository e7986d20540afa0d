"""Events that tell both sides what was stopped: the claim it was for, and the agreement it was done under."""

from collections.abc import Iterable
from math import fsum

from cluster.events import EventWriter, Reference
from fleet.names import API_VERSION
from fleet.resources import DrainAgreement, DrainRecord, Outcome, WholeNodeClaim


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
