"""The first of many things, in a given order, that can be had together."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")

_MOST_TRIES = 2000
"""More is not worth a pass of the controller: the answer may change before the next one."""


def first_together(
    things: Sequence[Thing], count: int, fits: Callable[[Sequence[Thing]], bool]
) -> tuple[Thing, ...] | None:
    """`count` things that fit together: those that come first in order, compared one by one. None if none are found.

    What does not fit must not do so with one thing more either. Given up after 2000 questions.
    """
    chosen: list[int] = []
    following = tries = 0
    while len(chosen) < count:
        if len(things) - following < count - len(chosen):
            if not chosen:
                return None
            following = chosen.pop() + 1
            continue
        tries += 1
        if tries > _MOST_TRIES:
            return None
        if fits([things[index] for index in (*chosen, following)]):
            chosen.append(following)
        following += 1
    return tuple(things[index] for index in chosen)
