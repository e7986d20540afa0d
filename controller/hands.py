"""Carrying out what was decided: one method per action, each a write with a precondition."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from cluster.claims import create_claim, write_status
from cluster.client import Api
from cluster.errors import (
    AlreadyExists,
    ClusterError,
    DisruptionBudgetRefused,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    SeveralBudgets,
    Throttled,
)
from cluster.events import EventWriter, reference
from cluster.nodes import clear, hold, release_to
from cluster.pods import EvictOutcome, evict, pods_on_node, poke, steer, ungate
from controller.caches import Caches
from controller.metrics import Metrics
from fleet.actions import (
    Action,
    Answer,
    Clear,
    CreateClaim,
    Evict,
    EvictionAnswer,
    Hold,
    Look,
    LookAt,
    Open,
    Poke,
    Steer,
    Ungate,
    WriteStatus,
)
from fleet.agreements import Consent, verdict
from fleet.marks import HOLDING
from fleet.objects import Pod
from fleet.resources import ClaimStatus, Phase, WholeNodeClaim
from fleet.times import format_time

_LOG = logging.getLogger("wholenode.controller")
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 15.0


class Hands:
    """Does one action at a time; what comes of it is kept in `looks`, `answers` and the caches."""

    def __init__(
        self, api: Api, caches: Caches, metrics: Metrics, events: EventWriter, may_write: Callable[[], bool]
    ) -> None:
        self._api = api
        self._may_write = may_write
        self._caches = caches
        self._metrics = metrics
        self._events = events
        self.looks: dict[str, Look] = {}
        self.answers: dict[str, Answer] = {}
        self.evictions_paused_until: datetime | None = None
        self._refused: dict[str, int] = {}

    async def do(self, action: Action) -> None:
        """Carry out the action. Raises ClusterError; then nothing is known to have happened, and it is decided anew."""
        match action:
            case WriteStatus():
                await self._write_status(action)
            case CreateClaim():
                await self._create(action)
            case Hold():
                self._caches.nodes.apply(await hold(self._api, action.node, action.claim_uid))
            case Open():
                self._caches.nodes.apply(await release_to(self._api, action.node, action.claim_uid))
            case Clear():
                self._caches.nodes.apply(await clear(self._api, action.node, action.claim_uid))
            case LookAt():
                at = datetime.now(UTC)
                self.looks[action.node_name] = Look(at, await pods_on_node(self._api, action.node_name))
            case Evict():
                await self._evict(action)
            case Steer():
                self._caches.pods.apply(await steer(self._api, action.pod, action.claim_uid))
            case Ungate():
                self._caches.pods.apply(await ungate(self._api, action.pod))
            case Poke():
                self._caches.pods.apply(await poke(self._api, action.pod, format_time(action.at)))

    def forget(self, claims: Mapping[str, WholeNodeClaim]) -> None:
        """Drop looks and answers that no claim needs any more."""
        held = {node.name for claim in claims.values() for node in claim.status.nodes}
        for name in [name for name in self.looks if name not in held]:
            del self.looks[name]
        for uid in list(self.answers):
            pod = self._caches.pods.store.get(uid)
            if pod is None or pod.spec.node_name not in held:
                del self.answers[uid]
                self._refused.pop(uid, None)

    async def _write_status(self, action: WriteStatus) -> None:
        before, status = action.claim.status, action.status
        written = await write_status(self._api, action.claim, status)
        self._caches.claims.apply(written)
        if status.phase is before.phase and status.reason == before.reason:
            return
        self._metrics.entered(status.phase, status.reason)
        bad = status.phase in {Phase.BLOCKED, Phase.FAILED}
        severity: Literal["Normal", "Warning"] = "Warning" if bad else "Normal"
        self._events.record(reference(written), status.reason, status.message, severity, str(status.phase))
        if status.phase is Phase.BOUND and before.phase is not Phase.BOUND:
            self._note_bound(written, status)

    def _note_bound(self, claim: WholeNodeClaim, status: ClaimStatus) -> None:
        created = claim.metadata.creation_timestamp
        if created is not None and status.phases:
            self._metrics.bound(max(0.0, (status.phases[-1].at - created).total_seconds()))

    async def _create(self, action: CreateClaim) -> None:
        try:
            self._caches.claims.apply(await create_claim(self._api, action.namespace, action.name, action.spec))
        except AlreadyExists:
            _LOG.debug("the claim exists already", extra={"claim": f"{action.namespace}/{action.name}"})

    async def _evict(self, action: Evict) -> None:
        victim = action.victim
        pod = self._find(victim.uid, victim.node)
        if pod is None:
            self.answers[victim.uid] = Answer(EvictionAnswer.ACCEPTED, "gone by itself")
            return
        try:
            outcome = await evict(self._api, pod, lambda: self._still_allowed(action, pod))
        except (DisruptionBudgetRefused, NamespaceTerminating) as error:
            self._refuse(victim.uid, f"{pod.key}: {error}", getattr(error, "retry_after_seconds", 0.0))
            return
        except Throttled as error:
            self.evictions_paused_until = datetime.now(UTC) + timedelta(seconds=max(1.0, error.retry_after_seconds))
            self._metrics.eviction("throttled")
            return
        except (SeveralBudgets, Forbidden, Invalid) as error:
            self.answers[victim.uid] = Answer(EvictionAnswer.REFUSED, str(error))
            self._metrics.eviction("refused")
            return
        self._metrics.eviction(outcome.value)
        if outcome is EvictOutcome.WITHDRAWN:
            return
        self.answers[victim.uid] = Answer(EvictionAnswer.ACCEPTED)
        if outcome is EvictOutcome.ACCEPTED:
            self._note_evicted(action, pod)

    def _still_allowed(self, action: Evict, pod: Pod) -> bool:
        """An eviction may have waited its turn: the lease, the claim and the owner's word must still stand."""
        claim = self._caches.claims.store.get(action.claim.metadata.uid)
        if not self._may_write() or claim is None or claim.status.phase not in HOLDING:
            return False
        if all(held.name != action.victim.node for held in claim.status.nodes):
            return False
        now = datetime.now(UTC)
        since = claim.metadata.creation_timestamp or now
        agreements = self._caches.agreements.store.values()
        return verdict(pod, claim.metadata.namespace, agreements, since, now).consent is Consent.GIVEN

    def _refuse(self, uid: str, text: str, retry_after_seconds: float) -> None:
        tries = self._refused.get(uid, 0)
        self._refused[uid] = tries + 1
        pause = max(retry_after_seconds, min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS))
        retry_at = datetime.now(UTC) + timedelta(seconds=pause)
        self.answers[uid] = Answer(EvictionAnswer.BUDGET, text, retry_at)
        self._metrics.eviction("budget")

    def _note_evicted(self, action: Evict, pod: Pod) -> None:
        claim, victim = action.claim, action.victim
        self._metrics.lost(victim, claim.metadata.namespace)
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        note = (
            f"stopped for claim {name} under agreement {victim.agreement}: node {victim.node} is vacated for a "
            f"whole-node gang; {victim.lost_gpu_seconds:.0f} GPU-seconds of work lost"
        )
        self._events.record(reference(pod), "VacatedByAgreement", note, "Warning", "Evict")

    def _find(self, uid: str, node_name: str) -> Pod | None:
        cached = self._caches.pods.store.get(uid)
        if cached is not None:
            return cached
        look = self.looks.get(node_name)
        return next((pod for pod in look.pods if pod.metadata.uid == uid), None) if look else None


def describe(error: ClusterError) -> str:
    """The kind of an error, as a bounded metric label."""
    return type(error).__name__
