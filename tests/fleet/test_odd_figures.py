"""Legal figures that nobody expects, in objects that anybody may write: they hold up only what they are about."""

from datetime import timedelta

import pytest

from fleet.names import CLAIM_KEY, EXPECTED_RUN, GANG_MIN_SIZE, GANG_SIZE, RESTART_COST
from fleet.objects import Toleration
from fleet.planning import choose
from tests.fleet.builders import agreement, at, claim, node, pod, pool, view
from tests.fleet.scenes import all_bound, busy, gang
from tests.fleet.simulation import Simulation


@pytest.mark.parametrize("key", [GANG_SIZE, GANG_MIN_SIZE])
def test_a_number_of_thousands_of_digits_in_a_strangers_annotation(key: str) -> None:
    """Python refuses to read one; it was read for the gangs of the whole cluster."""
    odd = pod("odd", ns="stranger", gang="x", notes={key: "9" * 5000}, on="s")
    scene = busy(["n1"], each=1).add(gang(1), node("s"), odd)
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)


@pytest.mark.parametrize("seconds", [10**12, 10**14, 2**63 - 1])
def test_a_grace_of_ages_rules_out_its_own_node_only(seconds: int) -> None:
    odd = pod("odd", ns="stranger", on="n1", grace=seconds)
    scene = Simulation().add(node("n1"), node("n2"), odd, gang(1))
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]


def test_a_lodger_with_a_grace_of_ages_stops_no_drain() -> None:
    scene = Simulation().add(node("n1"), pod("v", on="n1", grace=30), agreement(), gang(1))
    scene.run(60, until=lambda: scene.evictions)
    odd = pod("odd", grace=10**12, notes={EXPECTED_RUN: "1s"}, tolerations=(Toleration(CLAIM_KEY, "Exists"),))
    scene.bind(odd, "n1")
    scene.go_on(20)


@pytest.mark.parametrize("cards", [1, 8])
def test_a_restart_of_a_hundred_years_on_a_large_gang_is_weighed(cards: int) -> None:
    nodes = [node(f"n{index:03}", cards=cards) for index in range(90)]
    notes = {RESTART_COST: "876000h"}
    large = [pod(f"v-{index}", cards, on=f"n{index:03}", gang="v", size=90, notes=notes) for index in range(90)]
    waits = pod("train-0", cards, ns="team-b", gang="train")
    seen = view(pool(cards=cards), nodes, large, agreement(), waits, claim())
    found = choose(seen, claim(), {}, at(1100), timedelta(minutes=10))
    assert found.plan.lost_gpu_seconds > 0
