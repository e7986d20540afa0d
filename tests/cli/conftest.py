"""What the commands read: a saved picture, or an API server that answers from a table."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from cli.main import main
from cluster.dumps import write_dump
from fleet.view import View
from tests.fleet.builders import at, pod

Saved = Callable[[View], str]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Writes a picture, taken ten minutes after T0; gives the file's name."""

    def write(seen: View) -> str:
        path = tmp_path / "dump.json"
        path.write_bytes(write_dump(seen, at(600)))
        return str(path)

    return write


def run(command: str, *arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [command, *arguments], input=given)


def fails(done: Result, code: int, *words: str) -> None:
    """One clear line, after the usage if that was wrong; that exit code; no traceback."""
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    last: Sequence[str] = done.output.strip().splitlines()
    assert last[-1].startswith("Error: "), done.output
    if code == 1:
        assert len(last) == 1, done.output
    for word in words:
        assert word in last[-1]


class Server:
    """An HTTP server with the given answers by path: (status, body)."""

    def __init__(self, answers: Mapping[str, tuple[int, Any]]) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                asked.append(path)
                missing = {
                    "kind": "Status",
                    "message": "the server could not find it",
                    "reason": "NotFound",
                    "code": 404,
                }
                status, body = answers.get(path, (404, missing))
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client may have had enough
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Server] = []

    def start(answers: Mapping[str, tuple[int, Any]]) -> Server:
        servers.append(Server(answers))
        return servers[-1]

    yield start
    for one in servers:
        one.close()


@pytest.fixture
def cluster(serve: Any, tmp_path: Path) -> Any:
    """Start an API server; gives it and the options that lead to it."""

    def start(answers: Mapping[str, tuple[int, Any]]) -> tuple[Server, list[str]]:
        server = serve(answers)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return server, ["--kubeconfig", str(path)]

    return start


LISTS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis/batch/v1/jobs",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/wholenode.io/v1alpha1/gpupools",
    "/apis/wholenode.io/v1alpha1/drainagreements",
    "/apis/wholenode.io/v1alpha1/wholenodeclaims",
    "/api/v1/namespaces/team-v/events",
)


def everything(**lists: Any) -> dict[str, tuple[int, Any]]:
    """The whole cluster, empty but for the pod `p` and what is given by the last part of its path."""
    empty = {"metadata": {"resourceVersion": "1"}, "items": []}
    found: dict[str, tuple[int, Any]] = dict.fromkeys(LISTS, (200, empty))
    found["/api/v1/namespaces/team-v/pods/p"] = (200, msgspec.json.encode(pod("p", 2)))
    for path in LISTS:
        if (name := path.rsplit("/", 1)[1]) in lists:
            found[path] = (200, {"metadata": {"resourceVersion": "1"}, "items": msgspec.to_builtins(lists[name])})
    return found
