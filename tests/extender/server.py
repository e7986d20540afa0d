"""The extender's HTTP server in the test's own event loop, on a real socket, and a client that writes raw bytes."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from extender.__main__ import _server
from extender.connection import connections_to
from extender.tls import RotatingContext
from extender.verbs import Desk
from tests.extender.asgi import Rig

_PATIENCE_SECONDS = 30


@dataclass
class Served:
    """A server that listens on 127.0.0.1."""

    port: int
    desk: Desk
    server: uvicorn.Server
    ended: asyncio.Task[None]
    clients: list["Client"] = field(default_factory=list)

    async def connect(self, context: ssl.SSLContext | None = None) -> "Client":
        """A connection that is closed at the end, if not before."""
        name = "localhost" if context else None
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
        self.clients.append(Client(*streams))
        return self.clients[-1]

    async def asks_once(self, question: Any, context: ssl.SSLContext | None = None) -> Any:
        """A question on a connection of its own."""
        client = await self.connect(context)
        answer = await client.asks(question)
        await client.close()
        return answer


@contextlib.asynccontextmanager
async def serving(rig: Rig, tls: RotatingContext | None = None, **desk: Any) -> AsyncIterator[Served]:
    """Serve `rig` until left; `desk` overrides its limits."""
    for name, value in desk.items():
        setattr(rig.desk, name, value)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _server(rig.app, connections_to(rig.desk), tls)
        served = Served(listener.getsockname()[1], rig.desk, server, asyncio.create_task(server.serve([listener])))
        try:
            yield served
        finally:
            server.should_exit = server.force_exit = True
            await served.ended
            for client in served.clients:
                client.writer.transport.abort()
                await client.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next answer. Raises asyncio.IncompleteReadError when the server closes instead."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await self._answer(head_only=head_only)

    async def _answer(self, *, head_only: bool) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = 0 if head_only else int(headers.get("content-length", "0"))
        return Answer(int(first.split()[1]), headers, await self.reader.readexactly(length))

    async def is_closed(self) -> bool:
        """Wait until the server closes, or cuts off what we still sent; whether nothing more came before."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    async def asks(self, question: Any) -> Any:
        """A filter question; the decoded answer of a 200."""
        self.send(post("/v1/filter", json.dumps(question).encode()))
        answer = await self.answer()
        assert answer.status == 200
        return answer.json

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


def post(path: str, body: bytes, *headers: str, length: int | None = None, version: str = "1.1") -> bytes:
    """A request as kube-scheduler's client writes it; `length` declares another length than the body's."""
    lines = [
        f"POST {path} HTTP/{version}",
        "Host: extender",
        "User-Agent: Go-http-client/1.1",
        f"Content-Length: {len(body) if length is None else length}",
        "Content-Type: application/json",
        "Accept-Encoding: gzip",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
