"""What a claim made for a gang is called, and what it asks: from the gang's own annotations."""

import hashlib
import re
from collections.abc import Iterable
from datetime import timedelta

from fleet.cards import waiting
from fleet.errors import FleetError
from fleet.gangs import Gang
from fleet.names import (
    DEADLINE,
    EXPECTED_RUN,
    KUEUE_REQUIRED_TOPOLOGY,
    LABEL_KEY_LENGTH,
    LABEL_KEY_PATTERN,
    PATIENCE,
    POLICY,
    TOPOLOGY_KEY,
)
from fleet.objects import Pod
from fleet.resources import ClaimSpec, Policy
from fleet.times import parse_duration

_MAX_NODES = 1024
_MAX_DURATION = 32
_NOT_ALLOWED = re.compile(r"[^a-z0-9]+")
_LABEL_KEY = re.compile(LABEL_KEY_PATTERN)


def claim_name(gang: Gang, earlier: int) -> str:
    """The same gang always gets the same name, so a claim made twice is one; `earlier` claims of it are counted."""
    readable = _NOT_ALLOWED.sub("-", gang.ref.name.lower()).strip("-")[:200] or "gang"
    digest = hashlib.sha256(gang.key.encode()).hexdigest()[:8]
    again = f"-{earlier + 1}" if earlier else ""
    return f"{readable}-{digest}{again}"


def claim_spec(gang: Gang, takers: tuple[Pod, ...]) -> ClaimSpec:
    """One node for each member that takes one and is not bound yet, `takers` are those there are.

    Members that do not exist yet are taken for takers. Annotations that cannot be read count as not given.
    """
    placed = sum(not waiting(pod) for pod in takers) + len(gang.pods) - len(takers)
    patience = _duration(_said(gang, PATIENCE)) or "0s"
    deadline = _duration(_said(gang, DEADLINE))
    if deadline is not None and parse_duration(deadline) <= parse_duration(patience):
        deadline = None
    return ClaimSpec(
        nodes=min(max(1, gang.size - placed), _MAX_NODES),
        gang=gang.ref,
        policy=_policy(gang),
        patience=patience,
        deadline=deadline,
        topology_key=_label_key(_said(gang, TOPOLOGY_KEY)) or _label_key(_said(gang, KUEUE_REQUIRED_TOPOLOGY)),
        expected_run=_longest(pod.metadata.annotation(EXPECTED_RUN) for pod in takers if waiting(pod)),
    )


def _said(gang: Gang, key: str) -> str | None:
    return next((text for pod in gang.pods if (text := pod.metadata.annotation(key))), None)


def _policy(gang: Gang) -> Policy:
    try:
        return Policy(_said(gang, POLICY) or Policy.WAIT)
    except ValueError:
        return Policy.WAIT


def _label_key(text: str | None) -> str | None:
    return text if text and len(text) <= LABEL_KEY_LENGTH and _LABEL_KEY.fullmatch(text) else None


def _longest(texts: Iterable[str | None]) -> str | None:
    """The gang's nodes are free when its last member ends: all must say when, and the longest run counts."""
    runs: list[tuple[timedelta, str]] = []
    for text in texts:
        readable = _duration(text)
        if readable is None:
            return None
        runs.append((parse_duration(readable), readable))
    return max(runs)[1] if runs else None


def _duration(text: str | None) -> str | None:
    """The text if it is a duration the claim's schema takes, else None."""
    if not text or len(text) > _MAX_DURATION:
        return None
    try:
        parse_duration(text)
    except FleetError:
        return None
    return text
