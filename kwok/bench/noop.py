"""`python -m kwok.bench.noop PORT`: an extender that agrees to everything: what asking any Python extender costs.

No framework but the ASGI server; it reads nothing of a question but its node names, and hands them back as they are.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn
import uvloop

Message = MutableMapping[str, Any]


class _Args(msgspec.Struct, rename="pascal"):
    node_names: msgspec.Raw


_DECODER = msgspec.json.Decoder(_Args)


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Filter passes every node, prioritize scores none."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = b"[]" if scope["path"] == "/prioritize" else b"ok"
    if scope["path"] == "/filter":
        answer = b'{"NodeNames":%b}' % bytes(_DECODER.decode(body).node_names)
    length = str(len(answer)).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    """Serve until told to stop."""
    config = uvicorn.Config(
        app, port=int(sys.argv[1]), http="httptools", lifespan="off", access_log=False, log_level="error",
        timeout_keep_alive=120,
    )  # fmt: skip
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
