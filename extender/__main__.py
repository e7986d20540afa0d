"""`python -m extender`: fill the caches, answer kube-scheduler."""

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator

import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import ValidationError

from cluster.client import connect
from cluster.errors import ClusterError
from extender.app import create_app, probes_app
from extender.metrics import Metrics
from extender.settings import Settings
from extender.state import State

_LOG = logging.getLogger("wholenode.extender")
_KEEP_ALIVE_SECONDS = 120
"""Longer than the 90 s for which kube-scheduler keeps an idle connection, so that we never close first."""
_DRAIN_SECONDS = 10


class StartError(Exception):
    """Something outside keeps us from starting; the message says what and what to do."""


async def run(settings: Settings) -> None:
    """Serve until told to stop. Raises ClusterError and StartError."""
    listener = _listen(settings.host, settings.port)
    async with connect(settings.kubeconfig) as api:
        state = State(api)
        metrics = Metrics(state)

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            following = asyncio.create_task(state.run())
            following.add_done_callback(lambda task: _stop_if_failed(task, server))
            try:
                yield
            finally:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following

        app = create_app(state, metrics, settings.max_body_bytes, lifespan)
        server = uvicorn.Server(_config(app, settings))
        if settings.health_port:
            probes_listener = _listen(settings.host, settings.health_port)
            probes = uvicorn.Server(uvicorn.Config(probes_app(state, metrics), access_log=False, log_config=None))
            async with _beside(probes, probes_listener):
                await server.serve([listener])
        else:
            await server.serve([listener])


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    try:
        return uvicorn.Config(
            app,
            http="httptools",
            loop="uvloop",
            workers=1,
            access_log=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
            ssl_certfile=settings.tls_cert_file,
            ssl_keyfile=settings.tls_key_file,
            ssl_ca_certs=settings.tls_client_ca_file,
            ssl_cert_reqs=ssl.CERT_REQUIRED if settings.tls_client_ca_file else ssl.CERT_NONE,
        )
    except OSError as error:
        raise StartError(f"the TLS files cannot be used: {error}") from error


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {host}:{port} ({error.strerror}): set WHOLENODE_PORT") from error
    return listener


@contextlib.asynccontextmanager
async def _beside(server: uvicorn.Server, listener: socket.socket) -> AsyncIterator[None]:
    """Run a second server whose signals the first one handles."""
    with contextlib.ExitStack() as stack:
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(server.serve([listener]))
        stack.callback(listener.close)
        try:
            yield
        finally:
            server.should_exit = True
            await task


def _stop_if_failed(task: "asyncio.Task[None]", server: uvicorn.Server) -> None:
    """A dead watch must end the process: it would answer from memory that grows old."""
    if not task.cancelled() and task.exception() is not None:
        _LOG.error("the cluster can no longer be followed: %s", _first(task.exception()))
        server.should_exit = True


def _first(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> int:
    """Exit code 0 when told to stop, 1 on an error, which is one line."""
    try:
        settings = Settings()
    except ValidationError as error:
        for one in error.errors():
            name = "_".join(str(part) for part in one["loc"])
            print(f"extender: {'WHOLENODE_' + name.upper() + ': ' if name else ''}{one['msg']}", file=sys.stderr)
        return 1
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings))
    except (ClusterError, StartError, BaseExceptionGroup) as error:
        first = _first(error)
        if not isinstance(first, ClusterError | StartError):
            raise
        print(f"extender: {first}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
