"""The records of stopped pods: what a record says, which intention it stands for, and what became of it."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

import msgspec

from fleet.actions import Answer, EvictionAnswer, Look, ResolveRecord
from fleet.cards import finished, terminating
from fleet.gangs import gang_key
from fleet.kueue.victims import fellows, leaving
from fleet.marks import HOLDING
from fleet.objects import Metadata, Pod
from fleet.resources import (
    ClaimStatus,
    DrainAgreement,
    DrainRecord,
    GangRef,
    Outcome,
    RecordSpec,
    Victim,
    WholeNodeClaim,
)
from fleet.view import View


def job_key(pod: Pod, gang_ref: GangRef) -> str:
    """What budgets and cool-downs count by: it stays the same when the pod is made anew under another name.

    The gang's key; of a pod that is no gang's its controller, as Kind/namespace/name/UID, else its own name.
    """
    namespace, owner = pod.metadata.namespace, pod.metadata.controller()
    if gang_ref.kind != "Pod":
        return gang_key(namespace, gang_ref)
    if owner is not None:
        return f"{owner.kind}/{namespace}/{owner.name}/{owner.uid}"
    return f"Pod/{namespace}/{pod.metadata.name}"


def record_name(pod_uid: str, claim_uid: str, at: datetime) -> str:
    """Follows from the intention as the claim's status has it: writing it down twice makes one record.

    `at` is in it because a claim that gave its nodes back may choose the same pod once more: another intention.
    """
    told = f"{pod_uid}/{claim_uid}/{at.timestamp():.6f}"
    return f"drain-{hashlib.sha256(told.encode()).hexdigest()[:24]}"


def record_of(
    claim: WholeNodeClaim, victim: Victim, beneficiary_gang: str, agreement: DrainAgreement | None, now: datetime
) -> DrainRecord:
    """The record of a victim as it stands in the claim's status (`now` counts only if that has no time yet)."""
    at = victim.evicted_at or now
    meta = claim.metadata
    return DrainRecord(
        Metadata(record_name(victim.uid, meta.uid, at), victim.namespace),
        RecordSpec(
            pod=victim.name,
            pod_uid=victim.uid,
            node=victim.node,
            cards=victim.cards,
            at=at,
            claim=f"{meta.namespace}/{meta.name}",
            claim_uid=meta.uid,
            beneficiary=meta.namespace,
            beneficiary_gang=beneficiary_gang,
            agreement=victim.agreement,
            agreement_uid=agreement.metadata.uid if agreement else "",
            job=victim.job,
            gang=victim.gang,
            priority=victim.priority,
            lost_gpu_seconds=victim.lost_gpu_seconds,
            saved_at=victim.saved_at,
            ends_gang=victim.ends_gang,
        ),
    )


def standing(view: View, claim: WholeNodeClaim, victim: Victim) -> DrainRecord | None:
    """The record of this very intention, if it is written and the pod was not spared: only then it may be stopped."""
    for record in view.records_of(victim.uid):
        if stands_for(record, claim, victim):
            return record
    return None


def outcome_of(view: View, claim_uid: str, victim: Victim) -> Outcome | None:
    """What the record of this very intention says; None if there is no record."""
    for record in view.records_of(victim.uid):
        if (record.spec.claim_uid, record.spec.at) == (claim_uid, victim.evicted_at):
            return record.status.outcome
    return None


def unspared(view: View, claim: WholeNodeClaim) -> ClaimStatus | None:
    """The claim's status less the victims that were spared or ended by themselves; None if there are none.

    On nodes that it is still having emptied they stay: a gang's loss may stand with one that has ended, see `booking`.
    """
    held = {one.name for one in claim.status.nodes} if claim.status.phase in HOLDING else ()
    uid = claim.metadata.uid
    victims = tuple(one for one in claim.status.victims if one.node in held or not unharmed(view, uid, one))
    if len(victims) == len(claim.status.victims):
        return None
    return with_victims(claim.status, victims)


def unharmed(view: View, claim_uid: str, victim: Victim) -> bool:
    """Whether the pod was spared, or has ended without being told to: then nobody has stopped it for the claim."""
    outcome, pod = outcome_of(view, claim_uid, victim), view.pods.get(victim.uid)
    ended = pod is not None and finished(pod) and not terminating(pod)
    return outcome is Outcome.SPARED or (outcome is not Outcome.STOPPED and ended)


