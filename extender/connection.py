"""One HTTP connection: the scheduler's verbs are answered where their last byte is read, all else by the application.

The way around (a task, a scope, routing, request and response objects) costs several times what the answer itself
does, and kube-scheduler waits for each answer before it looks at the next pod. So POSTs of the verbs' paths are taken
from the parser directly; whatever is unusual about one (an expectation, an upgrade, HTTP/1.0, a request before it
that is not answered yet) sends it the ordinary way, which knows the same verbs.
"""

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from extender.verbs import Desk, Verb

_MAX_HEAD_BYTES: Final = 65_536
_TIMEOUT: Final = 408
_TOO_LARGE: Final = 413
_HEAD_TOO_LARGE: Final = 431
_TYPES: Final = {200: b"application/json"}
_TEXT: Final = b"text/plain; charset=utf-8"


def connections_to(desk: Desk, *, verbs: bool = True) -> type["Connection"]:
    """The protocol class to give to uvicorn as `http`; without `verbs` for an application that does not know them."""

    class Connected(Connection):
        pass

    Connected.desk = desk
    Connected.by_url = {path.encode(): verb for path, verb in desk.verbs.items() if verbs}
    return Connected


class Connection(HttpToolsProtocol):
    """Counts on the parser's callbacks coming in the order of the protocol; nothing here waits."""

    desk: ClassVar[Desk]
    by_url: ClassVar[dict[bytes, Verb]]

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._verb: Verb | None = None
        self._body: bytes | bytearray = b""
        self._head_size = 0
        self._ended = False
        self._receiving = False
        self._refused = False
        self._last = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_next()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_clock()
        self._verb = None
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._ended = False
        super().data_received(data)
        if not self._receiving:
            if self._deadline is not None:
                self._stop_clock()
        elif not self.transport.is_closing():
            if self._deadline is None:
                self._deadline = self.loop.call_later(self.desk.read_seconds, self._too_slow)
            if self._head_size >= 0 and not self._ended:
                self._head_size += len(data)
                if self._head_size > _MAX_HEAD_BYTES:
                    self._refuse(_HEAD_TOO_LARGE, f"a request's head may have {_MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving = True
        self._refused = False
        self._head_size = 0
        self._stop_clock()

    def on_headers_complete(self) -> None:
        self._head_size = -1
        verb = self.by_url.get(self.url)
        if verb is None or not self._is_plain():
            super().on_headers_complete()
            return
        self._verb = verb
        self._body = b""
        for name, value in self.headers:
            if name == b"content-length" and int(value) > self.desk.max_body_bytes:
                self._refuse_body()

    def on_body(self, body: bytes) -> None:
        if self._verb is None:
            super().on_body(body)
        elif not self._refused:
            if len(self._body) + len(body) > self.desk.max_body_bytes:
                self._refuse_body()
            elif self._body:
                self._body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
                self._body += body
            else:
                self._body = body

    def on_message_complete(self) -> None:
        self._receiving = False
        self._ended = True  # what else is in the packet is not all the next one's head
        verb, self._verb = self._verb, None
        if verb is None:
            super().on_message_complete()
            return
        if not self._refused and not self.transport.is_closing():
            body, self._body = self._body, b""
            self._answer(*verb(bytes(body)))
        self._wait_for_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._last and not self._receiving:
            self.transport.close()

    def pause_writing(self) -> None:
        """A client that does not read its answers is not read either: they would pile up here."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    def shutdown(self) -> None:
        """Close when nothing is under way; what has begun to arrive is read and answered first."""
        self._last = True
        if not self._receiving or self._is_busy():
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it never reads: closing would wait for that
        else:
            super().timeout_keep_alive_handler()

    def _is_busy(self) -> bool:
        """Whether the application is still at work on an earlier request."""
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def _is_plain(self) -> bool:
        return (
            self.parser.get_method() == b"POST"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and self.parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not self._is_busy()
        )

    def _answer(self, status: int, body: bytes) -> None:
        closing = self._last or self.desk.leaving
        head = [STATUS_LINE[status]]
        for name, value in self.server_state.default_headers:
            head += (name, b": ", value, b"\r\n")
        head += (b"content-type: ", _TYPES.get(status, _TEXT), b"\r\n")
        if closing:
            head.append(b"connection: close\r\n")
        head += (b"content-length: %d\r\n\r\n" % len(body), body)
        self.transport.write(b"".join(head))
        self.server_state.total_requests += 1
        if closing:
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        """An answer of our own, and the end of the connection."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self._last = True
            self._answer(status, text.encode())
        self.transport.close()

    def _refuse_body(self) -> None:
        """The rest is read and dropped, so that the client gets to read the answer."""
        self._refused = True
        self._body = b""
        self._answer(_TOO_LARGE, f"a request may have {self.desk.max_body_bytes} bytes".encode())

    def _too_slow(self) -> None:
        self._deadline = None
        if self._refused:
            self.transport.close()  # it has its answer
            return
        self._refuse(_TIMEOUT, f"a request may take {self.desk.read_seconds:g} s to arrive")

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _wait_for_next(self) -> None:
        if not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
