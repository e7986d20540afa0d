"""Short jobs on draining nodes: only who asks by our very taint, says how long it runs, and ends before the drain."""

from typing import Any

import msgspec
import pytest

from fleet.actions import Action, Decision, Timing, WriteStatus
from fleet.board import Refused
from fleet.limits import lodges
from fleet.lodgers import MARGIN, may_enter, may_finish
from fleet.marks import taint
from fleet.names import CLAIM_KEY, EXPECTED_RUN
from fleet.objects import Pod, Toleration
from fleet.placement import judge, prefer
from fleet.reasons import Reason
from fleet.resources import HeldNode, Overflow, Phase, WholeNodeClaim
from fleet.tally import Tally
from fleet.upkeep import Context
from fleet.view import View
from tests.fleet.builders import T0, agreement, at, claim, node, pod, pool
from tests.fleet.scenes import all_bound, gang, small
from tests.fleet.simulation import Simulation
from tests.fleet.test_placement import board

ASKS = (Toleration(CLAIM_KEY, "Exists"),)
LENT = pool("big", overflow=Overflow.RECLAIMABLE)


def lodger(
    run: str = "60s", *, tolerations: tuple[Toleration, ...] = ASKS, on: str | None = None, cards: int = 1
) -> Pod:
    return pod("short", cards, ns="team-s", on=on, notes={EXPECTED_RUN: run}, tolerations=tolerations, grace=10)


def draining(phase: Phase = Phase.DRAINING, *, drained_by: float | None = 100) -> WholeNodeClaim:
    by = None if drained_by is None else at(drained_by)
    return claim(uid="u", phase=phase, held=[HeldNode("n1", "node-n1")], drained_by=by)


def where(one: Pod, acts: WholeNodeClaim, now: float = 0) -> list[str]:
    seen = board(LENT, node("n1", taints=(taint("u"),)), node("n2", taints=(taint("other"),)), acts)
    found = judge(one, ["n1", "n2"], seen, at(now))
    tally = Tally()
    for name, rank in seen.ranks.items():
        tally.rank(name, rank)
    preferred = prefer(one, ["n1", "n2"], seen, tally, at(now))
    assert (preferred.passed, preferred.refused) == (found.passed, found.refused)
    assert set(found.refused.values()) <= {Refused.HELD, Refused.WAITING}
    return found.passed


def test_a_pod_that_is_done_before_the_drain_may_have_the_node_and_no_other_held_one() -> None:
    assert where(lodger(), draining()) == ["n1"]


@pytest.mark.parametrize(
    ("one", "acts"),
    [
        (lodger("61s"), draining()),
        (lodger(), draining(drained_by=99)),
        (lodger(), draining(drained_by=None)),
        (lodger("soon"), draining()),
        (lodger(tolerations=(Toleration(operator="Exists"),)), draining()),
        (lodger(tolerations=(Toleration(CLAIM_KEY, "Equal", "u"),)), draining()),
        (lodger(cards=8), draining()),
        *((lodger(), draining(phase)) for phase in Phase if phase is not Phase.DRAINING),
    ],
)
def test_d10_nobody_else_may_have_it(one: Pod, acts: WholeNodeClaim) -> None:
    assert where(one, acts) == []


def test_a_node_that_another_claim_holds_by_now_is_not_the_one_being_drained() -> None:
    seen = board(LENT, node("n1", taints=(taint("other"),)), draining())
    assert judge(lodger(), ["n1"], seen, T0).refused == {"n1": Refused.HELD}


def test_a_pod_without_a_declared_run_may_not_have_it() -> None:
    assert where(pod("one", 1, tolerations=ASKS), draining()) == []


def test_without_a_time_nobody_is_let_in() -> None:
    seen = board(LENT, node("n1", taints=(taint("u"),)), draining())
    assert judge(lodger(), ["n1"], seen).refused == {"n1": Refused.HELD}


def test_an_ordinary_place_stays_open_beside_it_in_the_order_asked() -> None:
    seen = board(LENT, agreement(ns="team-s"), node("n1", taints=(taint("u"),)), node("n2"), node("n3"), draining())
    assert judge(lodger(), ["n3", "n1", "n2"], seen, T0).passed == ["n3", "n1", "n2"]


def test_grace_and_a_margin_count_when_it_enters_and_its_word_while_it_is_there() -> None:
    assert MARGIN.total_seconds() == 30
    assert may_enter(lodger(), at(100), T0)
    assert not may_enter(lodger(), at(100), at(1))
    there = lodger(on="n1")
    assert may_finish(there, at(70), at(59))
    assert may_finish(there, at(70), at(89)), "it may need a moment to start"
    assert not may_finish(there, at(70), at(90)), "it has not kept its word"
    assert not may_finish(there, at(69), at(10)), "the drain ends before"
    assert not may_finish(there, None, at(10))
    assert not may_finish(pod("one", 1, on="n1", tolerations=ASKS), at(900), at(10))


