"""`python -m extender`: fill the caches, answer kube-scheduler."""

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI

from cluster.client import connect
from cluster.program import StartError, run_program
from extender.app import create_app, probes_app
from extender.metrics import Metrics
from extender.settings import Settings
from extender.state import State

_KEEP_ALIVE_SECONDS: Final = 120
"""Longer than the 90 s for which kube-scheduler keeps an idle connection, so that we never close first."""
_COMMON: Final[dict[str, Any]] = {"access_log": False, "log_config": None, "timeout_graceful_shutdown": 10}


async def run(settings: Settings) -> None:
    """Serve until told to stop. Raises StartError and ClusterError (in a group if the cluster cannot be followed)."""
    async with connect(settings.kubeconfig) as api:
        state = State(api)
        metrics = Metrics(state)
        servers = [(_server(create_app(state, metrics, settings.max_body_bytes), settings), settings.port)]
        if settings.health_port:
            servers.append((_quiet(uvicorn.Config(probes_app(state, metrics), **_COMMON)), settings.health_port))
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(_listen(settings.host, port)) for _, port in servers]
            serving = [
                asyncio.create_task(server.serve([listener]))
                for (server, _), listener in zip(servers, listeners, strict=True)
            ]
            following = asyncio.create_task(state.run())
            _stop_on_signals([server for server, _ in servers])
            # A dead watch must end the process: it would go on answering from memory that grows old.
            await asyncio.wait([following, *serving], return_when=asyncio.FIRST_COMPLETED)
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*serving)
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


def _server(app: FastAPI, settings: Settings) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http="httptools",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
        ssl_ca_certs=settings.tls_client_ca_file,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.tls_client_ca_file else ssl.CERT_NONE,
        **_COMMON,
    )
    try:
        config.load()
    except OSError as error:
        raise StartError(f"the TLS files cannot be used: {error}") from error
    return _quiet(config)


def _quiet(config: uvicorn.Config) -> uvicorn.Server:
    """A server that leaves signals to `_stop_on_signals`: its own way ends the process by the signal, not by 0."""
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return server


def _stop_on_signals(servers: list[uvicorn.Server]) -> None:
    def stop() -> None:
        for server in servers:
            server.force_exit = server.should_exit  # asked twice: connections are not waited for
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


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


def main() -> int:
    """Exit code 0 when told to stop, 1 on an error, which is one line."""
    return run_program("extender", Settings, lambda settings: settings.log_level, _run)


def _run(settings: Settings) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
