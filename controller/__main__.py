"""`python -m controller`: wait for the lease, follow the cluster, act; end when the lease is lost."""

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable

import uvloop

from cluster.client import Api, connect
from cluster.errors import LeaseLost
from cluster.events import EventWriter
from cluster.lease import LeaseElector
from cluster.program import run_program, tame_collector
from controller.caches import Caches
from controller.engine import Engine
from controller.hands import Hands
from controller.metrics import Metrics
from controller.operator import OperatorThread
from controller.retention import Retention
from controller.server import serve
from controller.settings import Settings
from controller.upkeep import Upkeep
from fleet.retention import Keep

_LOG = logging.getLogger("wholenode.controller")
_STUCK_SECONDS = 30.0
_SILENT_SECONDS = 150.0


class _Stopped(Exception):  # noqa: N818 (not an error)
    """SIGTERM or SIGINT came."""


async def run(settings: Settings) -> None:
    """Run one replica until it is told to stop. Raises ClusterError (LeaseLost among them) and StartError."""
    identity = f"{settings.identity or 'controller'}-{secrets.token_hex(4)}"
    async with connect(settings.kubeconfig, settings.write_qps, settings.write_burst) as api:
        lease = LeaseElector(
            api,
            settings.namespace,
            settings.lease_name,
            identity,
            lease_seconds=settings.lease_seconds,
            renew_seconds=min(2.0, settings.lease_seconds / 4),
        )
        await _Replica(api, settings, lease, identity).run()


class _Replica:
    def __init__(self, api: Api, settings: Settings, lease: LeaseElector, identity: str) -> None:
        # The lease is renewed over the connection as it is; whatever else is written asks the lease first.
        self._api = api = api.fenced(lease.is_valid)
        self._settings = settings
        self._lease = lease
        self._metrics = Metrics()
        self._events = EventWriter(api, "wholenode-controller", identity)
        self._caches = Caches(api, self._changed)
        hands = Hands(api, self._caches, self._metrics, self._events, lease.is_valid, settings.prober())
        self._engine = Engine(self._caches, hands, self._metrics, settings.timing(), lease.is_valid)
        self._leading = False

    async def run(self) -> None:
        settings = self._settings
        try:
            async with (
                serve(settings.host, settings.port, self._metrics, self._trouble, self._not_ready),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(_until_signal())
                group.create_task(self._lead())
        except* _Stopped:
            _LOG.info("told to stop")
        finally:
            await self._lease.release()

    async def _lead(self) -> None:
        await self._lease.acquire()
        _LOG.info("leading", extra={"identity": self._lease.identity})
        self._leading = True
        self._metrics.leader.set(1)
        async with _kopf(self._settings.kubeconfig, self._changed_kind) as kopf_died, asyncio.TaskGroup() as group:
            group.create_task(self._lease.hold())
            group.create_task(self._caches.run())
            group.create_task(self._events.run())
            group.create_task(Upkeep(self._api, self._caches, self._metrics, self._lease.is_valid).run())
            group.create_task(self._clean_up())
            group.create_task(self._engine.run())
            group.create_task(self._tame_collector())
            group.create_task(_fail_when(kopf_died))

    async def _clean_up(self) -> None:
        keep = Keep.of_days(self._settings.record_days, self._settings.claim_days)
        await Retention(self._api, self._caches, keep, self._lease.is_valid).run()

    async def _tame_collector(self) -> None:
        await self._caches.synced()
        tame_collector()

    def _changed(self) -> None:
        self._engine.kick()

    def _changed_kind(self, plural: str) -> None:
        _LOG.debug("changed", extra={"kind": plural})
        self._engine.kick()

    def _trouble(self) -> str | None:
        if not self._leading:
            return None
        now = time.monotonic()
        if self._caches.is_synced() and now - self._engine.progressed_at > _STUCK_SECONDS:
            return "no pass over the claims for 30 s"
        if self._caches.is_synced() and now - self._caches.last_sign_of_life() > _SILENT_SECONDS:
            return "a watch has been silent for 150 s"
        return None

    def _not_ready(self) -> str | None:
        if self._leading and not self._caches.is_synced():
            return "caches are being filled"
        return self._trouble()


async def _until_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    raise _Stopped


@contextlib.asynccontextmanager
async def _kopf(kubeconfig: str | None, on_change: Callable[[str], None]) -> AsyncIterator[asyncio.Event]:
    operator = OperatorThread(asyncio.get_running_loop(), on_change)
    operator.start(kubeconfig)
    try:
        yield operator.died
    finally:
        await asyncio.to_thread(operator.stop)


async def _fail_when(died: asyncio.Event) -> None:
    await died.wait()
    raise LeaseLost("the watch of our own resources (kopf) ended; starting over")


def main() -> int:
    """Exit code 0 when told to stop, 1 on an error, which is one line."""
    return run_program("controller", Settings, lambda settings: settings.log_level, _run)


def _run(settings: Settings) -> None:
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It says at each start that signals are not its business in a thread of its own; so it was meant.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
