"""Over a real socket: every way to ask is answered, one that misbehaves harms nobody, nothing is left behind."""

import asyncio
import gc
import json
import logging
from typing import Any

import pytest

from extender.connection import Connection
from fleet.resources import Accepts
from tests.extender.asgi import MAX_BODY, Rig
from tests.extender.server import Served, post, serving, until
from tests.extender.test_app import by_name
from tests.fleet.builders import node, pool

SMALL = pool("small", accepts=Accepts.SMALL)
NAMES = [f"n{number}" for number in range(1, 4)]
QUESTION = json.dumps(by_name(NAMES)).encode()


@pytest.fixture
def rig() -> Rig:
    return Rig(SMALL, *(node(name, "small") for name in NAMES))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """No test of this file makes the server complain, unless it says so by clearing the log."""
    yield
    said = caplog.get_records("call")
    assert [record.getMessage() for record in said if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ((), "1.1"),
        (("Connection: close",), "1.1"),
        (("Expect: 100-continue",), "1.1"),
        ((), "1.0"),
        (("X-Anything: é",), "1.1"),
    ],
    ids=["plain", "close", "expect", "http-1.0", "odd-header"],
)
@pytest.mark.parametrize("path", ["/filter", "/v1/filter", "/v1/filter?x=1"])
async def test_every_way_to_ask_gets_the_same_answer(
    rig: Rig, headers: tuple[str, ...], version: str, path: str
) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        whole = post(path, QUESTION, *headers, version=version)
        if "Expect: 100-continue" in headers:
            client.send(whole[: -len(QUESTION)])
            assert (await client.answer()).status == 100
            whole = QUESTION
        client.send(whole)
        answer = await client.answer()
        assert (answer.status, answer.json["NodeNames"]) == (200, NAMES)
        assert answer.headers["content-type"] == "application/json"
        assert "date" in answer.headers
        assert (answer.headers.get("connection") == "close") == (version == "1.0" or "Connection: close" in headers)


