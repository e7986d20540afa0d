"""The stand-in as an HTTP server: the verbs, the webhook, health, and what it counts."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web

from kwok.hami.calls import Calls
from kwok.hami.extender import Extender
from kwok.hami.ledger import Ledger
from kwok.hami.webhook import review

KEEP_ALIVE_SECONDS = 120.0
"""Longer than kube-scheduler keeps an idle connection."""


def application(extender: Extender, ledger: Ledger, calls: Calls, scheduler_name: str) -> web.Application:
    """Everything on one port, as HAMi has it; bodies of more than 1 MiB are cut off, there as here."""
    app = web.Application()

    async def filter_(request: web.Request) -> web.Response:
        return _json(await extender.filter(await request.json()))

    async def bind(request: web.Request) -> web.Response:
        return _json(await extender.bind(await request.json()))

    async def webhook(request: web.Request) -> web.Response:
        return _json(review(await request.json(), scheduler_name))

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok") if extender.synced.is_set() else web.Response(status=503, text="not synced")

    async def state(_: web.Request) -> web.Response:
        return _json({"calls": calls.made, "booked": {one.pod: one.node for one in ledger.bookings.values()}})

    app.add_routes([web.post("/filter", filter_), web.post("/bind", bind), web.post("/webhook", webhook)])
    app.add_routes([web.get("/healthz", healthy), web.get("/readyz", ready), web.get("/state", state)])
    return app


def _json(answer: Any) -> web.Response:
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


async def serve(app: web.Application, port: int, pair: tuple[Path, Path] | None = None) -> web.AppRunner:
    """Listen on 127.0.0.1; with a key pair over TLS. Raises OSError if the port is taken."""
    runner = web.AppRunner(app, keepalive_timeout=KEEP_ALIVE_SECONDS, access_log=None)
    await runner.setup()
    context = None
    if pair is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*pair)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    return runner
