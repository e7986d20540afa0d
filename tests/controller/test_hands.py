"""An eviction that waited its turn is looked at once more: what allowed it may be gone by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from controller.hands import Hands
from controller.metrics import Metrics
from fleet.actions import Evict
from fleet.resources import HeldNode, Phase, Victim, WholeNodeClaim
from tests.fleet.builders import agreement, claim, pod

VICTIM = Victim(namespace="team-v", name="v", uid="v-1", node="n1", cards=1, agreement="yes")


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


@dataclass
class Scene:
    """One victim about to be evicted for one claim."""

    api: QueueingApi = field(default_factory=QueueingApi)
    leading: bool = True
    claims: dict[str, WholeNodeClaim] = field(default_factory=dict)
    agreements: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = claim(uid="c-1", created=-100_000_000, phase=Phase.DRAINING, held=[HeldNode("n1", "node-n1")])
        self.claims["c-1"] = made
        self.agreements["a"] = agreement()
        caches: Any = SimpleNamespace(
            pods=SimpleNamespace(store={"v-1": pod("v", on="n1", uid="v-1")}),
            claims=SimpleNamespace(store=self.claims),
            agreements=SimpleNamespace(store=self.agreements),
        )
        events: Any = SimpleNamespace(record=lambda *_: None)
        api: Any = self.api
        self.hands = Hands(api, caches, Metrics(), events, lambda: self.leading)
        self.action = Evict(made, VICTIM)

    async def evict_while(self, change: Callable[[], object]) -> None:
        """Start the eviction, let `change` happen while it waits, then let its turn come."""
        task = asyncio.create_task(self.hands.do(self.action))
        await asyncio.sleep(0)
        change()
        self.api.turns.set()
        await task


async def test_an_eviction_whose_grounds_still_stand_is_sent() -> None:
    scene = Scene()
    await scene.evict_while(lambda: None)
    assert scene.api.posted == ["/api/v1/namespaces/team-v/pods/v/eviction"]
    assert "v-1" in scene.hands.answers


@pytest.mark.parametrize("gone", ["agreement", "claim", "lease"])
async def test_an_eviction_whose_grounds_are_gone_is_not_sent(gone: str) -> None:
    scene = Scene()

    def change() -> None:
        if gone == "agreement":
            scene.agreements.clear()
        elif gone == "claim":
            scene.claims.clear()
        else:
            scene.leading = False

    await scene.evict_while(change)
    assert scene.api.posted == []
    assert "v-1" not in scene.hands.answers, "it is decided anew"


async def test_an_eviction_for_a_node_that_was_given_back_is_not_sent() -> None:
    scene = Scene()
    back = claim(uid="c-1", phase=Phase.BLOCKED)
    await scene.evict_while(lambda: scene.claims.update({"c-1": back}))
    assert scene.api.posted == []
