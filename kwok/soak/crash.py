"""The crash matrix: a drain of three nodes, the controller killed at each of its writes, and writes spoiled."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kwok.bench.figures import Figures, spread
from kwok.faults import Trouble
from kwok.soak.lane import Case, Lane, Outcome, lane
from kwok.soak.story import Ending
from kwok.soak.verdict import Harm

_HITS = {Trouble.RESTART: 1, Trouble.PAUSE: 2}
_USUAL_HITS = 3
_SHOWN_PROBLEMS = 50


@dataclass(frozen=True)
class Matrix:
    """How much of it is run.

    every: kill at every k-th write only (from the first on). rounds: runs with each kind of trouble, and as many with
    all kinds mixed; the writes they meet are drawn with `seed`. lanes: control planes side by side. endings: which
    runs are killed.
    """

    every: int = 1
    rounds: int = 4
    lanes: int = 2
    seed: int = 7
    endings: tuple[Ending, ...] = tuple(Ending)
    kinds: tuple[Trouble, ...] = tuple(Trouble)


def kills(ending: Ending, points: int, every: int = 1) -> Iterator[Case]:
    """A kill at every k-th of so many writes: right after it was stored, and right before it is sent."""
    for stored in (True, False):
        scenario = f"killed {'after' if stored else 'before'} a write, {ending}"
        for number in range(1, points + 1, every):
            yield Case(scenario, ending, kill_at=number, stored=stored)


def troubles(points: int, kinds: Sequence[Trouble], rounds: int, seed: int) -> Iterator[Case]:
    """Writes drawn at random that meet one kind of trouble each run, and runs in which all kinds are mixed."""
    source = random.Random(seed)
    for kind in kinds:
        for _ in range(rounds):
            yield Case(str(kind), troubles=dict.fromkeys(_draw(source, points, _HITS.get(kind, _USUAL_HITS)), kind))
    mixed = [kind for kind in kinds if kind is not Trouble.RESTART]
    for _ in range(rounds if len(mixed) > 1 else 0):
        yield Case("mixed", troubles={number: source.choice(mixed) for number in _draw(source, points, 5)})


def _draw(source: random.Random, points: int, hits: int) -> list[int]:
    return sorted(source.sample(range(1, points + 1), min(hits, points)))


async def measure(matrix: Matrix, say: Callable[[str], None]) -> Figures:
    """Count the writes, run the matrix, and give its figures."""
    async with contextlib.AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(lane(f"crash-{index}")) for index in range(matrix.lanes)]
        counted = [await lanes[0].play(Case(f"undisturbed, {ending}", ending)) for ending in Ending]
        points = {one.case.ending: one.kill_points for one in counted}
        cases = [
            *(case for ending in matrix.endings for case in kills(ending, points[ending], matrix.every)),
            *troubles(points[Ending.LANDED], matrix.kinds, matrix.rounds, matrix.seed),
        ]
        say(f"soak: {points[Ending.LANDED]} writes to land, {points[Ending.GIVEN_UP]} to give up; {len(cases)} runs")
        outcomes = counted + await _spread_over(lanes, cases, say)
    return {**summary(outcomes), "writes": {str(one.case.ending): dict(one.writes) for one in counted}}


async def _spread_over(lanes: Sequence[Lane], cases: Iterable[Case], say: Callable[[str], None]) -> list[Outcome]:
    waiting, found = list(reversed(list(cases))), list[Outcome]()

    async def work(one: Lane) -> None:
        while waiting:
            found.append(await one.play(waiting.pop()))
            for problem in found[-1].problems:
                say(f"soak: {name(found[-1].case)}: {problem.harm}: {problem.text}")
            if len(found) % 20 == 0:
                say(f"soak: {len(found)} runs done, {len(waiting)} to go")

    async with asyncio.TaskGroup() as group:
        for one in lanes:
            group.create_task(work(one))
    return found


def name(case: Case) -> str:
    """The case, for people."""
    if case.kill_at is not None:
        return f"{case.scenario}: write {case.kill_at}"
    return f"{case.scenario}: {', '.join(f'write {at} {kind}' for at, kind in case.troubles.items())}".rstrip(": ")


def summary(outcomes: Sequence[Outcome]) -> Figures:
    """The figures of all runs, and of each scenario: how many runs did harm of each kind."""
    by_scenario: dict[str, list[Outcome]] = {}
    for one in outcomes:
        by_scenario.setdefault(one.case.scenario, []).append(one)
    problems = [f"{name(one.case)}: {found.harm}: {found.text}" for one in outcomes for found in one.problems]
    tally: Counter[str] = Counter()
    for one in outcomes:
        tally.update(one.tally)
    return {
        **_counts(outcomes),
        "scenarios": {scenario: _counts(found) for scenario, found in by_scenario.items()},
        "controller_starts": sum(one.starts for one in outcomes),
        "run_seconds": spread([one.seconds for one in outcomes], 1),
        "seen": dict(tally),
        "problems": problems[:_SHOWN_PROBLEMS],
    }


def _counts(outcomes: Sequence[Outcome]) -> Mapping[str, int]:
    """`not_reached`: runs that ended before the write that was to be hit."""
    harms = Counter(harm for one in outcomes for harm in {found.harm for found in one.problems})
    return {
        "runs": len(outcomes),
        **{str(harm): harms[harm] for harm in Harm},
        "not_reached": sum(not one.reached for one in outcomes),
    }
