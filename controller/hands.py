"""Carrying out what was decided: one method per action, each a write with a precondition."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
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
from cluster.kueue import activate_check, resume_workload, set_check, stop_workload
from cluster.nodes import clear, hold, release_to
from cluster.pacing import Queue
from cluster.pods import EvictOutcome, ask_checkpoint, evict, pods_on_node, poke, steer, ungate
from cluster.records import create_record, resolve_record
from controller.caches import Caches
from controller.grounds import still_stands, still_stands_whole
from controller.metrics import Metrics
from controller.notices import stopped_under, stopping, stopping_job
from controller.probes import Prober
from fleet.actions import (
    Action,
    ActivateCheck,
    Answer,
    AskCheckpoint,
    Clear,
    CreateClaim,
    CreateRecord,
    Evict,
    EvictionAnswer,
    Hold,
    Look,
    LookAt,
    Open,
    Poke,
    Probe,
    ProbeResult,
    ResolveRecord,
    ResumeWorkload,
    SetCheck,
    Steer,
    StopWorkload,
    Ungate,
    WriteStatus,
)
from fleet.objects import Pod
from fleet.resources import ClaimStatus, Outcome, Phase, RecordStatus, WholeNodeClaim
from fleet.times import format_time

_LOG = logging.getLogger("wholenode.controller")
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 15.0
_BULK_AT_ONCE = 8
"""Writes about the victims of one namespace under way at the same time; those for the oldest claim go first.

