"""Pods that must be tried again although nothing in the cluster changes: woken, but more and more rarely."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from fleet.board import Refused
from fleet.names import POKE
from fleet.objects import Condition, Pod, PodStatus
from fleet.resources import Accepts
from fleet.times import format_time
from fleet.wakes import refused_in_passing, refused_small_pods
from tests.fleet.builders import at, node, pod, pool, view

SMALL = pool("small", accepts=Accepts.SMALL)


def told(name: str, text: str, *, since: float = 0, poked: float | None = None, **more: Any) -> Pod:
    """A pod that kube-scheduler refused with this text."""
    notes = {POKE: format_time(at(poked))} if poked is not None else {}
    made = pod(name, more.pop("cards", 1), notes=notes, **more)
    message = f"0/3 nodes are available: 1 Insufficient cpu, 2 {text}. preemption: not helpful"
    said = Condition("PodScheduled", "False", "Unschedulable", message, at(since))
    return msgspec.structs.replace(made, status=PodStatus(made.status.phase, conditions=(said,)))


def woken(*pods: Pod, now: float) -> list[str]:
    return [one.metadata.name for one in refused_in_passing(view(SMALL, node("n", "small"), pods), at(now))]


@pytest.mark.parametrize("text", [Refused.NOT_READY, Refused.NODE_UNKNOWN, Refused.EMPTIER])
def test_e20_a_pod_refused_for_a_passing_reason_is_woken(text: Refused) -> None:
    assert woken(told("p", text), now=1) == []
    assert woken(told("p", text), now=2) == ["p"]
    assert woken(told("p", text, cards=8), now=2) == ["p"], "whole-node pods without our gate too"


@pytest.mark.parametrize("text", [Refused.WHOLE_NODE_POOL, Refused.WAITING, "Insufficient nvidia.com/gpu"])
def test_other_refusals_end_with_an_event_of_the_cluster(text: str) -> None:
    assert woken(told("p", text), now=1000) == []


def test_it_is_woken_more_and_more_rarely_and_once_a_minute_at_the_least() -> None:
    poked, times = None, []
    for second in range(1200):
        if woken(told("p", Refused.NOT_READY, poked=poked), now=second):
            times.append(second)
            poked = second
    pauses = [b - a for a, b in pairwise(times)]
    assert times[0] == 2
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60


def test_pods_that_are_bound_gated_by_their_end_or_without_cards_are_left_alone() -> None:
    pods = [
        told("bound", Refused.NOT_READY, on="n"),
        told("going", Refused.NOT_READY, going=5),
        told("cpu", Refused.NOT_READY, cards=0),
        pod("never-tried"),
    ]
    assert woken(*pods, now=100) == []


def test_the_oldest_hundred_come_first() -> None:
    pods = [told(f"p{index:03d}", Refused.NOT_READY, created=-index) for index in range(130)]
    found = woken(*pods, now=50)
    assert (found[0], len(found)) == ("p129", 100)
    seen = view(SMALL, pods)
    assert len(refused_small_pods(seen)) == 100


def test_an_unreadable_poke_counts_as_none() -> None:
    one = told("p", Refused.NOT_READY)
    notes = msgspec.structs.replace(one.metadata, annotations={POKE: "soon"})
    assert woken(msgspec.structs.replace(one, metadata=notes), now=3) == ["p"]
