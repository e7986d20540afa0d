"""A pool's change moves nobody: pods that run stay, and only new pods are steered by it."""

from collections.abc import Callable

import msgspec
import pytest

from fleet.agreements import next_expiry
from fleet.reasons import Reason
from fleet.resources import Accepts, GPUPool, Overflow, Phase, PoolSelector
from tests.fleet.builders import agreement, at, node, pod, pool
from tests.fleet.scenes import busy, gang, in_phase, small
from tests.fleet.simulation import Simulation


def spec(**changes: object) -> Callable[[GPUPool], GPUPool | None]:
    return lambda one: msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, **changes))


@pytest.mark.parametrize(
    ("change", "may_come"),
    [
        (spec(accepts=Accepts.SMALL), True),
        (spec(overflow=Overflow.NEVER), False),
        (spec(node_selector=PoolSelector({"pool": "elsewhere"})), True),
        (spec(cards_per_node=4), True),
        (lambda _: None, True),
    ],
    ids=["accepts", "overflow", "selector", "cards", "deleted"],
)
def test_a_changed_pool_stops_nobody_and_steers_who_comes_next(
    change: Callable[[GPUPool], GPUPool | None], *, may_come: bool
) -> None:
    scene = Simulation().add(node("n1"), node("n2"), agreement(), small(3, "n1"))
    scene.run(5)
    changed = change(scene.pools[0])
    scene.pools = [changed] if changed is not None else []
    scene.go_on(60)
    assert scene.evictions == []
    assert len(scene.card_holders("n1")) == 3
    scene.add(pod("new", 1, created=scene.seconds))
    scene.go_on(5)
    assert bool(scene.where("new")) == may_come


def test_a_node_whose_pool_turns_small_while_it_is_held_is_given_back_with_the_reason() -> None:
    scene = busy(["n1"], each=2).add(gang())
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    scene.pools = [pool("big", accepts=Accepts.SMALL)]
    scene.go_on(1)
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.BLOCKED, Reason.NODE_LEFT_POOL)
    assert "pool big is for small pods now" in made.status.message
    assert scene.marked() == []


def test_agreements_expire_at_their_own_moment() -> None:
    soon, later, never = agreement("a", expires=5), agreement("b", expires=9), agreement("c")
    assert next_expiry([later, never, soon], at(0)) == at(5)
    assert next_expiry([later, never, soon], at(5)) == at(9)
    assert next_expiry([never, soon], at(6)) is None
