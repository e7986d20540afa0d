"""`python -m extender`: fill the caches, answer kube-scheduler."""

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI

from cluster.client import connect
from cluster.program import StartError, run_program
from extender.app import create_app, probes_app
from extender.connection import Connection, connections_to
from extender.metrics import Metrics
from extender.settings import Settings
from extender.state import State
from extender.tls import Files, RotatingContext
from extender.verbs import Desk, Verbs

_KEEP_ALIVE_SECONDS: Final = 120
"""Longer than the 90 s for which kube-scheduler keeps an idle connection, so that we never close first."""
_SWITCH_SECONDS: Final = 0.0005
_COMMON: Final[dict[str, Any]] = {
    "access_log": False,
    "log_config": None,
    "lifespan": "off",
    "server_header": False,
    "timeout_keep_alive": _KEEP_ALIVE_SECONDS,
    "timeout_graceful_shutdown": 10,
}


async def run(settings: Settings) -> None:
    """Serve until told to stop. Raises StartError and ClusterError (in a group if the cluster cannot be followed)."""
    async with connect(settings.kubeconfig) as api:
        state = State(api)
        metrics = Metrics(state)
        verbs = Verbs(state, metrics, packing=settings.packing == "filter")
        desk = Desk.of(verbs, settings.max_body_bytes, settings.read_seconds)
        tls = _tls(settings, metrics)
        servers = [(_server(create_app(state, metrics, desk), connections_to(desk), tls), settings.port)]
        if settings.health_port:
            probes = connections_to(desk, verbs=False)
            servers.append((_server(probes_app(state, metrics, desk), probes), settings.health_port))
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(_listen(settings.host, port)) for _, port in servers]
            serving = [
                asyncio.create_task(server.serve([listener]))
                for (server, _), listener in zip(servers, listeners, strict=True)
            ]
            following = [asyncio.create_task(state.run())]
            if tls is not None:
                following.append(asyncio.create_task(tls.follow()))
            _stop_on_signals([server for server, _ in servers], desk, settings.leave_seconds)
            # A dead watch must end the process: it would go on answering from memory that grows old.
            await asyncio.wait([*following, *serving], return_when=asyncio.FIRST_COMPLETED)
            desk.leaving = True
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*serving)
            for task in following:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                for task in following:
                    await task


def _tls(settings: Settings, metrics: Metrics) -> RotatingContext | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    client_ca = Path(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
    return RotatingContext.of(Files(Path(settings.tls_cert_file), Path(settings.tls_key_file), client_ca), metrics)


def _server(app: FastAPI, protocol: type[Connection], tls: RotatingContext | None = None) -> uvicorn.Server:
    """A server that leaves signals to `_stop_on_signals`: its own way ends the process by the signal, not by 0."""
    factory = None if tls is None else lambda *_: tls
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, ssl_context_factory=factory, **_COMMON))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return server


def _stop_on_signals(servers: list[uvicorn.Server], desk: Desk, leave_seconds: float) -> None:
    """Told once: say so, answer for `leave_seconds` more, close. Told twice: close now, wait for nobody."""
    loop = asyncio.get_running_loop()

    def close() -> None:
        for server in servers:
            server.should_exit = True

    def stop() -> None:
        if desk.leaving:
            for server in servers:
                server.force_exit = True
            close()
        else:
            desk.leaving = True
            loop.call_later(leave_seconds, close)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


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
    # Explanations are worked out in threads; a question of the scheduler is not to wait long for its turn.
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
