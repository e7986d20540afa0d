"""Keeps the status of pools and agreements true, and wakes pods that may have a place now though nothing says so."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from cluster.claims import write_status
from cluster.client import Api
from cluster.errors import ClusterError, Invalid
from cluster.pods import poke
from controller.caches import Caches
from controller.metrics import Metrics
from fleet.objects import Pod
from fleet.summaries import agreement_status, pool_status
from fleet.times import format_time
from fleet.view import View
from fleet.wakes import refused_in_passing, refused_small_pods

_LOG = logging.getLogger("wholenode.controller")
_EVERY_SECONDS = 2.0


class Upkeep:
    """Looks every two seconds. `may_write` is asked before every write: the fence of the lease."""

    def __init__(self, api: Api, caches: Caches, metrics: Metrics, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._caches = caches
        self._metrics = metrics
        self._may_write = may_write
        self._rules: object = None
        self._changed = False
        self._failed: dict[str, str] = {}

    async def run(self) -> None:
        """Write what has changed, until cancelled."""
        await self._caches.synced()
        while True:
            now = datetime.now(UTC)
            view = self._caches.view({})
            for step in (self._write_pools, self._write_agreements, self._wake):
                with self._told(step.__name__):
                    await step(view, now)
            await asyncio.sleep(_EVERY_SECONDS)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """An error of ours, met with one object, is said once, and ends neither the process nor anything else."""
        try:
            yield
        except Exception as error:
            self._metrics.error(type(error).__name__)
            if self._failed.get(what) != repr(error):
                self._failed[what] = repr(error)
                _LOG.exception("%s failed; everything else goes on", what)
        else:
            self._failed.pop(what, None)

    async def _write_pools(self, view: View, now: datetime) -> None:
        self._metrics.forget_pools({pool.metadata.name for pool in view.pools})
        for pool in view.pools:
            name = pool.metadata.name
            with self._told(f"the status of pool {name}"):
                status = pool_status(view, pool, now)
                self._metrics.pool(name, status)
                if status != pool.status and self._may_write():
                    with self._refused(f"pool {name}"):
                        self._caches.pools.apply(await write_status(self._api, pool, status))

    async def _write_agreements(self, view: View, now: datetime) -> None:
        for agreement in view.agreements:
            name = f"{agreement.metadata.namespace}/{agreement.metadata.name}"
            with self._told(f"the status of agreement {name}"):
                status = agreement_status(view, agreement, now)
                if status != agreement.status and self._may_write():
                    with self._refused(f"agreement {name}"):
                        self._caches.agreements.apply(await write_status(self._api, agreement, status))

    @contextlib.contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        """A write that cannot be done now is tried again at the next look; one that is invalid is worth a word."""
        try:
            yield
        except Invalid as error:
            if self._failed.get(what) != str(error):
                self._failed[what] = str(error)
                _LOG.warning("the status of %s is refused: %s", what, error)
        except ClusterError as error:
            _LOG.debug("status not written", extra={"object": what, "error": str(error)})

    async def _wake(self, view: View, now: datetime) -> None:
        """A look after pools or agreements changed: the extender has seen it by then, and kube-scheduler never will."""
        metadata = (*(one.metadata for one in view.pools), *(one.metadata for one in view.agreements))
        rules = {(one.uid, one.generation) for one in metadata}
        due, self._changed = self._changed, self._rules is not None and rules != self._rules
        self._rules = rules
        if due and self._may_write():
            await self._poke(refused_small_pods(view), now)
        elif self._may_write():
            await self._poke(refused_in_passing(view, now), now)

    async def _poke(self, pods: Iterable[Pod], now: datetime) -> None:
        for pod in pods:
            try:
                self._caches.pods.apply(await poke(self._api, pod, format_time(now)))
            except ClusterError as error:
                _LOG.debug("pod not woken", extra={"pod": pod.key, "error": str(error)})
