"""An API server of a few objects in memory, and pods, for tests of the stand-in of HAMi's extender."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from kwok.admin import CONFLICT, NOT_FOUND, APIError, Object
from kwok.hami.calls import Calls
from kwok.hami.devices import CORES, GPU, MEMORY, PERCENTAGE
from kwok.hami.extender import Extender, Policies
from kwok.hami.ledger import Ledger
from kwok.hami.locks import Locks
from kwok.hami.nodes import shared_nodes
from kwok.workloads import make_pod

FIVE_MINUTES = timedelta(minutes=5)


def limits(
    cards: int | None = None, *, memory: int | None = None, percentage: int | None = None, cores: int | None = None
) -> dict[str, str]:
    """A container's limits, with only what is given written down."""
    given = {GPU: cards, MEMORY: memory, PERCENTAGE: percentage, CORES: cores}
    return {name: str(value) for name, value in given.items() if value is not None}


TENTH = limits(1, memory=2456, cores=10)


def a_pod(name: str, resources: dict[str, str], *, uid: str = "", notes: dict[str, str] | None = None) -> Object:
    """A pod as kube-scheduler sends it."""
    pod = make_pod(name, "team", resources=resources, annotations=notes)
    pod["metadata"]["uid"] = uid or f"uid-{name}"
    return pod


class Store(Calls):
    """Stands for the API server: reads, merges annotations, refuses an old version."""

    def __init__(self, *objects: Object) -> None:
        """With these nodes and pods."""
        self.objects: dict[str, Object] = {}
        self.said: list[tuple[str, str]] = []
        self.bound: list[str] = []
        for one in objects:
            self.add(one)

    def add(self, one: Object) -> None:
        """Store an object."""
        metadata = one["metadata"]
        path = f"/api/v1/nodes/{metadata['name']}"
        if one["kind"] == "Pod":
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        metadata["resourceVersion"] = "1"
        self.objects[path] = one

    async def call(self, method: str, path: str, body: Any = None, *, patch: str | None = None) -> Any:
        """One request."""
        if path.endswith("/events"):
            self.said.append((body["reason"], body["message"]))
            return body
        if path.endswith("/binding"):
            self.bound.append(f"{body['metadata']['name']} on {body['target']['name']}")
            return body
        if path not in self.objects:
            raise APIError(NOT_FOUND, {"reason": "NotFound"})
        metadata = self.objects[path]["metadata"]
        if method == "PATCH":
            version = body["metadata"].get("resourceVersion")
            if version not in {None, metadata["resourceVersion"]}:
                raise APIError(CONFLICT, {"reason": "Conflict"})
            for part in ("annotations", "labels"):
                merged = {**(metadata.get(part) or {}), **(body["metadata"].get(part) or {})}
                metadata[part] = {key: value for key, value in merged.items() if value is not None}
            metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return self.objects[path]

    def notes(self, name: str) -> dict[str, str]:
        """Annotations of the pod or node."""
        found = next(one for path, one in self.objects.items() if path.endswith(f"/{name}"))
        notes: dict[str, str] = found["metadata"].get("annotations") or {}
        return notes


class Scene:
    """A stand-in over some nodes `n-000`, ... and pods, with the store behind it."""

    def __init__(self, nodes: int = 2, *, node_policy: str = "binpack", card_policy: str = "binpack") -> None:
        """Synced from the start."""
        made = shared_nodes(nodes, prefix="n")
        self.store = Store(*made)
        self.ledger = Ledger()
        for node in made:
            self.ledger.put_node(node)
        self.locks = Locks(self.store, self.ledger, FIVE_MINUTES, timedelta(0))
        policies = Policies(node_policy, card_policy)
        self.extender = Extender(self.ledger, self.store, self.locks, policies, random.Random(1))
        self.extender.synced.set()

    def arrives(self, pod: Object) -> Object:
        """The pod is created."""
        self.store.add(pod)
        self.ledger.add_pod(pod)
        return pod

    async def filter(self, pod: Object) -> dict[str, Any]:
        """Ask for all nodes."""
        return await self.extender.filter({"Pod": pod, "Nodes": None, "NodeNames": sorted(self.ledger.nodes)})

    async def bind(self, pod: Object, node: str) -> str:
        """Bind the pod there; the error, empty if it went well."""
        metadata = pod["metadata"]
        asked = {"PodName": metadata["name"], "PodNamespace": "team", "PodUID": metadata["uid"], "Node": node}
        answer: str = (await self.extender.bind(asked))["Error"]
        return answer
