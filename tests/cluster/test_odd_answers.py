"""Answers and objects that nobody expects: deep ones, odd Retry-After headers, connections and leases that end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cluster import errors
from cluster.errors import LeaseLost, Throttled, Unavailable
from cluster.reflector import Reflector
from fleet.objects import Pod, ResourceClaim
from tests.cluster.scripted_api import ScriptedApi
from tests.cluster.test_client import status, talking_to
from tests.cluster.virtual_time import run

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"


def named(name: str, **spec: Any) -> bytes:
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
    return json.dumps({"metadata": meta, "spec": spec}).encode()


def deep(name: str, levels: int = 4000) -> bytes:
    """A ResourceClaim whose driver's parameters, any JSON of up to 10 KiB, are nested deeply."""
    config = [{"opaque": {"driver": "d", "parameters": "@"}}]
    nested = '{"a":' + "[" * levels + "]" * levels + "}"
    return named(name, devices={"config": config}).replace(b'"@"', nested.encode())


class Listed(ScriptedApi):
    """Lists a deep object before another."""

    async def get(self, path: str, query: Any = None) -> bytes:
        return b'{"metadata":{"resourceVersion":"1"},"items":[%s,%s]}' % (deep("deep"), named("one"))


class Watched(ScriptedApi):
    """Sends a deep object by the watch."""

    async def stream(self, path: str, query: Any) -> AsyncIterator[bytes]:
        yield b'{"type":"ADDED","object":%s}' % deep("deep")
        await asyncio.sleep(1000)


@pytest.mark.parametrize("api", [Listed, Watched])
def test_an_object_that_is_nested_deeply_is_taken_in_as_any_other(api: type[ScriptedApi]) -> None:
    async def main() -> None:
        reflector: Reflector[ResourceClaim] = Reflector(api(), CLAIMS, ResourceClaim, optional=True)  # type: ignore[arg-type]
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(30)
        assert not task.done()
        task.cancel()
        assert "deep" in reflector.store

    run(main())


@pytest.mark.parametrize(("said", "seconds"), [("3600", 30), ("9" * 5000, 30), ("7", 7), ("-1", 0), ("²", 0), ("", 0)])
def test_what_retry_after_says_is_believed_within_reason(said: str, seconds: float) -> None:
    error = errors.from_answer(429, b"", what="PUT /x", retry_after=said)
    assert isinstance(error, Throttled)
    assert error.retry_after_seconds == seconds if said != "²" else error.retry_after_seconds <= 30


def test_a_watch_goes_on_whatever_retry_after_says() -> None:
    class Slow(ScriptedApi):
        refused = False

        async def stream(self, path: str, query: Any) -> AsyncIterator[bytes]:
            if not self.refused:
                self.refused = True
                raise errors.from_answer(429, b"", what="watch", retry_after="86400")
            async for line in super().stream(path, query):
                yield line

    async def main() -> None:
        api: Any = Slow()
        reflector = Reflector(api, "/pods", Pod)
        task = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        await asyncio.sleep(1)
        api.create("new")
        await asyncio.sleep(60)
        task.cancel()
        assert reflector.find("ns", "new") is not None

    run(main())


async def empty(_: web.Request) -> web.Response:
    return web.Response(body=b"{}")


async def test_a_throttled_write_with_an_odd_header_is_one_of_our_errors(tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return status(429, "slow", **{"Retry-After": "\u00b2"})

    async with talking_to(tmp_path, handler) as api:
        with pytest.raises(Throttled):
            await api.create("/x", {})


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_write_whose_answer_is_lost_is_not_repeated(tmp_path: Path, method: str) -> None:
    """Not by the HTTP library either: it would, on a connection that was kept."""
    seen = []

    async def handler(request: web.Request) -> web.Response:
        if request.method != "GET":
            seen.append(request.method)
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=b"{}")

    async with talking_to(tmp_path, handler) as api:
        await api.get("/x")
        with pytest.raises(Unavailable):
            await (api.replace("/x", {}) if method == "PUT" else api.delete("/x", uid="u"))
    assert seen == [method]


async def test_c05_nothing_is_sent_if_the_lease_ends_while_the_connection_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a freeze in that very moment; a read is sent all the same."""
    seen, leading = [], [True]

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.Response(body=b"{}")

    async with talking_to(tmp_path, handler) as api:
        connector = api._session.connector
        assert connector is not None
        connect = connector._create_connection

        async def frozen(*arguments: Any, **options: Any) -> Any:
            leading[0] = False
            return await connect(*arguments, **options)

        monkeypatch.setattr(connector, "_create_connection", frozen)
        fenced = api.fenced(lambda: leading[0])
        with pytest.raises(LeaseLost):
            await fenced.create("/x", {})
        await fenced.get("/x")
    assert seen == ["GET"]


async def test_a_token_that_cannot_be_read_is_one_of_our_errors(tmp_path: Path) -> None:
    async with talking_to(tmp_path, empty) as api:

        def gone(_: object) -> None:
            (tmp_path / "gone").read_text()

        api._configuration.refresh_api_key_hook = gone
        with pytest.raises(Unavailable, match="token"):
            await api.create("/x", {})
