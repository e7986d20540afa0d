"""Who may stop which pod: agreements read as the tenants wrote them. No valid agreement, no eviction."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from fleet import windows
from fleet.errors import FleetError
from fleet.objects import Pod
from fleet.resources import DrainAgreement
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
    if spec.expires is not None and spec.expires <= now:
        found.append("spec.expires: the agreement has expired")
    return tuple(found)


def next_expiry(agreements: Iterable[DrainAgreement], now: datetime) -> datetime | None:
    """When the next of them expires by itself; None if none will."""
    return min((one.spec.expires for one in agreements if one.spec.expires and one.spec.expires > now), default=None)


def consenting_namespaces(agreements: Iterable[DrainAgreement], now: datetime) -> frozenset[str]:
    """Namespaces with at least one valid agreement, for whomever: their small pods may use idle whole nodes."""
    return frozenset(one.metadata.namespace for one in agreements if not problems(one, now))


def verdict(
    pod: Pod, beneficiary: str, agreements: Iterable[DrainAgreement], waiting_since: datetime, now: datetime
) -> Verdict:
    """What the agreements of the pod's namespace say about stopping it for a gang of namespace `beneficiary`.

    The most favourable agreement decides: of those that allow it, the one that keeps the fewest replicas ready. If
    none allows it, the one that comes closest gives the reason.
    """
    return by_agreements(
        pod, beneficiary, in_force(agreements, now).get(pod.metadata.namespace, ()), waiting_since, now
    )


def in_force(agreements: Iterable[DrainAgreement], now: datetime) -> Mapping[str, tuple[DrainAgreement, ...]]:
    """The valid agreements of each namespace, by name."""
    found: dict[str, list[DrainAgreement]] = {}
    for agreement in sorted(agreements, key=lambda one: one.metadata.name):
        if not problems(agreement, now):
            found.setdefault(agreement.metadata.namespace, []).append(agreement)
    return {namespace: tuple(some) for namespace, some in found.items()}


def by_agreements(
    pod: Pod, beneficiary: str, valid: Iterable[DrainAgreement], waiting_since: datetime, now: datetime
) -> Verdict:
    """As `verdict`, where the valid agreements of the pod's namespace have been found before."""
    best = Verdict(Consent.MISSING)
    given: list[Verdict] = []
    for agreement in valid:
        if all(one.namespace != beneficiary for one in agreement.spec.beneficiaries):
            continue
        one = _by(agreement, pod, waiting_since, now)
        if one.consent is Consent.GIVEN:
            given.append(one)
        elif best.consent is Consent.MISSING or (one.from_ and (best.from_ is None or one.from_ < best.from_)):
            best = one
    return min(given, key=lambda one: one.keep_ready, default=best)


def _by(agreement: DrainAgreement, pod: Pod, waiting_since: datetime, now: datetime) -> Verdict:
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
    if now < patient_until:
        return Verdict(Consent.PATIENCE, name, earliest)
    if now < protected_until:
        return Verdict(Consent.MIN_RUNTIME, name, earliest)
    if now < earliest:
        return Verdict(Consent.WINDOW, name, earliest)
    return Verdict(Consent.GIVEN, name, keep_ready=spec.keep_ready.min_ready_replicas if spec.keep_ready else 0)
