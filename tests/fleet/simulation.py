"""The pure core at work in a simulated cluster: a controller that can be killed after any of its writes.

The controller runs `fleet.lifecycle.decide` as the real engine does: actions of a pass in order, none for a claim
whose status was written in that pass. `kill_after` lets it die right after that many writes of the whole run; it
then starts again without looks and answers. Nothing sleeps.
"""

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from fleet.actions import (
    Action,
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
    Steer,
    StopWorkload,
    Timing,
    Ungate,
    WriteStatus,
)
from fleet.cards import terminating
from fleet.lifecycle import decide
from fleet.marks import tainted_for
from fleet.names import CHECKPOINT_REQUESTED, CLAIM_KEY, POKE
from fleet.objects import DisruptionBudget, Pod, Taint, Toleration
from fleet.resources import DrainRecord, Outcome, Phase, Policy, RecordStatus, Victim, WholeNodeClaim
from fleet.shields import put_up, take_down
from fleet.statuses import entered_at
from fleet.times import format_time, parse_time
from fleet.upkeep import member
from fleet.view import View
from tests.fleet.builders import at, pool
from tests.fleet.kueue import alone, pods_of, resume_workload, stop_workload
from tests.fleet.rules import agreed, check, within_budget
from tests.fleet.world import World, annotated, replace

_PASS = timedelta(milliseconds=10)
_RETRY = timedelta(seconds=1)
_MOST_PASSES_AT_ONCE = 60


class Killed(Exception):  # noqa: N818 - not an error of ours: the process is gone
    """The controller was killed here."""


def _revision(moment: datetime) -> int:
    return (moment - at(-86_400)) // timedelta(microseconds=1)


@dataclass(frozen=True)
class Eviction:
    """One call of the Eviction API that was accepted for a pod that was not terminating yet."""

    uid: str
    name: str
    at: datetime
    claim: str
    record: DrainRecord


