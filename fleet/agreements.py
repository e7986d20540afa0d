"""Who may stop which pod: agreements read as the tenants wrote them. No valid agreement, no eviction."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from fleet import windows
from fleet.errors import FleetError
from fleet.ledger import last_checkpoint
from fleet.names import KUEUE_QUEUE
from fleet.objects import Pod
from fleet.resources import Beneficiary, Budget, Checkpoint, DrainAgreement
from fleet.selectors import labels_match
from fleet.times import parse_duration

_SHOWN_PROBLEMS = 6
"""Of the windows; they stand in a condition, which has room for 4096 characters."""


class Consent(StrEnum):
    """What the agreements say about one pod; the values are reasons shown to people."""

    GIVEN = "Agreed"
    MISSING = "AgreementMissing"
    PRIORITY = "PriorityAboveCeiling"
    NOT_SELECTED = "NotSelectedByAgreement"
    PATIENCE = "AgreementPatience"
    MIN_RUNTIME = "MinRuntime"
    WINDOW = "OutsideWindow"
    BUDGET = "BudgetSpent"
    CHECKPOINT = "NoCheckpoint"
    COOL_DOWN = "StoppedLately"
    KEEP_READY = "TooFewReadyReplicas"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pod may be stopped, by which agreement, and from when if only time is missing.

    `keep_ready`: replicas of the pod's service that must stay ready; it is for `readiness` to see that they do.
    """

    consent: Consent
    agreement: str = ""
    from_: datetime | None = None
    keep_ready: int = 0


def problems(agreement: DrainAgreement, now: datetime) -> tuple[str, ...]:
    """What makes the agreement void, in words; empty if it is valid. An invalid agreement is no agreement."""
    spec = agreement.spec
    found = []
    for field, text in (("patience", spec.patience), ("minRuntime", spec.min_runtime)):
        try:
            parse_duration(text)
        except FleetError as error:
            found.append(f"spec.{field}: {error}")
    if not spec.beneficiaries:
        found.append("spec.beneficiaries: name at least one namespace")
    if any(one.local_queues is not None and not one.local_queues for one in spec.beneficiaries):
        found.append("spec.beneficiaries[].localQueues: must not be empty; leave it out to mean all gangs")
    selector = spec.victims.pod_selector
    if selector is not None and not selector.match_labels and not selector.match_expressions:
        found.append("spec.victims.podSelector: must not be empty; leave it out to mean every pod of the namespace")
    if spec.windows is not None and not spec.windows:
        found.append("spec.windows: must not be empty; leave it out to mean any time")
    wrong = [
        f"spec.windows[{index}].{text}"
        for index, window in enumerate(spec.windows or ())
        for text in windows.problems(window)
    ]
    found.extend(wrong[:_SHOWN_PROBLEMS])
    if len(wrong) > _SHOWN_PROBLEMS:
        found.append(f"spec.windows: {len(wrong) - _SHOWN_PROBLEMS} more problem(s)")
    if spec.keep_ready is not None and spec.keep_ready.min_ready_replicas < 1:
        found.append("spec.keepReady.minReadyReplicas: must be 1 or more; leave keepReady out to keep none")
    found.extend(_budget_problems(spec.budget))
    found.extend(_checkpoint_problems(spec.checkpoint))
    if spec.expires is not None and spec.expires <= now:
        found.append("spec.expires: the agreement has expired")
    return tuple(found)


def _budget_problems(budget: Budget | None) -> Iterator[str]:
    if budget is None:
        return
    limits = {
        "gpuSecondsPerDay": budget.gpu_seconds_per_day,
        "evictionsPerHour": budget.evictions_per_hour,
        "evictionsPerJobPerDay": budget.evictions_per_job_per_day,
    }
    for name, limit in limits.items():
        if limit is not None and limit < 0:
            yield f"spec.budget.{name}: must be 0 or more; leave it out for no limit"


def _checkpoint_problems(checkpoint: Checkpoint | None) -> Iterator[str]:
    if checkpoint is None:
        return
    try:
        if parse_duration(checkpoint.timeout) <= timedelta(0):
            yield "spec.checkpoint.timeout: must be longer than 0s"
    except FleetError as error:
        yield f"spec.checkpoint.timeout: {error}"


