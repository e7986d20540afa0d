"""Asking a node's own probe whether its cards are free: GET, answered by `{"empty": true|false, "reason": "..."}`.

What the probe looks at (processes on the cards, driver state) is its own business; a DaemonSet on the GPU nodes is the
usual place for it. Everything but a readable "empty" means: not proved.
"""

import string
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from fleet.actions import ProbeResult
from fleet.objects import Node

_MOST_BYTES: Final = 16 * 1024
_MOST_WORDS: Final = 200
_FIELDS: Final = frozenset({"node", "address"})
_OK: Final = 200


class _Answer(msgspec.Struct):
    empty: bool
    reason: str = ""


_DECODER: Final = msgspec.json.Decoder(_Answer)


def check_template(template: str) -> str:
    """The template of a probe's address, if it is one. Raises ValueError, which says what to write."""
    example = "write it like http://{address}:9400/empty or https://probes.example/{node}"
    try:
        names = {name for _, name, spec, turn in string.Formatter().parse(template) if name is not None or spec or turn}
        parts = urlsplit(template.format(node="n", address="192.0.2.1"))
        host = parts.hostname
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"{template!r} is not the address of a probe: {error}; {example}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ValueError(f"{template!r} is not an HTTP address; {example}")
    if not names or names - _FIELDS:
        raise ValueError(f"{template!r} must name the node by {{node}} or {{address}}, and nothing else; {example}")
    return template


class Prober:
    """Asks the probes that `template` leads to: `{node}` is the node's name, `{address}` its InternalIP."""

    def __init__(self, template: str, timeout_seconds: float) -> None:
        self._template = template
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def ask(self, node: Node) -> ProbeResult:
        """What the probe says. Never raises: one that cannot be asked or understood has not said "empty"."""
        at = datetime.now(UTC)
        url = self._url(node)
        if url is None:
            return ProbeResult(at, empty=False, reason="the node reports no InternalIP to reach its probe at")
        try:
            answer = _DECODER.decode(await self._get(url))
        except (aiohttp.ClientError, OSError, ValueError, msgspec.DecodeError) as error:
            return ProbeResult(at, empty=False, reason=f"the probe at {url} gave no usable answer: {_why(error)}")
        reason = " ".join(answer.reason.split())[:_MOST_WORDS]
        return ProbeResult(at, answer.empty, reason or ("" if answer.empty else "it gives no reason"))

    async def _get(self, url: str) -> bytes:
        async with (
            aiohttp.ClientSession(timeout=self._timeout, trust_env=False) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "application/json"}) as response,
        ):
            if response.status != _OK:
                raise ValueError(f"HTTP status {response.status}")
            body = await response.content.read(_MOST_BYTES + 1)
            while len(body) <= _MOST_BYTES and (more := await response.content.read(_MOST_BYTES)):
                body += more
            if len(body) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
            return body

    def _url(self, node: Node) -> str | None:
        address = next((one.address for one in node.status.addresses or () if one.type == "InternalIP"), None)
        if "{address}" in self._template and address is None:
            return None
        host = f"[{address}]" if address and ":" in address else (address or "")
        return self._template.format(node=quote(node.metadata.name, safe=""), address=host)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (" ".join(str(error).split()) or type(error).__name__)[:_MOST_WORDS]
