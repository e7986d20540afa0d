"""Health and metrics of the controller over plain HTTP."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cluster.program import StartError
from controller.metrics import Metrics

Check = Callable[[], str | None]
Handler = Callable[[web.Request], Awaitable[web.Response]]


@contextlib.asynccontextmanager
async def serve(host: str, port: int, metrics: Metrics, alive: Check, ready: Check) -> AsyncIterator[int]:
    """Serve `/healthz`, `/readyz` and `/metrics`; a check returns what is wrong, or None. Yields the port in use."""

    def probe(check: Check) -> Handler:
        async def handler(_: web.Request) -> web.Response:
            trouble = check()
            return web.Response(text=trouble or "ok", status=503 if trouble else 200)

        return handler

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", probe(alive)), web.get("/readyz", probe(ready)), web.get("/metrics", show_metrics)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise StartError(f"cannot listen on {host}:{port} ({error.strerror}): set WHOLENODE_PORT") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
