"""How fast we write and how long we pause: a token bucket and jittered back-off."""

import asyncio
import random

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


def backoff(failures: int, *, base_seconds: float, cap_seconds: float) -> float:
    """Seconds to pause after the n-th failure in a row (n from 1): doubling, capped, between half and whole of it."""
    whole: float = min(cap_seconds, base_seconds * 2.0 ** min(failures - 1, 16))
    return _RANDOM.uniform(whole / 2, whole)


def between(low: float, high: float) -> float:
    """A random number of the range, to spread what many would do at the same time."""
    return _RANDOM.uniform(low, high)
