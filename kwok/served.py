"""Kinds are applied, and waited for until the API server serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from kwok.admin import Admin, APIError, Object, path_of

_TOO_MANY_REQUESTS = 429
_SERVED_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.05


async def apply_kinds(admin: Admin, crds: Iterable[Mapping[str, Any]]) -> None:
    """Apply CustomResourceDefinitions and wait until each can be listed. Raises TimeoutError, APIError."""
    crds = list(crds)
    for crd in crds:
        await admin.apply(crd)
    for crd in crds:
        await admin.wait_for(path_of(crd), _established)
        await _served(admin, crd)


def _established(crd: Object | None) -> bool:
    conditions = (crd or {}).get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


async def _served(admin: Admin, crd: Mapping[str, Any]) -> None:
    """A kind that is Established may still answer 429: its storage is being set up."""
    spec = crd["spec"]
    version = next(one["name"] for one in spec["versions"] if one["served"])
    path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
    async with asyncio.timeout(_SERVED_SECONDS):
        while True:
            try:
                await admin.list(path)
            except APIError as error:
                if error.status != _TOO_MANY_REQUESTS:
                    raise
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
            else:
                return
