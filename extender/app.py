"""The FastAPI application: the verbs, their description, health, metrics. It answers from memory and writes nothing."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect

from extender.explaining import Explainer, add_explaining
from extender.metrics import Metrics
from extender.schema import EXPLAINED, REQUESTS, RESPONSES, complete
from extender.state import State
from extender.verbs import Desk, Verb

_TOO_LARGE = 413
_OK = 200


def create_app(state: State, metrics: Metrics, desk: Desk) -> FastAPI:
    """Everything that can be asked over HTTP, over `state`, which the caller keeps filled."""
    app = FastAPI(title="wholenode extender", docs_url=None, redoc_url=None)
    for path, verb in desk.verbs.items():
        name = path.rsplit("/", 1)[1]
        app.add_api_route(
            path,
            _over_http(verb, desk.max_body_bytes),
            methods=["POST"],
            operation_id=path.strip("/").replace("/", "_"),
            summary=(verb.__doc__ or "").partition("\n")[0],
            response_class=Response,
            responses=RESPONSES[name],
            openapi_extra={"requestBody": REQUESTS[name]},
        )
    _add_probes(app, state, metrics, desk)
    return app


def probes_app(state: State, metrics: Metrics, desk: Desk) -> FastAPI:
    """Health and metrics alone, for a plain port beside a TLS one."""
    app = FastAPI(title="wholenode extender probes", docs_url=None, redoc_url=None)
    _add_probes(app, state, metrics, desk)
    return app


def _over_http(verb: Verb, max_body_bytes: int) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            body = await _body(request, max_body_bytes)
        except ClientDisconnect:
            return Response()  # nobody is left to read it
        if body is None:
            return Response(f"a request may have {max_body_bytes} bytes", _TOO_LARGE, media_type="text/plain")
        status, text = verb(body)
        return Response(text, status, media_type="application/json" if status == _OK else "text/plain")

    return answer


async def _body(request: Request, limit: int) -> bytes | None:
    """The whole body, or None before more than `limit` bytes of it are kept."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        return None
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _add_probes(app: FastAPI, state: State, metrics: Metrics, desk: Desk) -> None:
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        return app.openapi_schema or complete(plain())

    app.openapi = openapi  # type: ignore[method-assign]
    add_explaining(app, Explainer(state), EXPLAINED)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        trouble = "it is told to stop" if desk.leaving else state.not_ready()
        return Response(trouble or "ok", status_code=503 if trouble else 200, media_type="text/plain")

    @app.get("/metrics")
    async def show_metrics() -> Response:
        await metrics.waiting.refresh()
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
