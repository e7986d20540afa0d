"""The proxy between a program and the API server at which requests are counted and spoiled: see kwok.faults.

The program reaches it by plain HTTP on the loopback interface and keeps its own credentials, which are passed on. A
watch passes through line by line, as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from kwok.admin import ssl_context
from kwok.faults import Call, Fault, Kind, kind_of

_NOT_PASSED_ON = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})
_LARGEST_BODY_BYTES = 16 * 1024 * 1024
_GONE = 410


@dataclass
class Proxy:
    """Forwards every request; `fault` may be changed at any time. Use `proxy`."""

    server: str
    session: aiohttp.ClientSession
    url: str = ""
    fault: Fault = field(default_factory=Fault)
    calls: list[Call] = field(default_factory=list)
    """Everything but reads and watches, since `begin`, in the order in which it came."""
    unreachable: bool = False
    """Whether every request finds its connection cut."""

    def __post_init__(self) -> None:
        """All doors are open at first."""
        self._writes = 0
        self._open = asyncio.Event()
        self._open.set()
        self._watches_open = asyncio.Event()
        self._watches_open.set()
        self._sent: set[asyncio.Task[web.Response]] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._expired: set[asyncio.Task[None]] = set()

    def begin(self, fault: Fault | None = None) -> None:
        """Count anew, and spoil from now on what `fault` says."""
        self.calls, self._writes, self.fault = [], 0, fault or Fault()

    def writes(self) -> list[Call]:
        """The writes, by number."""
        return [call for call in self.calls if call.kind is Kind.WRITE]

    def hold(self, *, watches_only: bool = False) -> None:
        """From now on nothing comes through, in neither direction, and no connection ends; or so for watches only."""
        self._watches_open.clear()
        if not watches_only:
            self._open.clear()

    def let_go(self) -> None:
        """What was held back comes through, and all that follows."""
        self._watches_open.set()
        self._open.set()

    def expire_watches(self) -> None:
        """End every watch with the word that its resource version is too old (410)."""
        self._expired |= self._watches
        for watch in self._watches:
            watch.cancel()

    def cut_watches(self) -> None:
        """Cut every watch without a word."""
        for watch in self._watches:
            watch.cancel()

    async def carried_out(self) -> None:
        """Wait until everything that was sent on so far is answered."""
        await asyncio.gather(*self._sent, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = self._note(request, await request.read())
        if self.unreachable:
            return _cut(request)
        await self._open.wait()
        answer = await self.fault.before(call)
        if answer is not None:
            return answer
        try:
            if call.kind is Kind.WATCH:
                return await self._pass_watch(request, call)
            # What was sent is carried out, though whoever sent it may be dead by now.
            sent = asyncio.create_task(self._send(request, call))
            self._sent.add(sent)
            sent.add_done_callback(self._sent.discard)
            answer = await asyncio.shield(sent)
        except (aiohttp.ClientError, OSError):
            return _cut(request)
        await self._open.wait()
        return answer if await self.fault.after(call) else _cut(request)

    def _note(self, request: web.Request, body: bytes) -> Call:
        call = Call(kind_of(request.method, request.path, request.query), request.method, request.path, body)
        call.at = asyncio.get_running_loop().time()
        if call.kind is Kind.WRITE:
            self._writes += 1
            call.number = self._writes
        if call.kind not in {Kind.READ, Kind.WATCH}:
            self.calls.append(call)
        return call

    def _request(self, request: web.Request, call: Call) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.session.request(
            request.method, self.server + request.path_qs, data=call.body or None, headers=_passed_on(request.headers)
        )

    async def _send(self, request: web.Request, call: Call) -> web.Response:
        async with self._request(request, call) as found:
            body, call.status = await found.read(), found.status
            return web.Response(status=found.status, headers=_passed_on(found.headers), body=body)

    async def _pass_watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        async with self._request(request, call) as found:
            if found.status == 200:  # noqa: PLR2004
                return await self._stream(request, found)
            return web.Response(status=found.status, headers=_passed_on(found.headers), body=await found.read())

    async def _stream(self, request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
        await self._watches_open.wait()
        answer = web.StreamResponse(headers=_passed_on(found.headers))
        await answer.prepare(request)
        copying = asyncio.create_task(self._copy(found, answer))
        self._watches.add(copying)
        try:
            await asyncio.wait([copying])
            if copying in self._expired:
                gone = {"kind": "Status", "apiVersion": "v1", "code": _GONE, "reason": "Expired", "message": "too old"}
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    await answer.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            elif copying.cancelled():
                return _cut(request, answer)
        finally:
            copying.cancel()
            self._watches.discard(copying)
            self._expired.discard(copying)
        return answer

    async def _copy(self, found: aiohttp.ClientResponse, answer: web.StreamResponse) -> None:
        """Whole lines only: what ends a watch is then a line of its own."""
        pending = b""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async for chunk in found.content.iter_any():
                lines, newline, pending = (pending + chunk).rpartition(b"\n")
                await self._watches_open.wait()
                if newline:
                    await answer.write(lines + newline)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in _NOT_PASSED_ON}


def _cut(request: web.Request, answer: web.StreamResponse | None = None) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return answer or web.Response(status=503)


@contextlib.asynccontextmanager
async def proxy(kubeconfig: Path) -> AsyncIterator[Proxy]:
    """A proxy on a free loopback port to the API server of the kubeconfig, as long as the block runs.

    A client certificate of the kubeconfig is used for every request; a token is not: programs bring their own.
    """
    server, context, _ = ssl_context(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        made = Proxy(server, session)
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", made._handle)  # noqa: SLF001
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield made
        finally:
            made.let_go()
            await runner.cleanup()
            await made.carried_out()
