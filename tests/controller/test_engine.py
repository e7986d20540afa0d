"""The engine's promises: nothing without the lease, nothing twice at once, nothing beside a status being written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.errors import Conflict, Unavailable
from controller import engine as engine_module
from controller.engine import Engine
from controller.metrics import Metrics
from fleet.actions import Action, Clear, Decision, Evict, Hold, LookAt, ResolveRecord, SetCheck, Timing, WriteStatus
from fleet.kueue.objects import Workload
from fleet.memory import Memory
from fleet.objects import Metadata, Node
from fleet.resources import ClaimSpec, ClaimStatus, Outcome, Phase, Victim, WholeNodeClaim
from fleet.view import View
from tests.cluster.virtual_time import run
from tests.fleet.builders import record

CLAIM = WholeNodeClaim(Metadata("c", "team", uid="c-1"), ClaimSpec(nodes=1))
OTHER = WholeNodeClaim(Metadata("d", "team", uid="d-1"), ClaimSpec(nodes=1))
NODE = Node(Metadata("n", uid="n-1"))
_LONGEST_SECONDS = 60


class FilledCaches:
    """Caches that hold nothing, and remember which claims were shown as being written."""

    def __init__(self) -> None:
        self.shown: list[dict[str, ClaimStatus]] = []
        self.memory = Memory()
        self.claims: dict[str, WholeNodeClaim] = {}

    async def synced(self) -> None:
        return

    def view(self, being_written: dict[str, ClaimStatus]) -> View:
        self.shown.append(dict(being_written))
        return View({}, {}, {}, (), (), self.claims)


@dataclass
class SlowHands:
    """Hands whose actions end when the test says so."""

    done: list[Action] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    looks: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    probes: dict[str, Any] = field(default_factory=dict)
    evictions_paused_until: datetime | None = None

    async def do(self, action: Action) -> None:
        self.done.append(action)
        await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def forget(self, claims: object) -> None:
        return


@contextmanager
def deciding(actions: Callable[[], list[Action]], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_module, "decide", lambda *_: Decision(actions=actions()))
    yield


@asynccontextmanager
async def running(hands: SlowHands, *, leading: bool = True) -> AsyncIterator[tuple[Engine, FilledCaches]]:
    caches = FilledCaches()
    engine = Engine(caches, hands, Metrics(), Timing(), lambda: leading)  # type: ignore[arg-type]
    task = asyncio.create_task(engine.run())
    try:
        yield engine, caches
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def passes(engine: Engine, caches: FilledCaches, count: int) -> None:
    """Let the engine make so many more passes. One that has died makes none: that must not hang."""
    wanted = len(caches.shown) + count
    async with asyncio.timeout(_LONGEST_SECONDS):
        while len(caches.shown) < wanted:
            engine.kick()
            await asyncio.sleep(0)


async def test_without_the_lease_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = SlowHands()
    with deciding(lambda: [LookAt("n"), Clear(NODE, "x")], monkeypatch):
        async with running(hands, leading=False) as (engine, caches):
            await passes(engine, caches, 3)
    assert hands.done == []


async def test_an_action_that_is_under_way_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = SlowHands()
    with deciding(lambda: [LookAt("n")], monkeypatch):
        async with running(hands) as (engine, caches):
            await passes(engine, caches, 4)
            assert hands.done == [LookAt("n")]
            hands.gate.set()
            await passes(engine, caches, 2)
            assert len(hands.done) >= 2


async def test_while_a_status_is_written_nothing_else_is_done_for_that_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side effects of the old phase must not follow the write of a new one; other claims go on."""
    hands = SlowHands()
    write = WriteStatus(CLAIM, ClaimStatus(phase=Phase.BLOCKED))
    after = [Hold(NODE, "c-1"), Clear(NODE, "c-1"), Hold(Node(Metadata("m", uid="m-1")), "d-1")]
    wanted: list[Action] = [write, *after]
    with deciding(lambda: wanted, monkeypatch):
        async with running(hands) as (engine, caches):
            await passes(engine, caches, 3)
    assert hands.done == [write, after[2]]
    assert caches.shown[-1] == {"c-1": write.status}, "the next pass sees the claim as it will be"


