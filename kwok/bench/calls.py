"""A client that asks as kube-scheduler does: one call after the other, on one connection that is kept open."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from kwok.errors import LabError

HEADER_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_BUFFER_BYTES = 4 * 1024 * 1024
_TIMEOUT_SECONDS = 30.0


def content_length(head: bytes) -> int:
    """The length that the head of an HTTP message declares; 0 if it declares none."""
    for line in head.lower().split(b"\r\n")[1:]:
        if line.startswith(_LENGTH):
            return int(line[len(_LENGTH) :])
    return 0


def question(port: int, path: str, body: bytes) -> bytes:
    """The whole request, with the headers that Go's HTTP client sends."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    return head.encode("ascii") + body


def filter_bodies(pod: dict[str, Any], names: Sequence[str], count: int, seed: int) -> list[bytes]:
    """`count` bodies of ExtenderArgs, no two alike: another pod each, and the nodes in another order.

    kube-scheduler looks at nodes in parallel, in blocks, and names those that fit as they come.
    """
    source = random.Random(seed)
    block = max(1, round(len(names) ** 0.5))
    blocks = [names[start : start + block] for start in range(0, len(names), block)]
    bodies = []
    for number in range(count):
        neighbours = list(blocks)
        for index in range(len(neighbours) - 1):
            if source.random() < 0.5:  # noqa: PLR2004
                neighbours[index], neighbours[index + 1] = neighbours[index + 1], neighbours[index]
        uid = f"00000000-0000-4000-8000-{seed % 10**4:04d}{number:08d}"
        metadata = {**pod["metadata"], "name": f"{pod['metadata']['name']}-{number}", "uid": uid}
        metadata.pop("managedFields", None)  # kube-scheduler drops them from its cache
        args = {
            "Pod": {**pod, "metadata": metadata},
            "Nodes": None,
            "NodeNames": [name for some in neighbours for name in some],
        }
        bodies.append(msgspec.json.encode(args))
    return bodies


class Caller:
    """One connection to 127.0.0.1:`port`. Blocking."""

    def __init__(self, port: int) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self._socket.close()

    def call(self, request: bytes) -> tuple[float, bytes]:
        """Send a request as made by `question`; return seconds until the whole answer was there, and its body.

        Raises LabError unless the answer is 200 with a declared length.
        """
        began = time.perf_counter()
        self._socket.sendall(request)
        size = 0
        end = -1
        length = 0
        while end < 0 or size < end + length:
            got = self._socket.recv_into(self._view[size:])
            if got == 0:
                raise LabError("the server closed the connection in the middle of an answer")
            size += got
            if end < 0 and (found := self._buffer.find(HEADER_END, 0, size)) >= 0:
                end = found + len(HEADER_END)
                length = content_length(bytes(self._view[:found]))
        seconds = time.perf_counter() - began
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            raise LabError(f"the extender answered {bytes(self._view[:size])[:200]!r}")
        return seconds, bytes(self._view[end : end + length])

    def time(self, requests: Sequence[bytes], calls: int) -> list[float]:
        """Seconds of `calls` calls, the requests in turn."""
        return [self.call(requests[number % len(requests)])[0] for number in range(calls)]
