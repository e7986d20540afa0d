"""Gangs get all their nodes or none, for as long as it takes; one that can never fit is told so at once."""

from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from fleet.actions import Action, Hold, Timing, WriteStatus
from fleet.board import Board
from fleet.lifecycle import decide
from fleet.marks import HOLDING
from fleet.names import CLAIM_KEY
from fleet.placement import judge
from fleet.planning import choose
from fleet.reasons import Reason
from fleet.resources import Phase, WholeNodeClaim
from tests.fleet.builders import at, claim, container, members, node, pod, view
from tests.fleet.scenes import GATED, all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation


def of_gang(scene: Simulation, name: str) -> WholeNodeClaim:
    """The newest claim of the gang."""
    claims = [one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == name]
    return max(claims, key=lambda one: one.metadata.name)


def race(free: int) -> Simulation:
    """Two gangs of 3 arrive together on so many free nodes; whoever has a share of them, has 3."""
    scene = Simulation().add([node(f"n{index}") for index in range(free)], gang(3, "a"), gang(3, "b"))

    def whole(_: Action) -> None:
        for one in scene.claims.values():
            assert len(one.status.nodes) in {0, 3}, f"{one.metadata.name} has a part"

    scene.after = whole
    return scene


@pytest.mark.parametrize("free", [4, 5])
def test_g01_one_gang_gets_three_and_the_other_none_then_they_change_places(free: int) -> None:
    scene = race(free)
    scene.run(60)
    assert [len(scene.where("a")), len(scene.where("b"))] == [3, 0]
    assert of_gang(scene, "b").status.phase is Phase.PENDING
    for index in range(3):
        scene.end(f"team-b.a-{index}")
    scene.go_on(20, until=lambda: len(scene.where("b")) == 3)
    assert len(set(scene.where("b"))) == 3


def test_g01_six_nodes_are_enough_for_both() -> None:
    scene = race(6)
    scene.run(20, until=lambda: all_bound(scene))
    assert len({*scene.where("a"), *scene.where("b")}) == 6


def test_g01_ended_one_by_one_the_nodes_are_kept_until_there_are_three() -> None:
    scene = race(4)
    scene.run(10, until=lambda: len(scene.where("a")) == 3)
    scene.add(gang(1, "late", created=10))
    for seconds, index in ((20, 0), (30, 1)):
        scene.run(seconds)
        assert (scene.where("b"), scene.where("late")) == ([], []), "one more would keep the older gang from its third"
        scene.end(f"team-b.a-{index}")
    scene.go_on(20, until=lambda: len(scene.where("b")) == 3)
    assert len(scene.where("b")) == 3


def test_g03_a_gang_of_20_on_8_free_nodes_does_not_start_and_holds_nothing() -> None:
    scene = Simulation().add([node(f"n{index:02}") for index in range(20)], gang(20, "big"))
    for index in range(8, 20):
        scene.add(small(1, f"n{index:02}", ns="team-w"))
    scene.run(30)
    assert scene.where("big") == []
    assert (scene.marked(), [one for one in scene.done if isinstance(one, Hold)]) == ([], [])
    assert scene.the_claim().status.reason == Reason.AGREEMENT_MISSING
    assert "8 of 20 may be taken" in scene.the_claim().status.message


def test_g03_on_a_pool_of_8_it_is_told_at_once_and_stands_in_nobodys_way() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(8)], gang(20, "big"))
    scene.run(1).add(gang(8, "fits", created=1)).run(30)
    told = of_gang(scene, "big").status
    assert (told.phase, told.reason) == (Phase.PENDING, Reason.TOO_FEW_NODES)
    assert told.message == "needs 20 whole nodes; its pools have 8"
    assert len(scene.where("fits")) == 8
    written = [one for one in scene.done if isinstance(one, WriteStatus)]
    assert sum(one.claim.metadata.name.startswith("big") for one in written) == 1, "told once, not again and again"