All of them at once, for several claims, would be answered late and together, and every claim would wait for the last.
A webhook that does not answer holds up its namespace only, and one of Kueue's no pods that are not.
"""


class Hands:
    """Does one action at a time; what comes of it is kept in `looks`, `answers` and the caches."""

    def __init__(
        self,
        api: Api,
        caches: Caches,
        metrics: Metrics,
        events: EventWriter,
        may_write: Callable[[], bool],
        prober: Prober | None = None,
    ) -> None:
        self._api = api
        self._may_write = may_write
        self._prober = prober
        self._caches = caches
        self._metrics = metrics
        self._events = events
        self.looks: dict[str, Look] = {}
        self.probes: dict[str, ProbeResult] = {}
        self.answers: dict[str, Answer] = {}
        self.evictions_paused_until: datetime | None = None
        self._refused: dict[str, int] = {}
        self._bulk: defaultdict[tuple[str, bool], Queue] = defaultdict(lambda: Queue(_BULK_AT_ONCE))

    async def do(self, action: Action) -> None:
        """Carry out the action. Raises ClusterError; then nothing is known to have happened, and it is decided anew."""
        place = _place(action)
        if place is not None:
            queue, rank = place
            async with self._bulk[queue].turn(rank):
                await self._do_to_pod(action)
            return
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
                cleared = await clear(self._api, action.node, action.claim_uid, label_stays=action.label_stays)
                self._caches.nodes.apply(cleared)
            case LookAt():
                at = datetime.now(UTC)
                self.looks[action.node_name] = Look(at, *await pods_on_node(self._api, action.node_name))
            case Probe():
                if self._prober is not None:
                    self.probes[action.node.metadata.name] = await self._prober.ask(action.node)
            case _:
                await self._do_to_pod(action)

    async def _do_to_pod(self, action: Action) -> None:
        match action:
            case CreateRecord():
                self._caches.records.apply(await create_record(self._api, action.record))
            case ResolveRecord():
                await self._resolve(action)
            case AskCheckpoint():
                self._caches.pods.apply(await ask_checkpoint(self._api, action.pod, format_time(action.at)))
            case Evict():
                await self._evict(action)
            case Steer():
                self._caches.pods.apply(await steer(self._api, action.pod, action.claim_uid))
            case Ungate():
                self._caches.pods.apply(await ungate(self._api, action.pod))
            case Poke():
                self._caches.pods.apply(await poke(self._api, action.pod, format_time(action.at)))
            case _:
                await self._do_for_kueue(action)

    async def _do_for_kueue(self, action: Action) -> None:
        now = datetime.now(UTC)
        match action:
            case SetCheck(workload=workload, check=check, state=state, message=message, updates=updates):
                written = await set_check(self._api, workload, check, state, message, updates, now)
                self._caches.workloads.apply(written)
            case ActivateCheck(check=check_object):
                self._caches.checks.apply(await activate_check(self._api, check_object, now))
            case StopWorkload():
                await self._stop_workload(action)
            case ResumeWorkload(workload=workload):
                self._caches.workloads.apply(await resume_workload(self._api, workload))

    def forget(self, claims: Mapping[str, WholeNodeClaim]) -> None:
        """Drop looks and answers that no claim needs any more."""
        held = {node.name for claim in claims.values() for node in claim.status.nodes}
        for name in [name for name in self.looks if name not in held]:
            del self.looks[name]
        for name in [name for name in self.probes if name not in held]:
            del self.probes[name]
        open_ = self._open_records() if self.answers else frozenset()
        shown = {pod.metadata.uid for look in self.looks.values() for pod in look.pods} if self.answers else set()
        for uid, answer in list(self.answers.items()):
            pod = self._caches.pods.store.get(uid)
            # A pod whose eviction was accepted is not spared, although the watch may still show it running.
            awaited = uid in open_ and answer.kind is EvictionAnswer.ACCEPTED
            # Nor is one that is gone while a look still shows it: it would be asked for its checkpoint once more.
            if uid not in shown and (pod is None or (pod.spec.node_name not in held and not awaited)):
                del self.answers[uid]
                self._refused.pop(uid, None)

    def _open_records(self) -> frozenset[str]:
        """UIDs of pods of which it is not written yet what became of them."""
        records = self._caches.records.store.values()
        return frozenset(one.spec.pod_uid for one in records if one.status.outcome is Outcome.PENDING)

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
            waited_seconds = max(0.0, (status.phases[-1].at - created).total_seconds())
            self._metrics.bound(claim.metadata.namespace, waited_seconds)

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
            stopping(self._events, reference(pod), action.claim, victim)

    async def _stop_workload(self, action: StopWorkload) -> None:
        uid, victims = action.claim.metadata.uid, action.victims

        def still_allowed() -> bool:
            now = datetime.now(UTC)
            return self._may_write() and still_stands_whole(self._caches.picture(), uid, action.workload, victims, now)

        try:
            written = await stop_workload(self._api, action.workload, uid, still_allowed)
        except (Forbidden, Invalid) as error:
            self.answers.update((one.uid, Answer(EvictionAnswer.REFUSED, str(error))) for one in victims)
            self._metrics.eviction("refused")
            return
        self._metrics.eviction((EvictOutcome.ACCEPTED if written else EvictOutcome.WITHDRAWN).value)
        if written is None:
            return
        self._caches.workloads.apply(written)
        self.answers.update((one.uid, Answer(EvictionAnswer.ACCEPTED)) for one in victims)
        for victim in victims:
            pod = self._find(victim.uid, victim.node)
            if pod is not None:
                stopping(self._events, reference(pod), action.claim, victim)
        stopping_job(self._events, written, action.claim, victims)

    def _still_allowed(self, action: Evict, pod: Pod) -> bool:
        """An eviction may have waited its turn: the lease, the claim and the owner's word must still stand."""
        view, now = self._caches.picture(), datetime.now(UTC)
        return self._may_write() and still_stands(view, action.claim.metadata.uid, action.victim, pod, now)

    def _refuse(self, uid: str, text: str, retry_after_seconds: float) -> None:
        tries = self._refused.get(uid, 0)
        self._refused[uid] = tries + 1
        pause = max(retry_after_seconds, min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS))
        retry_at = datetime.now(UTC) + timedelta(seconds=pause)
        self.answers[uid] = Answer(EvictionAnswer.BUDGET, text, retry_at)
        self._metrics.eviction("budget")

    async def _resolve(self, action: ResolveRecord) -> None:
        """The loss is booked when the write is through: the record is resolved once, so it is booked once."""
        status = RecordStatus(action.outcome, action.at)
        record = await resolve_record(self._api, action.record, status)
        self._caches.records.apply(record)
        self._metrics.resolved(record)
        stopped_under(self._events, record, self._caches.records.store.values())

    def _find(self, uid: str, node_name: str) -> Pod | None:
        cached = self._caches.pods.store.get(uid)
        if cached is not None:
            return cached
        look = self.looks.get(node_name)
        return next((pod for pod in look.pods if pod.metadata.uid == uid), None) if look else None


def _place(action: Action) -> tuple[tuple[str, bool], float] | None:
    """Of a write about a victim: its namespace and whether Kueue answers it, and when its claim was made.

    None for all others: they do not queue.
    """
    match action:
        case CreateRecord(claim=claim, record=record):
            return (record.metadata.namespace, False), _made(claim)
        case Evict(claim=claim, victim=victim):
            return (victim.namespace, False), _made(claim)
        case StopWorkload(claim=claim, workload=workload):
            return (workload.metadata.namespace, True), _made(claim)
        case ResolveRecord(record=record):
            return (record.metadata.namespace, False), inf  # nobody waits for it
        case ResumeWorkload(workload=workload):
            return (workload.metadata.namespace, True), inf
        case _:
            return None


def _made(claim: WholeNodeClaim) -> float:
    made = claim.metadata.creation_timestamp
    return made.timestamp() if made else 0.0


def describe(error: ClusterError) -> str:
    """The kind of an error, as a bounded metric label."""
    return type(error).__name__