async def test_the_short_way_and_the_ordinary_one_answer_every_verb_byte_for_byte_alike(rig: Rig) -> None:
    victims = {"Pod": by_name([])["Pod"], "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}]}, "nx": {}}}
    async with serving(rig) as served:
        for verb, body in (
            ("filter", QUESTION),
            ("prioritize", QUESTION),
            ("preempt", json.dumps(victims).encode()),
            ("filter", b"{"),
            ("prioritize", b"{"),
            ("preempt", b"{"),
        ):
            client = await served.connect()
            client.send(post(f"/v1/{verb}", body))
            short = await client.answer()
            client.send(post(f"/v1/{verb}", body, "Connection: close"))
            ordinary = await client.answer()
            assert (short.status, short.body) == (ordinary.status, ordinary.body)
            assert short.headers["content-type"] == ordinary.headers["content-type"]


async def test_questions_one_after_the_other_without_waiting_are_answered_in_order(rig: Rig) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        paths = ["/v1/filter", "/readyz", "/v1/prioritize", "/healthz", "/v1/filter"]
        client.send(
            b"".join(
                post(path, QUESTION) if path.startswith("/v1") else f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                for path in paths
            )
        )
        answers = [await client.answer() for _ in paths]
        assert [answer.status for answer in answers] == [200] * 5
        assert answers[0].json == answers[4].json
        assert answers[1].body == answers[3].body == b"ok"
        assert [one["Host"] for one in answers[2].json] == NAMES


@pytest.mark.parametrize("sizes", [[1], [7, 100], [4096]])
async def test_a_body_in_chunks_and_in_pieces_is_put_together(rig: Rig, sizes: list[int]) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        head = b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        parts, rest = [], QUESTION
        while rest:
            size = sizes[len(parts) % len(sizes)]
            part, rest = rest[:size], rest[size:]
            parts.append(b"%x\r\n%s\r\n" % (len(part), part))
        for piece in (head[:9], head[9:], *parts, b"0\r\n\r\n"):
            client.send(piece)
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer()).json["NodeNames"] == NAMES
        assert (await client.asks(by_name(NAMES)))["NodeNames"] == NAMES


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_are_refused_and_the_connection_goes_on(rig: Rig, method: str) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        client.send(f"{method} /v1/filter HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await client.answer(head_only=method == "HEAD")).status == 405
        client.send(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert (await client.answer()).status == 404
        assert (await client.asks(by_name(NAMES)))["NodeNames"] == NAMES


async def test_o05_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(rig: Rig) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        client.send(post("/v1/filter", b" " * (MAX_BODY + 1)))
        assert (await client.answer()).status == 413
        client.send(b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(18):
            client.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await client.writer.drain()
        client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 413
        assert (await client.asks(by_name(NAMES)))["NodeNames"] == NAMES


async def test_o05_a_20_mb_body_costs_no_memory(rig: Rig) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        client.send(post("/v1/filter", b"", length=20_000_000))
        assert (await client.answer()).status == 413
        [connection] = served.server.server_state.connections
        assert isinstance(connection, Connection)
        for _ in range(20):
            client.send(b" " * 1_000_000)
            await client.writer.drain()
            assert len(connection._body) == 0
        assert (await client.asks(by_name(NAMES)))["NodeNames"] == NAMES


async def test_a_head_without_end_is_refused(rig: Rig) -> None:
    async with serving(rig) as served:
        client = await served.connect()
        client.send(b"POST /v1/filter HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 900) for n in range(100)))
        assert (await client.answer()).status == 431
        assert await client.is_closed()
        assert (await served.asks_once(by_name(NAMES)))["NodeNames"] == NAMES


async def test_what_is_not_http_is_refused_in_one_line(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(rig) as served:
        for garbage in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GARBAGE\r\n\r\n",
            b"POST /\xff HTTP/1.1\r\n\r\n",
        ):
            client = await served.connect()
            client.send(garbage)
            assert (await client.reader.read()).startswith(b"HTTP/1.1 400 ")
            assert (await served.asks_once(by_name(NAMES)))["NodeNames"] == NAMES
    assert {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING} == {
        "Invalid HTTP request received."
    }
    assert not any(record.exc_info for record in caplog.records)
    caplog.clear()


@pytest.mark.parametrize("headers", [(), ("Connection: close",)], ids=["short-way", "ordinary-way"])
async def test_clients_that_go_in_the_middle_of_a_question_or_an_answer_leave_nothing(
    rig: Rig, headers: tuple[str, ...]
) -> None:
    names = [f"n{number}" for number in range(5000)]
    body = json.dumps(by_name(names)).encode()
    async with serving(rig) as served:
        for number in range(40):
            client = await served.connect()
            whole = post("/v1/filter", body, *headers)
            client.send(whole[: len(whole) * number // 40] if number % 2 else whole)
            if number % 2:
                await until(lambda: any(one._receiving for one in connections(served)))
            else:
                await asyncio.sleep(0)
            client.writer.transport.abort()
            await until(lambda: not connections(served))
        state = served.server.server_state
        await until(lambda: not state.connections and not state.tasks)
        gc.collect()
        assert [one for one in gc.get_objects() if isinstance(one, Connection)] == []
        assert (await served.asks_once(by_name(NAMES)))["NodeNames"] == NAMES


@pytest.mark.parametrize(
    "beginning",
    [
        b"POST /v1/fil",
        post("/v1/filter", QUESTION[:20], length=len(QUESTION)),
        post("/v1/filter", QUESTION[:20], "Connection: close", length=len(QUESTION)),
    ],
    ids=["head", "body", "ordinary-way"],
)
async def test_a_question_that_never_ends_is_given_up_and_holds_up_nobody(rig: Rig, beginning: bytes) -> None:
    async with serving(rig, read_seconds=0.5) as served:
        slow = await served.connect()
        slow.send(beginning)
        other = await served.connect()
        given_up = asyncio.create_task(slow.answer())
        calls = 0
        async with asyncio.timeout(20):
            while True:
                if given_up.done():
                    break
                slow.send(b"x" if beginning == b"POST /v1/fil" else b" ")
                assert (await other.asks(by_name(NAMES)))["NodeNames"] == NAMES
                calls += 1
                await asyncio.sleep(0.01)
        if given_up.exception() is None:
            assert given_up.result().status == 408
            assert await slow.is_closed()
        else:  # what was still being sent when the server closed
            assert isinstance(given_up.exception(), ConnectionError)
        assert calls > 1
        assert (await other.asks(by_name(NAMES)))["NodeNames"] == NAMES


async def test_300_connections_at_once_are_all_answered(rig: Rig) -> None:
    async with serving(rig) as served:
        clients = await asyncio.gather(*(served.connect() for _ in range(300)))
        answers = await asyncio.gather(*(client.asks(by_name(NAMES)) for client in clients))
        assert all(answer["NodeNames"] == NAMES for answer in answers)


async def test_a_client_that_never_reads_is_not_read_for_ever(rig: Rig) -> None:
    """Else its answers would pile up here: megabytes a second for a small stream of questions."""
    question = post("/v1/filter", json.dumps(by_name([f"node-{number:020}" for number in range(2000)])).encode())
    async with serving(rig) as served:
        greedy = await served.connect()
        transport = greedy.writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        await until(lambda: bool(connections(served)))
        [connection] = connections(served)
        sent = 0
        while not (connection.flow.read_paused and transport.get_write_buffer_size() > 10 * len(question)):
            greedy.send(question)
            sent += 1
            assert sent < 1000
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() < 100 * len(question)
        assert (await served.asks_once(by_name(NAMES)))["NodeNames"] == NAMES


async def test_when_it_is_leaving_each_answer_is_its_connections_last_and_it_is_not_ready(rig: Rig) -> None:
    async with serving(rig) as served:
        client, other = await served.connect(), await served.connect()
        assert (await client.asks(by_name(NAMES)))["NodeNames"] == NAMES
        served.desk.leaving = True
        client.send(post("/v1/filter", QUESTION))
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.is_closed()
        other.send(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await other.answer()
        assert (answer.status, answer.body) == (503, b"it is told to stop")


@pytest.mark.parametrize("cut", [5, 60, -5])
@pytest.mark.parametrize("headers", [(), ("Expect: 100-continue",)], ids=["short-way", "ordinary-way"])
async def test_what_has_begun_to_arrive_when_it_closes_is_answered(
    rig: Rig, cut: int, headers: tuple[str, ...]
) -> None:
    async with serving(rig) as served:
        idle, asking = await served.connect(), await served.connect()
        whole = post("/v1/filter", QUESTION, *headers)
        asking.send(whole[:cut])
        await until(lambda: any(one._receiving for one in connections(served)))
        served.server.should_exit = True
        assert await idle.is_closed()
        asking.send(whole[cut:])
        answer = await asking.answer()
        if answer.status == 100:
            answer = await asking.answer()
        assert answer.json["NodeNames"] == NAMES
        assert await asking.is_closed()
        await served.ended


def connections(served: Served) -> list[Any]:
    return list(served.server.server_state.connections)


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("filter", {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}}),
        ("prioritize", []),
        ("preempt", {"NodeNameToMetaVictims": {}}),
    ],
)
async def test_even_a_fault_of_ours_is_answered_in_the_protocols_form(
    rig: Rig, verb: str, answer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.state, "board", broken)
    async with serving(rig) as served:
        client = await served.connect()
        question = {**by_name(NAMES), "NodeNameToMetaVictims": {"n1": {}}}
        client.send(post(f"/v1/{verb}", json.dumps(question).encode()))
        said = (await client.answer()).json
        if verb == "filter":
            assert said.pop("Error") == "wholenode: the extender failed, its log says where"
        assert said == answer
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [f"{verb} failed"]
    caplog.clear()


async def test_a_head_is_not_charged_for_the_body_before_it(rig: Rig) -> None:
    big = QUESTION[:-1] + b" " * 70_000 + QUESTION[-1:]
    async with serving(rig) as served:
        client = await served.connect()
        second = post("/v1/filter", QUESTION)
        client.send(post("/v1/filter", big) + second[:20])
        assert (await client.answer()).status == 200
        client.send(second[20:])
        assert (await client.answer()).status == 200


async def test_each_question_has_its_own_time_to_arrive(rig: Rig) -> None:
    async with serving(rig, read_seconds=0.6) as served:
        client = await served.connect()
        whole = post("/v1/filter", QUESTION)
        client.send(whole[:50])
        for _ in range(8):
            await asyncio.sleep(0.1)  # in all more than one question may take
            client.send(whole[50:] + whole[:50])
            assert (await client.answer()).status == 200


async def test_a_question_that_was_too_large_gets_one_answer(rig: Rig) -> None:
    async with serving(rig, read_seconds=0.3, max_body_bytes=1000) as served:
        client = await served.connect()
        client.send(post("/v1/filter", b"x" * 10, length=5000))
        assert (await client.answer()).status == 413
        assert await client.is_closed()
