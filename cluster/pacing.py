"""How fast we write and how long we pause: a token bucket, a queue by rank, and jittered back-off."""

import asyncio
import contextlib
import heapq
import random
from collections.abc import AsyncIterator

_RANDOM = random.SystemRandom()


class TokenBucket:
    """Lets `burst` calls through at once and then `qps` a second, first come first served.

    Cancelling a waiting `take` gives its turn back to the others.
    """

    def __init__(self, qps: float, burst: int) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps must be above 0 and burst at least 1, not {qps} and {burst}")
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at: float | None = None
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        async with self._turn:
            missing = 1.0 - self._fill()
            if missing > 0:
                await asyncio.sleep(missing / self._qps)
                self._fill()
            self._tokens -= 1.0

    def _fill(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._filled_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
        self._filled_at = now
        return self._tokens


class Queue:
    """Lets `at_once` callers go on at the same time; of those that wait the lowest rank goes next, then who came first.

    Cancelling whoever waits gives the place to the next.
    """

    def __init__(self, at_once: int) -> None:
        if at_once < 1:
            raise ValueError(f"at_once must be at least 1, not {at_once}")
        self._free = at_once
        self._came = 0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def turn(self, rank: float) -> AsyncIterator[None]:
        """Wait for a place, and keep it as long as the block runs."""
        await self._enter(rank)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, rank: float) -> None:
        if self._free:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._came += 1
        heapq.heappush(self._waiting, (rank, self._came, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # it was just given the place that it does not want any more
            raise

    def _leave(self) -> None:
        """Hand the place over: it is never free while somebody waits."""
        while self._waiting:
            place = heapq.heappop(self._waiting)[2]
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


def backoff(failures: int, *, base_seconds: float, cap_seconds: float) -> float:
    """Seconds to pause after the n-th failure in a row (n from 1): doubling, capped, between half and whole of it."""
    whole: float = min(cap_seconds, base_seconds * 2.0 ** min(failures - 1, 16))
    return _RANDOM.uniform(whole / 2, whole)


def between(low: float, high: float) -> float:
    """A random number of the range, to spread what many would do at the same time."""
    return _RANDOM.uniform(low, high)
