"""What must be true when a run is over, whatever befell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kwok.admin import Object
from kwok.faults import Call
from kwok.readings import phase, shown
from kwok.soak.story import GANG_SIZE, Story, outcome

_SAME_SECONDS = 0.01


class Harm(StrEnum):
    """What can be wrong, by the key it is counted under."""

    LOST = "lost"
    """The run did not come to its good end in time."""
    STUCK = "stuck_taints"
    """Something of ours stayed on a node."""
    DOUBLE = "double_claims"
    """A gang had two claims that lived at once, or is left with more than one."""
    TWICE = "evicted_twice"
    """A pod was told to go more than once."""
    ACCOUNT = "miscounted"
    """What is written down about stopped pods is not what happened."""
    RULE = "broken_rules"
    """A rule that holds at every moment was broken: see kwok.invariants."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in words."""

    harm: Harm
    text: str


def judge(story: Story, calls: Iterable[Call], bound: Mapping[str, str] | None, told: str) -> list[Problem]:
    """Look at the run's end.

    bound: where the gang's pods were when it had landed, None if it was not to land. told: how things stood when the
    end was waited for in vain, empty if it came.
    """
    return [Problem(harm, text) for harm, text in _found(story, calls, bound, told)]


def _found(
    story: Story, calls: Iterable[Call], bound: Mapping[str, str] | None, told: str
) -> Iterator[tuple[Harm, str]]:
    if told:
        yield Harm.LOST, f"not over in time: {told}"
    elif bound is not None and len(set(bound.values())) != GANG_SIZE:
        yield Harm.LOST, f"the gang is not on {GANG_SIZE} nodes: {dict(bound)}"
    for node, left in story.changed().items():
        yield Harm.STUCK, f"{node} is not as it was: {left}"
    if story.double_claims or len(story.claims()) > 1:
        yield Harm.DOUBLE, f"the gang's claims: {[(shown(one), phase(one)) for one in story.claims()]}"
    yield from ((Harm.TWICE, text) for text in evicted_twice(calls))
    if len(story.claims()) == 1:
        yield from ((Harm.ACCOUNT, text) for text in miscounted(story.claims()[0], story.records(), story.evicted))


def evicted_twice(calls: Iterable[Call]) -> list[str]:
    """Pods whose eviction the API server took more than once."""
    taken = Counter(call.evicted_uid for call in calls if call.evicts and call.stored)
    return [f"pod {uid} was evicted {times} times" for uid, times in taken.items() if times > 1]


def miscounted(claim: Object, records: Iterable[Object], evicted: set[str]) -> list[str]:
    """Where records, the claim and what really happened differ: each stopped pod is written down once."""
    stopped = Counter(one["spec"]["podUid"] for one in records if outcome(one) == "Stopped")
    pending = [shown(one) for one in records if outcome(one) == "Pending"]
    found = [
        f"the records of pod {uid} say {times} times that it was stopped" for uid, times in stopped.items() if times > 1
    ]
    found += [f"record {name} is still pending" for name in pending]
    if set(stopped) != evicted:
        missing, wrong = sorted(evicted - set(stopped)), sorted(set(stopped) - evicted)
        found.append(f"evicted without a record that says so: {missing}; recorded as stopped and not evicted: {wrong}")
    booked = sum(one["spec"].get("lostGpuSeconds", 0.0) for one in records if outcome(one) == "Stopped")
    lost = claim.get("status", {}).get("lostGpuSeconds", 0.0)
    if abs(booked - lost) > _SAME_SECONDS:
        found.append(f"the claim says {lost} GPU-seconds were lost, the records {booked}")
    return found