@dataclass
class Simulation(World):
    """The world with a controller at work in it, and everything it did."""

    timing: Timing = field(default_factory=Timing)
    kill_after: int | None = None
    kill_always: bool = False
    """Whether the controller is killed after each of its writes."""
    budgets: list[DisruptionBudget] = field(default_factory=list)
    refusals: dict[str, Answer] = field(default_factory=dict)
    """What the API server answers to evictions of these pods (by UID) instead of accepting them."""
    after: Callable[[Action], object] | None = None
    """Called after each action of the controller that was carried out: the place for what comes between two of them."""
    lag_seconds: float = 0
    """How old the controller's cache of pods is; its own looks at nodes are always fresh."""
    writes: int = 0
    kills: int = 0
    evictions: list[Eviction] = field(default_factory=list)
    eviction_calls: list[str] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    looks: dict[str, Look] = field(default_factory=dict)
    probes: dict[str, ProbeResult] = field(default_factory=dict)
    probe: Callable[[str], str] | None = None
    """What the probe of a node (by name) says against its being empty; nothing if it is."""
    answers: dict[str, Answer] = field(default_factory=dict)
    _past: deque[tuple[datetime, dict[str, Pod]]] = field(default_factory=deque)
    _numbered: dict[str, Pod] = field(default_factory=dict)

    # The run

    def run(self, seconds: float, until: Callable[[], object] | None = None) -> "Simulation":
        """Let the cluster run to `seconds` after T0, or until something holds."""
        end = at(seconds)
        while self.now < end:
            self._happen()
            wake_at = self._settle()
            if until is not None and until():
                return self
            following = min(end, self.now + timedelta(seconds=1), *(one for one, _, _ in self._events[:1]))
            if wake_at is not None:
                following = min(following, wake_at)
            self.now = max(self.now + _PASS, min([following, *self._ends()]))
        return self

    def go_on(self, seconds: float, until: Callable[[], object] | None = None) -> "Simulation":
        """Let the cluster run for `seconds` more, or until something holds."""
        return self.run(self.seconds + seconds, until)

    def view(self) -> View:
        return View(
            dict(self.nodes),
            self.seen(),
            dict(self.jobs),
            tuple(self.pools),
            tuple(self.agreements),
            dict(self.claims),
            (*self.budgets, *self.disruption_budgets()),
            records=dict(self.records),
            workloads=dict(self.workloads),
        )

    def _number(self) -> None:
        """Give each pod that has changed its revision: the moment, for nothing else counts them here."""
        for uid, one in self.pods.items():
            if self._numbered.get(uid) is not one:
                version = str(_revision(self.now))
                self.pods[uid] = replace(one, metadata=replace(one.metadata, resource_version=version))
                self._numbered[uid] = self.pods[uid]

    def seen(self) -> dict[str, Pod]:
        self._number()
        self._past.append((self.now, dict(self.pods)))
        known = self.now - timedelta(seconds=self.lag_seconds)
        while len(self._past) > 1 and self._past[1][0] <= known:
            self._past.popleft()
        return self._past[0][1]

    def _settle(self) -> datetime | None:
        """Passes of the controller until it has nothing more to do now; then the rules that always hold are checked."""
        for _ in range(_MOST_PASSES_AT_ONCE):
            decision = decide(self.view(), self.looks, self.answers, self.now, self.timing, self.probes)
            for error in decision.failed.values():
                raise error
            try:
                self._carry_out(decision.actions)
            except Killed:
                self.kills += 1
                self.looks, self.answers, self.probes = {}, {}, {}
                self._past.clear()
                continue
            if not decision.actions:
                check(self)
                return decision.wake_at
            self._schedule()
            self.now += _PASS
        raise AssertionError(f"the controller never comes to rest; last: {[_short(one) for one in self.done[-6:]]}")

    def _carry_out(self, actions: list[Action]) -> None:
        written: set[str] = set()
        for one in actions:
            if isinstance(one, Evict):
                recorded = {victim.uid for victim in self.claims[one.claim.metadata.uid].status.victims}
                assert one.victim.uid in recorded, f"{one.victim.name} is to be evicted before that is written down"
        for action in actions:
            if _claim_of(action) in written:
                continue
            if isinstance(action, WriteStatus):
                written.add(action.claim.metadata.uid)
            self.done.append(action)
            self._do(action)
            if self.after is not None:
                self.after(action)
            if not isinstance(action, LookAt | Probe):
                self.writes += 1
                if self.kill_always or self.writes == self.kill_after:
                    raise Killed

    def _do(self, action: Action) -> None:
        match action:
            case LookAt(node_name=name):
                bound = [pod for pod in self.pods.values() if pod.spec.node_name == name]
                self.looks[name] = Look(self.now, tuple(bound), _revision(self.now))
            case Probe(node=node):
                said = self.probe(node.metadata.name) if self.probe else ""
                self.probes[node.metadata.name] = ProbeResult(self.now, not said, said)
            case WriteStatus(claim=claim, status=status):
                uid = claim.metadata.uid
                if uid in self.claims:
                    # Through JSON, as the API server keeps it: what cannot be stored must not be relied on.
                    stored = msgspec.json.decode(msgspec.json.encode(status), type=type(status))
                    self.claims[uid] = replace(self.claims[uid], status=stored)
            case CreateClaim():
                self._create(action)
            case Hold() | Open() | Clear():
                self._mark(action)
            case CreateRecord() | ResolveRecord() | AskCheckpoint() | Evict() | StopWorkload() | ResumeWorkload():
                self._stop(action)
            case Steer(pod=pod, claim_uid=uid):
                self._steer(pod, uid)
            case Ungate(pod=pod):
                self._ungate(pod)
            case Poke(pod=pod, at=moment):
                self._annotate(pod.metadata.uid, POKE, format_time(moment))

    def _stop(
        self, action: CreateRecord | ResolveRecord | AskCheckpoint | Evict | StopWorkload | ResumeWorkload
    ) -> None:
        match action:
            case StopWorkload() | ResumeWorkload():
                self._for_kueue(action)
            case CreateRecord(record=record):
                self._record(record)
            case ResolveRecord(record=record, outcome=outcome, at=moment):
                self._resolve(record, outcome, moment)
            case AskCheckpoint(claim=claim, pod=pod, at=moment):
                asked = pod_asked(self.pods.get(pod.metadata.uid))
                if asked is None or asked < (entered_at(claim.status, Phase.CORDONING) or moment):
                    self._annotate(pod.metadata.uid, CHECKPOINT_REQUESTED, format_time(moment))
            case Evict():
                self._evict(action)

    def _create(self, action: CreateClaim) -> None:
        names = {(one.metadata.namespace, one.metadata.name) for one in self.claims.values()}
        if (action.namespace, action.name) in names:
            return
        self._made += 1
        uid = f"claim-{action.name}-{self._made}"
        metadata = replace(
            pool().metadata, name=action.name, namespace=action.namespace, uid=uid, creation_timestamp=self.now
        )
        self.claims[uid] = WholeNodeClaim(metadata, action.spec)

    def _mark(self, action: Hold | Open | Clear) -> None:
        node, uid = self.nodes.get(action.node.metadata.name), action.claim_uid
        if node is None or node.metadata.uid != action.node.metadata.uid:
            return
        taints, labels = node.spec.taints or (), dict(node.metadata.labels or {})
        notes = dict(node.metadata.annotations or {})
        if isinstance(action, Clear):
            taints = tuple(one for one in taints if not (one.key == CLAIM_KEY and one.value == uid))
            notes = {key: value for key, value in notes.items() if key not in take_down(notes, uid)}
            if labels.get(CLAIM_KEY) == uid and not action.label_stays:
                del labels[CLAIM_KEY]
        elif tainted_for(node) not in {None, uid}:
            return
        elif isinstance(action, Hold):
            taints, notes = (*taints, Taint(CLAIM_KEY, "NoSchedule", uid)), {**notes, **put_up(notes, uid)}
        elif tainted_for(node) == uid:
            labels[CLAIM_KEY] = uid
        self.change_node(node.metadata.name, labels=labels, annotations=notes, taints=taints or None)

    def _annotate(self, uid: str, key: str, value: str) -> None:
        """The answer to our own write is in the cache at once, whatever the watch has told."""
        if uid not in self.pods:
            return
        self.annotate(uid, key, value)
        for _, known in self._past:
            if uid in known:
                known[uid] = annotated(known[uid], key, value)

    def _record(self, record: DrainRecord) -> None:
        """A record with that name is left as it is; through JSON, as the API server keeps it."""
        meta = record.metadata
        if any(
            (one.metadata.namespace, one.metadata.name) == (meta.namespace, meta.name) for one in self.records.values()
        ):
            return
        self._made += 1
        stored = msgspec.json.decode(msgspec.json.encode(record), type=DrainRecord)
        made = replace(stored.metadata, uid=f"record-{self._made}", creation_timestamp=self.now)
        self.records[made.uid] = replace(stored, metadata=made, status=RecordStatus())

    def _resolve(self, record: DrainRecord, outcome: Outcome, moment: datetime) -> None:
        known = self.records[record.metadata.uid]
        assert known.status.outcome is Outcome.PENDING, f"the record of {known.spec.pod} is resolved twice"
        self.records[record.metadata.uid] = replace(known, status=RecordStatus(outcome, moment))

    def _written(self, claim: WholeNodeClaim, victim: Victim) -> DrainRecord | None:
        """The open record of this very intention."""
        intention = (victim.uid, claim.metadata.uid, victim.evicted_at)
        for one in self.records.values():
            if (one.spec.pod_uid, one.spec.claim_uid, one.spec.at) == intention:
                return one if one.status.outcome is Outcome.PENDING else None
        return None

    def _evict(self, action: Evict) -> None:
        uid = action.victim.uid
        self.eviction_calls.append(uid)
        pod = self.pods.get(uid)
        if pod is None or terminating(pod):
            self.answers[uid] = Answer(EvictionAnswer.ACCEPTED)
            return
        if uid in self.refusals:
            answer = self.refusals[uid]
            budget = answer.kind is EvictionAnswer.BUDGET
            self.answers[uid] = dataclasses.replace(answer, retry_at=self.now + _RETRY) if budget else answer
            return
        refused = self.budget_refusal(pod)
        if refused is not None:
            self.answers[uid] = dataclasses.replace(refused, retry_at=self.now + _RETRY)
            return
        claim = self.claims.get(action.claim.metadata.uid)
        if claim is None:
            return  # Withdrawn: the real hands ask the cache, last thing, whether the claim still stands.
        job = next((one for one in self.workloads.values() if pod in pods_of(self, one)), None)
        assert job is None or alone(job, pod), f"{pod.key} of {job and job.key} is evicted"
        held = next(one.held_at for one in claim.status.nodes if one.name == pod.spec.node_name)
        self._note_stop(claim, pod, held)
        self.answers[uid] = Answer(EvictionAnswer.ACCEPTED)
        self.delete(uid)

    def _for_kueue(self, action: StopWorkload | ResumeWorkload) -> None:
        if isinstance(action, ResumeWorkload):
            resume_workload(self, action.workload)
        elif (claim := self.claims.get(action.claim.metadata.uid)) is not None:
            held = {one.name: one.held_at for one in claim.status.nodes}
            pods = stop_workload(self, action)
            first = next((moment for one in pods if (moment := held.get(one.spec.node_name or ""))), None)
            for one in pods:
                self._note_stop(claim, one, first)
                self.answers[one.metadata.uid] = Answer(EvictionAnswer.ACCEPTED)

    def _note_stop(self, claim: WholeNodeClaim, pod: Pod, held: datetime | None) -> None:
        """Check that the pod may be stopped for the claim at this moment, and write it down."""
        uid = pod.metadata.uid
        assert claim.spec.policy is Policy.WAIT_THEN_EVICT, f"{pod.key} is evicted for a claim that only waits"
        victim = next((one for one in claim.status.victims if one.uid == uid and one.evicted_at), None)
        assert victim is not None, f"{pod.key} is evicted and does not stand in the claim's status"
        record = self._written(claim, victim)
        assert record is not None, f"{pod.key} is evicted before its record is written"
        earlier = [one.record.spec for one in self.evictions if one.claim == claim.metadata.uid]
        told = max((one.saved_at for one in earlier if one.gang == record.spec.gang and one.saved_at), default=None)
        assert agreed(self, pod, claim, record, told), f"{pod.key} is evicted without a valid agreement"
        assert not member(claim, pod), f"{pod.key} is evicted for its own gang"
        settled = held is not None and self.now >= held + self.timing.settle_before_eviction
        assert settled, f"{pod.key} is evicted before schedulers could see the taint"
        assert uid not in {one.uid for one in self.evictions}, f"{pod.key} is evicted a second time"
        self.evictions.append(Eviction(uid, pod.metadata.name, self.now, claim.metadata.uid, record))
        within_budget(self, [one.record for one in self.evictions], record)

    def _steer(self, pod: Pod, uid: str) -> None:
        now = self.pods.get(pod.metadata.uid)
        if now is None:
            return
        gates = tuple(one for one in now.spec.scheduling_gates or () if one.name != CLAIM_KEY) or None
        selector = dict(now.spec.node_selector or {})
        if any(one.name == CLAIM_KEY for one in now.spec.scheduling_gates or ()):
            assert selector.get(CLAIM_KEY, uid) == uid, "the selector of a claim cannot be changed to another"
            selector[CLAIM_KEY] = uid
        wanted = Toleration(CLAIM_KEY, "Equal", uid, "NoSchedule")
        tolerations = now.spec.tolerations or ()
        if wanted not in tolerations:
            tolerations = (*tolerations, wanted)
        spec = replace(now.spec, scheduling_gates=gates, node_selector=selector or None, tolerations=tolerations)
        self.pods[pod.metadata.uid] = replace(now, spec=spec)

    def _ungate(self, pod: Pod) -> None:
        now = self.pods.get(pod.metadata.uid)
        if now is not None:
            gates = tuple(one for one in now.spec.scheduling_gates or () if one.name != CLAIM_KEY) or None
            self.pods[pod.metadata.uid] = replace(now, spec=replace(now.spec, scheduling_gates=gates))

    # What tests ask

    def the_claim(self) -> WholeNodeClaim:
        """The only claim there is."""
        assert len(self.claims) == 1, list(self.claims)
        return next(iter(self.claims.values()))

    def phases(self, claim: WholeNodeClaim | None = None) -> list[str]:
        return [str(one.phase) for one in (claim or self.the_claim()).status.phases]

    def evicted(self) -> list[str]:
        """Names of all evicted pods, sorted."""
        return sorted(one.name for one in self.evictions)


def pod_asked(pod: Pod | None) -> datetime | None:
    """When the pod was asked for a checkpoint."""
    text = pod.metadata.annotation(CHECKPOINT_REQUESTED) if pod else None
    return parse_time(text) if text else None


def _short(action: Action) -> str:
    if isinstance(action, WriteStatus):
        return f"{action.claim.metadata.name} -> {action.status.phase}: {action.status.reason}, {action.status.message}"
    return type(action).__name__


def _claim_of(action: Action) -> str:
    """The claim an action is held back for while that claim's status is being written, as in the real engine."""
    match action:
        case WriteStatus(claim=claim) | Evict(claim=claim) | CreateRecord(claim=claim) | AskCheckpoint(claim=claim):
            return claim.metadata.uid
        case StopWorkload(claim=claim):
            return claim.metadata.uid
        case Hold(claim_uid=uid) | Open(claim_uid=uid) | Steer(claim_uid=uid):
            return uid
        case _:
            return ""
