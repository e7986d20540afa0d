"""What one pass leaves to the next: answers that follow from single objects alone, kept while these are the same."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """Answers by key, each with the sources it was worked out from. What a whole pass has not asked for is forgotten.

    Sources are values that never change: a changed object of the API server is another object. Nothing but the sources
    may go into an answer, least of all the time; so whoever has a memory gets the same answers as who has none.
    """

    def __init__(self) -> None:
        self._lately: dict[Hashable, tuple[tuple[object, ...], Any]] = {}
        self._before: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def turn(self) -> None:
        """Begin a pass."""
        self._before, self._lately = self._lately, {}

    def recall(self, key: Hashable, work: Callable[..., T], *sources: object) -> T:
        """`work(*sources)`, which is done only if the sources of the answer that is known are others."""
        known = self._lately.get(key) or self._before.get(key)
        if known is None or known[0] != sources:
            known = sources, work(*sources)
        self._lately[key] = known
        answer: T = known[1]
        return answer

    def __len__(self) -> int:
        return len(self._before.keys() | self._lately.keys())
