"""The rules that hold in the simulated cluster whenever the controller is at rest, written apart from the code."""

from datetime import datetime, timedelta

from fleet.actions import Timing
from fleet.cards import terminating
from fleet.errors import FleetError
from fleet.marks import ENDED, HOLDING, OPEN, labelled_for, tainted_for
from fleet.names import CHECKPOINT_REQUESTED, GANG, LAST_CHECKPOINT
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import DrainAgreement, DrainRecord, Phase, Policy, WholeNodeClaim
from fleet.shields import shielded_for
from fleet.times import parse_duration, parse_time
from fleet.upkeep import member
from tests.fleet.builders import T0
from tests.fleet.world import World

_SETTLING = Timing().settle_before_proof
_STRANGER_SEEN_WITHIN = timedelta(seconds=1.2)


def check(world: World) -> None:
    """The rules that hold whenever the controller is at rest."""
    holders: dict[str, str] = {}
    for claim in world.claims.values():
        phase = claim.status.phase
        if phase not in ENDED:
            assert claim.status.reason, f"claim {claim.metadata.name} is {phase} without a reason"
        if claim.spec.policy is Policy.PREVIEW or phase not in HOLDING | {Phase.PLANNED}:
            continue
        for held in claim.status.nodes:
            assert held.name not in holders, f"{held.name} belongs to two claims"
            holders[held.name] = claim.metadata.uid
        if phase in OPEN:
            _check_open(world, claim)
    for node in world.nodes.values():
        name, holder = node.metadata.name, holders.get(node.metadata.name)
        for mark in (tainted_for(node), shielded_for(node)):
            assert mark in {None, holder}, f"a mark of {mark} strayed on {name}"
        assert labelled_for(node) in {None, holder} or world.serves(node), f"{labelled_for(node)} strayed on {name}"


def _check_open(world: World, claim: WholeNodeClaim) -> None:
    """Nothing but the gang is on an open node, unless it slipped in and is being dealt with."""
    recorded = {one.uid for one in claim.status.victims}
    for held in claim.status.nodes:
        assert held.proved_empty_at is not None, f"{held.name} is open without proof"
        assert held.held_at is not None, f"{held.name} is open and was never held"
        assert held.proved_empty_at >= held.held_at + _SETTLING, f"{held.name} was proved empty too early"
        for pod in world.card_holders(held.name):
            fresh = world.now - world.starts.get(pod.metadata.uid, T0) <= _STRANGER_SEEN_WITHIN
            waited_for = claim.status.reason == Reason.PROTECTED_POD and pod.key in claim.status.message
            dealt_with = terminating(pod) or pod.metadata.uid in recorded or fresh or waited_for
            assert member(claim, pod) or dealt_with, f"{pod.key} sits on open node {held.name}"


def agreed(world: World, pod: Pod, claim: WholeNodeClaim, record: DrainRecord, told: datetime | None = None) -> bool:
    """Whether the agreement that the record names allows it at this moment: written apart from the code.

    `told` is the checkpoint of the gang that others of it were stopped after for the claim: they may be gone with it.
    """
    return any(
        one.metadata.name == record.spec.agreement
        and one.metadata.namespace == pod.metadata.namespace == record.metadata.namespace
        and claim.metadata.namespace in {who.namespace for who in one.spec.beneficiaries}
        and (pod.spec.priority or 0) <= one.spec.victims.max_priority
        and _selected(pod, one)
        and (one.spec.expires is None or world.now < one.spec.expires)
        and _has_run(world, pod, one)
        and _waited(world, claim, one)
        and _in_a_window(world, one)
        and _spared(world, pod, one)
        and _saved(world, pod, one, told)
        for one in world.agreements
    )


def _has_run(world: World, pod: Pod, agreement: DrainAgreement) -> bool:
    least = parse_duration(agreement.spec.min_runtime)
    return world.now >= (pod.status.start_time or world.now) + least


def _selected(pod: Pod, agreement: DrainAgreement) -> bool:
    """Selectors by labels only; an empty one makes the agreement void."""
    selector = agreement.spec.victims.pod_selector
    wanted = (selector.match_labels or {}) if selector else {}
    return selector is None or bool(wanted and wanted.items() <= (pod.metadata.labels or {}).items())


