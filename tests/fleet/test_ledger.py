"""Lost GPU-seconds: cards of the whole gang, since its last checkpoint or start, and the restart."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.costs import victims_of
from fleet.ledger import work_of
from fleet.names import LAST_CHECKPOINT, RESTART_COST
from fleet.objects import Pod
from fleet.times import format_time
from tests.fleet.builders import at, node, pod, view


def lost(members: list[tuple[Pod, int]], now: datetime) -> float:
    pods, cards = [pod for pod, _ in members], [cards for _, cards in members]
    return work_of(pods, cards).lost(now).gpu_seconds


def run(name: str = "p", started: float = 0, checkpoint: str = "", restart: str = "", **more: object) -> Pod:
    notes = {key: value for key, value in ((LAST_CHECKPOINT, checkpoint), (RESTART_COST, restart)) if value}
    return pod(name, on="n1", started=started, notes=notes, **more)  # type: ignore[arg-type]


def test_cards_times_the_time_since_the_start() -> None:
    assert lost([(run(), 4)], at(100)) == 400


def test_a_checkpoint_keeps_what_came_before_it() -> None:
    assert lost([(run(checkpoint=format_time(at(70))), 4)], at(100)) == 120


@pytest.mark.parametrize("text", ["yesterday", "2027-01-04T12:01:10", format_time(at(101)), format_time(at(-5)), ""])
def test_a_checkpoint_that_cannot_be_believed_does_not_count(text: str) -> None:
    assert lost([(run(checkpoint=text), 4)], at(100)) == 400


def test_the_restart_comes_on_top_with_the_longest_that_is_said() -> None:
    members = [(run(restart="30s"), 1), (run("q", restart="10s"), 3), (run("r", restart="soon"), 0)]
    assert lost(members, at(100)) == 4 * (100 + 30)


def test_a_gang_has_one_state() -> None:
    saved = run(checkpoint=format_time(at(60)))
    assert lost([(saved, 8), (run("late", started=50), 8)], at(100)) == 16 * 40
    assert lost([(run(), 8), (run("late", started=50), 8)], at(100)) == 16 * 100


def test_nothing_that_has_started_loses_only_the_restart() -> None:
    waiting = Pod(run(restart="5s").metadata, run().spec)
    assert lost([(waiting, 2)], at(100)) == 10
    assert lost([], at(100)) == 0


@given(st.floats(-1000, 1000), st.integers(1, 64))
def test_a_loss_is_never_negative(now: float, cards: int) -> None:
    assert lost([(run(), cards)], at(now)) >= 0


def test_d41_the_loss_of_a_victim_is_that_of_its_whole_gang_once() -> None:
    gang = [run("a", gang="g", size=2), pod("b", on="n2", gang="g", size=2)]
    seen = view(node("n1"), node("n2"), gang)
    first, second = victims_of(seen, gang, {}, at(100))
    assert (first.lost_gpu_seconds, second.lost_gpu_seconds) == (200, 0)
    assert (first.cards, second.cards, first.node, second.node) == (1, 1, "n1", "n2")


def test_a_pod_that_only_a_look_has_seen_is_counted_too() -> None:
    (victim,) = victims_of(view(node("n1")), [run()], {}, at(100))
    assert (victim.cards, victim.lost_gpu_seconds) == (1, 100)


def test_members_that_wait_lose_nothing() -> None:
    gang = [run("a", gang="g", size=2), pod("b", gang="g", size=2)]
    seen = view(node("n1"), gang)
    assert victims_of(seen, gang[:1], {}, at(100))[0].lost_gpu_seconds == 100
