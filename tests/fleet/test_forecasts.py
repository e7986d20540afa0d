"""What is known ahead of running pods: declared and learned ends, and the checkpoints that are due."""

from datetime import datetime

import pytest

from fleet.forecasts import Event, expected_end, natural_end, saves
from fleet.names import CHECKPOINT_EVERY, EXPECTED_RUN
from fleet.objects import Pod
from fleet.resources import Phase, PhaseTime, Policy
from tests.fleet.builders import T0, at, claim, pod, view
from tests.fleet.history import MINUTE, ended


def run(text: str, *, name: str = "x-9", started: float = 0, **more: object) -> Pod:
    return pod(name, on="n1", started=started, notes={EXPECTED_RUN: text} if text else {}, **more)  # type: ignore[arg-type]


def test_what_the_owner_declares_comes_before_what_is_learned() -> None:
    history = [ended(f"x-{number}", 40) for number in range(3)]
    declared, silent = run("10m"), run("")
    seen = view(history, declared, silent)
    found = expected_end(seen, declared)
    assert found is not None
    assert (found.at, found.until, found.learned) == (at(10 * MINUTE), at(10 * MINUTE + 30), False)
    found = expected_end(seen, silent)
    assert found is not None
    assert (found.at, found.until, found.learned) == (at(40 * MINUTE), at(42 * MINUTE), True)
    assert expected_end(view(silent), silent) is None


@pytest.mark.parametrize("text", ["soon", "-5m", "10", "1000000000h"])
def test_a_declaration_that_cannot_be_read_is_none(text: str) -> None:
    assert expected_end(view(), run(text)) is None


def test_a_long_run_is_given_no_more_than_five_minutes_longer() -> None:
    found = expected_end(view(), run("100h"))
    assert found is not None
    assert (found.until - found.at).total_seconds() == 5 * MINUTE


def test_a_claims_expected_run_counts_for_its_gang() -> None:
    member = pod("t-0", 8, ns="team-b", on="n1", started=100, gang="train", size=1)
    found = expected_end(view(member, claim(run="1h")), member)
    assert found is not None
    assert found.at == at(3700)
    assert expected_end(view(member, claim(run="1h", policy=Policy.PREVIEW)), member) is None
    unstarted = pod("t-0", 8, ns="team-b", gang="train", size=1)
    planned = claim(run="1h", phase=Phase.LANDING, phases=(PhaseTime(Phase.PLANNED, at(50)),))
    found = expected_end(view(unstarted, planned), unstarted)
    assert found is not None
    assert found.at == at(50 + 60 + 3600)


def test_a_pod_that_is_going_ends_with_its_grace() -> None:
    going = run("10h", going=30)
    assert natural_end(view(going), [going], T0) == at(30)


def test_the_natural_end_of_several_is_known_only_if_each_is() -> None:
    short, long, unknown = run("10m"), run("20m"), run("")
    seen = view(short, long, unknown)
    assert natural_end(seen, [short, long], T0) == at(20 * MINUTE)
    assert natural_end(seen, [short, unknown], T0) is None
    assert natural_end(seen, [], T0) is None


def test_an_end_that_is_overdue_is_not_known_any_more() -> None:
    short, long = run("10m"), run("20m")
    seen = view(short, long)
    assert natural_end(seen, [short, long], at(10 * MINUTE - 1)) == at(20 * MINUTE)
    assert natural_end(seen, [short, long], at(10 * MINUTE)) is None
    assert natural_end(seen, [short], at(10 * MINUTE), late=True) == at(10 * MINUTE + 30)
    assert natural_end(seen, [short, long], at(10 * MINUTE), late=True) == at(20 * MINUTE)
    assert natural_end(seen, [short, long], at(10 * MINUTE + 30), late=True) is None
    history = [ended(f"x-{number}", 5) for number in range(3)]
    outrun = run("")
    assert natural_end(view(history, outrun), [outrun], at(6 * MINUTE)) is None


def gang(*cadences: str) -> list[Pod]:
    return [pod(f"g-{index}", notes={CHECKPOINT_EVERY: text}) for index, text in enumerate(cadences)]


def due(members: list[Pod], now: float, until: float = 10 * MINUTE) -> list[datetime]:
    return [one.at for one in saves(members, T0, at(now), at(until))]


def test_checkpoints_come_every_so_often_from_the_last_one() -> None:
    assert due(gang("5m"), 60) == [at(300), at(600)]
    assert due(gang("5m"), 60, until=599) == [at(300)]
    assert saves(gang("20m"), T0, at(60), at(1200)) == (Event(at(1200), at(1320)),)
    assert due(gang("5m", "3m"), 60) == [at(300), at(600)], "members that differ: the longest time"


@pytest.mark.parametrize("text", ["", "0s", "1s", "often", "-5m", "9.9s"])
def test_a_cadence_that_is_nonsense_is_none(text: str) -> None:
    assert due(gang(text), 5) == []


def test_a_cadence_that_is_not_kept_is_believed_in_twice() -> None:
    assert due(gang("1m"), 60 + 29)[0] == at(60), "a little late is not missed"
    assert due(gang("1m"), 60 + 30)[0] == at(120)
    assert due(gang("1m"), 120 + 30) == []


def test_a_cadence_of_seconds_does_not_fill_a_long_horizon() -> None:
    assert len(due(gang("10s"), 5, until=10**6)) == 50
