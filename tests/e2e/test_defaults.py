"""The experiment about default settings on a small fleet: each is found by the doctor, and gone with its fix."""

from __future__ import annotations

from kwok.experiments.hamidefaults import SMALL, spreading


async def test_h02_cards_spread_by_hami_are_found_and_packed_as_the_doctor_says() -> None:
    found = await spreading(SMALL, lambda _: None)
    assert found["before"]["whole_node"]["placed"] == 0
    assert found["before"]["codes"] == ["NoWholeNode"]
    assert found["after"]["whole_node"]["placed"] == SMALL.whole_nodes
    assert found["gone"]