def test_it_is_looked_at_again_when_the_pool_grows_or_shrinks() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(2)], gang(3))
    scene.run(5)
    assert scene.the_claim().status.reason == Reason.TOO_FEW_NODES
    scene.add(node("n2"), small(1, "n2", ns="team-w")).go_on(2)
    assert scene.the_claim().status.reason == Reason.AGREEMENT_MISSING
    del scene.nodes["n0"]
    scene.go_on(2)
    assert scene.the_claim().status.reason == Reason.TOO_FEW_NODES
    scene.add(node("n3"), node("n4")).go_on(20, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1", "n3", "n4"]


def needy(**more: Any) -> list[Any]:
    """Two members that want 64 CPUs each."""
    return [
        pod(f"m{index}", containers=(container(8, cpu="64"),), ns="team-b", gang="train", size=2, **more)
        for index in range(2)
    ]


def test_nodes_that_could_never_serve_it_are_told_from_those_that_could_later() -> None:
    weak = [node("n1"), node("n2", cpu="32"), node("n3", cpu="32", cordoned=True)]
    found = choose(view(weak, needy()), claim(nodes=2), {}, at(0))
    assert (found.reason, found.wanted, found.wake_at) == (Reason.NO_USABLE_NODE, (), None)
    assert found.message == (
        "needs 2 whole node(s); 1 of the 3 nodes could serve it even if empty; the others: 2 NotEnoughCPU"
    )
    assert found.plan is not None
    assert [(one.reason, one.nodes) for one in found.plan.refused] == [("Cordoned", 1), ("NotEnoughCPU", 1)]
    taken_up = [node("n1"), node("n2"), pod("web", 0, cpu="100", on="n2")]
    later = choose(view(taken_up, needy()), claim(nodes=2), {}, at(0))
    assert later.message.startswith("needs 2 whole node(s), 1 of 2 may be taken"), "the web server may end"
    picky = needy(selector={"disk": "fast"})
    unselected = choose(view(node("n1", labels={"disk": "fast"}), node("n2"), picky), claim(nodes=2), {}, at(0))
    assert unselected.message.endswith("1 of the 2 nodes could serve it even if empty; the others: 1 NotSelectedByPod")


def test_a_node_that_is_held_counts_as_one_that_could_serve() -> None:
    found = choose(view(node("n1"), node("n2"), needy()), claim(nodes=2), {"n1": "HeldForAnotherClaim"}, at(0))
    assert found.wanted == ("n2",), "it waits for the other, and keeps this one"


def test_a_member_that_fits_no_node_keeps_the_gang_from_taking_any() -> None:
    """One of its pods wants 9 cards: the others must not sit on their nodes and wait for it."""
    odd = pod("train-odd", 9, ns="team-b", gang="train", size=3, gates=GATED)
    scene = Simulation().add([node(f"n{index}") for index in range(4)], gang(2, size=3), odd)
    scene.run(10)
    told = scene.the_claim().status
    assert (told.phase, told.reason, scene.marked()) == (Phase.PENDING, Reason.NO_POOL, [])
    assert told.message == "pod train-odd needs 9 nvidia.com/gpu; no node of any pool has so many"


def test_an_extra_member_is_placed_with_the_rest_all_or_none() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(3)], gang(4, size=3))
    scene.run(10)
    assert (scene.where("train"), scene.marked()) == ([], []), "four pods wait, there are three nodes"
    scene.add(node("n3")).go_on(20, until=lambda: len(scene.where("train")) == 4)
    assert scene.where("train") == ["n0", "n1", "n2", "n3"]


def test_an_extra_member_that_comes_late_gets_a_claim_of_its_own() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(3)], gang(2))
    scene.run(20, until=lambda: all_bound(scene))
    scene.add(gang(3, size=2, created=20)[2]).go_on(20, until=lambda: len(scene.where("train")) == 3)
    assert scene.where("train") == ["n0", "n1", "n2"]


HELD = [Phase.PLANNED, *sorted(HOLDING)]


@pytest.mark.parametrize("phase", HELD)
def test_g12_a_gang_deleted_while_its_nodes_are_held_gives_them_back_within_five_seconds(phase: Phase) -> None:
    scene = busy(["n1", "n2", "n3"], each=1).add(gang(3))

    def delete(action: Action) -> None:
        if isinstance(action, WriteStatus) and action.status.phase is phase:
            for index in range(3):
                scene.delete(f"team-b.train-{index}")

    scene.after = delete
    scene.run(60, until=lambda: in_phase(scene, Phase.ROLLED_BACK))
    assert phase in scene.phases()
    scene.go_on(5)
    assert scene.the_claim().status.phase is Phase.ROLLED_BACK
    assert scene.the_claim().status.reason == Reason.BENEFICIARY_GONE
    assert (scene.marked(), scene.the_claim().status.nodes) == ([], ())


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.DRAINING, Phase.LANDING])
def test_g14_asking_again_and_again_reserves_and_changes_nothing(phase: Phase) -> None:
    """kube-scheduler may try a whole gang hypothetically: filter after filter, nothing bound."""
    scene = busy(["n1", "n2"], each=1).add(node("n3"), gang(3))
    if phase is Phase.PENDING:
        scene.add(small(1, "n3", ns="team-w"))
    with patch.object(scene, "_schedule"):  # what it finds out, it does not act upon
        scene.run(60, until=lambda: in_phase(scene, phase))
    seen = scene.view()
    board = Board.of(seen.classifier, seen.nodes.values(), seen.claims.values(), seen.agreements, scene.now)
    objects = [*seen.nodes.values(), *seen.pods.values(), *seen.claims.values()]
    before, now = msgspec.json.encode(objects), decide(seen, {}, {}, scene.now, Timing())
    waiting = [one for one in seen.pods.values() if one.metadata.name.startswith("train")]
    strange = pod("stranger", 8, ns="team-c")
    names = sorted(seen.nodes)
    assert len(waiting) == 3
    first = [judge(one, names, board) for one in (*waiting, strange)]
    for _ in range(3):
        assert [judge(one, names, board) for one in (*waiting, strange)] == first
    assert msgspec.json.encode(objects) == before
    assert decide(scene.view(), {}, {}, scene.now, Timing()) == now
    open_to_gang = {name for name in names if CLAIM_KEY in (seen.nodes[name].metadata.labels or {})}
    assert all(set(one.passed) == open_to_gang for one in first[:-1])
    assert first[-1].passed == []
    assert len(open_to_gang) == (3 if phase is Phase.LANDING else 0)


def test_extra_pods_of_another_owner_make_no_gang_larger() -> None:
    scene = Simulation().add(
        [node(f"n{index}") for index in range(2)], members(2, gates=GATED), members(1, ns="team-c")
    )
    scene.run(20, until=lambda: len(scene.where("train")) == 2)
    assert len({one.metadata.namespace for one in scene.pods.values() if one.spec.node_name}) == 1
