"""The figures of `make soak` and of the planner's bench: their keys, what counts as harm, that nothing is left out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kwok.bench import planner
from kwok.bench.__main__ import SECTIONS
from kwok.faults import Call, Kind, Trouble
from kwok.landings import Landing, Report
from kwok.race import Arrivals
from kwok.soak import __main__ as soak
from kwok.soak import crash, race
from kwok.soak.lane import Case, Outcome
from kwok.soak.story import Ending
from kwok.soak.verdict import Harm, Problem, evicted_twice, miscounted

ASKED_OF_CRASH = {"runs", "lost", "stuck_taints", "double_claims"}
ASKED_OF_RACE = {"landings", "wrong"}
ASKED_OF_PLANNER = {"median_ratio", "worst_ratio", "p99_ms"}


def outcome(*harms: Harm, scenario: str = "killed after a write, landed", reached: bool = True) -> Outcome:
    problems = tuple(Problem(harm, "told") for harm in harms)
    return Outcome(Case(scenario), problems, {"write": 40}, 40, reached, 1, {"changes": 100}, 12.0)


# The crash matrix


@pytest.mark.parametrize("ending", list(Ending))
def test_the_controller_is_killed_at_each_write_before_and_after_it(ending: Ending) -> None:
    cases = list(crash.kills(ending, 7))
    assert sorted((one.stored, one.kill_at) for one in cases) == [
        (stored, number) for stored in (False, True) for number in range(1, 8)
    ]
    assert {one.ending for one in cases} == {ending}


def test_every_kind_of_trouble_is_played_and_all_mixed() -> None:
    cases = list(crash.troubles(40, tuple(Trouble), rounds=2, seed=7))
    alone = {
        kind: sum(set(one.troubles.values()) == {kind} and one.scenario != "mixed" for one in cases) for kind in Trouble
    }
    assert alone == dict.fromkeys(Trouble, 2)
    assert sum(one.scenario == "mixed" for one in cases) == 2
    assert all(1 <= number <= 40 for one in cases for number in one.troubles)
    named = {"409", "429", "410 watch gap", "API server restart", "5 s pause", "answer lost"}
    assert named <= {str(kind) for kind in Trouble}
    assert list(crash.troubles(40, tuple(Trouble), rounds=2, seed=7)) == cases, "the same seed, the same writes"


def test_the_matrix_has_the_keys_that_are_asked_for_and_counts_runs_with_harm() -> None:
    found = crash.summary([outcome(), outcome(Harm.LOST, Harm.LOST, Harm.STUCK), outcome(Harm.DOUBLE, scenario="409")])
    assert found.keys() >= ASKED_OF_CRASH
    assert {key: found[key] for key in ASKED_OF_CRASH} == {"runs": 3, "lost": 1, "stuck_taints": 1, "double_claims": 1}
    assert found["scenarios"]["409"]["runs"] == 1
    assert len(found["problems"]) == 4
    assert set(soak.BAD[soak.CRASH]) == set(map(str, Harm)) >= ASKED_OF_CRASH - {"runs"}


def test_a_pod_that_is_evicted_twice_is_seen() -> None:
    body = json.dumps({"deleteOptions": {"preconditions": {"uid": "u-1"}}}).encode()
    path = "/api/v1/namespaces/t/pods/p/eviction"
    one, refused = (Call(Kind.WRITE, "POST", path, body, status=status) for status in (201, 429))
    assert evicted_twice([one, refused]) == []
    assert evicted_twice([one, one]) == ["pod u-1 was evicted 2 times"]


def book(*uids: str, outcome: str = "Stopped", lost: float = 10.0) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {"namespace": "t", "name": f"r-{index}"},
            "spec": {"podUid": uid, "lostGpuSeconds": lost},
            "status": {"outcome": outcome},
        }
        for index, uid in enumerate(uids)
    ]


def test_books_that_differ_from_what_happened_are_seen() -> None:
    claim = {"status": {"lostGpuSeconds": 20.0}}
    assert miscounted(claim, book("a", "b"), {"a", "b"}) == []
    assert "2 times" in miscounted(claim, book("a", "a"), {"a"})[0]
    assert "still pending" in miscounted(claim, [*book("a", "b"), *book("c", outcome="Pending")], {"a", "b"})[0]
    assert "without a record" in miscounted(claim, book("a", lost=20.0), {"a", "b"})[0]
    assert "the records 10.0" in miscounted(claim, book("a"), {"a"})[0]


# The race


def landing(job: str, node: str, vacated: tuple[str, ...], shared_with: int = 0) -> Landing:
    return Landing(job, node, vacated, 3.0 if node else None, 2, 5.0, shared_with)


def test_the_race_has_the_keys_that_are_asked_for_and_sees_wrong_nodes() -> None:
    right, elsewhere = landing("a", "n1", ("n1",)), landing("b", "n2", ("n3",))
    beside, never = landing("c", "n4", ("n4",), shared_with=1), landing("d", "", ("n5",))
    found = race.figures(race.Load(), [Report((right, elsewhere)), Report((beside, never))], Arrivals(100, 4.0))
    assert found.keys() >= ASKED_OF_RACE
    assert (found["landings"], found["wrong"], found["missing"]) == (3, 2, 1)
    assert race.Load().landings == 1000
    assert race.Load().bursts * race.Load().jobs >= 1000


@pytest.mark.parametrize(("part", "harm", "code"), [("crash", "lost", 1), ("race", "wrong", 1), ("race", "", 0)])
def test_soak_writes_a_file_for_each_part_and_says_by_its_exit_code_whether_all_was_well(
    part: str, harm: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good: dict[str, Any] = {**dict.fromkeys(soak.BAD[part], 0), "runs": 3, "landings": 3, "not_reached": 0}

    async def measured(*_: object) -> dict[str, Any]:
        return {**good, "flood_per_second": 25.0, "seconds": 1.0, **({harm: 1} if harm else {})}

    monkeypatch.setattr(crash if part == "crash" else race, "measure", measured)
    assert soak.main(["--only", part, "--out", str(tmp_path)]) == code
    written = json.loads((tmp_path / f"{part}.json").read_text(encoding="utf-8"))
    assert written.keys() >= (ASKED_OF_CRASH if part == "crash" else ASKED_OF_RACE)
    assert [path.name for path in tmp_path.iterdir()] == [f"{part}.json"]


# The planner's bench


def test_the_planners_section_has_the_keys_that_are_asked_for_and_the_full_size_is_as_asked() -> None:
    found = planner.measure(planner.Size(instances=3, fleets=1, nodes=20), seed=7)
    assert found.keys() >= ASKED_OF_PLANNER
    assert (found["missed"], found["riskier"], found["impossible"]) == (0, 0, 0)
    assert 1.0 <= found["median_ratio"] <= found["worst_ratio"] <= 1.05
    assert found["nodes"] == 20
    assert (planner.FULL.instances, planner.FULL.nodes) == (1000, 1000)
    assert "planner" in SECTIONS


def test_the_fleets_that_are_compared_have_shared_gangs_budgets_and_disruption_budgets() -> None:
    """Else the comparison would say nothing of them."""
    rng = random.Random(7)
    seen = [planner.small_fleet(rng) for _ in range(20)]
    spread = sum(
        len({pod.spec.node_name for pod in gang.pods if pod.spec.node_name}) > 1
        for view in seen
        for gang in view.gangs.values()
    )
    assert spread > 20
    assert any(view.budgets for view in seen)
    assert any(one.spec.budget is not None for view in seen for one in view.agreements)
