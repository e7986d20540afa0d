"""Asking a node's own probe: only a readable "empty" counts, everything else says why not; the address is checked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from controller.hands import Hands
from controller.metrics import Metrics
from controller.probes import Prober, check_template
from controller.settings import Settings
from fleet.actions import Probe
from fleet.objects import Node, NodeAddress
from tests.fleet.builders import node
from tests.fleet.simulation import replace

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reachable(name: str = "n1", address: str | None = "127.0.0.1") -> Node:
    one = node(name)
    addresses = (NodeAddress("Hostname", name), *((NodeAddress("InternalIP", address),) if address else ()))
    return replace(one, status=replace(one.status, addresses=addresses))


async def asked(handler: Handler, one: Node | None = None, *, timeout_seconds: float = 5) -> tuple[bool, str]:
    app = web.Application()
    app.router.add_get("/empty/{node}", handler)
    async with TestServer(app) as server:
        template = f"http://{{address}}:{server.port}/empty/{{node}}"
        found = await Prober(template, timeout_seconds).ask(one or reachable())
    return found.empty, found.reason


def saying(body: str, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=body, status=status)

    return handler


@pytest.mark.parametrize(
    ("body", "status", "empty", "reason"),
    [
        ('{"empty": true}', 200, True, ""),
        ('{"empty": true, "reason": "no process", "more": [1]}', 200, True, "no process"),
        ('{"empty": false, "reason": "pid 4711\\n on card 3"}', 200, False, "pid 4711 on card 3"),
        ('{"empty": false}', 200, False, "gives no reason"),
        ('{"empty": "true"}', 200, False, "no usable answer"),
        ('{"empty": true}', 503, False, "HTTP status 503"),
        ('{"empty": true}', 302, False, "HTTP status 302"),
        ("{}", 200, False, "no usable answer"),
        ("yes", 200, False, "no usable answer"),
        ('{"empty": true, "reason": "' + "x" * 20_000 + '"}', 200, False, "more than 16384 bytes"),
    ],
)
async def test_only_a_readable_yes_counts(body: str, status: int, empty: bool, reason: str) -> None:
    found = await asked(saying(body, status))
    assert found[0] is empty
    assert reason in found[1]
    assert len(found[1]) < 500


async def test_a_probe_that_does_not_answer_or_cannot_be_reached_has_not_said_empty() -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    empty, reason = await asked(never, timeout_seconds=0.05)
    assert not empty
    assert "no answer in time" in reason
    unreachable = await Prober("http://{address}:1/", 5).ask(reachable())
    assert not unreachable.empty
    assert "gave no usable answer" in unreachable.reason
    nowhere = await Prober("http://{address}:1/", 5).ask(reachable(address=None))
    assert (nowhere.empty, "no InternalIP" in nowhere.reason) == (False, True)


async def test_the_node_is_named_and_what_came_of_it_is_kept_for_the_next_decision() -> None:
    names: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        names.append(request.match_info["node"])
        return web.json_response({"empty": True})

    app = web.Application()
    app.router.add_get("/{node}", handler)
    unused: Any = None
    async with TestServer(app) as server:
        prober = Prober(f"http://127.0.0.1:{server.port}/{{node}}", 5)
        hands = Hands(unused, unused, Metrics(), unused, lambda: True, prober)
        await hands.do(Probe(reachable("gpu-node.7")))
    assert names == ["gpu-node.7"]
    assert hands.probes["gpu-node.7"].empty


@pytest.mark.parametrize(
    "wrong",
    [
        "{address}",
        "ftp://{node}/",
        "http://probe/",
        "http://{pod}/",
        "http://{node",
        "http://{0}/{node}",
        "http:///{node}",
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        check_template(wrong)
    with pytest.raises(ValidationError, match="write it like"):
        Settings(node_probe_url=wrong)


def test_probing_is_off_unless_an_address_is_set() -> None:
    assert Settings().prober() is None
    assert not Settings().timing().probe_nodes
    on = Settings(node_probe_url="https://{address}:9400/{node}")
    assert on.prober() is not None
    assert on.timing().probe_nodes
