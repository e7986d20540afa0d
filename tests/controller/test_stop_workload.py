"""Stopping a whole job through Kueue: what is looked at right before the write, what is told, and what is resumed."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cluster.errors import Conflict, Forbidden
from controller.caches import Caches
from controller.engine import Engine
from controller.hands import Hands
from controller.metrics import Metrics
from fleet.actions import EvictionAnswer, ResolveRecord, ResumeWorkload, StopWorkload, Timing
from fleet.kueue.objects import DEACTIVATED_FOR, Workload
from fleet.objects import BudgetSpec, BudgetStatus, DisruptionBudget, LabelSelector, Metadata
from fleet.records import record_of
from fleet.resources import Budget, HeldNode, Outcome, Phase, RecordStatus, Victim, WholeNodeClaim
from tests.fleet.builders import agreement, at, claim
from tests.fleet.kueue import kueue_job, with_conditions

HERE, THERE = (
    Victim(
        "team-v",
        f"j-{index}",
        f"team-v.j-{index}",
        node,
        1,
        agreement="yes",
        lost_gpu_seconds=lost,
        evicted_at=at(-50_000_000),
        job="j",
        gang="Job/team-v/j/job-j",
    )
    for index, node, lost in ((0, "n1", 30), (1, "n2", 0))
)
PATH = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-v/workloads/job-j"


@dataclass
class QueueingApi:
    """The API server behind a busy token bucket, with Kueue's objects; `error` is its answer instead."""

    turns: asyncio.Event = field(default_factory=asyncio.Event)
    patched: list[tuple[str, Any]] = field(default_factory=list)
    workload: Workload | None = None
    error: Exception | None = None

    async def turn(self) -> None:
        await self.turns.wait()

    async def patch(self, path: str, body: Any, kind: str, *, urgent: bool = False) -> bytes:
        self.patched.append((path, body))
        if self.error is not None:
            raise self.error
        assert self.workload is not None
        old = msgspec.to_builtins(self.workload)
        notes = {**old["metadata"].get("annotations", {}), **body["metadata"]["annotations"]}
        meta = {**old["metadata"], "annotations": {key: text for key, text in notes.items() if text}}
        made = {**old, "metadata": {**meta, "resourceVersion": "9"}, "spec": {**old.get("spec", {}), **body["spec"]}}
        return json.dumps(made, default=str).encode()


