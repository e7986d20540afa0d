"""An eviction that waited its turn is looked at once more: what allowed it may be gone by then. And its books."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.errors import AlreadyExists, Conflict
from controller.caches import Caches
from controller.hands import Hands
from controller.metrics import Metrics
from fleet.actions import Answer, AskCheckpoint, CreateRecord, Evict, EvictionAnswer, Look, ResolveRecord
from fleet.names import CHECKPOINT_REQUESTED, KUEUE_QUEUE, LAST_CHECKPOINT
from fleet.records import record_of
from fleet.resources import (
    Budget,
    Checkpoint,
    DrainRecord,
    HeldNode,
    Outcome,
    Phase,
    RecordStatus,
    Victim,
    WholeNodeClaim,
)
from tests.fleet.admissions import check, flavor, workload
from tests.fleet.builders import agreement, at, claim, members, pod, pool, record, ref

VICTIM = Victim(
    "team-v", "v", "v-1", "n1", 1, agreement="yes", lost_gpu_seconds=30, evicted_at=at(-50_000_000), job="j"
)


@dataclass
class QueueingApi:
    """The API server behind a busy token bucket: a turn comes when the test lets it come."""

    turns: asyncio.Event = field(default_factory=asyncio.Event)
    posted: list[str] = field(default_factory=list)

    async def turn(self) -> None:
        await self.turns.wait()

    async def create(self, path: str, body: object, *, urgent: bool = False) -> bytes:
        self.posted.append(path)
        return b"{}"


class Store(SimpleNamespace):
    """A cache that the test fills."""

    def apply(self, item: Any) -> None:
        self.store[item.metadata.uid] = item


def written(made: WholeNodeClaim) -> DrainRecord:
    one = record_of(made, VICTIM, "train", agreement(), at(0))
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, uid="r-1"))


@dataclass
class Scene:
    """One victim about to be evicted for one claim."""

    api: Any = field(default_factory=QueueingApi)
    leading: bool = True
    claims: dict[str, WholeNodeClaim] = field(default_factory=dict)
    agreements: dict[str, Any] = field(default_factory=dict)
    told: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = self.holding()
        self.claims["c-1"] = made
        self.agreements["a"] = agreement()
        self.records = {"r-1": written(made)}
        self.pods = {"v-1": pod("v", on="n1", uid="v-1", started=-60_000_000)}
        self.caches: Any = Caches(self.api, lambda: None)
        for name in ("pods", "claims", "agreements", "records"):
            setattr(self.caches, name, Store(store=getattr(self, name)))
        events: Any = SimpleNamespace(record=lambda *what: self.told.append(what))
        self.metrics = Metrics()
        self.hands = Hands(self.api, self.caches, self.metrics, events, lambda: self.leading)
        self.action = Evict(made, VICTIM)

    @staticmethod
    def holding(**more: Any) -> WholeNodeClaim:
        given = {"phase": Phase.DRAINING, "held": [HeldNode("n1", "node-n1")], "victims": (VICTIM,), **more}
        return claim(uid="c-1", created=-100_000_000, **given)

    async def evict_while(self, change: Callable[[], object]) -> list[str]:
        """Start the eviction, let `change` happen while it waits, then let its turn come; what was sent."""
        task = asyncio.create_task(self.hands.do(self.action))
        await asyncio.sleep(0)
        change()
        self.api.turns.set()
        await task
        sent: list[str] = self.api.posted
        return sent

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels or None)


SENT = ["/api/v1/namespaces/team-v/pods/v/eviction"]


async def test_an_eviction_whose_grounds_still_stand_is_sent() -> None:
    scene = Scene()
    assert await scene.evict_while(lambda: None) == SENT
    assert "v-1" in scene.hands.answers


@pytest.mark.parametrize("gone", ["agreement", "claim", "lease", "record"])
async def test_an_eviction_whose_grounds_are_gone_is_not_sent(gone: str) -> None:
    scene = Scene()

    def change() -> None:
        if gone == "agreement":
            scene.agreements.clear()
        elif gone == "claim":
            scene.claims.clear()
        elif gone == "record":
            scene.records.clear()
        else:
            scene.leading = False

    assert await scene.evict_while(change) == []
    assert "v-1" not in scene.hands.answers, "it is decided anew"


@pytest.mark.parametrize(
    "changed",
    [
        {"phase": Phase.BLOCKED, "held": []},
        {"phase": Phase.BLOCKED},
        {"held": [HeldNode("n2", "node-n2")]},
        {"victims": ()},
        {"victims": (msgspec.structs.replace(VICTIM, evicted_at=at(1)),)},
    ],
)
async def test_an_eviction_that_the_claim_does_not_mean_any_more_is_not_sent(changed: dict[str, Any]) -> None:
    scene = Scene()
    back = Scene.holding(**changed)
    assert await scene.evict_while(lambda: scene.claims.update({"c-1": back})) == []


@pytest.mark.parametrize("outcome", [Outcome.SPARED, Outcome.STOPPED])
async def test_a_record_of_a_pod_that_was_spared_allows_nothing(outcome: Outcome) -> None:
    scene = Scene()
    resolved = msgspec.structs.replace(scene.records["r-1"], status=RecordStatus(outcome))
    sent = await scene.evict_while(lambda: scene.records.update({"r-1": resolved}))
    assert sent == ([] if outcome is Outcome.SPARED else SENT)


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (agreement(budget=Budget(evictions_per_hour=1, gpu_seconds_per_day=30, evictions_per_job_per_day=1)), SENT),
        (agreement(budget=Budget(gpu_seconds_per_day=29)), []),
        (agreement(budget=Budget(evictions_per_hour=0)), []),
        (agreement(budget=Budget(evictions_per_job_per_day=0)), []),
        (agreement(checkpoint=Checkpoint(required=True)), []),
        (agreement(queues=["research"]), []),
        (agreement(max_priority=-1), []),
        (agreement("another"), []),
    ],
)
async def test_an_agreement_that_is_changed_protects_whoever_is_not_stopped_yet(words: Any, sent: list[str]) -> None:
    """Its budget, its terms; and another agreement is not the one that the record names."""
    scene = Scene()
    assert await scene.evict_while(lambda: scene.agreements.update(a=words)) == sent


async def test_what_others_have_spent_meanwhile_counts() -> None:
    scene = Scene()
    scene.agreements["a"] = agreement(budget=Budget(evictions_per_job_per_day=1))
    hit = record("w", job="j", claim="other")
    lately = msgspec.structs.replace(hit, spec=msgspec.structs.replace(hit.spec, at=datetime.now(UTC)))
    assert await scene.evict_while(lambda: scene.records.update(w=lately)) == []


@pytest.mark.parametrize(("claim_uid", "sent"), [("c-1", SENT), ("other", [])])
async def test_what_the_claim_itself_stopped_at_that_moment_is_the_same_hit_of_the_job(
    claim_uid: str, sent: list[str]
) -> None:
    """Another claim may have hit the job at the very moment, too: that is a hit of its own."""
    scene, now = Scene(), datetime.now(UTC)
    rest = msgspec.structs.replace(VICTIM, evicted_at=now)
    made = scene.claims["c-1"] = scene.holding(victims=(rest,))
    scene.records["r-1"] = record_of(made, rest, "train", agreement(), now)
    fellow = record("w", job="j", claim=claim_uid)
    scene.records["w"] = msgspec.structs.replace(fellow, spec=msgspec.structs.replace(fellow.spec, at=now))
    scene.agreements["a"] = agreement(budget=Budget(evictions_per_job_per_day=1))
    scene.action = Evict(made, rest)
    assert await scene.evict_while(lambda: None) == sent


async def test_a_checkpoint_that_the_record_tells_of_counts_when_the_member_that_made_it_is_gone() -> None:
    scene = Scene()
    saved = msgspec.structs.replace(VICTIM, saved_at=at(-51_000_000))
    made = scene.claims["c-1"] = scene.holding(victims=(saved,))
    scene.action = Evict(made, saved)
    careful = agreement(checkpoint=Checkpoint(required=True))
    assert await scene.evict_while(lambda: scene.agreements.update(a=careful)) == SENT


async def test_the_queue_and_the_checkpoints_of_the_gangs_are_looked_up() -> None:
    scene = Scene()
    scene.claims["c-1"] = scene.holding(gang=ref())
    for one in members(2, labels={KUEUE_QUEUE: "research"}):
        scene.pods[one.metadata.uid] = one
    saved = pod("v", on="n1", uid="v-1", started=-60_000_000, gang="pair")
    lead = pod("lead", on="n2", started=-60_000_000, gang="pair", notes={LAST_CHECKPOINT: "2026-01-01T00:00:00Z"})
    scene.pods.update({"v-1": saved, "lead": lead})
    careful = agreement(queues=["research"], checkpoint=Checkpoint(required=True))
    assert await scene.evict_while(lambda: scene.agreements.update(a=careful)) == SENT


async def test_the_queue_of_a_job_whose_pods_kueue_has_not_made_yet_is_known() -> None:
    """Seen: an agreement for one LocalQueue let nobody be stopped for a Job of that queue."""
    scene = Scene()
    scene.claims["c-1"] = scene.holding(gang=ref(uid="job-train"))
    for store, one in ((scene.caches.pools, pool()), (scene.caches.checks, check()), (scene.caches.flavors, flavor())):
        store.store[one.metadata.uid] = one
    waiting = workload("train", queue="research")
    scene.caches.workloads.store[waiting.metadata.uid] = waiting
    assert await scene.evict_while(lambda: scene.agreements.update(a=agreement(queues=["research"]))) == SENT


async def test_a_checkpoint_of_a_gang_of_that_name_in_another_namespace_does_not_count() -> None:
    scene = Scene()
    saved = pod("v", on="n1", uid="v-1", started=-60_000_000, gang="pair")
    notes = {LAST_CHECKPOINT: "2026-01-01T00:00:00Z"}
    other = pod("lead", ns="team-w", on="n2", started=-60_000_000, gang="pair", notes=notes)
    scene.pods.update({"v-1": saved, "lead": other})
    careful = agreement(checkpoint=Checkpoint(required=True))
    assert await scene.evict_while(lambda: scene.agreements.update(a=careful)) == []


async def test_what_is_written_for_the_oldest_claim_goes_first() -> None:
    """A few at a time: else each of several claims would wait for the last answer to all of them."""
    scene = Scene()
    older = scene.claims["c-0"] = msgspec.structs.replace(
        scene.holding(), metadata=claim(uid="c-0", created=-200_000_000).metadata
    )
    evictions = []
    for owner, count in (("c-1", 12), ("c-0", 2)):
        made = older if owner == "c-0" else scene.claims["c-1"]
        for number in range(count):
            one = msgspec.structs.replace(VICTIM, name=f"{owner}-{number}", uid=f"{owner}-{number}")
            scene.pods[one.uid] = pod(one.name, on="n1", uid=one.uid, started=-60_000_000)
            evictions.append((made, one))
    for uid in ("c-0", "c-1"):
        victims = tuple(one for made, one in evictions if made.metadata.uid == uid)
        claimed = scene.claims[uid]
        scene.claims[uid] = msgspec.structs.replace(
            claimed, status=msgspec.structs.replace(claimed.status, victims=victims)
        )
        for one in victims:
            scene.records[one.uid] = record_of(scene.claims[uid], one, "train", agreement(), at(0))
    tasks = [
        asyncio.create_task(scene.hands.do(Evict(scene.claims[made.metadata.uid], one))) for made, one in evictions
    ]
    await asyncio.sleep(0)
    scene.api.turns.set()
    await asyncio.gather(*tasks)
    names = [path.split("/")[-2] for path in scene.api.posted]
    assert len(names) == 14
    assert names[8:10] == ["c-0-0", "c-0-1"], "behind those that were under way, before the others"


async def test_a_namespace_whose_webhook_does_not_answer_holds_up_no_other() -> None:
    scene = Scene()
    made = scene.claims["c-1"]
    stuck = [msgspec.structs.replace(VICTIM, name=f"s{n}", uid=f"s{n}", namespace="team-w") for n in range(9)]
    for one in stuck:
        scene.pods[one.uid] = pod(one.name, ns="team-w", on="n1", uid=one.uid)
    tasks = [asyncio.create_task(scene.hands.do(Evict(made, one))) for one in stuck]
    await asyncio.sleep(0)
    waits = scene.api.turns
    scene.api.turns = asyncio.Event()
    scene.api.turns.set()
    await scene.hands.do(scene.action)
    assert scene.api.posted == SENT
    assert not any(task.done() for task in tasks[:8])
    waits.set()
    await asyncio.gather(*tasks)


# The books


@dataclass
class KeepingApi:
    """An API server that keeps what is written to it, record by record."""

    kept: dict[str, DrainRecord] = field(default_factory=dict)
    patched: list[tuple[str, Any]] = field(default_factory=list)

    async def create(self, path: str, body: dict[str, Any]) -> bytes:
        name = body["metadata"]["name"]
        if name in self.kept:
            raise AlreadyExists(name)
        made = msgspec.convert(
            msgspec.to_builtins({**body, "metadata": {**body["metadata"], "uid": name}}), DrainRecord
        )
        self.kept[name] = made
        return msgspec.json.encode(made)

    async def get(self, path: str) -> bytes:
        return msgspec.json.encode(self.kept[path.rsplit("/", 1)[1]])

    async def replace(self, path: str, body: dict[str, Any]) -> bytes:
        name = path.split("/")[-2]
        if self.kept[name].status != RecordStatus():
            raise Conflict(name)
        self.kept[name] = msgspec.structs.replace(self.kept[name], status=body["status"])
        return msgspec.json.encode(self.kept[name])

    async def patch(self, path: str, patch: Any, kind: str) -> bytes:
        self.patched.append((path, patch))
        return msgspec.json.encode(pod("v", on="n1", uid="v-1"))


def booking() -> tuple[Scene, KeepingApi, CreateRecord]:
    api = KeepingApi()
    scene = Scene(api=api)
    made = scene.claims["c-1"]
    scene.records.clear()
    return scene, api, CreateRecord(made, record_of(made, VICTIM, "train", agreement(), at(0)))


PARTIES = {"victim_namespace": "team-v", "beneficiary_namespace": "team-b", "agreement": "yes"}


async def test_an_intention_that_is_written_down_twice_is_one_record() -> None:
    scene, api, action = booking()
    await scene.hands.do(action)
    scene.records.clear()
    await scene.hands.do(action)
    assert len(api.kept) == len(scene.records) == 1
    assert next(iter(scene.records.values())).spec == action.record.spec


async def test_a_record_of_that_name_that_says_something_else_allows_nothing() -> None:
    scene, api, action = booking()
    forged = msgspec.structs.replace(
        action.record, spec=msgspec.structs.replace(action.record.spec, lost_gpu_seconds=0)
    )
    api.kept[action.record.metadata.name] = forged
    with pytest.raises(Conflict, match="says something else"):
        await scene.hands.do(action)
    assert scene.records == {}


async def test_the_loss_is_booked_once_when_the_pod_is_known_to_be_stopped() -> None:
    scene, _, action = booking()
    await scene.hands.do(action)
    (made,) = scene.records.values()
    assert scene.value("wholenode_lost_gpu_seconds_total", **PARTIES) is None
    await scene.hands.do(ResolveRecord(made, Outcome.STOPPED, at(5)))
    with pytest.raises(Conflict):
        await scene.hands.do(ResolveRecord(made, Outcome.STOPPED, at(6)))
    assert scene.value("wholenode_lost_gpu_seconds_total", **PARTIES) == 30
    assert scene.value("wholenode_pods_stopped_total", **PARTIES) == 1
    assert scene.value("wholenode_pods_spared_total", **PARTIES) is None


async def test_what_was_spared_is_no_loss() -> None:
    scene, _, action = booking()
    await scene.hands.do(action)
    (made,) = scene.records.values()
    await scene.hands.do(ResolveRecord(made, Outcome.SPARED, at(5)))
    assert scene.value("wholenode_lost_gpu_seconds_total", **PARTIES) is None
    assert scene.value("wholenode_pods_spared_total", **PARTIES) == 1
    assert scene.told == []


async def test_both_sides_are_told_once_nothing_is_open_between_them() -> None:
    scene, _, action = booking()
    second = msgspec.structs.replace(VICTIM, name="u", uid="u-1", lost_gpu_seconds=12)
    claims = scene.claims["c-1"]
    await scene.hands.do(action)
    await scene.hands.do(CreateRecord(claims, record_of(claims, second, "train", agreement(), at(0))))
    first, last = list(scene.records.values())
    await scene.hands.do(ResolveRecord(first, Outcome.STOPPED, at(5)))
    assert scene.told == [], "the other pod is still open"
    await scene.hands.do(ResolveRecord(last, Outcome.STOPPED, at(6)))
    told = {(where.kind, where.namespace, where.name, reason): note for where, reason, note, *_ in scene.told}
    assert told == {
        ("WholeNodeClaim", "team-b", "c", "StoppedByAgreement"): (
            "stopped 2 pod(s) of team-v under agreement team-v/yes; 42 GPU-seconds lost"
        ),
        ("DrainAgreement", "team-v", "yes", "UsedByClaim"): (
            "claim team-b/c had 2 pod(s) of team-v stopped under agreement team-v/yes; 42 GPU-seconds lost"
        ),
    }


async def test_what_is_open_under_another_agreement_does_not_keep_the_first_from_being_told() -> None:
    scene, _, action = booking()
    await scene.hands.do(action)
    (mine,) = scene.records.values()
    for index, other in enumerate((record("w", under="no", claim="c-1"), record("x", claim="another"))):
        scene.records[f"open-{index}"] = msgspec.structs.replace(other, status=RecordStatus())
    await scene.hands.do(ResolveRecord(mine, Outcome.STOPPED, at(5)))
    assert [where.kind for where, *_ in scene.told] == ["WholeNodeClaim", "DrainAgreement"]


async def test_a_checkpoint_is_asked_for_of_this_very_pod() -> None:
    scene, api, _ = booking()
    await scene.hands.do(AskCheckpoint(scene.claims["c-1"], scene.pods["v-1"], at(0)))
    asked = {CHECKPOINT_REQUESTED: "2027-01-04T12:00:00.000000Z"}
    assert api.patched == [
        ("/api/v1/namespaces/team-v/pods/v", {"metadata": {"uid": "v-1", "annotations": asked}}),
    ]


def test_an_accepted_eviction_is_remembered_until_its_record_is_resolved() -> None:
    scene = Scene()
    scene.hands.answers["v-1"] = Answer(EvictionAnswer.ACCEPTED)
    scene.hands.forget({})
    assert "v-1" in scene.hands.answers
    scene.hands.answers["v-1"] = Answer(EvictionAnswer.REFUSED)
    scene.hands.forget({})
    assert scene.hands.answers == {}
    scene.hands.answers["v-1"] = Answer(EvictionAnswer.ACCEPTED)
    scene.records.clear()
    scene.hands.forget({})
    assert scene.hands.answers == {}


def test_an_accepted_eviction_is_remembered_while_a_look_still_shows_the_pod() -> None:
    """Gone from the cache, but not from the last look: to the drain it runs, and has saved nothing since."""
    scene = Scene()
    scene.hands.looks["n1"] = Look(at(0), tuple(scene.pods.values()))
    scene.hands.answers["v-1"] = Answer(EvictionAnswer.ACCEPTED)
    scene.pods.clear()
    scene.records.clear()
    scene.hands.forget(scene.claims)
    assert "v-1" in scene.hands.answers
    scene.hands.looks["n1"] = Look(at(1), ())
    scene.hands.forget(scene.claims)
    assert scene.hands.answers == {}
