"""The loop: a change or a due time leads to one pass of `fleet.lifecycle.decide`, whose actions are carried out.

Actions of one pass run side by side. While a claim's status is being written, nothing else is done for it, and the
next pass already sees the claim as it will be; so a slow write holds up its own claim only.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from cluster.errors import ClusterError, Conflict, NotFound
from controller.caches import Caches
from controller.hands import Hands, describe
from controller.metrics import Metrics
from fleet.actions import (
    Action,
    ActivateCheck,
    AskCheckpoint,
    Clear,
    CreateClaim,
    CreateRecord,
    Decision,
    Evict,
    Hold,
    LookAt,
    Open,
    Poke,
    Probe,
    ResolveRecord,
    ResumeWorkload,
    SetCheck,
    Steer,
    StopWorkload,
    Timing,
    Ungate,
    WriteStatus,
)
from fleet.lifecycle import decide
from fleet.resources import ClaimStatus, DrainRecord, WholeNodeClaim

_LOG = logging.getLogger("wholenode.controller")
_LONGEST_SLEEP_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_AFTER_PASS_SECONDS = 0.01, 0.05
"""As long as the pass has kept the processor busy, within these limits: answers and watches are to be read, too."""
_AFTER_ERROR_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
"""Between two tries of a write to Kueue's objects: while its webhooks are away each of them is refused."""
_FOR_KUEUE = (SetCheck, ActivateCheck, StopWorkload, ResumeWorkload)
_TEXTS_EVERY = timedelta(seconds=2)
_FEW, _MANY = 16, 10_000


class Engine:
    """Carries all claims through their life. `may_write` is asked before every write: the fence of the lease."""

    def __init__(
        self, caches: Caches, hands: Hands, metrics: Metrics, timing: Timing, may_write: Callable[[], bool]
    ) -> None:
        self._caches = caches
        self._hands = hands
        self._metrics = metrics
        self._timing = timing
        self._may_write = may_write
        self._kicked = asyncio.Event()
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._jobs: dict[str, frozenset[str]] = {}
        self._writing: dict[str, ClaimStatus] = {}
        self._texts_at: dict[str, datetime] = {}
        self._failed: dict[str, str] = {}
        self._refused: dict[str, int] = {}
        self._failed_actions: dict[str, str] = {}
        self._pause_seconds = 0.0
        self.progressed_at = time.monotonic()
        """Monotonic time of the last finished pass, for the liveness probe."""

    def kick(self) -> None:
        """Have a pass made soon; many kicks make one pass."""
        self._kicked.set()

    async def run(self) -> None:
        """Decide and act until cancelled; then wait for nothing: every write may be the last one."""
        await self._caches.synced()
        try:
            while True:
                self._kicked.clear()
                wake_at = self._pass()
                await self._sleep(wake_at)
        finally:
            for task in self._in_flight.values():
                task.cancel()

    def _pass(self) -> datetime | None:
        now, started, worked = datetime.now(UTC), time.perf_counter(), time.thread_time()
        self._caches.memory.turn()
        view = self._caches.view(self._writing)
        decision = decide(view, self._hands.looks, self._hands.answers, now, self._timing, self._hands.probes)
        self._metrics.decided(time.perf_counter() - started)
        self._metrics.claims(list(view.claims.values()))
        self._metrics.records(view.records.values())
        self._report(decision.failed, view.claims)
        self._hands.forget(view.claims)
        self._forget(view.claims)
        if self._may_write():
            for action in decision.actions:
                self._start(action, now, decision)
        self.progressed_at = time.monotonic()
        self._pause_seconds = min(_LONGEST_PAUSE_AFTER_PASS_SECONDS, time.thread_time() - worked)
        return decision.wake_at

    def _forget(self, claims: Mapping[str, WholeNodeClaim]) -> None:
        """Let go of what was noted about objects that are gone."""
        if len(self._texts_at) > 2 * len(claims) + _FEW:
            self._texts_at = {uid: at for uid, at in self._texts_at.items() if uid in claims}
        for noted in (self._refused, self._failed_actions):
            if len(noted) > _MANY:
                noted.clear()

    def _report(self, failed: Mapping[str, Exception], claims: Mapping[str, WholeNodeClaim]) -> None:
        """Say what could not be decided: once for each error, not in every pass that meets it again."""
        said, self._failed = self._failed, {what: repr(error) for what, error in failed.items()}
        for what, error in failed.items():
            self._metrics.error(type(error).__name__)
            if said.get(what) != self._failed[what]:
                claim = claims.get(what)
                name = f"claim {claim.metadata.namespace}/{claim.metadata.name}" if claim else f"the step '{what}'"
                text = "%s could not be decided; nothing is done for it, everything else goes on"
                _LOG.error(text, name, exc_info=error)

    def _start(self, action: Action, now: datetime, decision: Decision) -> None:
        key, claim_uid = _key(action)
        if key in self._in_flight or claim_uid in self._writing:
            return
        if isinstance(action, ResolveRecord) and _eviction(action.record) in self._in_flight:
            return  # what became of the pod is not known before the answer is in
        if isinstance(action, ResolveRecord) and any(action.record.spec.pod_uid in one for one in self._jobs.values()):
            return
        if isinstance(action, Evict) and (paused := self._hands.evictions_paused_until) is not None and now < paused:
            decision.wake(paused)
            return
        if isinstance(action, WriteStatus):
            uid = action.claim.metadata.uid
            if not action.urgent and now < (due := self._texts_at.get(uid, now - _TEXTS_EVERY) + _TEXTS_EVERY):
                decision.wake(due)
                return
            self._texts_at[uid] = now
            self._writing[uid] = action.status
        if isinstance(action, StopWorkload):
            self._jobs[key] = frozenset(one.uid for one in action.victims)
        self._in_flight[key] = asyncio.create_task(self._do(action, key), name=key)

    async def _do(self, action: Action, key: str) -> None:
        refused = self._refused.pop(key, 0)
        try:
            await self._hands.do(action)
        except (Conflict, NotFound) as error:
            self._metrics.error(describe(error))
            _LOG.debug("decided anew", extra={"action": key, "error": str(error)})
            await asyncio.sleep(_AFTER_ERROR_SECONDS)
        except ClusterError as error:
            self._metrics.error(describe(error))
            _LOG.warning("%s failed: %s", key, error)
            pause = _AFTER_ERROR_SECONDS * 5
            if isinstance(action, _FOR_KUEUE):
                self._refused[key] = refused + 1
                pause = min(_LONGEST_PAUSE_SECONDS, pause * 2 ** min(refused, 5))
            await asyncio.sleep(pause)
        except Exception as error:  # one of ours: it stops nothing else, and is told once
            self._metrics.error(type(error).__name__)
            if self._failed_actions.get(key) != repr(error):
                self._failed_actions[key] = repr(error)
                _LOG.exception("%s failed for a reason that nobody has foreseen", key)
            await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
        else:
            self._failed_actions.pop(key, None)
        finally:
            del self._in_flight[key]
            self._jobs.pop(key, None)
            if isinstance(action, WriteStatus):
                self._writing.pop(action.claim.metadata.uid, None)
            self.kick()

    async def _sleep(self, wake_at: datetime | None) -> None:
        seconds = _LONGEST_SLEEP_SECONDS
        if wake_at is not None:
            seconds = min(seconds, max(0.0, (wake_at - datetime.now(UTC)).total_seconds()))
        await asyncio.sleep(min(max(_SHORTEST_PAUSE_SECONDS, self._pause_seconds), seconds))
        try:
            async with asyncio.timeout(seconds):
                await self._kicked.wait()
        except TimeoutError:
            return


