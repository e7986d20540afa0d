"""Calls an ASGI application in memory, and fills an extender's state without an API server."""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import FastAPI

from cluster.reflector import Reflector
from extender.app import create_app
from extender.metrics import Metrics
from extender.state import State
from extender.verbs import Desk, Verbs
from fleet.objects import Node, Pod, ResourceClaim
from fleet.resources import DrainAgreement, GPUPool, WholeNodeClaim

MAX_BODY = 1024 * 1024
READ_SECONDS = 10.0


class NoApi:
    """An API that must not be asked."""

    async def get(self, path: str, query: Any = None) -> bytes:
        raise AssertionError(f"the API server was asked for {path}")


class Rig:
    """An extender over objects given by the test."""

    def __init__(self, *objects: Any, ready: bool = True, packing: bool = True) -> None:
        self.state = State(NoApi())  # type: ignore[arg-type]
        self.metrics = Metrics(self.state)
        self.desk = Desk.of(Verbs(self.state, self.metrics, packing=packing), MAX_BODY, READ_SECONDS)
        self.app: FastAPI = create_app(self.state, self.metrics, self.desk)
        self._version = 0
        self.put(*objects)
        if ready:
            self.ready()

    def ready(self) -> None:
        for reflector in self._reflectors().values():
            reflector.synced.set()

    def put(self, *objects: Any) -> None:
        for one in objects:
            self._version += 1
            metadata = msgspec.structs.replace(one.metadata, resource_version=str(self._version))
            self._reflectors()[type(one)].apply(msgspec.structs.replace(one, metadata=metadata))

    def remove(self, one: Any) -> None:
        self._reflectors()[type(one)]._drop(one.metadata.uid)

    def _reflectors(self) -> dict[type, Reflector[Any]]:
        state = self.state
        return {
            Node: state.nodes,
            Pod: state.pods,
            GPUPool: state.pools,
            DrainAgreement: state.agreements,
            WholeNodeClaim: state.claims,
            ResourceClaim: state.device_claims,
        }

    async def post(self, path: str, body: bytes, *, chunks: Iterable[bytes] | None = None) -> tuple[int, bytes]:
        return await call(self.app, "POST", path, body, chunks=chunks)

    async def ask(self, verb: str, question: Any) -> Any:
        """POST a question to `/v1/<verb>`; the decoded answer of a 200."""
        status, answer = await self.post(f"/v1/{verb}", msgspec.json.encode(question))
        assert status == 200
        return msgspec.json.decode(answer)


async def call(
    app: FastAPI, method: str, path: str, body: bytes = b"", *, chunks: Iterable[bytes] | None = None
) -> tuple[int, bytes]:
    """One request; with `chunks` the body comes in parts and without a declared length."""
    parts = list(chunks) if chunks is not None else [body]
    headers = [] if chunks is not None else [(b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "root_path": "",
    }
    status = 0
    answer = bytearray()

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            answer.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, bytes(answer)