def with_victims(status: ClaimStatus, victims: tuple[Victim, ...]) -> ClaimStatus:
    """The status with these victims and the sum of what they lost."""
    lost = round(sum(victim.lost_gpu_seconds for victim in victims), 3)
    return msgspec.structs.replace(status, victims=victims, lost_gpu_seconds=lost)


def stands_for(record: DrainRecord, claim: WholeNodeClaim, victim: Victim) -> bool:
    """Whether the record is of this intention and still open, or the pod was stopped by it already."""
    spec = record.spec
    same = (spec.pod_uid, spec.claim_uid, spec.at) == (victim.uid, claim.metadata.uid, victim.evicted_at)
    return same and record.status.outcome is not Outcome.SPARED


def stops_of(view: View, gang: str) -> list[RecordSpec]:
    """What the records tell of members of a live gang that were stopped for claims; `gang` is the gang's key."""
    known: dict[str, list[RecordSpec]] | None = view.memo.get("stops")
    if known is None:
        known = view.memo["stops"] = {}
        for record in view.records.values():
            if record.spec.gang in view.gangs and _has_stopped(view, record):
                known.setdefault(record.spec.gang, []).append(record.spec)
    return known.get(gang, [])


def _has_stopped(view: View, record: DrainRecord) -> bool:
    outcome = record.status.outcome
    return (_outcome(view, record, {}, {}) if outcome is Outcome.PENDING else outcome) is Outcome.STOPPED


def pending_elsewhere(view: View, pod_uid: str, claim_uid: str) -> DrainRecord | None:
    """An open record of another claim about the pod: until it is resolved, nobody else stops the pod."""
    for record in view.records_of(pod_uid):
        if record.status.outcome is Outcome.PENDING and record.spec.claim_uid != claim_uid:
            return record
    return None


def resolutions(
    view: View, now: datetime, looks: Mapping[str, Look] | None = None, answers: Mapping[str, Answer] | None = None
) -> Iterator[ResolveRecord]:
    """What has become of each pod whose record is still open.

    Stopped: it is terminating or gone. Spared: it ended by itself, or it runs and no claim means to stop it any more.
    `looks` by node and `answers` by pod UID know more than the caches for a moment: a pod that only a look has seen is
    not gone, and one whose eviction was accepted is not spared.
    """
    for record in view.records.values():
        if record.status.outcome is not Outcome.PENDING:
            continue
        outcome = _outcome(view, record, looks or {}, answers or {})
        if outcome is not Outcome.PENDING:
            yield ResolveRecord(record, outcome, now)


def _outcome(view: View, record: DrainRecord, looks: Mapping[str, Look], answers: Mapping[str, Answer]) -> Outcome:
    uid, intended = record.spec.pod_uid, _still_intended(view, record)
    pod = view.pods.get(uid)
    if pod is None and intended and (look := looks.get(record.spec.node)) is not None:
        pod = next((one for one in look.pods if one.metadata.uid == uid), None)
    if pod is None or terminating(pod):
        return Outcome.SPARED if _superseded(view, record) else Outcome.STOPPED
    if finished(pod):
        return Outcome.SPARED
    answer = answers.get(uid)
    accepted = answer is not None and answer.kind is EvictionAnswer.ACCEPTED
    return Outcome.PENDING if intended or accepted or leaving(view, pod) else Outcome.SPARED


def _superseded(view: View, record: DrainRecord) -> bool:
    """Whether the claim has recorded the pod anew: then it is that record that tells of its end."""
    return any(
        one.spec.claim_uid == record.spec.claim_uid
        and one.spec.at > record.spec.at
        and one.status.outcome is not Outcome.SPARED
        for one in view.records_of(record.spec.pod_uid)
    )


def _still_intended(view: View, record: DrainRecord) -> bool:
    """Whether the claim still holds the node, and still has the pod among those it stops.

    Where Kueue stops a whole job a node of any of its pods will do.
    """
    claim = view.claims.get(record.spec.claim_uid)
    if claim is None or claim.status.phase not in HOLDING:
        return False
    held = {one.name for one in claim.status.nodes}
    holds = record.spec.node in held or _has_a_fellow(view, record.spec.pod_uid, held)
    return holds and any(stands_for(record, claim, victim) for victim in claim.status.victims)


def _has_a_fellow(view: View, pod_uid: str, nodes: Collection[str]) -> bool:
    """Whether a pod that ends together with this one runs on one of the nodes."""
    pod = view.pods.get(pod_uid)
    return pod is not None and any(one.spec.node_name in nodes for one in fellows(view, (pod,)))
