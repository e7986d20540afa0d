"""`python -m kwok.bench.echo PORT`: answers `POST /N` with N bytes and does nothing else; the rest is the client's."""

from __future__ import annotations

import socket
import sys

from kwok.bench.calls import HEADER_END, content_length

_BUFFER_BYTES = 4 * 1024 * 1024


def serve(port: int) -> None:
    """One connection at a time, until killed."""
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _answer(connection, buffer, view)


def _answer(connection: socket.socket, buffer: bytearray, view: memoryview) -> None:
    answers: dict[bytes, bytes] = {}
    while True:
        size, end, length = 0, -1, 0
        while end < 0 or size < end + length:
            got = connection.recv_into(view[size:])
            if got == 0:
                return
            size += got
            if end < 0 and (found := buffer.find(HEADER_END, 0, size)) >= 0:
                end = found + len(HEADER_END)
                length = content_length(bytes(view[:found]))
        path = bytes(view[: buffer.find(b" HTTP", 0, end)]).rpartition(b"/")[2]
        if path not in answers:
            answers[path] = b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\n\r\n" % path + b"x" * int(path)
        connection.sendall(answers[path])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
