"""A choice as it is written into the claim's status: chosen nodes, victims, runners-up, refusals counted."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from fleet.candidates import Candidate
from fleet.combining import Chosen
from fleet.resources import ClaimPlan, Refusal, RunnerUp, Weighing

_SHOWN_RUNNERS_UP = 5
_SHOWN_VICTIMS = 200


def plan_of(
    every: tuple[Candidate, ...],
    next_best: Sequence[Candidate],
    chosen: Chosen | None = None,
    expected: datetime | None = None,
    weighing: Weighing | None = None,
) -> ClaimPlan:
    chosen = chosen or Chosen(())
    examples: dict[str, str] = {}
    for one in sorted(every, key=lambda one: one.node.metadata.name):
        if one.refused:
            examples.setdefault(one.refused, one.node.metadata.name)
    counted = Counter(one.refused for one in every if one.refused)
    return ClaimPlan(
        nodes=tuple(one.node.metadata.name for one in chosen.nodes),
        victims=chosen.victims[:_SHOWN_VICTIMS],
        victim_count=len(chosen.victims),
        lost_gpu_seconds=round(chosen.lost_gpu_seconds, 3),
        runners_up=tuple(
            RunnerUp(one.node.metadata.name, len(one.victims), round(one.lost_gpu_seconds, 3), round(one.cost, 3))
            for one in next_best[:_SHOWN_RUNNERS_UP]
        ),
        refused=tuple(Refusal(reason, counted[reason], examples[reason]) for reason in sorted(examples)),
        consent_missing=tuple(sorted({namespace for one in every for namespace in one.consent_missing})),
        expected_free_at=expected,
        cost=round(chosen.cost, 3),
        optimal=chosen.optimal,
        homeless=chosen.homeless,
        weighing=weighing,
    )