def _waited(world: World, claim: WholeNodeClaim, agreement: DrainAgreement) -> bool:
    since = claim.metadata.creation_timestamp or world.now
    return world.now >= since + parse_duration(agreement.spec.patience)


def _spared(world: World, pod: Pod, agreement: DrainAgreement) -> bool:
    """Whether the service keeps as many ready replicas as agreed, as far as a cache may know by now."""
    kept, owner = agreement.spec.keep_ready, pod.metadata.controller()
    others = [
        one
        for one in world.seen().values()
        if one.metadata.uid != pod.metadata.uid
        and owner is not None
        and (one.metadata.namespace, one.metadata.controller()) == (pod.metadata.namespace, owner)
        and one.status.phase == "Running"
        and one.metadata.deletion_timestamp is None
        and any(each.type == "Ready" and each.status == "True" for each in one.status.conditions or ())
    ]
    return kept is None or len(others) >= kept.min_ready_replicas


def _in_a_window(world: World, agreement: DrainAgreement) -> bool:
    """Windows of the kind "M 12 * * *" in UTC only: they open M minutes after T0."""
    opened = [
        (T0 + timedelta(minutes=int(one.schedule.split()[0])), parse_duration(one.duration))
        for one in agreement.spec.windows or ()
    ]
    return agreement.spec.windows is None or any(start <= world.now < start + lasts for start, lasts in opened)


def _saved(world: World, pod: Pod, agreement: DrainAgreement, told: datetime | None) -> bool:
    """Whether the gang has saved its work as agreed: a checkpoint since it was asked, or time enough for one."""
    terms, name = agreement.spec.checkpoint, pod.metadata.annotation(GANG)
    if terms is None or not (terms.request or terms.required):
        return True
    gang = [one for one in world.pods.values() if one is pod or (name and one.metadata.annotation(GANG) == name)]
    saves = [text for one in gang if (text := one.metadata.annotation(LAST_CHECKPOINT))]
    asks = [parse_time(text) for one in gang if (text := one.metadata.annotation(CHECKPOINT_REQUESTED))]
    if not terms.request:
        return told is not None or any(_believed(text, pod, world) for text in saves)
    if not asks:
        return False
    first = min(asks).replace(microsecond=0)
    saved = any(_believed(text, pod, world) and parse_time(text) >= first for text in saves)
    saved = saved or (told is not None and told >= first)
    over = world.now >= min(asks) + parse_duration(terms.timeout)
    return saved or (over and not terms.required)


def _believed(text: str, pod: Pod, world: World) -> bool:
    try:
        return (pod.status.start_time or T0) < parse_time(text) <= world.now
    except FleetError:
        return False


def within_budget(world: World, stopped: list[DrainRecord], last: DrainRecord) -> None:
    """The rolling budgets of the agreement that the last eviction was made under, recomputed from all evictions."""
    name, namespace = last.spec.agreement, last.metadata.namespace
    for one in world.agreements:
        budget = one.spec.budget
        if (one.metadata.namespace, one.metadata.name) != (namespace, name) or budget is None:
            continue
        under = [each for each in stopped if (each.metadata.namespace, each.spec.agreement) == (namespace, name)]
        hour = [each for each in under if each.spec.at > world.now - timedelta(hours=1)]
        day = [each for each in under if each.spec.at > world.now - timedelta(days=1)]
        if budget.evictions_per_hour is not None:
            assert len(hour) <= budget.evictions_per_hour, f"{namespace}/{name}: {len(hour)} evictions in an hour"
        if budget.gpu_seconds_per_day is not None:
            lost = sum(each.spec.lost_gpu_seconds for each in day)
            assert lost <= budget.gpu_seconds_per_day + 0.01, f"{namespace}/{name}: {lost} GPU-seconds in a day"
        if budget.evictions_per_job_per_day is not None:
            since = world.now - timedelta(days=1)
            hits = {
                (each.spec.claim_uid, each.spec.at)
                for each in stopped
                if each.spec.job == last.spec.job and each.spec.at > since
            }
            assert len(hits) <= budget.evictions_per_job_per_day, f"job {last.spec.job}: hit {len(hits)} times"
