"""What can befall a program's requests to the API server: decided at a proxy (kwok.faultproxy), request by request.

A `Fault` is asked before a request is sent and after its answer came: so a controller can be killed right before its
n-th write is sent, or right after it was stored and before it knows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aiohttp import web


class Kind(StrEnum):
    """What a request is: only those of kind WRITE carry a number."""

    READ = "read"
    WATCH = "watch"
    WRITE = "write"
    UPKEEP = "upkeep"
    """The status of a pool or an agreement: kept true every two seconds, whatever else goes on."""
    LEASE = "lease"
    EVENT = "event"


def kind_of(method: str, path: str, query: Mapping[str, str]) -> Kind:
    """What a request is, by method, path and query."""
    parts = path.strip("/").split("/")
    if method in {"GET", "HEAD", "OPTIONS"}:
        return Kind.WATCH if query.get("watch") in {"1", "true"} else Kind.READ
    if "coordination.k8s.io" in parts:
        return Kind.LEASE
    if "events" in parts:
        return Kind.EVENT
    if parts[-1] == "status" and ("gpupools" in parts or "drainagreements" in parts):
        return Kind.UPKEEP
    return Kind.WRITE


@dataclass
class Call:
    """One request of the program. `number` counts its writes from 1; `status` is the API server's, 0 without one."""

    kind: Kind
    method: str
    path: str
    body: bytes
    number: int = 0
    status: int = 0
    at: float = 0.0
    """Time of the loop when it came."""

    @property
    def stored(self) -> bool:
        """Whether the API server took it."""
        return 200 <= self.status < 300  # noqa: PLR2004

    @property
    def evicts(self) -> bool:
        """Whether it asks for an eviction."""
        return self.method == "POST" and self.path.endswith("/eviction")

    @property
    def evicted_uid(self) -> str:
        """UID of the pod that an eviction names."""
        options = json.loads(self.body).get("deleteOptions") or {}
        return str((options.get("preconditions") or {}).get("uid", ""))


class Fault:
    """Spoils nothing; others override what they spoil."""

    async def before(self, call: Call) -> web.Response | None:
        """Asked before the request is sent on: an answer instead of the API server's, or None."""
        del call
        return None

    async def after(self, call: Call) -> bool:
        """Asked when the API server has answered: whether the program gets to hear it, or its connection is cut."""
        del call
        return True


def refusal(
    code: int,
    reason: str,
    message: str,
    *,
    retry_after: int | None = None,
    cause: tuple[str, str] | None = None,
) -> web.Response:
    """An answer as the API server gives it: a Status, with `Retry-After` (seconds) and a cause (reason, message)."""
    details: dict[str, Any] = {}
    if cause is not None:
        details["causes"] = [{"reason": cause[0], "message": cause[1]}]
    if retry_after is not None:
        details["retryAfterSeconds"] = retry_after
    body = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code, "details": details,
    }  # fmt: skip
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response(body, status=code, headers=headers)


class Kill(Fault):
    """Calls `kill` at the write of that number: right after it was stored, or right before it is sent."""

    def __init__(self, number: int, kill: Callable[[], None], *, stored: bool) -> None:
        self.fired = asyncio.Event()
        self._number = number
        self._kill = kill
        self._stored = stored

    async def before(self, call: Call) -> web.Response | None:
        """Nobody is there any more for the answer that is given instead."""
        return None if self._stored or not self._strike(call) else refusal(503, "ServiceUnavailable", "killed")

    async def after(self, call: Call) -> bool:
        """Kill, and let nobody hear of it."""
        return not (self._stored and self._strike(call))

    def _strike(self, call: Call) -> bool:
        if self.fired.is_set() or call.number != self._number:
            return False
        self.fired.set()
        self._kill()
        return True


class Refuse(Fault):
    """Answers calls that `matches` by itself, the first `times` of them (None: all)."""

    def __init__(
        self, matches: Callable[[Call], bool], answer: Callable[[], web.Response], times: int | None = None
    ) -> None:
        self.refused: list[Call] = []
        self._matches = matches
        self._answer = answer
        self._times = times

    async def before(self, call: Call) -> web.Response | None:
        """The answer, while there are any left."""
        if not self._matches(call) or (self._times is not None and len(self.refused) >= self._times):
            return None
        self.refused.append(call)
        return self._answer()


class Before(Fault):
    """Has `act` done right before the first call that `matches` is sent on: what others do at the worst moment."""

    def __init__(self, matches: Callable[[Call], bool], act: Callable[[], Awaitable[object]]) -> None:
        self.acted = False
        self._matches = matches
        self._act = act

    async def before(self, call: Call) -> web.Response | None:
        """Nothing is spoiled."""
        if not self.acted and self._matches(call):
            self.acted = True
            await self._act()
        return None


class Trouble(StrEnum):
    """What can befall a write."""

    CONFLICT = "409"
    THROTTLED = "429"
    THROTTLED_BARE = "429 without Retry-After"
    SERVER_ERROR = "500"
    PAUSE = "5 s pause"
    LOST_ANSWER = "answer lost"
    WATCH_GAP = "410 watch gap"
    RESTART = "API server restart"


class Troubles(Fault):
    """Lets each write of these numbers meet its trouble; the callbacks are called once the write is stored."""

    def __init__(
        self,
        at: Mapping[int, Trouble],
        expire_watches: Callable[[], None],
        restart: Callable[[], None],
        pause_seconds: float = 5.0,
    ) -> None:
        self.met: list[tuple[Call, Trouble]] = []
        self._at = dict(at)
        self._expire_watches = expire_watches
        self._restart = restart
        self._pause_seconds = pause_seconds

    async def before(self, call: Call) -> web.Response | None:
        """The refusal, or a pause."""
        match self._at.get(call.number) if call.kind is Kind.WRITE else None:
            case Trouble.CONFLICT:
                answer = refusal(409, "Conflict", "the object has been modified")
            case Trouble.THROTTLED:
                answer = refusal(429, "TooManyRequests", "too many requests, please try again later", retry_after=1)
            case Trouble.THROTTLED_BARE:
                answer = refusal(429, "TooManyRequests", "too many requests")
            case Trouble.SERVER_ERROR:
                answer = refusal(500, "InternalError", "an internal error has occurred")
            case Trouble.PAUSE:
                self.met.append((call, Trouble.PAUSE))
                await asyncio.sleep(self._pause_seconds)
                return None
            case _:
                return None
        self.met.append((call, self._at[call.number]))
        return answer

    async def after(self, call: Call) -> bool:
        """What happens once the write is stored."""
        trouble = self._at.get(call.number) if call.kind is Kind.WRITE else None
        if trouble not in {Trouble.LOST_ANSWER, Trouble.WATCH_GAP, Trouble.RESTART}:
            return True
        self.met.append((call, trouble))
        if trouble is Trouble.WATCH_GAP:
            self._expire_watches()
        elif trouble is Trouble.RESTART:
            self._restart()
        return trouble is not Trouble.LOST_ANSWER
