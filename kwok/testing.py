"""What tests on a shared control plane need: nodes of their own, and a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from kwok.admin import Admin, create_all
from kwok.nodes import Node, is_ready, make_nodes


async def remove_namespace(admin: Admin, name: str) -> None:
    """Delete a namespace and force its pods out, so that slow or stuck ones cost the next test nothing."""
    await admin.delete(f"/api/v1/namespaces/{name}")
    for pod in await admin.list(f"/api/v1/namespaces/{name}/pods"):
        await admin.delete(f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}", grace_seconds=0)


class Fleet:
    """Makes nodes for one test: all carry the label `test-fleet: <name>` and leave with the test."""

    LABEL = "test-fleet"
    make: Callable[..., list[Node]] = staticmethod(make_nodes)
    """Makes the Node objects; another kind of fleet has another."""

    def __init__(self, admin: Admin, name: str) -> None:
        self.admin = admin
        self.name = name
        self.nodes: list[str] = []

    @property
    def selector(self) -> dict[str, str]:
        """The node selector for this test's nodes: `{"test-fleet": name}`."""
        return {self.LABEL: self.name}

    async def add(
        self,
        count: int,
        cards: int = 8,
        *,
        labels: Mapping[str, str] | None = None,
        suffix: str = "n",
        timeout_seconds: float = 60.0,
        **rest: Any,
    ) -> list[str]:
        """Create `count` nodes named `<fleet>-<suffix>-000`, ... and wait until they are ready; return their names."""
        nodes: list[Node] = self.make(
            count, cards, f"{self.name}-{suffix}", {**self.selector, **(labels or {})}, **rest
        )
        names = [node["metadata"]["name"] for node in nodes]
        self.nodes += names
        await create_all(self.admin, nodes)

        def all_ready(found: Mapping[str, dict[str, Any]]) -> bool:
            return all(name in found and is_ready(found[name]) for name in names)

        await self.admin.wait_for_all(
            "/api/v1/nodes", all_ready, timeout_seconds, labelSelector=f"{self.LABEL}={self.name}"
        )
        return names

    async def remove(self) -> None:
        """Delete the nodes and force out the pods on them."""
        mine = set(self.nodes)
        pods = [pod for pod in await self.admin.list("/api/v1/pods") if pod["spec"].get("nodeName") in mine]
        paths = [f"/api/v1/namespaces/{p['metadata']['namespace']}/pods/{p['metadata']['name']}" for p in pods]
        await asyncio.gather(*(self.admin.delete(path, grace_seconds=0) for path in paths))
        await asyncio.gather(*(self.admin.delete(f"/api/v1/nodes/{name}") for name in self.nodes))
