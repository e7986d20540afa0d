"""The FastAPI application: filter, prioritize, preempt, health, metrics. It answers from memory and writes nothing."""

import time

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from extender.metrics import Metrics
from extender.protocol import (
    error_answer,
    filter_answer,
    preemption_answer,
    priorities,
    read_args,
    read_preemption,
)
from extender.state import State
from fleet.placement import judge, not_ready, scores

_JSON = "application/json"


def create_app(state: State, metrics: Metrics, max_body_bytes: int) -> FastAPI:
    """The application over `state`, which the caller keeps filled."""
    app = FastAPI(title="wholenode extender", docs_url=None, redoc_url=None)

    @app.post("/filter")
    @app.post("/v1/filter")
    async def filter_nodes(request: Request) -> Response:
        started = time.perf_counter()
        body = await _body(request, max_body_bytes)
        try:
            args = read_args(body)
        except (msgspec.DecodeError, RecursionError) as error:
            metrics.bad("filter")
            return Response(error_answer(f"wholenode: not an ExtenderArgs: {error}"), media_type=_JSON)
        if state.not_ready() is None:
            placement = judge(args.pod, args.names(), state.board())
        else:
            placement = not_ready(args.pod, args.names(), state.classifier)
        answer = filter_answer(args, body, placement)
        metrics.decided(placement)
        metrics.filter_seconds.observe(time.perf_counter() - started)
        return Response(answer, media_type=_JSON)

    @app.post("/prioritize")
    @app.post("/v1/prioritize")
    async def prioritize_nodes(request: Request) -> Response:
        started = time.perf_counter()
        body = await _body(request, max_body_bytes)
        try:
            args = read_args(body)
        except (msgspec.DecodeError, RecursionError):
            metrics.bad("prioritize")
            return Response(priorities([]), media_type=_JSON)
        answer = priorities(scores(args.pod, args.names(), state.board(), state.cards_used))
        metrics.prioritize_seconds.observe(time.perf_counter() - started)
        return Response(answer, media_type=_JSON)

    @app.post("/preempt")
    @app.post("/v1/preempt")
    async def veto_preemption(request: Request) -> Response:
        """Nobody is stopped on a node that the filter would then refuse."""
        body = await _body(request, max_body_bytes)
        try:
            args = read_preemption(body)
        except (msgspec.DecodeError, RecursionError) as error:
            metrics.bad("preempt")
            raise HTTPException(400, f"wholenode: not an ExtenderPreemptionArgs: {error}") from error
        names = tuple(args.candidates())
        if state.not_ready() is None:
            placement = judge(args.pod, names, state.board())
        else:
            placement = not_ready(args.pod, names, state.classifier)
        return Response(preemption_answer(args, placement.passed), media_type=_JSON)

    _add_probes(app, state, metrics)
    return app


def _add_probes(app: FastAPI, state: State, metrics: Metrics) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        trouble = state.not_ready()
        return Response(trouble or "ok", status_code=503 if trouble else 200, media_type="text/plain")

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def probes_app(state: State, metrics: Metrics) -> FastAPI:
    """Health and metrics alone, for a plain port beside a TLS one."""
    app = FastAPI(title="wholenode extender probes", docs_url=None, redoc_url=None)
    _add_probes(app, state, metrics)
    return app


async def _body(request: Request, limit: int) -> bytes:
    """The whole body. Raises HTTPException 413 before more than `limit` bytes are kept."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise HTTPException(413, f"a request may have {limit} bytes")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise HTTPException(413, f"a request may have {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