def _eviction(record: DrainRecord) -> str:
    return f"evict {record.metadata.namespace}/{record.spec.pod}"


def _key(action: Action) -> tuple[str, str]:
    """What must not be done twice at once, and the claim it is done for."""
    match action:
        case WriteStatus(claim=claim):
            return f"write status of {claim.metadata.namespace}/{claim.metadata.name}", claim.metadata.uid
        case CreateClaim(namespace=namespace, name=name):
            return f"create claim {namespace}/{name}", ""
        case Hold(node=node, claim_uid=uid):
            return f"hold {node.metadata.name}", uid
        case Open(node=node, claim_uid=uid):
            return f"open {node.metadata.name}", uid
        case Clear(node=node, claim_uid=uid):
            return f"clear {node.metadata.name} of {uid}", uid
        case LookAt(node_name=name):
            return f"look at {name}", ""
        case Probe(node=node):
            return f"probe {node.metadata.name}", ""
        case _:
            return _key_of_pod(action)


def _key_of_pod(action: Action) -> tuple[str, str]:
    match action:
        case CreateRecord(claim=claim, record=record):
            return f"record {record.metadata.namespace}/{record.metadata.name}", claim.metadata.uid
        case ResolveRecord(record=record):
            return f"resolve {record.metadata.namespace}/{record.metadata.name}", record.spec.claim_uid
        case AskCheckpoint(claim=claim, pod=pod):
            return f"ask {pod.key}", claim.metadata.uid
        case Evict(claim=claim, victim=victim):
            return f"evict {victim.namespace}/{victim.name}", claim.metadata.uid
        case Steer(pod=pod, claim_uid=uid):
            return f"steer {pod.key}", uid
        case Ungate(pod=pod):
            return f"ungate {pod.key}", ""
        case Poke(pod=pod):
            return f"poke {pod.key}", ""
        case _:
            return _key_for_kueue(action)


def _key_for_kueue(action: Action) -> tuple[str, str]:
    match action:
        case SetCheck(workload=workload):
            return f"check {workload.key}", ""
        case ActivateCheck(check=check):
            return f"activate check {check.metadata.name}", ""
        case StopWorkload(claim=claim, workload=workload):
            return f"stop workload {workload.key}", claim.metadata.uid
        case ResumeWorkload(workload=workload):
            return f"resume workload {workload.key}", ""
        case _:
            raise AssertionError(action)
