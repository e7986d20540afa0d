"""Objects that anybody may write, and errors of our own, end nothing but what they are about."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.errors import Invalid
from controller import upkeep as module
from controller.caches import Caches
from controller.metrics import Metrics
from controller.upkeep import Upkeep
from fleet.actions import Action, LookAt, WriteStatus
from fleet.board import Refused
from fleet.names import POKE
from fleet.objects import Condition, Metadata, PodStatus
from fleet.resources import ClaimSpec, ClaimStatus, Phase, WholeNodeClaim
from fleet.summaries import agreement_status
from tests.cluster.virtual_time import run
from tests.controller.test_engine import SlowHands, deciding, running
from tests.fleet.builders import agreement, at, pod, view

NOBODY: Any = SimpleNamespace()


def keeping_up(caches: Caches, seconds: float) -> None:
    """Run the upkeep for a while; it must not end."""

    async def main() -> None:
        task = asyncio.create_task(Upkeep(NOBODY, caches, Metrics(), lambda: True).run())
        await asyncio.sleep(seconds)
        assert not task.done(), repr(task.exception())
        task.cancel()

    run(main())


@pytest.fixture
def caches() -> Caches:
    made = Caches(NOBODY, lambda: None)
    made._all = ()
    return made


def test_a_pod_that_says_it_is_poked_at_the_end_of_time(caches: Caches) -> None:
    text = f"0/3 nodes are available: 2 {Refused.EMPTIER}."
    said = Condition("PodScheduled", "False", "Unschedulable", text, datetime.now(UTC) - timedelta(minutes=5))
    odd = msgspec.structs.replace(
        pod("p", 1, notes={POKE: "9999-12-31T23:59:59Z"}), status=PodStatus("Pending", conditions=(said,))
    )
    caches.pods.store["p"] = odd
    keeping_up(caches, 5)


def test_an_error_of_ours_about_one_pool_leaves_the_agreements_their_status(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    async def writes(_: object, item: Any, status: Any) -> Any:
        written.append(item)
        return msgspec.structs.replace(item, status=status)

    def broken(*_: object) -> None:
        raise OverflowError("nobody has foreseen this")

    monkeypatch.setattr(module, "write_status", writes)
    monkeypatch.setattr(module, "pool_status", broken)
    caches.agreements.store["a"] = agreement()
    keeping_up(caches, 5)
    assert written


@pytest.mark.parametrize(
    ("to", "queues"),
    [
        ([f"team-{number:02}-of-the-department-for-everything-that-is-long" for number in range(64)], None),
        (["team-b", "team-c", "team-d"], [f"queue-of-project-{number:04}" for number in range(64)]),
    ],
)
def test_the_status_of_an_agreement_with_many_beneficiaries_fits_its_schema(
    to: list[str], queues: list[str] | None
) -> None:
    one = agreement(to=to, queues=queues)
    said = agreement_status(view(one), one, at(0))
    msgspec.convert(msgspec.to_builtins(said), type(said))


def test_a_status_that_is_refused_as_invalid_is_said_once(
    caches: Caches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuses(*_: object) -> None:
        raise Invalid("status.conditions[0].message: too long")

    monkeypatch.setattr(module, "write_status", refuses)
    caches.agreements.store["a"] = agreement()
    keeping_up(caches, 20)
    assert sum("is refused" in one.getMessage() for one in caplog.records) == 1


def test_an_action_that_fails_in_an_unforeseen_way_is_tried_again_with_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SlowHands):
        async def do(self, action: Action) -> None:
            self.done.append(action)
            raise OverflowError("date value out of range")

    hands = Broken()

    async def main() -> None:
        with deciding(lambda: [LookAt("n")], monkeypatch):
            async with running(hands):
                await asyncio.sleep(12)

    run(main())
    assert 2 <= len(hands.done) <= 4
    assert sum("nobody has foreseen" in one.getMessage() for one in caplog.records) == 1


def test_the_engine_forgets_claims_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = SlowHands()
    hands.gate.set()
    made = [0]

    def one() -> list[Action]:
        made[0] += 1
        claim = WholeNodeClaim(Metadata(f"c-{made[0]}", "team", uid=f"u-{made[0]}"), ClaimSpec(nodes=1))
        return [WriteStatus(claim, ClaimStatus(phase=Phase.PENDING))]

    async def main() -> int:
        with deciding(one, monkeypatch):
            async with running(hands) as (engine, _):
                await asyncio.sleep(20)
                return len(engine._texts_at)

    assert run(main()) < 50
    assert made[0] > 100
