"""A preview as a JSON document with a stable schema (docs/plan.md)."""

from __future__ import annotations

from datetime import datetime

import msgspec

from fleet.preview import Course, Preview, TeamLoss, Verdict
from fleet.resources import ClaimSpec, Refusal, Victim, Weighing


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Team(_Part, frozen=True):
    namespace: str
    agreement: str
    pods: int
    cards: int
    gangs: int
    lost_gpu_seconds: float

    @classmethod
    def of(cls, one: TeamLoss) -> Team:
        return cls(one.namespace, one.agreement, one.pods, one.cards, one.gangs, one.lost_gpu_seconds)


class Other(_Part, frozen=True):
    node: str
    reason: str
    detail: str
    victims: int
    lost_gpu_seconds: float
    cost: float
    more: float
    from_: datetime | None = msgspec.field(name="from")
    free_at: datetime | None

    @classmethod
    def of(cls, one: Verdict) -> Other:
        return cls(
            one.node,
            one.reason,
            one.detail,
            one.victims,
            one.lost_gpu_seconds,
            one.cost,
            one.more,
            one.from_,
            one.free_at,
        )


class Consent(_Part, frozen=True):
    namespace: str
    nodes: int


class Decision(_Part, frozen=True):
    takes: bool
    reason: str
    message: str
    nodes: tuple[str, ...]
    cost: float
    optimal: bool
    lost_gpu_seconds: float
    victim_count: int
    homeless: int
    teams: tuple[Team, ...]
    victims: tuple[Victim, ...]
    weighing: Weighing | None
    runners_up: tuple[Other, ...]
    refused: tuple[Refusal, ...]
    others: tuple[Other, ...]
    consent_missing: tuple[Consent, ...]
    expected_free_at: datetime | None
    start_at: datetime | None
    wake_at: datetime | None
    stop_nobody_until: datetime | None

    @classmethod
    def of(cls, one: Course) -> Decision:
        plan = one.plan
        return cls(
            one.takes,
            one.reason,
            one.message,
            one.nodes,
            plan.cost,
            plan.optimal,
            plan.lost_gpu_seconds,
            plan.victim_count,
            plan.homeless,
            tuple(map(Team.of, one.teams)),
            plan.victims,
            plan.weighing,
            tuple(map(Other.of, one.next_best)),
            plan.refused,
            tuple(map(Other.of, one.others)),
            tuple(Consent(*pair) for pair in one.consent_missing),
            plan.expected_free_at,
            one.start_at,
            one.wake_at,
            one.stop_nobody_until,
        )


class Claim(_Part, frozen=True):
    namespace: str
    name: str
    exists: bool
    spec: ClaimSpec
    phase: str
    reason: str
    message: str
    nodes: tuple[str, ...]


class Document(_Part, frozen=True):
    at: datetime
    claim: Claim
    now: Decision | None
    if_allowed: Decision | None
    not_read: tuple[str, ...]


def document(found: Preview, unread: tuple[str, ...] = ()) -> str:
    """The whole preview, every node included, indented."""
    meta, status = found.claim.metadata, found.status
    held = tuple(one.name for one in status.nodes)
    claim = Claim(
        meta.namespace,
        meta.name,
        found.exists,
        found.claim.spec,
        str(status.phase),
        status.reason,
        status.message,
        held,
    )
    now = Decision.of(found.now) if found.now else None
    allowed = Decision.of(found.if_allowed) if found.if_allowed else None
    body = msgspec.json.encode(Document(found.at, claim, now, allowed, unread))
    return msgspec.json.format(body, indent=2).decode()
