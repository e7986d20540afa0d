"""`python -m kwok.soak`: the crash matrix and the race; figures go to `build/crash.json` and `build/race.json`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from kwok.admin import APIError
from kwok.bench.__main__ import machine
from kwok.bench.figures import Figures, write
from kwok.catalogue import KUBERNETES
from kwok.errors import LabError
from kwok.progress import Progress, duration
from kwok.soak import crash, race
from kwok.soak.lane import SETTINGS
from kwok.soak.verdict import Harm

CRASH, RACE = "crash", "race"
BAD: Mapping[str, tuple[str, ...]] = {CRASH: tuple(map(str, Harm)), RACE: ("wrong", "missing")}
"""Figures of each part that must be 0."""


async def run(part: str, options: argparse.Namespace) -> Figures:
    """One part's figures, with when and on what they were measured."""
    began, load = time.monotonic(), os.getloadavg()[0]
    progress = Progress()
    if part == CRASH:
        matrix = crash.Matrix(every=options.every, rounds=options.rounds, lanes=options.lanes, seed=options.seed)
        found = {**await crash.measure(matrix, progress.say), "settings": SETTINGS}
    else:
        found = await race.measure(race.Load(landings=options.landings, seed=options.seed), progress.say)
    return {
        **found,
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "load_average_before": round(load, 2),
        "versions": {"wholenode": version("wholenode"), "kubernetes": KUBERNETES},
        "machine": machine(),
    }


def told(part: str, found: Mapping[str, object]) -> str:
    """The part's figures in one line."""
    keys = ("runs", *BAD[CRASH], "not_reached") if part == CRASH else ("landings", *BAD[RACE], "flood_per_second")
    figures = ", ".join(f"{key} {found[key]}" for key in keys)
    return f"{part}: {figures} ({duration(float(str(found['seconds'])))})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if nothing was wrong, 1 if something was, 2 if the lab failed (one line says why)."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--only", choices=(CRASH, RACE), help="one of the two parts")
    parser.add_argument("--landings", type=int, default=1000, help="whole-node jobs of the race")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="kill at every k-th write only")
    parser.add_argument("--rounds", type=int, default=4, help="runs with each kind of spoiled write")
    parser.add_argument("--lanes", type=int, default=2, help="control planes of the crash matrix side by side")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("build"), metavar="DIRECTORY")
    options = parser.parse_args(arguments)
    if min(options.landings, options.every, options.rounds, options.lanes) < 1:
        parser.error("--landings, --every, --rounds and --lanes must be 1 or more")
    wrong, lines = False, []
    for part in (options.only,) if options.only else (CRASH, RACE):
        try:
            found = asyncio.run(run(part, options))
        except (LabError, APIError, TimeoutError) as error:
            print(f"soak: {part}: {error}", file=sys.stderr)
            return 2
        write(options.out / f"{part}.json", found)
        wrong = wrong or any(found[key] for key in BAD[part])
        lines.append(told(part, found))
    print("\n".join(lines))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