class Scene:
    """A job with a pod on the claim's node n1 and one on n2, both about to be stopped through Kueue."""

    def __init__(self) -> None:
        self.api: Any = QueueingApi()
        self.leading, self.told = True, list[tuple[Any, ...]]()
        self.caches = Caches(self.api, lambda: None)
        *pods, job, made = kueue_job("j", "n1", "n2", started=-60_000_000)
        assert isinstance(made, Workload)
        self.workload = msgspec.structs.replace(
            made, metadata=msgspec.structs.replace(made.metadata, resource_version="7")
        )
        self.api.workload = self.workload
        self.caches.pods.store.update({one.metadata.uid: one for one in pods})
        self.caches.jobs.store[job.metadata.uid] = job
        self.caches.workloads.store[self.workload.metadata.uid] = self.workload
        self.caches.agreements.store["a"] = agreement()
        self.claim = self.holding()
        self.caches.claims.store["c-1"] = self.claim
        for one in (HERE, THERE):
            record = record_of(self.claim, one, "train", agreement(), at(0))
            self.caches.records.store[one.uid] = msgspec.structs.replace(
                record, metadata=msgspec.structs.replace(record.metadata, uid=one.uid)
            )
        events: Any = type("Events", (), {"record": lambda _, *what: self.told.append(what)})()
        self.metrics = Metrics()
        self.hands = Hands(self.api, self.caches, self.metrics, events, lambda: self.leading)
        self.action = StopWorkload(self.claim, self.workload, (HERE, THERE))

    @staticmethod
    def holding(**more: Any) -> WholeNodeClaim:
        given = {"phase": Phase.DRAINING, "held": [HeldNode("n1", "node-n1")], "victims": (HERE, THERE), **more}
        return claim(uid="c-1", created=-100_000_000, **given)

    async def stop_while(self, change: Callable[[], object] = lambda: None) -> list[tuple[str, Any]]:
        """Start it, let `change` happen while it waits for its turn; what was sent."""
        task = asyncio.create_task(self.hands.do(self.action))
        await asyncio.sleep(0)
        change()
        self.api.turns.set()
        await task
        sent: list[tuple[str, Any]] = self.api.patched
        return sent

    def evictions(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("wholenode_evictions_total", {"result": result})


async def test_k07_inactive_and_our_mark_are_one_write_on_the_version_that_was_decided_on() -> None:
    scene = Scene()
    body = {
        "metadata": {"uid": "wl-job-j", "resourceVersion": "7", "annotations": {DEACTIVATED_FOR: "c-1"}},
        "spec": {"active": False},
    }
    assert await scene.stop_while() == [(PATH, body)]
    known = scene.caches.workloads.store["wl-job-j"]
    assert not known.active
    assert known.metadata.annotation(DEACTIVATED_FOR) == "c-1"
    assert {uid: one.kind for uid, one in scene.hands.answers.items()} == dict.fromkeys(
        (HERE.uid, THERE.uid), EvictionAnswer.ACCEPTED
    )
    assert scene.evictions("accepted") == 1


async def test_k07_each_pod_and_the_workload_are_told_for_which_claim_under_which_agreement() -> None:
    scene = Scene()
    await scene.stop_while()
    told = {(where.kind, where.name): note for where, reason, note, *_ in scene.told if reason == "VacatedByAgreement"}
    assert set(told) == {("Pod", "j-0"), ("Pod", "j-1"), ("Workload", "job-j")}
    assert all("claim team-b/c under agreement yes" in note for note in told.values())
    assert all("node n1" in note for (kind, _), note in told.items() if kind == "Pod"), "n2 is not vacated"
    assert "its 2 pod(s)" in told["Workload", "job-j"]
    assert "30 GPU-seconds" in told["Workload", "job-j"]


def _budget(allowed: int) -> DisruptionBudget:
    metadata = Metadata("pdb", "team-v", uid="pdb")
    return DisruptionBudget(metadata, BudgetSpec(LabelSelector()), BudgetStatus(allowed))


def _spared(scene: Scene) -> None:
    one = scene.caches.records.store[THERE.uid]
    scene.caches.records.store[THERE.uid] = msgspec.structs.replace(one, status=RecordStatus(Outcome.SPARED))


def _evicted(scene: Scene) -> None:
    scene.caches.workloads.store["wl-job-j"] = with_conditions(scene.workload, Evicted=True)


def _one_more_pod(scene: Scene) -> None:
    more = kueue_job("j", "n3", started=0)[0]
    scene.caches.pods.store["more"] = msgspec.structs.replace(
        more, metadata=msgspec.structs.replace(more.metadata, name="j-2", uid="more")
    )


GONE: dict[str, Callable[[Scene], object]] = {
    "the lease": lambda scene: setattr(scene, "leading", False),
    "the claim": lambda scene: scene.caches.claims.store.clear(),
    "the node": lambda scene: scene.caches.claims.store.update({"c-1": scene.holding(held=[HeldNode("n9", "n9")])}),
    "the claim's phase": lambda scene: scene.caches.claims.store.update({"c-1": scene.holding(phase=Phase.BLOCKED)}),
    "a victim": lambda scene: scene.caches.claims.store.update({"c-1": scene.holding(victims=(HERE,))}),
    "the agreement": lambda scene: scene.caches.agreements.store.clear(),
    "the budget": lambda scene: scene.caches.agreements.store.update(
        a=agreement(budget=Budget(evictions_per_job_per_day=0))
    ),
    "a record": lambda scene: scene.caches.records.store.pop(THERE.uid),
    "a record that is open": _spared,
    "the Workload": lambda scene: scene.caches.workloads.store.clear(),
    "its admission": _evicted,
    "that all were asked": _one_more_pod,
    "the disruption budget": lambda scene: scene.caches.budgets.store.update(pdb=_budget(1)),
}


@pytest.mark.parametrize("gone", GONE)
async def test_k07_a_stop_whose_grounds_are_gone_is_not_sent(gone: str) -> None:
    scene = Scene()
    assert await scene.stop_while(lambda: GONE[gone](scene)) == []
    assert scene.hands.answers == {}, "it is decided anew"
    assert scene.told == []


async def test_k07_a_disruption_budget_that_allows_both_lets_them_go() -> None:
    scene = Scene()
    assert await scene.stop_while(lambda: scene.caches.budgets.store.update(pdb=_budget(2)))


async def test_k07_a_pod_that_has_ended_meanwhile_holds_nobody_up() -> None:
    scene = Scene()
    assert await scene.stop_while(lambda: scene.caches.pods.store.pop(THERE.uid))


async def test_k07_what_the_server_forbids_is_said_once_and_not_tried_for_ever() -> None:
    scene = Scene()
    scene.api.error = Forbidden("workloads is forbidden")
    await scene.stop_while()
    assert {one.kind for one in scene.hands.answers.values()} == {EvictionAnswer.REFUSED}
    assert scene.evictions("refused") == 1


async def test_k04_a_workload_that_kueue_changed_since_is_decided_anew() -> None:
    scene = Scene()
    scene.api.error = Conflict("the object has been modified")
    with pytest.raises(Conflict):
        await scene.stop_while()
    assert scene.hands.answers == {}


async def test_k08_one_that_somebody_else_made_inactive_is_not_marked_as_ours() -> None:
    scene = Scene()
    theirs = msgspec.structs.replace(scene.workload, spec=msgspec.structs.replace(scene.workload.spec, active=False))
    scene.action = StopWorkload(scene.claim, theirs, (HERE, THERE))
    with pytest.raises(Conflict, match="inactive already"):
        await scene.stop_while()
    assert scene.api.patched == []


async def test_k08_active_again_and_the_mark_off_are_one_write() -> None:
    scene = Scene()
    await scene.stop_while()
    stopped = scene.caches.workloads.store["wl-job-j"]
    scene.api.workload = stopped
    await scene.hands.do(ResumeWorkload(stopped))
    path, body = scene.api.patched[-1]
    assert path == PATH
    assert body == {
        "metadata": {"uid": "wl-job-j", "resourceVersion": "9", "annotations": {DEACTIVATED_FOR: None}},
        "spec": {"active": True},
    }


async def test_k07_a_record_is_not_resolved_while_the_stop_of_its_job_is_on_its_way() -> None:
    """Spared, it would read, and be stopped in the next moment."""
    scene = Scene()
    engine = Engine(scene.caches, scene.hands, scene.metrics, Timing(), lambda: True)
    decision: Any = type("Decision", (), {"wake": lambda *_: None})()
    record = scene.caches.records.store[THERE.uid]
    now = at(0) + timedelta(seconds=1)
    engine._start(scene.action, now, decision)
    engine._start(ResolveRecord(record, Outcome.SPARED, now), now, decision)
    started = [task.get_name() for task in engine._in_flight.values()]
    assert started == ["stop workload team-v/job-j"]
    scene.api.turns.set()
    await asyncio.gather(*engine._in_flight.values())
    assert engine._jobs == {}