@pytest.mark.parametrize("error", [Conflict("changed"), Unavailable("no answer in time")])
async def test_after_a_failed_write_the_claim_is_decided_anew(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    hands = SlowHands(error=error)
    hands.gate.set()
    write = WriteStatus(OTHER, ClaimStatus(phase=Phase.PLANNED))
    with deciding(lambda: [write], monkeypatch):
        async with running(hands) as (engine, caches), asyncio.timeout(10):
            while len(hands.done) < 2:
                await passes(engine, caches, 1)


async def test_texts_alone_are_written_every_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = SlowHands()
    hands.gate.set()
    write = WriteStatus(CLAIM, ClaimStatus(message="7 of 8"), urgent=False)
    began = datetime.now(UTC)
    with deciding(lambda: [write], monkeypatch):
        async with running(hands) as (engine, caches):
            await passes(engine, caches, 5)
    if (datetime.now(UTC) - began).total_seconds() < 2:
        assert len(hands.done) == 1


async def test_what_became_of_a_pod_is_not_written_while_that_is_still_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while its eviction is under way, and not while the claim's status, which says what is meant, is written."""
    hands = SlowHands()
    evict = Evict(CLAIM, Victim("team-v", "p", "team-v.p", "n1", 1))
    write = WriteStatus(OTHER, ClaimStatus(phase=Phase.BLOCKED))
    resolved = [
        ResolveRecord(record("p", claim="c-1"), Outcome.SPARED, datetime.now(UTC)),
        ResolveRecord(record("q", claim="d-1"), Outcome.SPARED, datetime.now(UTC)),
        ResolveRecord(record("r", claim="c-1"), Outcome.STOPPED, datetime.now(UTC)),
    ]
    wanted: list[Action] = [evict, write, *resolved]
    with deciding(lambda: wanted, monkeypatch):
        async with running(hands) as (engine, caches):
            await passes(engine, caches, 3)
    assert hands.done == [evict, write, resolved[2]]


async def test_a_claim_that_cannot_be_decided_is_logged_once_for_each_error_and_counted_in_every_pass(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "wholenode.controller")
    hands, failed = SlowHands(), {"c-1": KeyError("n1")}
    monkeypatch.setattr(engine_module, "decide", lambda *_: Decision([LookAt("n")], failed=dict(failed)))
    async with running(hands) as (engine, caches):
        caches.claims = {"c-1": CLAIM}
        await passes(engine, caches, 4)
        assert hands.done == [LookAt("n")], "the others go on"
        (said,) = caplog.records
        assert "claim team/c could not be decided" in said.getMessage()
        assert said.exc_info is not None
        assert said.exc_info[1] is failed["c-1"]
        failed["c-1"] = KeyError("n2")
        await passes(engine, caches, 3)
        assert len(caplog.records) == 2, "another error is said"
        failed.clear()
        await passes(engine, caches, 2)
        failed["c-1"] = KeyError("n2")
        await passes(engine, caches, 2)
        assert len(caplog.records) == 3, "and one that comes back"
        counted = engine._metrics.registry.get_sample_value("wholenode_write_errors_total", {"error": "KeyError"})
        assert counted is not None
        assert counted >= 7
        failed["resumptions"] = KeyError("w")
        await passes(engine, caches, 2)
        assert len(caplog.records) == 4
        assert "the step 'resumptions' could not be decided" in caplog.records[-1].getMessage()


def test_k19_writes_that_kueue_s_webhooks_refuse_are_tried_ever_less_often_and_at_once_when_one_was_taken() -> None:
    hands: Any = SlowHands()
    hands.gate.set()
    engine = Engine(FilledCaches(), hands, Metrics(), Timing(), lambda: True)  # type: ignore[arg-type]
    waits = SetCheck(Workload(Metadata("job-train", "team", uid="w-1")), "vacate", "Ready", "")
    pauses = []

    async def try_once() -> None:
        begun = asyncio.get_running_loop().time()
        engine._start(waits, datetime.now(UTC), Decision())
        await asyncio.gather(*engine._in_flight.values())
        pauses.append(round(asyncio.get_running_loop().time() - begun, 1))

    async def tries() -> None:
        for taken in (*[False] * 6, True, False):
            hands.error = None if taken else Unavailable("failed calling webhook")
            await try_once()

    run(tries())
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 0.0, 0.5]
