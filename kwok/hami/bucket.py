"""The rate limit of a Kubernetes client: tokens that fill up evenly, a burst at the start, first come first served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Bucket:
    """`per_second` tokens, at most `burst` kept; whoever finds none waits for the next that nobody waits for yet."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Full at first. Raises ValueError for a rate or burst that lets nothing through."""
        if per_second <= 0 or burst < 1:
            raise ValueError("a client needs a rate above 0 and a burst of at least 1")
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def reserve(self) -> float:
        """Take the next free token, now or to come; the seconds until it may be used."""
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._per_second) - 1
        self._at = now
        return max(0.0, -self._tokens / self._per_second)

    async def take(self) -> None:
        """Wait for a token."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)
