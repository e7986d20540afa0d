"""A simulated cluster for the pure core: own clock, a toy kubelet and scheduler, and a controller that can be killed.

The controller runs `fleet.lifecycle.decide` as the real engine does: actions of a pass in order, none for a claim
whose status was written in that pass. `kill_after` lets it die right after that many writes of the whole run; it
then starts again without looks and answers. Nothing sleeps.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

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
    Timing,
    Ungate,
    WriteStatus,
)
from fleet.cards import cards, finished, holds_node, terminating, waiting
from fleet.lifecycle import decide
from fleet.marks import ENDED, HOLDING, OPEN, labelled_for, tainted_for
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE, POKE
from fleet.objects import Job, Node, Pod, Taint, Toleration
from fleet.placement import Board, judge
from fleet.resources import DrainAgreement, GPUPool, Phase, Policy, WholeNodeClaim
from fleet.selectors import node_wanted, tolerates
from fleet.times import format_time
from fleet.upkeep import member
from fleet.view import View
from tests.fleet.builders import T0, at, flat, pool

_PASS = timedelta(milliseconds=10)
_RETRY = timedelta(seconds=1)
_STRANGER_SEEN_WITHIN = timedelta(seconds=1.2)
_MOST_PASSES_AT_ONCE = 60

replace = msgspec.structs.replace


class Killed(Exception):  # noqa: N818 - not an error of ours: the process is gone
    """The controller was killed here."""


@dataclass(frozen=True)
class Eviction:
    """One call of the Eviction API that was accepted for a pod that was not terminating yet."""

    uid: str
    name: str
    at: datetime
    claim: str


@dataclass
class Simulation:
    """The cluster, its clock, and everything that happened."""

    timing: Timing = field(default_factory=Timing)
    kill_after: int | None = None
    kill_always: bool = False
    """Whether the controller is killed after each of its writes."""
    now: datetime = T0
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    pools: list[GPUPool] = field(default_factory=lambda: [pool()])
    agreements: list[DrainAgreement] = field(default_factory=list)
    claims: dict[str, WholeNodeClaim] = field(default_factory=dict)
    refusals: dict[str, Answer] = field(default_factory=dict)
    """What the API server answers to evictions of these pods (by UID) instead of accepting them."""
    after: Callable[[Action], object] | None = None
    """Called after each action of the controller that was carried out: the place for what comes between two of them."""
    recreate: bool = False
    """Whether an evicted pod with a controller comes back at once, unbound, under another UID."""
    writes: int = 0
    kills: int = 0
    evictions: list[Eviction] = field(default_factory=list)
    eviction_calls: list[str] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    starts: dict[str, datetime] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    _events: list[tuple[datetime, int, Callable[[], None]]] = field(default_factory=list)
    _made: int = 0

    # What the outside world does

    def add(self, *objects: Any) -> "Simulation":
        """Put objects (or lists of them) into the cluster now."""
        for one in flat(objects):
            if isinstance(one, Node):
                self.nodes[one.metadata.name] = one
            elif isinstance(one, Pod):
                self.pods[one.metadata.uid] = one
            elif isinstance(one, Job):
                self.jobs[one.metadata.uid] = one
            elif isinstance(one, DrainAgreement):
                self.agreements.append(one)
            elif isinstance(one, GPUPool):
                self.pools.append(one)
            else:
                self.claims[one.metadata.uid] = one
        return self

    def later(self, seconds: float, happen: Callable[[], object]) -> None:
        """Have something happen `seconds` after T0."""
        self._made += 1
        heapq.heappush(self._events, (at(seconds), self._made, lambda: happen() and None))

    def bind(self, pod: Pod, node_name: str) -> None:
        """A scheduler binds the pod, whatever the node's taints say; it runs at once."""
        self.starts.setdefault(pod.metadata.uid, self.now)
        self.pods[pod.metadata.uid] = replace(
            pod,
            spec=replace(pod.spec, node_name=node_name),
            status=replace(pod.status, phase="Running", start_time=self.now),
        )

    def delete(self, uid: str) -> None:
        """Delete a pod as its owner does: with its grace."""
        pod = self.pods.get(uid)
        if pod is None or terminating(pod):
            return
        if not pod.spec.node_name:
            del self.pods[uid]
            return
        grace = timedelta(seconds=pod.spec.termination_grace_period_seconds or 0)
        self.pods[uid] = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=self.now + grace))

    def end(self, uid: str, phase: str = "Succeeded") -> None:
        """The pod ends by itself."""
        if uid in self.pods:
            self.pods[uid] = replace(self.pods[uid], status=replace(self.pods[uid].status, phase=phase))

    def change_node(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Somebody changes a node's labels or spec."""
        node = self.nodes[name]
        if labels is not None:
            node = replace(node, metadata=replace(node.metadata, labels=labels))
        self.nodes[name] = replace(node, spec=replace(node.spec, **spec))

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

    @property
    def seconds(self) -> float:
        """Seconds since T0."""
        return (self.now - T0).total_seconds()

    def view(self) -> View:
        return View(
            dict(self.nodes),
            dict(self.pods),
            dict(self.jobs),
            tuple(self.pools),
            tuple(self.agreements),
            dict(self.claims),
        )

    def _ends(self) -> Iterable[datetime]:
        return (
            pod.metadata.deletion_timestamp
            for pod in self.pods.values()
            if pod.metadata.deletion_timestamp and not pod.metadata.finalizers
        )

    def _happen(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        for uid, pod in list(self.pods.items()):
            gone_at = pod.metadata.deletion_timestamp
            if gone_at is not None and gone_at <= self.now and not pod.metadata.finalizers:
                del self.pods[uid]
                if self.recreate and pod.metadata.controller():
                    self._return(pod)
        self._schedule()

    def _return(self, pod: Pod) -> None:
        self._made += 1
        metadata = replace(
            pod.metadata,
            name=f"{pod.metadata.name}-again{self._made}",
            uid=f"{pod.metadata.uid}-again{self._made}",
            deletion_timestamp=None,
            creation_timestamp=self.now,
        )
        self.add(
            replace(
                pod,
                metadata=metadata,
                spec=replace(pod.spec, node_name=None),
                status=replace(pod.status, phase="Pending"),
            )
        )

    def _schedule(self) -> None:
        """A toy kube-scheduler: taints, selectors, cards, then the extender's word; first name wins"""
        pending = [pod for pod in self.pods.values() if waiting(pod) and not pod.spec.scheduling_gates]
        if not pending:
            return
        board = Board.of(self.pools, self.nodes.values(), self.claims.values(), self.agreements, self.now)
        for pod in sorted(pending, key=lambda one: (one.metadata.creation_timestamp or T0, one.key)):
            fitting = [name for name in sorted(self.nodes) if self._fits(pod, self.nodes[name])]
            passed = judge(pod, fitting, board).passed
            if passed:
                self.bind(pod, passed[0])

    def _fits(self, pod: Pod, node: Node) -> bool:
        hard = [one for one in node.spec.taints or () if one.effect in {"NoSchedule", "NoExecute"}]
        used = sum(
            cards(one, DEFAULT_RESOURCE)
            for one in self.pods.values()
            if holds_node(one) and one.spec.node_name == node.metadata.name
        )
        free = int((node.status.allocatable or {}).get(DEFAULT_RESOURCE, 0)) - used
        return (
            not node.spec.unschedulable
            and any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
            and all(tolerates(pod.spec.tolerations, one) for one in hard)
            and node_wanted(pod.spec, node, "")
            and cards(pod, DEFAULT_RESOURCE) <= free
        )

    def _settle(self) -> datetime | None:
        """Passes of the controller until it has nothing more to do now; then the rules that always hold are checked."""
        for _ in range(_MOST_PASSES_AT_ONCE):
            decision = decide(self.view(), self.looks, self.answers, self.now, self.timing)
            try:
                self._carry_out(decision.actions)
            except Killed:
                self.kills += 1
                self.looks, self.answers = {}, {}
                continue
            if not decision.actions:
                self.check()
                return decision.wake_at
            self._schedule()
            self.now += _PASS
        raise AssertionError(f"the controller never comes to rest; last: {[_short(one) for one in self.done[-6:]]}")

    def _carry_out(self, actions: list[Action]) -> None:
        written: set[str] = set()
        for action in actions:
            if _claim_of(action) in written:
                continue
            if isinstance(action, WriteStatus):
                written.add(action.claim.metadata.uid)
            self.done.append(action)
            self._do(action)
            if self.after is not None:
                self.after(action)
            if not isinstance(action, LookAt):
                self.writes += 1
                if self.kill_always or self.writes == self.kill_after:
                    raise Killed

    def _do(self, action: Action) -> None:
        match action:
            case LookAt(node_name=name):
                bound = [pod for pod in self.pods.values() if pod.spec.node_name == name]
                self.looks[name] = Look(self.now, tuple(bound))
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
            case Evict():
                self._evict(action)
            case Steer(pod=pod, claim_uid=uid):
                self._steer(pod, uid)
            case Ungate(pod=pod):
                self._ungate(pod)
            case Poke(pod=pod, at=moment):
                if pod.metadata.uid in self.pods:
                    now = self.pods[pod.metadata.uid]
                    notes = {**(now.metadata.annotations or {}), POKE: format_time(moment)}
                    self.pods[pod.metadata.uid] = replace(now, metadata=replace(now.metadata, annotations=notes))

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
        if isinstance(action, Clear):
            taints = tuple(one for one in taints if not (one.key == CLAIM_KEY and one.value == uid))
            if labels.get(CLAIM_KEY) == uid:
                del labels[CLAIM_KEY]
        elif {tainted_for(node), labelled_for(node)} - {None, uid}:
            return
        elif isinstance(action, Hold):
            taints = (*taints, Taint(CLAIM_KEY, "NoSchedule", uid))
        elif tainted_for(node) == uid:
            labels[CLAIM_KEY] = uid
        self.change_node(node.metadata.name, labels=labels, taints=taints or None)

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
        claim = self.claims.get(action.claim.metadata.uid)
        assert claim is not None, f"{pod.key} is evicted for a claim that is gone"
        assert claim.spec.policy is Policy.WAIT_THEN_EVICT, f"{pod.key} is evicted for a claim that only waits"
        assert self.agreed(pod, claim), f"{pod.key} is evicted without a valid agreement"
        assert any(one.uid == uid and one.evicted_at for one in claim.status.victims), f"{pod.key}: not recorded first"
        assert not member(claim, pod), f"{pod.key} is evicted for its own gang"
        assert uid not in {one.uid for one in self.evictions}, f"{pod.key} is evicted a second time"
        self.evictions.append(Eviction(uid, pod.metadata.name, self.now, claim.metadata.uid))
        self.answers[uid] = Answer(EvictionAnswer.ACCEPTED)
        self.delete(uid)

    def agreed(self, pod: Pod, claim: WholeNodeClaim) -> bool:
        """Whether an agreement of the simple kind (no selector, no waits) allows it: written apart from the code."""
        return any(
            one.metadata.namespace == pod.metadata.namespace
            and claim.metadata.namespace in {who.namespace for who in one.spec.beneficiaries}
            and (pod.spec.priority or 0) <= one.spec.victims.max_priority
            and (one.spec.expires is None or self.now < one.spec.expires)
            for one in self.agreements
        )

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

    # What always holds

    def check(self) -> None:
        """The rules that hold whenever the controller is at rest."""
        holders: dict[str, str] = {}
        for claim in self.claims.values():
            phase = claim.status.phase
            if phase not in ENDED:
                assert claim.status.reason, f"claim {claim.metadata.name} is {phase} without a reason"
            if claim.spec.policy is Policy.PREVIEW or phase not in HOLDING | {Phase.PLANNED}:
                continue
            for held in claim.status.nodes:
                assert held.name not in holders, f"{held.name} belongs to two claims"
                holders[held.name] = claim.metadata.uid
            if phase in OPEN:
                self._check_open(claim)
        for node in self.nodes.values():
            for mark in (tainted_for(node), labelled_for(node)):
                if mark is not None:
                    assert holders.get(node.metadata.name) == mark, f"a mark of {mark} strayed on {node.metadata.name}"

    def _check_open(self, claim: WholeNodeClaim) -> None:
        """Nothing but the gang is on an open node, unless it slipped in and is being dealt with."""
        recorded = {one.uid for one in claim.status.victims}
        for held in claim.status.nodes:
            assert held.proved_empty_at is not None, f"{held.name} is open without proof"
            for pod in self.card_holders(held.name):
                fresh = self.now - self.starts.get(pod.metadata.uid, T0) <= _STRANGER_SEEN_WITHIN
                dealt_with = terminating(pod) or pod.metadata.uid in recorded or fresh
                assert member(claim, pod) or dealt_with, f"{pod.key} sits on open node {held.name}"

    def card_holders(self, node_name: str) -> list[Pod]:
        """Pods that hold cards of a node, terminating ones included."""
        return [
            pod
            for pod in self.pods.values()
            if pod.spec.node_name == node_name and not finished(pod) and cards(pod, DEFAULT_RESOURCE)
        ]

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

    def marked(self) -> list[str]:
        """Nodes that carry a mark of ours."""
        return sorted(
            name for name, node in self.nodes.items() if (tainted_for(node), labelled_for(node)) != (None, None)
        )

    def where(self, prefix: str) -> list[str]:
        """Where the bound pods whose name starts so are."""
        return sorted(
            pod.spec.node_name
            for pod in self.pods.values()
            if pod.metadata.name.startswith(prefix) and pod.spec.node_name and not finished(pod)
        )


def _short(action: Action) -> str:
    if isinstance(action, WriteStatus):
        return f"{action.claim.metadata.name} -> {action.status.phase}: {action.status.reason}, {action.status.message}"
    return type(action).__name__


def _claim_of(action: Action) -> str:
    """The claim an action is held back for while that claim's status is being written, as in the real engine."""
    match action:
        case WriteStatus(claim=claim) | Evict(claim=claim):
            return claim.metadata.uid
        case Hold(claim_uid=uid) | Open(claim_uid=uid) | Steer(claim_uid=uid):
            return uid
        case _:
            return ""
