"""The HTTP client against a local server: errors by kind, retries of reads, none of writes, streams, credentials."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster import client as client_module
from cluster import errors
from cluster.client import Api, connect
from cluster.credentials import CredentialsError
from cluster.pacing import TokenBucket, backoff
from tests.cluster.virtual_time import run

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kubeconfig(folder: Path, server: str, user: dict[str, object] | None = None) -> str:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


@contextlib.asynccontextmanager
async def talking_to(folder: Path, handler: Handler, user: dict[str, object] | None = None) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server, connect(kubeconfig(folder, str(server.make_url("")), user)) as api:
        yield api


def status(code: int, message: str, reason: str = "", cause: str = "", **headers: str) -> web.Response:
    details = {"causes": [{"reason": cause}]} if cause else {}
    body = {"kind": "Status", "code": code, "message": message, "reason": reason, "details": details}
    return web.json_response(body, status=code, headers=headers)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda: status(404, "no"), errors.NotFound),
        (lambda: status(409, "changed", "Conflict"), errors.Conflict),
        (lambda: status(409, "there", "AlreadyExists"), errors.AlreadyExists),
        (lambda: status(403, "rbac", "Forbidden"), errors.Forbidden),
        (lambda: status(403, "going", "Forbidden", "NamespaceTerminating"), errors.NamespaceTerminating),
        (lambda: status(401, "who"), errors.Forbidden),
        (lambda: status(422, "spec.nodes: too small"), errors.Invalid),
        (lambda: status(429, "slow down"), errors.Throttled),
        (lambda: status(429, "budget", "TooManyRequests", "DisruptionBudget"), errors.DisruptionBudgetRefused),
        (lambda: status(500, "This pod has more than one PodDisruptionBudget, which ..."), errors.SeveralBudgets),
        (lambda: status(500, "etcd"), errors.Unavailable),
        (lambda: web.Response(status=503, text="<html>upstream</html>"), errors.Unavailable),
        (lambda: status(410, "old"), errors.Expired),
        (lambda: web.Response(status=302, headers={"Location": "http://elsewhere/"}), errors.ClusterError),
    ],
)
async def test_each_refusal_of_a_write_has_its_own_error_and_is_sent_once(
    tmp_path: Path, answer: Callable[[], web.Response], expected: type[errors.ClusterError]
) -> None:
    calls = []

    async def handler(request: web.Request) -> web.Response:
        calls.append(request.path)
        return answer()

    async with talking_to(tmp_path, handler) as api:
        with pytest.raises(errors.ClusterError, match="POST /api/v1/x") as raised:
            await api.create("/api/v1/x", {})
    assert type(raised.value) is expected
    assert calls == ["/api/v1/x"]


async def test_d17_retry_after_is_kept_with_the_error(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return status(429, "slow down", **{"Retry-After": "3"})

    async with talking_to(tmp_path, handler) as api:
        with pytest.raises(errors.Throttled) as raised:
            await api.create("/api/v1/x", {})
    assert raised.value.retry_after_seconds == 3


async def test_c12_reads_are_repeated_when_the_server_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "backoff", lambda *_, **__: 0.0)
    answers = [web.Response(status=503), status(429, "slow", **{"Retry-After": "0"}), web.Response(body=b"{}")]

    async def handler(request: web.Request) -> web.Response:
        return answers.pop(0)

    async with talking_to(tmp_path, handler) as api:
        assert await api.get("/api/v1/x") == b"{}"
    assert answers == []


async def test_reads_give_up_after_four_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "backoff", lambda *_, **__: 0.0)
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=500)

    async with talking_to(tmp_path, handler) as api:
        with pytest.raises(errors.Unavailable):
            await api.get("/api/v1/x")
    assert calls == 4


async def test_a_refused_connection_is_unavailable_in_one_line(tmp_path: Path) -> None:
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:9")) as api:
        with pytest.raises(errors.Unavailable) as raised:
            await api.create("/api/v1/x", {})
    assert "\n" not in str(raised.value)


async def test_patches_name_their_kind_and_the_token_is_sent(tmp_path: Path) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(
            (request.method, request.headers["Content-Type"], request.headers["Authorization"], await request.text())
        )
        return web.Response(body=b"{}")

    async with talking_to(tmp_path, handler, {"token": "s3cret"}) as api:
        await api.patch("/x", {"a": 1}, "merge")
        await api.patch("/x", {"a": 1}, "strategic")
        await api.patch("/x", [{"op": "test"}], "json")
        await api.delete("/x", uid="u")
    assert [(method, kind) for method, kind, _, _ in seen] == [
        ("PATCH", "application/merge-patch+json"),
        ("PATCH", "application/strategic-merge-patch+json"),
        ("PATCH", "application/json-patch+json"),
        ("DELETE", "application/json"),
    ]
    assert {token for _, _, token, _ in seen} == {"Bearer s3cret"}
    assert '"preconditions":{"uid":"u"}' in seen[-1][3]


async def test_o10_proxies_of_the_environment_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"{}")

    async with talking_to(tmp_path, handler) as api:
        assert await api.get("/api/v1/x") == b"{}"


async def stream_of(tmp_path: Path, handler: Handler) -> tuple[list[bytes], errors.ClusterError | None]:
    lines: list[bytes] = []
    async with talking_to(tmp_path, handler) as api:
        try:
            async with contextlib.aclosing(api.stream("/api/v1/x", {"watch": "true"})) as stream:
                async for line in stream:
                    lines.append(line)  # noqa: PERF401 (what came before an error counts)
        except errors.ClusterError as error:
            return lines, error
    return lines, None


async def test_lines_of_a_watch_are_whole_however_they_are_cut_up(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b'{"a"', b":1}\n{", b'"b":2}\n\n', b"x" * 300_000, b"\n", b"never finished"):
            await response.write(part)
        return response

    assert await stream_of(tmp_path, handler) == ([b'{"a":1}', b'{"b":2}', b"x" * 300_000], None)


async def test_a_cut_watch_is_unavailable_and_what_came_before_is_kept(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    lines, error = await stream_of(tmp_path, handler)
    assert lines == [b"one"]
    assert isinstance(error, errors.Unavailable)


async def test_c07_a_silent_watch_ends_as_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = client_module.aiohttp.ClientTimeout(total=None, connect=10, sock_read=0.05)
    monkeypatch.setattr(client_module, "_STREAM_TIMEOUT", quick)
    over = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await over.wait()
        return response

    async with talking_to(tmp_path, handler) as api:
        stream = api.stream("/api/v1/x", {})
        assert await anext(stream) == b"one"
        with pytest.raises(errors.Unavailable, match=r"no answer in time|timeout"):
            await anext(stream)
        over.set()


async def test_a_watch_refused_with_410_is_expired(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return status(410, "too old resource version", "Expired")

    lines, error = await stream_of(tmp_path, handler)
    assert lines == []
    assert isinstance(error, errors.Expired)


@pytest.mark.parametrize(
    "text",
    [None, "not: [yaml", "a: b", "", "root:x:0"],
    ids=["missing", "broken", "no-context", "empty", "words"],
)
async def test_an_unusable_kubeconfig_is_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CredentialsError) as raised:
        async with connect(str(path)):
            pass
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_token_bucket_lets_a_burst_through_and_then_keeps_the_rate() -> None:
    async def play() -> None:
        bucket = TokenBucket(qps=10, burst=5)
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(bucket.take() for _ in range(5)))
        assert loop.time() == 0
        await asyncio.gather(*(bucket.take() for _ in range(20)))
        assert loop.time() == pytest.approx(2.0)

    run(play())


def test_back_off_doubles_up_to_its_cap_and_is_spread() -> None:
    for failures, whole in ((1, 0.2), (2, 0.4), (5, 3.2), (6, 5), (1000, 5)):
        seen = {backoff(failures, base_seconds=0.2, cap_seconds=5) for _ in range(50)}
        assert all(whole / 2 <= one <= whole for one in seen)
        assert len(seen) > 1
