"""Keeps the status of pools and agreements true, every two seconds at most."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from cluster.claims import write_status
from cluster.client import Api
from cluster.errors import ClusterError
from controller.caches import Caches
from controller.metrics import Metrics
from fleet.summaries import agreement_status, pool_status

_LOG = logging.getLogger("wholenode.controller")
_EVERY_SECONDS = 2.0


async def keep_statuses(api: Api, caches: Caches, metrics: Metrics, may_write: Callable[[], bool]) -> None:
    """Write what has changed, until cancelled."""
    await caches.synced()
    while True:
        now = datetime.now(UTC)
        view = caches.view({})
        metrics.forget_pools({pool.metadata.name for pool in view.pools})
        for pool in view.pools:
            pool_now = pool_status(view, pool, now)
            metrics.pool(pool.metadata.name, pool_now)
            if pool_now != pool.status and may_write():
                try:
                    caches.pools.apply(await write_status(api, pool, pool_now))
                except ClusterError as error:
                    _LOG.debug("pool status not written", extra={"pool": pool.metadata.name, "error": str(error)})
        for agreement in view.agreements:
            agreement_now = agreement_status(agreement, now)
            if agreement_now != agreement.status and may_write():
                try:
                    caches.agreements.apply(await write_status(api, agreement, agreement_now))
                except ClusterError as error:
                    _LOG.debug("agreement status not written", extra={"error": str(error)})
        await asyncio.sleep(_EVERY_SECONDS)
