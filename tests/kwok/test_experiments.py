"""The experiments' own arithmetic: who landed where, what was promised, and what is offered by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from kwok.experiments.__main__ import EXPERIMENTS
from kwok.experiments.fullfleet import OWNERS, VICTIMS, Fleet, victims
from kwok.experiments.options import Options
from kwok.experiments.sidebyside import figures, told
from kwok.landings import PodWatch, Seen

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def claim(job: str, *nodes: str) -> dict[str, Any]:
    return {
        "metadata": {"uid": f"uid-{job}"},
        "spec": {"gang": {"name": f"job-{job}-1a2b3"}},
        "status": {"nodes": [{"name": node} for node in nodes]},
    }


def landed(job: str, node: str, at: float) -> Seen:
    return Seen(f"{job}-0-abcde", OWNERS, job, 8, node, at, at)


def fleet(*pods: Seen, product: Any = "runs") -> Fleet:
    watch = PodWatch({one.uid: one for one in pods})
    submitted = {one.name.removesuffix("-0-abcde"): 100.0 for one in pods if one.namespace == OWNERS}
    nothing: Any = None
    return Fleet("wholenode", nothing, nothing, watch, nothing, product, submitted=submitted)


def test_every_experiment_can_be_run_and_is_told_of() -> None:
    told = CONTRIBUTING.read_text(encoding="utf-8")
    for name in EXPERIMENTS:
        assert callable(importlib.import_module(f"kwok.experiments.{name}").measure)
        assert f"make experiments NAME={name}`" in told


@pytest.mark.parametrize(
    ("node", "at", "right", "as_promised"),
    [("n1", 106.5, 1, True), ("n2", 106.0, 0, False), ("n1", 106.6, 1, False)],
    ids=["right", "another node", "too late"],
)
def test_a_promise_is_kept_on_the_vacated_node_and_in_time(
    node: str, at: float, right: int, *, as_promised: bool
) -> None:
    found = figures(fleet(landed("train-1", node, at)), ["train-1"], [claim("train-10", "n2"), claim("train-1", "n1")])
    assert (found["running"], found["on_the_node_vacated_for_it"], found["as_promised"]) == (1, right, as_promised)
    assert found["landed"] == {"train-1": {"node": node, "vacated_for_it": ["n1"]}}


def test_one_that_does_not_run_breaks_the_promise_and_one_without_us_promises_nothing() -> None:
    names = ["train-0", "train-1"]
    pods = [landed("train-0", "n1", 105.0), Seen("train-1-0-abcde", OWNERS, "x", 8)]
    found = figures(fleet(*pods), names, [claim("train-0", "n1")])
    assert (found["jobs"], found["running"], found["median_s"], found["as_promised"]) == (2, 1, 5.0, False)
    assert "as_promised" not in figures(fleet(*pods, product=None), names, [])


def test_what_is_lost_is_how_long_the_stopped_ones_had_been_running() -> None:
    stopped = [Seen(f"small-{n}", VICTIMS, f"v{n}", 1, "n1", 10.0, 10.0, 100.0 + n, 105.0) for n in range(2)]
    spared = Seen("small-2", VICTIMS, "v2", 1, "n2", 10.0, 10.0)
    never_ran = Seen("small-3", VICTIMS, "v3", 1, "n2", 10.0, None, 100.0)
    found = figures(fleet(*stopped, spared, never_ran), [], [])
    assert (found["victims"], found["lost_gpu_seconds"]) == (3, 181.0)


def test_victims_fill_every_node_in_an_order_that_the_seed_draws() -> None:
    def places(seed: int) -> list[str]:
        return [
            one["spec"]["nodeSelector"]["kubernetes.io/hostname"] for one in victims("wholenode", "outside", seed, 5)
        ]

    assert places(7) == places(7) != places(8)
    assert {places(7).count(node) for node in places(7)} == {8}
    assert places(7) != sorted(places(7)), "age says nothing of place"


def test_parts_are_named_by_a_word_of_theirs() -> None:
    def asked(*only: str) -> Options:
        return Options(7, 1, only, Path("x"), print)

    assert asked().wanted("spreading")
    assert asked("memory", "rate").wanted("quota in memory")
    assert not asked("memory").wanted("spreading")


def test_an_arm_is_told_of_in_one_line() -> None:
    none = {"jobs": 5, "running": 0, "median_s": None, "max_s": None, "victims": 40}
    assert told(none) == "0 of 5 running, 40 victims"
    assert told({**none, "running": 5, "median_s": 6.2, "max_s": 7.1}) == (
        "5 of 5 running, median 6.2 s, at most 7.1 s, 40 victims"
    )
    emptied = {"nodes": 5, "median_s": 6.2, "max_s": 6.3, "victims": 40}
    assert told(emptied) == "5 nodes empty, median 6.2 s, at most 6.3 s, 40 victims"
