"""Deletes drain records and ended claims that have been kept long enough, a few at a time."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice

from cluster.claims import delete_claim
from cluster.client import Api
from cluster.errors import ClusterError, NotFound
from cluster.records import delete_record
from controller.caches import Caches
from fleet.resources import DrainRecord, WholeNodeClaim
from fleet.retention import Keep, outdated

_LOG = logging.getLogger("wholenode.controller")
_EVERY_SECONDS = 60.0
_AT_ONCE = 100


class Retention:
    """Looks every minute. `may_write` is asked before every write: the fence of the lease."""

    def __init__(self, api: Api, caches: Caches, keep: Keep, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._caches = caches
        self._keep = keep
        self._may_write = may_write

    async def run(self) -> None:
        """Delete what is outdated, until cancelled."""
        await self._caches.synced()
        while True:
            try:
                await self.look(datetime.now(UTC))
            except Exception:
                _LOG.exception("what is outdated could not be deleted; it is tried again in a minute")
            await asyncio.sleep(_EVERY_SECONDS)

    async def look(self, now: datetime) -> None:
        """Delete up to a hundred objects, each by its UID; what cannot be deleted now is tried at the next look."""
        for one in islice(outdated(self._caches.view({}), now, self._keep), _AT_ONCE):
            if not self._may_write():
                return
            try:
                await self._delete(one)
            except NotFound:
                continue
            except ClusterError as error:
                name = f"{one.metadata.namespace}/{one.metadata.name}"
                _LOG.debug("not deleted", extra={"object": name, "error": str(error)})

    async def _delete(self, one: DrainRecord | WholeNodeClaim) -> None:
        if isinstance(one, DrainRecord):
            await delete_record(self._api, one)
        else:
            await delete_claim(self._api, one)
