"""Figures of repeated measurements: percentiles, spread, paired ratios; and the file that they are merged into."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kwok.errors import LabError

DETAILS = "speed"
"""The key below which every section adds what its figures were measured on and how far they spread."""

Figures = dict[str, Any]


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` (0..1) of the values do not exceed. Raises ValueError without values."""
    if not values or not 0 <= part <= 1:
        raise ValueError("a percentile needs values, and a part between 0 and 1")
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def spread(values: Sequence[float], digits: int = 3) -> Figures:
    """Median, lowest and highest of several rounds' figures."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def latency(rounds: Sequence[Sequence[float]]) -> Figures:
    """Percentiles over all calls, and how far those of the single rounds lie apart; seconds in, milliseconds out."""
    rounds = [[1000 * one for one in seconds] for seconds in rounds]
    every = [one for milliseconds in rounds for one in milliseconds]
    return {
        "p50_ms": round(percentile(every, 0.5), 3),
        "p99_ms": round(percentile(every, 0.99), 3),
        "max_ms": round(max(every), 3),
        "calls": len(every),
        "rounds_p50_ms": spread([percentile(one, 0.5) for one in rounds]),
        "rounds_p99_ms": spread([percentile(one, 0.99) for one in rounds]),
    }


def paired_ratios(with_it: Sequence[float], without: Sequence[float]) -> Figures:
    """Ratios of neighbouring rounds: what disturbed both alike cancels out."""
    return spread([one / other for one, other in zip(with_it, without, strict=True)])


def merged(known: Mapping[str, Any], found: Mapping[str, Any]) -> Figures:
    """Everything known, replaced by what was found; below DETAILS each key is replaced by itself."""
    both = {**known, **found}
    details = {**(known.get(DETAILS) or {}), **(found.get(DETAILS) or {})}
    if details:
        both.pop(DETAILS, None)
        both[DETAILS] = details
    return both


def read(path: Path) -> Figures:
    """The figures of earlier runs, {} if there are none. Raises LabError if the file is not what we wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LabError(f"{path} is not JSON ({error}): remove it, or name another file with --out") from error
    if not isinstance(found, dict):
        raise LabError(f"{path} holds no figures: remove it, or name another file with --out")
    return found


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Replace the file at once: a run that is broken off leaves the figures of the sections before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    new.replace(path)
