"""Who may stop which pod: agreements read as the tenants wrote them. No valid agreement, no eviction."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from fleet.errors import FleetError
from fleet.objects import Pod
from fleet.resources import DrainAgreement
from fleet.selectors import labels_match
from fleet.times import parse_duration


class Consent(StrEnum):
    """What the agreements say about one pod; the values are reasons shown to people."""

    GIVEN = "Agreed"
    MISSING = "AgreementMissing"
    PRIORITY = "PriorityAboveCeiling"
    NOT_SELECTED = "NotSelectedByAgreement"
    PATIENCE = "AgreementPatience"
    MIN_RUNTIME = "MinRuntime"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pod may be stopped, by which agreement, and from when if only time is missing."""

    consent: Consent
    agreement: str = ""
    from_: datetime | None = None


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
    if spec.expires is not None and spec.expires <= now:
        found.append("spec.expires: the agreement has expired")
    return tuple(found)


def consenting_namespaces(agreements: Iterable[DrainAgreement], now: datetime) -> frozenset[str]:
    """Namespaces with at least one valid agreement, for whomever: their small pods may use idle whole nodes."""
    return frozenset(one.metadata.namespace for one in agreements if not problems(one, now))


def verdict(
    pod: Pod, beneficiary: str, agreements: Iterable[DrainAgreement], waiting_since: datetime, now: datetime
) -> Verdict:
    """What the agreements of the pod's namespace say about stopping it for a gang of namespace `beneficiary`.

    The most favourable agreement decides; if none allows it, the one that comes closest gives the reason.
    """
    best = Verdict(Consent.MISSING)
    for agreement in sorted(agreements, key=lambda one: one.metadata.name):
        if agreement.metadata.namespace != pod.metadata.namespace or problems(agreement, now):
            continue
        if all(one.namespace != beneficiary for one in agreement.spec.beneficiaries):
            continue
        one = _by(agreement, pod, waiting_since, now)
        if one.consent is Consent.GIVEN:
            return one
        if best.consent is Consent.MISSING or (one.from_ and (best.from_ is None or one.from_ < best.from_)):
            best = one
    return best


def _by(agreement: DrainAgreement, pod: Pod, waiting_since: datetime, now: datetime) -> Verdict:
    name, spec = agreement.metadata.name, agreement.spec
    selector = spec.victims.pod_selector
    if selector is not None and not labels_match(selector, pod.metadata.labels or {}):
        return Verdict(Consent.NOT_SELECTED, name)
    if (pod.spec.priority or 0) > spec.victims.max_priority:
        return Verdict(Consent.PRIORITY, name)
    patient_until = waiting_since + parse_duration(spec.patience)
    if now < patient_until:
        return Verdict(Consent.PATIENCE, name, patient_until)
    min_runtime = parse_duration(spec.min_runtime)
    if min_runtime > timedelta(0):
        started = pod.status.start_time
        protected_until = (started or now) + min_runtime
        if now < protected_until:
            return Verdict(Consent.MIN_RUNTIME, name, protected_until)
    return Verdict(Consent.GIVEN, name)
