"""The planner beside an exact solver on many small fleets, and how long one choice takes in a fleet of 1,000 nodes."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from cluster.program import tame_collector
from fleet.planning import Choice, choose
from fleet.view import View
from kwok.bench.busyfleet import NOW, Shape, picture
from kwok.bench.figures import Figures
from kwok.bench.oracle import Least, least

_GRACE = timedelta(minutes=10)
_SAME = 1e-6
"""A cost that is nearer than this to the optimum, relatively, is the optimum: the solver's own tolerance."""


@dataclass(frozen=True)
class Size:
    """How many small fleets are solved exactly, and how many large ones are timed, with how many nodes."""

    instances: int
    fleets: int
    nodes: int


FULL = Size(instances=1000, fleets=20, nodes=1000)
_WANTED = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True)
class Compared:
    """One small fleet: `ratio` of our cost to the least, if both found nodes with the same risk for budgets."""

    ratio: float | None
    missed: bool = False
    riskier: bool = False
    proved: bool = False
    invented: bool = False


def measure(size: Size, seed: int) -> Figures:
    """`median_ratio`, `worst_ratio`, `p99_ms` and what they were found on."""
    rng = random.Random(seed)
    compared = [compare(small_fleet(rng)) for _ in range(size.instances)]
    ratios = [one.ratio for one in compared if one.ratio is not None]
    return {
        "median_ratio": round(statistics.median(ratios), 6),
        "worst_ratio": round(max(ratios), 6),
        "instances": size.instances,
        "feasible": len(ratios),
        "missed": sum(one.missed for one in compared),
        "riskier": sum(one.riskier for one in compared),
        "impossible": sum(one.invented for one in compared),
        "proved_optimal": sum(one.proved for one in compared),
        "seed": seed,
        **timed(size, rng),
    }


def small_fleet(rng: random.Random) -> View:
    """10 to 30 full nodes, gangs over several of them, services with budgets, and a gang that wants 2 to 6 nodes."""
    nodes = rng.randint(10, 30)
    shape = Shape(
        nodes=nodes,
        teams=rng.randint(2, 4),
        gangs=rng.randint(nodes // 3, nodes),
        services=rng.randint(2, 8),
        wanted=(rng.randint(2, 6),),
        tight=rng.uniform(0.05, 1.0),
    )
    return picture(shape, rng)


def compare(view: View) -> Compared:
    """The planner and the solver on one fleet with one claim."""
    claim = next(iter(view.claims.values()))
    choice = choose(view, claim, {}, NOW, _GRACE)
    best = least(view, choice.every, claim.spec.nodes, view.agreements)
    if best is None or not choice.taken or choice.plan is None:
        return Compared(None, missed=best is not None, invented=bool(choice.taken))
    if _excess(choice) != best.excess:
        return Compared(None, riskier=True)
    return Compared(_ratio(choice.plan.cost, best), proved=choice.plan.optimal)


def _ratio(cost: float, best: Least) -> float:
    ratio = cost / best.cost if best.cost else 1.0 + cost
    return 1.0 if abs(ratio - 1.0) <= _SAME else ratio


def _excess(choice: Choice) -> int:
    pods: dict[str, int] = {}
    allowed: dict[str, int] = {}
    for one in choice.taken:
        for press in one.presses:
            pods[press.budget] = pods.get(press.budget, 0) + press.pods
            allowed[press.budget] = press.allowed
    return sum(max(0, number - allowed[budget]) for budget, number in pods.items())


def timed(size: Size, rng: random.Random) -> Figures:
    """How long choices take: what all claims of a pass share is worked out by the first, which is told apart.

    The garbage collector is kept off the fleet, as the controller keeps it off its caches.
    """
    first: list[float] = []
    others: list[float] = []
    proved = 0
    shape = Shape(nodes=size.nodes, teams=20, gangs=300, services=100, wanted=(1, *_WANTED), tight=0.01)
    for number in range(size.fleets):
        view = picture(replace(shape, tight=0.01 if number % 2 else 0.0), rng)
        tame_collector()
        for place, claim in enumerate(view.claims.values()):
            began = time.perf_counter()
            choice = choose(view, claim, {}, NOW, _GRACE)
            took = (time.perf_counter() - began) * 1000
            (others if place else first).append(took)
            proved += bool(place and choice.plan and choice.plan.optimal)
    return {
        "p50_ms": round(statistics.median(others), 1),
        "p99_ms": round(statistics.quantiles(others, n=100, method="inclusive")[98], 1),
        "first_of_a_pass_ms": round(statistics.median(first), 1),
        "choices": len(others),
        "choices_proved_optimal": proved,
        "nodes": size.nodes,
        "wanted": f"{min(_WANTED)} to {max(_WANTED)} nodes",
    }
