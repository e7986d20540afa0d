"""The fence: a process that has lost the lease, or was frozen between a decision and its write, sends nothing more."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from cluster.client import Api
from cluster.errors import LeaseLost
from cluster.lease import LeaseElector
from cluster.pacing import TokenBucket
from tests.cluster.test_client import talking_to
from tests.cluster.virtual_time import run

WRITES = {
    "POST": lambda api: api.create("/x", {}),
    "PUT": lambda api: api.replace("/x", {}),
    "PATCH": lambda api: api.patch("/x", {}, "merge"),
    "DELETE": lambda api: api.delete("/x"),
}


@pytest.mark.parametrize("method", list(WRITES))
async def test_c05_no_kind_of_write_is_sent_once_the_lease_is_gone_and_reads_are(tmp_path: Path, method: str) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.Response(body=b"{}")

    async with talking_to(tmp_path, handler) as api:
        leading = True
        fenced = api.fenced(lambda: leading)
        await WRITES[method](fenced)
        leading = False
        with pytest.raises(LeaseLost, match=f"{method} /x was not sent"):
            await WRITES[method](fenced)
        await fenced.get("/x")
        assert seen == [method, "GET"]
        await WRITES[method](api)
    assert seen == [method, "GET", method]


class _Server:
    """A session and a configuration in memory: keeps the one Lease, and notes every other write."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.lease: dict[str, Any] = {}
        self.host = "http://test"
        self.proxy = self.tls_server_name = None

    async def get_api_key_with_prefix(self, *_: object, **__: object) -> str:
        return ""

    def request(self, method: str, url: str, data: bytes | None = None, **_: object) -> "_Response":
        path = url.removeprefix("http://test")
        if "leases" in path:
            if data is not None:
                self.lease = json.loads(data)
                version = int(self.lease["metadata"].get("resourceVersion", 0)) + 1
                self.lease["metadata"]["resourceVersion"] = str(version)
            return _Response(json.dumps(self.lease).encode(), 200 if self.lease else 404)
        self.writes.append(path)
        return _Response(b"{}", 200)


class _Response:
    def __init__(self, body: bytes, status: int) -> None:
        self.body, self.status, self.headers = body, status, {}

    async def __aenter__(self) -> "_Response":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self) -> bytes:
        return self.body


def test_c05_a_controller_frozen_while_its_write_waits_in_the_token_bucket_writes_nothing_when_it_wakes() -> None:
    """The writes were decided while it led; it slept past its lease before their turn came; renewals go unfenced."""
    server, frozen = _Server(), SimpleNamespace(seconds=0.0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        session: Any = server
        api = Api(session, session, TokenBucket(1.0, 1))
        lease = LeaseElector(
            api, "ns", "name", "me", lease_seconds=15, renew_seconds=2, clock=lambda: loop.time() + frozen.seconds
        )
        await lease.acquire()
        fenced = api.fenced(lease.is_valid)
        tasks = [asyncio.create_task(fenced.create(f"/write-{number}", {})) for number in range(4)]
        await asyncio.sleep(1.5)
        assert server.writes == ["/write-0", "/write-1"]
        frozen.seconds = 20.0
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one).__name__ for one in outcomes] == ["bytes", "bytes", "LeaseLost", "LeaseLost"]
        await lease.acquire()
        await fenced.create("/write-again", {})

    run(main())
    assert server.writes == ["/write-0", "/write-1", "/write-again"]
