"""`python -m kwok.experiments NAME`: run one experiment and write what it found to `build/experiments/NAME.json`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kwok.admin import APIError
from kwok.bench.__main__ import machine
from kwok.bench.figures import Figures, read, write
from kwok.catalogue import KUBERNETES, module_of
from kwok.errors import LabError
from kwok.experiments.options import Options
from kwok.hami.run import REAL
from kwok.progress import Progress, duration

EXPERIMENTS: Mapping[str, str] = {
    "defaults": "four default settings that leave cards unused, before and after the fix that `wholenode doctor` names",
    "sidebyside": "whole-node jobs on a full fleet: Kueue's reclaim, Kueue with topology, wholenode behind Kueue",
    "outages": "Kueue, HAMi, scheduler, extender and controller killed in turn while whole-node jobs come in",
}


async def run(name: str, options: Options) -> None:
    """Run it; every part that it yields is in the file before the next one begins."""
    measure = importlib.import_module(f"kwok.experiments.{name}").measure
    began, load = time.monotonic(), round(os.getloadavg()[0], 2)
    async for found in measure(options):
        took: Figures = {"seed": options.seed, "repetitions": options.repetitions, "load_average_before": load}
        hami = "as named by " + REAL if os.environ.get(REAL) else "the stand-in"
        versions = {"kubernetes": KUBERNETES, "kueue": module_of("kueue").version, "hami": hami}
        took |= {"took_s": round(time.monotonic() - began, 1), "machine": machine(), "versions": versions}
        write(options.out, {**read(options.out), **found, "run": took})


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 if the lab failed (one line says why)."""
    parser = argparse.ArgumentParser(prog="experiments", description=__doc__)
    told = "; ".join(f"{name}: {text}" for name, text in EXPERIMENTS.items())
    parser.add_argument("name", metavar="NAME", choices=list(EXPERIMENTS), help=told)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="only parts whose names contain it")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="default: build/experiments/NAME.json")
    given = parser.parse_args(arguments)
    out = given.out or Path("build/experiments") / f"{given.name}.json"
    progress = Progress()
    options = Options(given.seed, given.repetitions, tuple(given.only), out, progress.say)
    began = time.monotonic()
    try:
        asyncio.run(run(given.name, options))
    except (LabError, APIError, TimeoutError) as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 1
    progress.say(f"experiments: {given.name} took {duration(time.monotonic() - began)}; {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
