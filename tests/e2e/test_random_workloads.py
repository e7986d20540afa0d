"""300 random workloads through filter, real kube-scheduler and controller; every stored change of them is looked at."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import HealthCheck, Phase, given, seed, settings

from kwok.controlplane import ControlPlane
from tests.e2e.decks import DECK, Workload, decks
from tests.e2e.play import Play, table

DECKS = 6


def test_300_random_workloads_never_break_a_rule_and_none_waits_without_a_reason(plane: ControlPlane) -> None:
    """The rules are those of `kwok.invariants` at every change, and those of `kwok.settled` after each deck."""
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        opened = table(plane)
        play: Play = runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))

        @seed(4)
        @settings(
            max_examples=DECKS,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(decks())
        def play_each(deck: list[Workload]) -> None:
            runner.run(play.deck(deck))

        play_each()

        assert play.workloads == DECKS * DECK
        seen = play.invariants.tally
        for what in (
            "small pods bound",
            "whole-node pods bound",
            "gangs landing",
            "evictions",
            "strangers",
        ):
            assert seen[what], f"the decks never came to: {what}; {dict(seen)}"
