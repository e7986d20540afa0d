"""The controller killed after every single write of a run: it always ends in the same state, and nobody pays twice."""

from collections.abc import Callable
from dataclasses import replace as changed
from datetime import timedelta

import pytest

from fleet.actions import Action, Evict, Hold, Timing, WriteStatus
from fleet.resources import Phase
from tests.fleet.builders import agreement, node, pod
from tests.fleet.scenes import all_bound, busy, gang, small
from tests.fleet.simulation import Simulation

Scene = Callable[[], Simulation]


def one_claim() -> Simulation:
    """Three agreed victims on the cheaper of two nodes."""
    return busy(["n1", "n2"], each=3).add(small(2, "n2", prefix="more"), gang())


def three_nodes() -> Simulation:
    """A gang of three; one victim gang, of two pods, is spread over two of the nodes."""
    scene = busy(["n1", "n2", "n3"], each=1)
    spread = [pod(f"pair-{index}", on=f"n{index + 1}", gang="pair", size=2, grace=2) for index in range(2)]
    return scene.add(spread, gang(3))


def late_arrival() -> Simulation:
    """An agreed pod slips in 0.8 s after the start."""
    scene = busy(["n1"], each=2).add(gang())
    scene.later(0.8, lambda: scene.bind(pod("late", created=0.8), "n1"))
    return scene


def several_claims() -> Simulation:
    """Three gangs, three busy nodes."""
    return busy(["n1", "n2", "n3"], each=2).add(gang(1, "a"), gang(1, "b", created=1), gang(1, "c", created=2))


LANDING: dict[str, Scene] = {
    "one claim": one_claim,
    "three nodes": three_nodes,
    "late arrival": late_arrival,
    "several claims": several_claims,
}


def finish(scene: Simulation, gangs: int) -> Simulation:
    """Run until every gang is bound, and a little further."""
    scene.run(90, until=lambda: len(scene.claims) == gangs and all_bound(scene))
    return scene.go_on(3)


def gangs_of(scene: Simulation) -> int:
    return len({one.metadata.annotation("wholenode.io/gang") for one in scene.pods.values() if "team-b" in one.key})


def outcome(scene: Simulation) -> tuple[object, ...]:
    """What must be the same however often the controller was killed."""
    claims = sorted(scene.claims.values(), key=lambda one: one.metadata.name)
    return (
        [(one.metadata.name, one.status.phase, one.status.node_names) for one in claims],
        scene.evicted(),
        [sorted(victim.name for victim in one.status.victims) for one in claims],
        {one.metadata.name: one.spec.node_name for one in scene.pods.values()},
        scene.marked(),
    )


@pytest.mark.parametrize("name", LANDING)
def test_killed_after_any_write_the_run_ends_the_same(name: str) -> None:
    whole = LANDING[name]()
    gangs = gangs_of(whole)
    finish(whole, gangs)
    wanted, writes = outcome(whole), whole.writes
    lost = {one.metadata.name: one.status.lost_gpu_seconds for one in whole.claims.values()}
    assert whole.marked() == []
    assert writes > 10
    for last in range(1, writes + 1):
        scene = LANDING[name]()
        scene.kill_after = last
        finish(scene, gangs)
        assert scene.kills == 1
        assert outcome(scene) == wanted, f"killed after write {last}: {_nth(whole, last)}"
        assert len(scene.evictions) == len({one.uid for one in scene.evictions})
        for one in scene.claims.values():
            assert len({victim.uid for victim in one.status.victims}) == len(one.status.victims)
            assert one.status.lost_gpu_seconds == pytest.approx(lost[one.metadata.name], abs=2.0), "counted once"


@pytest.mark.parametrize("name", LANDING)
def test_killed_after_every_write_the_run_ends_the_same_too(name: str) -> None:
    whole, scene = LANDING[name](), LANDING[name]()
    gangs = gangs_of(whole)
    finish(whole, gangs)
    scene.kill_always = True
    finish(scene, gangs)
    assert scene.kills == scene.writes
    assert outcome(scene) == outcome(whole)


