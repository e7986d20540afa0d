"""`python -m kwok.bench`: measure, all or some sections, and merge what was found into `build/bench.json`."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kwok.admin import APIError
from kwok.bench import bigfleet, bursts, speed, throughput
from kwok.bench.figures import DETAILS, Figures, merged, read, write
from kwok.catalogue import KUBERNETES
from kwok.errors import LabError
from kwok.progress import Progress, duration

_PACKAGES = ("uvicorn", "uvloop", "httptools", "fastapi", "msgspec")


@dataclass(frozen=True)
class Options:
    """What a run goes by: bursts of each arm of the main job, and the seed of everything drawn."""

    runs: int
    seed: int


def machine() -> Figures:
    """What the figures were measured on."""
    return {"cores": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()}


async def _main_job(options: Options) -> Figures:
    found = await bursts.measure(options.runs, options.seed)
    return {"main_job": {"machine": machine(), "kubernetes": KUBERNETES, **found}}


async def _filter_500(options: Options) -> Figures:
    found = await speed.measure(speed.SMALL, options.seed)
    return {"filter_500": found["filter"], DETAILS: {"fleet_500": found["details"]}}


async def _filter_5000(options: Options) -> Figures:
    found = await speed.measure(speed.LARGE, options.seed)
    details = found["details"]
    return {
        "filter_5000": found["filter"],
        "cache_event_us": found["events"]["us"]["median"],
        "rss_mb_5000": max(details["rss_mb"].values()),
        "ready_s_5000": details["ready_s"]["median"],
        DETAILS: {"fleet_5000": details, "cache_event": found["events"]},
    }


async def _throughput(options: Options) -> Figures:
    del options  # nothing is drawn
    load = throughput.FULL
    found = await throughput.measure(load, Progress().say)
    ratios = {f"throughput_ratio_{kind}": found[kind][throughput.OURS]["ratio"]["median"] for kind in ("cpu", "gpu")}
    fleet = f"{load.small_nodes} + {load.big_nodes} nodes x {bigfleet.CARDS} cards"
    pods = {"gpu_pods": load.gpu_pods, "cpu_pods": load.cpu_pods}
    return {**ratios, DETAILS: {"throughput": {"fleet": fleet, **pods, **found}}}


async def _planner(options: Options) -> Figures:
    # Its solver is installed for development only.
    from kwok.bench import planner

    found = await asyncio.to_thread(planner.measure, planner.FULL, options.seed)
    return {"planner": found, DETAILS: {}}


SECTIONS: Mapping[str, Callable[[Options], Awaitable[Figures]]] = {
    "main": _main_job,
    "filter_500": _filter_500,
    "filter_5000": _filter_5000,
    "throughput": _throughput,
    "planner": _planner,
}


def chosen(only: Sequence[str]) -> list[str]:
    """The sections whose names begin with one of the words; all without words. Raises LabError for an unknown word."""
    for word in only:
        if not any(name.startswith(word) for name in SECTIONS):
            raise LabError(f"--only {word}: there is no such section; they are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if not only or any(name.startswith(word) for word in only)]


async def run(name: str, options: Options) -> Figures:
    """One section's figures, with when and on what they were measured."""
    load, began = os.getloadavg()[0], time.monotonic()
    found = await SECTIONS[name](options)
    took: dict[str, Any] = {
        "seed": options.seed,
        "took_s": round(time.monotonic() - began, 1),
        "load_average_before": round(load, 2),
    }
    if name == "main":
        found["main_job"] |= took
        return found
    versions = {"kubernetes": KUBERNETES, **{package: version(package) for package in _PACKAGES}}
    found[DETAILS] |= {"machine": machine(), "versions": versions, f"run_{name}": took}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 if the lab failed (one line says why)."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--runs", type=int, default=5, help="bursts of five jobs in each arm of the main job")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args(arguments)
    progress = Progress()
    try:
        for name in chosen(options.only):
            began = time.monotonic()
            found = asyncio.run(run(name, Options(options.runs, options.seed)))
            write(options.out, merged(read(options.out), found))
            progress.say(f"bench: {name} measured in {duration(time.monotonic() - began)}")
    except (LabError, APIError, TimeoutError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(options.out.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