def next_expiry(agreements: Iterable[DrainAgreement], now: datetime) -> datetime | None:
    """When the next of them expires by itself; None if none will."""
    return min((one.spec.expires for one in agreements if one.spec.expires and one.spec.expires > now), default=None)


def consenting_namespaces(agreements: Iterable[DrainAgreement], now: datetime) -> frozenset[str]:
    """Namespaces with at least one valid agreement, for whomever: their small pods may use idle whole nodes."""
    return frozenset(one.metadata.namespace for one in agreements if not problems(one, now))


def queue_of(gang: Iterable[Pod]) -> str:
    """The Kueue LocalQueue of a gang; empty if its pods name none, or not all the same."""
    names = {pod.metadata.label(KUEUE_QUEUE) or "" for pod in gang}
    return names.pop() if len(names) == 1 else ""


def in_force(agreements: Iterable[DrainAgreement], now: datetime) -> Mapping[str, tuple[DrainAgreement, ...]]:
    """The valid agreements of each namespace, by name."""
    found: dict[str, list[DrainAgreement]] = {}
    for agreement in sorted(agreements, key=lambda one: one.metadata.name):
        if not problems(agreement, now):
            found.setdefault(agreement.metadata.namespace, []).append(agreement)
    return {namespace: tuple(some) for namespace, some in found.items()}


def verdict(
    pod: Pod,
    beneficiary: str,
    valid: Iterable[DrainAgreement],
    waiting_since: datetime,
    now: datetime,
    queue: str = "",
    victims: Iterable[Pod] = (),
) -> Verdict:
    """What the `valid` agreements of the pod's namespace say about stopping it for a gang of namespace `beneficiary`.

    `queue` is that gang's LocalQueue, which an agreement may ask for; `victims` are the pods of the victim's own gang,
    any of which may report the checkpoint that an agreement requires. The most favourable agreement decides: of those
    that allow it, the one that keeps the fewest replicas ready, then one that asks for no checkpoint and sets no
    budget. If none allows it, the one that comes closest gives the reason.
    """
    best = Verdict(Consent.MISSING)
    given: list[tuple[int, bool, bool, Verdict]] = []
    gang = (pod, *victims)
    for agreement in valid:
        if not any(_is_for(one, beneficiary, queue) for one in agreement.spec.beneficiaries):
            continue
        one = _by(agreement, pod, gang, waiting_since, now)
        if one.consent is Consent.GIVEN:
            spec = agreement.spec
            given.append((one.keep_ready, spec.checkpoint is not None, spec.budget is not None, one))
        elif best.consent is Consent.MISSING or (one.from_ and (best.from_ is None or one.from_ < best.from_)):
            best = one
    return min(given, key=lambda each: each[:3])[3] if given else best


def _is_for(beneficiary: Beneficiary, namespace: str, queue: str) -> bool:
    return beneficiary.namespace == namespace and (
        beneficiary.local_queues is None or queue in beneficiary.local_queues
    )


def _by(agreement: DrainAgreement, pod: Pod, gang: tuple[Pod, ...], waiting_since: datetime, now: datetime) -> Verdict:
    name, spec = agreement.metadata.name, agreement.spec
    selector = spec.victims.pod_selector
    if selector is not None and not labels_match(selector, pod.metadata.labels or {}):
        return Verdict(Consent.NOT_SELECTED, name)
    if (pod.spec.priority or 0) > spec.victims.max_priority:
        return Verdict(Consent.PRIORITY, name)
    patient_until = waiting_since + parse_duration(spec.patience)
    min_runtime = parse_duration(spec.min_runtime)
    protected_until = (pod.status.start_time or now) + min_runtime if min_runtime > timedelta(0) else now
    earliest = max(now, patient_until, protected_until)
    if spec.windows:
        earliest = windows.usable_from(spec.windows, earliest)
    from_ = earliest if spec.expires is None or earliest < spec.expires else None
    if now < patient_until:
        return Verdict(Consent.PATIENCE, name, from_)
    if now < protected_until:
        return Verdict(Consent.MIN_RUNTIME, name, from_)
    if now < earliest:
        return Verdict(Consent.WINDOW, name, from_)
    wish, kept = spec.checkpoint, spec.keep_ready.min_ready_replicas if spec.keep_ready else 0
    missing = wish is not None and wish.required and not wish.request and last_checkpoint(gang, now) is None
    return Verdict(Consent.CHECKPOINT if missing else Consent.GIVEN, name, keep_ready=kept)
