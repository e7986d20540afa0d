"""What tests of a drain on a shared control plane do and ask: who lives where, what the controller wrote, refusals."""

from __future__ import annotations

import asyncio

from aiohttp import web

from kwok.admin import Object
from kwok.faultproxy import Proxy
from kwok.faults import Call, Fault, refusal
from kwok.readings import phase, reason, terminating
from tests.e2e.behind import evicts
from tests.e2e.ground import Ground

DEAR = {"wholenode.io/restart-cost": "10h"}
"""Annotation of a pod that is to be stopped last."""


async def lent(ground: Ground, nodes: int) -> list[str]:
    """Nodes that may be vacated."""
    return await ground.pool(nodes, overflow="Reclaimable", drain="Agreed")


async def residents(ground: Ground, node: str, *names: str, **rest: object) -> None:
    """Pods of one card that run on the node."""
    for name in names:
        await ground.pod(name, node=node, cards=1, **rest)
    await ground.until(lambda: all(ground.runs(name) for name in names))


def state(ground: Ground) -> tuple[str, str]:
    """Phase and reason of the claim of the gang `train`."""
    claim = ground.claims().get("train", {"spec": {}})
    return phase(claim), reason(claim)


def node_of_name(ground: Ground, name: str) -> Object:
    """The node as it was last seen."""
    return next(one for one in ground.history.live["nodes"].values() if one["metadata"]["name"] == name)


def writes_to(between: Proxy, node: str) -> list[Call]:
    """The controller's writes to the node."""
    return [call for call in between.writes() if call.path == f"/api/v1/nodes/{node}"]


def evictions(between: Proxy) -> list[Call]:
    """The controller's evictions."""
    return [call for call in between.calls if call.evicts]


def going(ground: Ground) -> bool:
    """Whether anybody was told to go."""
    return any(map(terminating, ground.pods().values()))


class Protected(Fault):
    """A budget lets these pods not go; for others the answer to their eviction is held back until `told` is set."""

    def __init__(self, *names: str, late: bool = False) -> None:
        self.names = set(names)
        self.told = asyncio.Event()
        if not late:
            self.told.set()

    async def before(self, call: Call) -> web.Response | None:
        """The refusal."""
        if any(evicts(name)(call) for name in self.names):
            cause = ("DisruptionBudget", "The disruption budget web needs 1 healthy pods and has 1 currently")
            return refusal(429, "TooManyRequests", "Cannot evict pod", cause=cause)
        return None

    async def after(self, call: Call) -> bool:
        """The answer comes late."""
        if call.evicts:
            await self.told.wait()
        return True
