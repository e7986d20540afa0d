"""What the controller makes of each refusal of an eviction: when it asks again, whom it holds up, what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from cluster.errors import (
    ClusterError,
    Conflict,
    DisruptionBudgetRefused,
    Forbidden,
    NamespaceTerminating,
    NotFound,
    SeveralBudgets,
    Throttled,
    Unavailable,
)
from fleet.actions import EvictionAnswer
from tests.controller.test_hands import Scene


@dataclass
class RefusingApi:
    """An API server that answers every eviction with the same error."""

    error: ClusterError
    posted: list[str] = field(default_factory=list)

    async def turn(self) -> None:
        return

    async def create(self, path: str, body: object, *, urgent: bool = False) -> bytes:
        self.posted.append(path)
        raise self.error

    async def get(self, path: str) -> bytes:
        raise NotFound(path)


async def pauses(error: ClusterError, times: int) -> list[float]:
    """Seconds until the pod is asked for again, after each of so many refusals."""
    scene = Scene(api=RefusingApi(error))
    found = []
    for _ in range(times):
        before = datetime.now(UTC)
        await scene.hands.do(scene.action)
        answer = scene.hands.answers["v-1"]
        assert answer.kind is EvictionAnswer.BUDGET
        assert answer.retry_at is not None
        found.append((answer.retry_at - before).total_seconds())
    assert scene.value("wholenode_evictions_total", result="budget") == times
    return [round(one) for one in found]


async def test_d18_pauses_between_tries_grow_to_a_limit() -> None:
    assert await pauses(DisruptionBudgetRefused("no", 0.0), 7) == [1, 2, 4, 8, 15, 15, 15]


async def test_d18_a_longer_pause_that_the_server_asks_for_is_kept() -> None:
    assert await pauses(DisruptionBudgetRefused("no", 40.0), 3) == [40, 40, 40]


async def test_a_namespace_that_is_going_takes_its_pods_along_and_is_waited_for() -> None:
    """P8: neither a refusal for good nor a reason to hurry."""
    assert await pauses(NamespaceTerminating("namespace team-v is being terminated"), 2) == [1, 2]


async def test_d17_a_throttled_server_holds_up_all_evictions_and_is_no_budgets_fault() -> None:
    scene = Scene(api=RefusingApi(Throttled("slow down", 3.0)))
    before = datetime.now(UTC)
    await scene.hands.do(scene.action)
    assert scene.hands.answers == {}
    assert scene.hands.evictions_paused_until is not None
    assert 2.9 < (scene.hands.evictions_paused_until - before).total_seconds() < 60
    assert scene.value("wholenode_evictions_total", result="throttled") == 1
    assert scene.value("wholenode_evictions_total", result="budget") is None


@pytest.mark.parametrize("error", [SeveralBudgets("two"), Forbidden("no evictions at night")], ids=["d14", "d22"])
async def test_d14_d22_what_will_not_change_is_not_asked_again_and_keeps_the_servers_words(error: ClusterError) -> None:
    scene = Scene(api=RefusingApi(error))
    await scene.hands.do(scene.action)
    answer = scene.hands.answers["v-1"]
    assert (answer.kind, answer.text, answer.retry_at) == (EvictionAnswer.REFUSED, str(error), None)
    assert scene.value("wholenode_evictions_total", result="refused") == 1


@pytest.mark.parametrize("error", [NotFound("v"), Conflict("another UID")], ids=["404", "409"])
async def test_d24_a_pod_that_is_gone_counts_as_gone_and_is_not_deleted_by_name(error: ClusterError) -> None:
    api = RefusingApi(error)
    scene = Scene(api=api)
    await scene.hands.do(scene.action)
    assert scene.hands.answers["v-1"].kind is EvictionAnswer.ACCEPTED
    assert api.posted == ["/api/v1/namespaces/team-v/pods/v/eviction"]
    assert scene.told == [], "nobody stopped it, nobody is told so"


async def test_c12_an_answer_that_was_lost_is_no_answer() -> None:
    """Whether it was taken is not known: the pod itself is looked at before it is asked for again."""
    scene = Scene(api=RefusingApi(Unavailable("connection reset")))
    with pytest.raises(Unavailable):
        await scene.hands.do(scene.action)
    assert scene.hands.answers == {}
    assert scene.value("wholenode_evictions_total", result="accepted") is None
