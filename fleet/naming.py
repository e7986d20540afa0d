"""What a claim made for a gang is called, and what it asks: from the gang's own annotations."""

import hashlib
import re

from fleet.cards import waiting
from fleet.errors import FleetError
from fleet.gangs import Gang
from fleet.names import DEADLINE, PATIENCE, POLICY
from fleet.objects import Pod
from fleet.resources import ClaimSpec, Policy
from fleet.times import parse_duration

_MAX_NODES = 1024
_NOT_ALLOWED = re.compile(r"[^a-z0-9]+")


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
    patience = _duration(gang, PATIENCE) or "0s"
    deadline = _duration(gang, DEADLINE)
    if deadline is not None and parse_duration(deadline) <= parse_duration(patience):
        deadline = None
    return ClaimSpec(
        nodes=min(max(1, gang.size - placed), _MAX_NODES),
        gang=gang.ref,
        policy=_policy(gang),
        patience=patience,
        deadline=deadline,
    )


def _said(gang: Gang, key: str) -> str | None:
    return next((text for pod in gang.pods if (text := pod.metadata.annotation(key))), None)


def _policy(gang: Gang) -> Policy:
    try:
        return Policy(_said(gang, POLICY) or Policy.WAIT)
    except ValueError:
        return Policy.WAIT


def _duration(gang: Gang, key: str) -> str | None:
    text = _said(gang, key)
    try:
        if text:
            parse_duration(text)
    except FleetError:
        return None
    return text or None
