"""The stand-in's calls to the API server, all under one client's rate limit, and its watches of nodes and pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from kwok.admin import PATCH_TYPES, Admin, APIError, Object
from kwok.hami.bucket import Bucket

_PAUSE_SECONDS: Final = 0.2


class Calls:
    """An administrator's client whose every call takes a token first; `made` counts them by verb."""

    def __init__(self, admin: Admin, bucket: Bucket | None = None) -> None:
        """Without a bucket there is no limit."""
        self._admin = admin
        self._bucket = bucket
        self.made: dict[str, int] = {}

    async def call(self, method: str, path: str, body: Any = None, *, patch: str | None = None) -> Any:
        """One request. Raises APIError."""
        if self._bucket is not None:
            await self._bucket.take()
        self.made[method] = self.made.get(method, 0) + 1
        content_type = PATCH_TYPES[patch] if patch else "application/json"
        return await self._admin.request(method, path, body, content_type=content_type)

    async def get(self, path: str) -> Object:
        """Read one object."""
        found: Object = await self.call("GET", path)
        return found

    async def patch(self, path: str, body: Any) -> None:
        """Merge into one object."""
        await self.call("PATCH", path, body, patch="merge")


async def follow(admin: Admin, path: str, tell: Callable[[str, Object], None], listed: Callable[[], None]) -> None:
    """List a collection and watch it for ever: `tell` hears ADDED, MODIFIED and DELETED; `listed` when all are known.

    After a lost watch it lists again and tells of what is gone meanwhile.
    """
    known: dict[str, Object] = {}
    while True:
        try:
            answer = await admin.request("GET", path)
            here = {item["metadata"]["uid"]: item for item in answer["items"]}
            for uid in known.keys() - here.keys():
                tell("DELETED", known.pop(uid))
            for uid, item in here.items():
                tell("MODIFIED" if uid in known else "ADDED", item)
            known = here
            listed()
            async for kind, item in admin.watch(path, answer["metadata"]["resourceVersion"]):
                if kind == "DELETED":
                    known.pop(item["metadata"]["uid"], None)
                else:
                    known[item["metadata"]["uid"]] = item
                tell(kind, item)
        except (APIError, aiohttp.ClientError):
            await asyncio.sleep(_PAUSE_SECONDS)