def slow_drain(*more: Any) -> Simulation:
    """A node whose one victim takes 3 minutes to end."""
    scene = Simulation().add(node("n1"), small(1, "n1", grace=180), agreement(), gang(), *more)
    scene.run(10, until=lambda: bool(scene.evictions))
    return scene.go_on(3)


def test_in_the_simulation_a_short_job_uses_the_node_meanwhile_and_the_gang_is_not_later_for_it() -> None:
    scene = slow_drain()
    scene.add(lodger("60s"))
    scene.go_on(5)
    assert scene.where("short") == ["n1"]
    scene.later(scene.seconds + 60, lambda: scene.end("team-s.short"))
    scene.run(200, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n1"]
    assert scene.seconds < 190
    assert scene.evicted() == ["n1-0"]


def test_in_the_simulation_nobody_else_gets_in_and_a_long_job_does_not_either() -> None:
    scene = slow_drain()
    scene.add(lodger("170s"), pod("any", 1, ns="team-s", tolerations=(Toleration(operator="Exists"),)))
    scene.run(200, until=lambda: all_bound(scene))
    assert scene.where("short") == scene.where("any") == []
    assert scene.where("train") == ["n1"]


@pytest.mark.parametrize("agreed", [True, False])
def test_a_short_job_that_breaks_its_word_is_treated_like_any_pod_that_slipped_in(agreed: bool) -> None:
    scene = slow_drain(*([agreement(ns="team-s")] if agreed else []))
    scene.add(lodger("60s"))
    scene.go_on(85)
    assert scene.evicted() == ["n1-0"]
    scene.go_on(20)
    if agreed:
        assert scene.evicted() == ["n1-0", "short"]
    else:
        assert scene.evicted() == ["n1-0"]
        assert [one.reason for one in scene.the_claim().status.avoid] == [Reason.PROTECTED_POD]
        assert scene.marked() == []


def test_a_victim_that_ends_early_does_not_have_the_short_job_stopped_for_it() -> None:
    scene = slow_drain(agreement(ns="team-s"))
    scene.add(lodger("60s"))
    scene.go_on(5)
    scene.later(scene.seconds + 60, lambda: scene.end("team-s.short"))
    del scene.pods["team-v.n1-0"]
    scene.go_on(30)
    assert scene.where("short") == ["n1"]
    assert scene.the_claim().status.phase in {Phase.DRAINING, Phase.PROVING_EMPTY}
    scene.run(120, until=lambda: all_bound(scene))
    assert scene.evicted() == ["n1-0"]


def test_when_the_drain_ends_does_not_depend_on_the_short_jobs_there() -> None:
    scene = slow_drain()
    before = scene.the_claim().status.drained_by
    scene.add(lodger("60s"))
    scene.go_on(5)
    assert scene.where("short") == ["n1"]
    assert before is not None
    assert scene.the_claim().status.drained_by == before


def test_who_was_there_before_the_drain_is_no_lodger_whatever_it_declares() -> None:
    there = pod("short", 1, on="n1", started=-5, notes={EXPECTED_RUN: "5m"}, tolerations=ASKS, grace=1)
    scene = Simulation().add(node("n1"), there, agreement(), gang()).run(30)
    assert scene.evicted() == ["short"]
    assert all_bound(scene)


def test_nobody_is_a_lodger_on_a_node_that_is_open_to_its_gang() -> None:
    scene = Simulation().add(node("n1"), agreement(ns="team-s"), gang())

    def slip_in(action: Action) -> None:
        if isinstance(action, WriteStatus) and action.status.phase is Phase.READY:
            scene.bind(lodger("60s"), "n1")

    scene.after = slip_in
    scene.run(40)
    assert scene.evicted() == ["short"]
    assert all_bound(scene)


def test_a_short_job_that_started_in_the_second_of_the_taint_is_a_lodger_too() -> None:
    """Pods say in whole seconds when they started: one of 12:00:05.9 says 12:00:05, and the taint is of 12:00:05.8."""
    there, before = (
        pod("short", on="n1", started=when, notes={EXPECTED_RUN: "60s"}, tolerations=ASKS) for when in (5, 4)
    )
    acts = draining()
    (held,) = acts.status.nodes
    status = msgspec.structs.replace(acts.status, nodes=(msgspec.structs.replace(held, held_at=at(5.8)),))
    acts = msgspec.structs.replace(acts, status=status)
    context = Context(View({}, {}, {}, (), (), {}), {}, {}, at(6), Timing(), Decision())
    assert lodges(context, acts, there)
    assert not lodges(context, acts, before)
