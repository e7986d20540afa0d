"""A short crash matrix: the controller is killed at some of its writes, others are spoiled; every run ends well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kwok.faults import Trouble
from kwok.soak import crash
from kwok.soak.lane import Case, lane
from kwok.soak.story import Ending
from kwok.soak.verdict import Harm

EVERY = 16


async def test_c01_c02_c03_c04_c12_killed_at_any_write_or_cut_off_it_ends_in_the_same_good_state(
    built: Mapping[str, Path],
) -> None:
    """After the taints, about to evict, evicted and not noted, about to open, and while all is rolled back."""
    assert built
    said: list[str] = []
    matrix = crash.Matrix(every=EVERY, rounds=1, lanes=1, kinds=(Trouble.RESTART, Trouble.LOST_ANSWER))
    found = await crash.measure(matrix, said.append)
    assert found["problems"] == []
    assert {harm: found[harm] for harm in map(str, Harm)} == dict.fromkeys(map(str, Harm), 0)
    assert found["runs"] >= 10
    assert found["not_reached"] <= 2
    assert found["seen"]["gangs landing"] >= 6
    assert found["seen"]["small pods bound"] >= found["runs"], "small pods kept coming"


async def test_the_matrix_sees_a_gang_that_does_not_land(built: Mapping[str, Path]) -> None:
    """The checks see what they are there for: with every write refused nothing lands, and the run says so."""
    assert built
    async with lane("naive") as one:
        everything = dict.fromkeys(range(1, 2000), Trouble.SERVER_ERROR)
        outcome = await one.play(Case("refused", Ending.LANDED, troubles=everything), until_end_seconds=5.0)
        assert {problem.harm for problem in outcome.problems} == {Harm.LOST}
        again = await one.play(Case("undisturbed", Ending.LANDED))
        assert again.problems == ()
        assert again.kill_points > 20
