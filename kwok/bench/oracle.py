"""The least that emptying k nodes can cost, by an exact solver: what the planner is compared with (scipy, HiGHS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from fleet.candidates import Candidate
from fleet.costs import GangLoss
from fleet.resources import DrainAgreement
from fleet.view import View

_KILO = 1000.0
"""The solver works in thousands of GPU-seconds: numbers near one are solved exactly."""


@dataclass(frozen=True)
class Least:
    """The least number of pods beyond PodDisruptionBudgets, and the least cost among sets with no more of them."""

    excess: int
    cost: float


@dataclass
class _Model:
    """A mixed-integer program that grows: columns are variables, rows are `low <= sum <= high`."""

    costs: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    rows: list[tuple[Mapping[int, float], float, float]] = field(default_factory=list)

    def variable(self, cost: float = 0.0, *, high: float = 1.0, whole: bool = True) -> int:
        self.costs.append(cost)
        self.highs.append(high)
        self.whole.append(int(whole))
        return len(self.costs) - 1

    def row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.append((terms, low, high))

    def solve(self, costs: Sequence[float]) -> float | None:
        matrix = np.zeros((len(self.rows), len(self.costs)))
        for number, (terms, _, _) in enumerate(self.rows):
            for column, factor in terms.items():
                matrix[number, column] += factor
        limits = LinearConstraint(matrix, [row[1] for row in self.rows], [row[2] for row in self.rows])
        found = milp(
            np.array(costs),
            constraints=limits,
            bounds=Bounds(np.zeros(len(self.costs)), np.array(self.highs)),
            integrality=np.array(self.whole),
            options={"mip_rel_gap": 0.0},
        )
        return float(found.fun) if found.success else None


def least(view: View, nodes: Sequence[Candidate], count: int, agreements: Iterable[DrainAgreement]) -> Least | None:
    """The optimum over all sets of `count` of the nodes that may be taken; None if no set keeps what must be kept.

    Told: gangs paid once, elastic ones by the member, disruption budgets, GPU-seconds and evictions of agreements with
    nothing spent yet, ready replicas.
    """
    model = _Model()
    usable = [one for one in nodes if one.refused is None and one.occupied]
    if len(usable) < count:
        return None
    taken = [model.variable(one.idle / _KILO) for one in usable]
    model.row(dict.fromkeys(taken, 1.0), count, count)
    lost = _gangs(model, usable, taken)
    excess = _presses(model, usable, taken)
    _budgets(model, usable, taken, lost, agreements)
    _replicas(model, view, usable, taken)
    risks = [1.0 if column in excess else 0.0 for column in range(len(model.costs))]
    risk = model.solve(risks)
    if risk is None:
        return None
    model.row(dict.fromkeys(excess, 1.0), high=round(risk))
    cost = model.solve(model.costs)
    return None if cost is None else Least(round(risk), cost * _KILO)


def _gangs(model: _Model, usable: Sequence[Candidate], taken: Sequence[int]) -> dict[str, tuple[int, float]]:
    """For each gang the variable of its loss, and what one of it is, in GPU-seconds."""
    gangs: dict[str, GangLoss] = {gang.key: gang for one in usable for gang in one.gangs}
    found = {}
    for key, gang in sorted(gangs.items()):
        whole = gang.seconds * gang.cards
        hits = [(column, hit) for column, one in zip(taken, usable, strict=True) for hit in one.hits if hit.gang == key]
        paid = model.variable(whole * gang.weight / _KILO, whole=False)
        if gang.spare:
            ended = model.variable()
            model.row({paid: 1.0, ended: -1.0}, low=0.0)
            most = sum(hit.members for _, hit in hits)
            model.row({ended: -float(most)} | {column: float(hit.members) for column, hit in hits}, high=gang.spare)
            model.row({paid: 1.0} | {column: -hit.cards / gang.cards for column, hit in hits}, low=0.0)
        else:
            for column, _ in hits:
                model.row({paid: 1.0, column: -1.0}, low=0.0)
        found[key] = paid, whole
    return found


def _presses(model: _Model, usable: Sequence[Candidate], taken: Sequence[int]) -> list[int]:
    """The variables that count pods beyond each disruption budget."""
    found = []
    allowed = {press.budget: press.allowed for one in usable for press in one.presses}
    for budget in sorted(allowed):
        pods = {
            column: -float(press.pods)
            for column, one in zip(taken, usable, strict=True)
            for press in one.presses
            if press.budget == budget
        }
        over = model.variable(high=np.inf, whole=False)
        model.row({over: 1.0} | pods, low=-float(allowed[budget]))
        found.append(over)
    return found


def _budgets(
    model: _Model,
    usable: Sequence[Candidate],
    taken: Sequence[int],
    lost: Mapping[str, tuple[int, float]],
    agreements: Iterable[DrainAgreement],
) -> None:
    for agreement in agreements:
        namespace, budget = agreement.metadata.namespace, agreement.spec.budget
        if budget is None:
            continue
        theirs = [[who for who in one.victims if who.namespace == namespace] for one in usable]
        if budget.evictions_per_hour is not None:
            pods = {column: float(len(some)) for column, some in zip(taken, theirs, strict=True)}
            model.row(pods, high=budget.evictions_per_hour)
        if budget.gpu_seconds_per_day is not None:
            paid = {lost[who.gang][0]: lost[who.gang][1] / _KILO for some in theirs for who in some}
            model.row(paid, high=budget.gpu_seconds_per_day / _KILO)


def _replicas(model: _Model, view: View, usable: Sequence[Candidate], taken: Sequence[int]) -> None:
    services: dict[tuple[str, str], dict[int, float]] = {}
    kept: dict[tuple[str, str], int] = {}
    for column, one in zip(taken, usable, strict=True):
        for pod, keep in one.keeps:
            owner = pod.metadata.controller()
            service = pod.metadata.namespace, owner.uid if owner else pod.metadata.uid
            services.setdefault(service, {})
            services[service][column] = services[service].get(column, 0.0) + 1
            kept[service] = max(keep, kept.get(service, 0))
    for service, pods in services.items():
        if kept[service]:
            model.row(pods, high=len(view.replicas.ready.get(service, ())) - kept[service])
