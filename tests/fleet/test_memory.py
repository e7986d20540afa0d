"""What passes leave to each other: worked out anew only when its sources change, and never a change of any answer."""

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fleet.lifecycle import decide
from fleet.memory import Memory
from fleet.names import CHECKPOINT_EVERY, EXPECTED_RUN, GANG_MIN_SIZE, LAST_CHECKPOINT, RESTART_COST
from fleet.objects import BudgetSpec, BudgetStatus, DisruptionBudget, LabelSelector, Metadata, Pod
from fleet.resources import Drain
from fleet.times import format_time
from fleet.view import View
from tests.fleet import simulation
from tests.fleet.builders import agreement, job, members, node, owned, pod, pool
from tests.fleet.simulation import Simulation

NODES = [f"n{index}" for index in range(6)]


def test_an_answer_is_worked_out_again_only_for_other_sources() -> None:
    asked: list[object] = []

    def work(*sources: object) -> int:
        asked.append(sources)
        return len(asked)

    memory = Memory()
    assert [memory.recall("a", work, 1), memory.recall("a", work, 1), memory.recall("b", work, 1)] == [1, 1, 2]
    assert [memory.recall("a", work, 2), memory.recall("a", work, 1)] == [3, 4]
    memory.turn()
    assert memory.recall("a", work, 1) == 4, "it is kept over a pass"
    memory.turn()
    assert memory.recall("b", work, 1) == 5, "what a whole pass has not asked for is forgotten"
    assert len(memory) == 2


@dataclass
class Remembering(Simulation):
    """A controller whose passes leave a memory to each other."""

    memory: Memory = field(default_factory=Memory)

    def view(self) -> View:
        self.memory.turn()
        return dataclasses.replace(super().view(), memory=self.memory)


def work(rng: random.Random, name: str) -> Pod:
    """A pod that runs: alone, of a Job, a service or a gang, with or without a word about its end and its work."""
    notes = {
        EXPECTED_RUN: rng.choice(("", "", "20s", "90s")),
        LAST_CHECKPOINT: rng.choice(("", "", format_time(simulation.at(rng.randint(-50, 80))))),
        CHECKPOINT_EVERY: rng.choice(("", "", "15s")),
        RESTART_COST: rng.choice(("", "5s")),
        GANG_MIN_SIZE: rng.choice(("", "1")),
    }
    owner = rng.choice((None, None, owned("ReplicaSet", "web"), owned("Job", "train")))
    return pod(
        name,
        rng.randint(1, 2),
        on=rng.choice(NODES),
        started=-rng.randint(0, 500),
        owner=owner,
        gang=rng.choice(("", "", "g1", "g2")) or None,
        size=2,
        labels={"app": rng.choice(("a", "b"))},
        notes={key: text for key, text in notes.items() if text},
        priority=rng.choice((0, 0, -1)),
    )


def disturb(rng: random.Random, world: Simulation, number: int) -> None:
    """One change of the kind that a cluster sees all the time."""
    running = [one for one in world.pods.values() if one.metadata.namespace == "team-v"]
    what = rng.randrange(7)
    if what == 0 or not running:
        world.add(work(rng, f"new-{number}"))
    elif what == 1:
        world.delete(rng.choice(running).metadata.uid)
    elif what == 2:
        one = rng.choice(running)
        notes = {**(one.metadata.annotations or {}), LAST_CHECKPOINT: format_time(world.now)}
        meta = msgspec.structs.replace(one.metadata, annotations=notes)
        world.pods[one.metadata.uid] = msgspec.structs.replace(one, metadata=meta)
    elif what == 3:
        allowed = BudgetStatus(rng.randrange(2))
        budget = BudgetSpec(LabelSelector({"app": rng.choice(("a", "b"))}))
        world.budgets = [DisruptionBudget(Metadata("some", "team-v"), budget, allowed)]
    elif what == 4:
        world.jobs["job-train"] = job("train", ns="team-v", parallelism=rng.choice((1, 3)), completions=3)
    elif what == 5:
        name = rng.choice(NODES)
        world.nodes[name] = node(name, cordoned=rng.random() < 0.5)
    else:
        spec = msgspec.structs.replace(world.agreements[0].spec, min_runtime=rng.choice(("0s", "40s")))
        world.agreements[0] = msgspec.structs.replace(world.agreements[0], spec=spec)


@pytest.mark.parametrize("seed", range(12))
def test_whoever_remembers_decides_as_whoever_does_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, passes = random.Random(seed), 0

    def both(view: View, *more: Any) -> Any:
        nonlocal passes
        passes += 1
        remembering, forgetful = decide(view, *more), decide(dataclasses.replace(view, memory=Memory()), *more)
        assert (remembering.actions, remembering.choices) == (forgetful.actions, forgetful.choices)
        assert remembering.wake_at == forgetful.wake_at
        return remembering

    monkeypatch.setattr(simulation, "decide", both)
    world = Remembering(pools=[pool(drain=Drain.AGREED)])
    world.add([node(name) for name in NODES], [work(rng, f"p-{index}") for index in range(14)], agreement())
    world.add(members(rng.randint(1, 2)))
    for number in range(12):
        world.go_on(4)
        disturb(rng, world, number)
    assert passes > 12
    assert len(world.memory) > 0
