"""A relay between one program and the API server that can hold back what the server says: a cache that is behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from kwok.admin import Admin

_HOP_BY_HOP = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})


class Relay:
    """Forwards requests as they are; while it `holds`, neither lists nor watches say anything new. Use `relay`."""

    def __init__(self, admin: Admin) -> None:
        self.url = ""
        self._admin = admin
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """From now on nothing comes through."""
        self._open.clear()

    def let_go(self) -> None:
        """What was held back comes through, and all that follows."""
        self._open.set()

    def kubeconfig(self, original: Path, copy: Path) -> Path:
        """Write a copy of a kubeconfig that leads through here; return its path."""
        config = yaml.safe_load(original.read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"] = {"server": self.url}
        copy.write_text(yaml.safe_dump(config), encoding="utf-8")
        return copy

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP}
        async with self._admin.session.request(
            request.method, request.path_qs, data=await request.read() or None, headers=headers
        ) as found:
            await self._open.wait()
            kept = {key: value for key, value in found.headers.items() if key.lower() not in _HOP_BY_HOP}
            answer = web.StreamResponse(status=found.status, headers=kept)
            await answer.prepare(request)
            with contextlib.suppress(ConnectionResetError, aiohttp.ClientConnectionError):
                async for chunk in found.content.iter_any():
                    await self._open.wait()
                    await answer.write(chunk)
                await answer.write_eof()
            return answer


@contextlib.asynccontextmanager
async def relay(admin: Admin) -> AsyncIterator[Relay]:
    """A relay that listens on a free port of this machine, as long as the block runs."""
    made = Relay(admin)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", made._forward)
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
