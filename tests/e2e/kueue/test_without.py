"""Kueue is taken away for good: the last of these tests, by name."""

from __future__ import annotations

from kwok.product import CONTROLLER, Product
from tests.e2e.desk import Desk
from tests.e2e.drains import lent, residents
from tests.e2e.ground import VACATE


async def test_k19_with_kueue_removed_claims_go_on_and_what_waited_for_it_is_let_go(
    desk: Desk, product: Product
) -> None:
    ground = desk.ground
    (node,) = await lent(ground, 1)
    await residents(ground, node, "slow", term_delay="600s", grace_seconds=5)
    await desk.queue("big", 8, checked=True)
    await desk.big("train", "big")
    await ground.until(lambda: bool(ground.marked()))

    await desk.kueue.remove()
    await ground.until(lambda: not ground.marked())
    await ground.delete_at_once("slow")
    await ground.gang("alone", 1, annotations=VACATE)
    await ground.until(lambda: ground.bound("alone") == {"alone-0": node})
    assert product.running(CONTROLLER)
    assert not ground.pods("train-")
    found = await desk.admin.get("/apis")
    assert "kueue.x-k8s.io" not in {one["name"] for one in found["groups"]}
    await ground.never_broke_a_rule()