@pytest.mark.parametrize("name", LANDING)
def test_a_cache_that_is_behind_changes_nothing_but_the_time(name: str) -> None:
    whole, scene = LANDING[name](), LANDING[name]()
    gangs = gangs_of(whole)
    finish(whole, gangs)
    scene.lag_seconds = 0.3
    finish(scene, gangs)
    assert outcome(scene) == outcome(whole)


@pytest.mark.parametrize("name", LANDING)
def test_no_node_more_is_ever_held_than_the_claims_ask_for(name: str) -> None:
    whole = LANDING[name]()
    gangs = gangs_of(whole)
    finish(whole, gangs)
    held = {one.node.metadata.name for one in whole.done if isinstance(one, Hold)}
    for last in range(1, whole.writes + 1):
        scene = LANDING[name]()
        scene.kill_after = last
        finish(scene, gangs)
        assert {one.node.metadata.name for one in scene.done if isinstance(one, Hold)} == held


def deleted_gang() -> Simulation:
    """The gang is deleted once three of seven victims are stopped."""
    scene = busy(["n1"], each=7).add(gang())

    def after(action: Action) -> None:
        if isinstance(action, Evict) and len(scene.evictions) == 3:
            scene.delete("team-b.train-0")

    scene.after = after
    return scene


def timed_out() -> Simulation:
    """One victim never ends; the claim has a deadline."""
    scene = busy(["n1"], each=2, timing=changed(Timing(), drain_timeout=timedelta(seconds=5)))
    return scene.add(small(1, "n1", prefix="stuck", finalizers=("example.com/stuck",)), gang(deadline="12s"))


def protected_arrival() -> Simulation:
    """A pod of a namespace without agreement slips in while the node is held."""
    scene = Simulation().add(node("n1"), small(2, "n1", grace=6), agreement(), gang(deadline="15s"))
    scene.later(2, lambda: scene.bind(pod("late", ns="team-w", created=2), "n1"))
    return scene


GIVEN_BACK: dict[str, tuple[Scene, Phase]] = {
    "gang deleted": (deleted_gang, Phase.ROLLED_BACK),
    "time-out": (timed_out, Phase.FAILED),
    "protected arrival": (protected_arrival, Phase.FAILED),
}


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_killed_after_any_write_everything_is_given_back(name: str) -> None:
    make, phase = GIVEN_BACK[name]
    whole = make().run(30)
    before = make().nodes
    assert (whole.the_claim().status.phase, whole.marked()) == (phase, [])
    for last in range(1, whole.writes + 1):
        scene = make()
        scene.kill_after = last
        scene.run(30)
        made = scene.the_claim()
        assert (made.status.phase, scene.marked()) == (phase, []), f"killed after write {last}: {_nth(whole, last)}"
        assert scene.nodes == before
        assert len(scene.evictions) == len({one.uid for one in scene.evictions})
        stopped = {one.uid for one in scene.evictions}
        assert {one.uid for one in made.status.victims} == stopped, "who was stopped is counted, and nobody else"


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_a_cache_that_is_behind_gives_everything_back_too(name: str) -> None:
    make, phase = GIVEN_BACK[name]
    scene = make()
    scene.lag_seconds = 0.3
    scene.run(30)
    made = scene.the_claim()
    assert (made.status.phase, scene.marked()) == (phase, [])
    assert {one.uid for one in made.status.victims} == {one.uid for one in scene.evictions}


def _nth(scene: Simulation, number: int) -> str:
    """What the n-th write of a run was."""
    writes = [one for one in scene.done if type(one).__name__ != "LookAt"]
    one = writes[number - 1]
    return f"{type(one).__name__} {one.status.phase if isinstance(one, WriteStatus) else ''}"
