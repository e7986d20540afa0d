"""Waiting for a place: how many go on at once, who is next, and what becomes of places that nobody wants any more."""

import asyncio

import pytest

from cluster.pacing import Queue


class Line:
    """Callers of one queue, each named by its rank; `inside` are those that have a place, in the order they got it."""

    def __init__(self, at_once: int) -> None:
        self.queue = Queue(at_once)
        self.inside: list[float] = []
        self.leave = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, *ranks: float) -> None:
        self.tasks += [asyncio.create_task(self._wait(rank)) for rank in ranks]
        await asyncio.sleep(0)

    async def _wait(self, rank: float) -> None:
        async with self.queue.turn(rank):
            self.inside.append(rank)
            await self.leave.wait()

    async def end(self) -> list[float]:
        """Let everybody go on; the order in which places were given."""
        self.leave.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return self.inside


async def test_no_more_than_so_many_go_on_at_once() -> None:
    line = Line(2)
    await line.come(1, 1, 1)
    assert len(line.inside) == 2
    assert len(await line.end()) == 3


async def test_the_lowest_rank_is_next_and_of_equals_who_came_first() -> None:
    line = Line(1)
    await line.come(5)
    await line.come(3.5, 3, 9, 3.5)
    assert await line.end() == [5, 3, 3.5, 3.5, 9]


async def test_a_place_is_not_lost_with_whoever_is_cancelled() -> None:
    line = Line(1)
    await line.come(1, 2, 3)
    line.tasks[1].cancel()
    await asyncio.sleep(0)
    assert await line.end() == [1, 3]
    await line.come(4)
    assert line.inside == [1, 3, 4]


async def test_who_is_cancelled_when_just_given_the_place_hands_it_on() -> None:
    line = Line(1)
    await line.come(1, 2, 3)
    line.leave.set()
    await asyncio.sleep(0)  # the first has left, the second has its place and has not gone on yet
    line.tasks[1].cancel()
    assert await line.end() == [1, 3]


async def test_an_error_inside_gives_the_place_back() -> None:
    queue = Queue(1)
    with pytest.raises(ValueError, match="no"):
        async with queue.turn(0):
            raise ValueError("no")
    async with asyncio.timeout(1), queue.turn(0):
        pass


def test_a_queue_without_places_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Queue(0)
