"""Gangs of sets in the simulated cluster, from waiting to bound; and what is lost when a gang is a victim."""

import msgspec
import pytest

from fleet.costs import victims_of
from fleet.names import CLAIM_KEY
from fleet.objects import Job, Pod
from fleet.resources import Phase
from tests.fleet.builders import at, claim, job, node, owned, pod, ref, view
from tests.fleet.gang_kinds import KINDS, VOLCANO, Kind, jobset_jobs
from tests.fleet.scenes import all_bound, in_phase
from tests.fleet.simulation import Simulation

by_name = {kind.name: kind for kind in KINDS}
IN_SETS = ["LeaderWorkerSet", "JobSet", "Job"]


@pytest.mark.parametrize("name", IN_SETS)
def test_a_launcher_and_its_workers_start_whole_and_a_recreated_worker_comes_back(name: str) -> None:
    kind = by_name[name]
    gates = (CLAIM_KEY,)
    launcher, first, last = kind.make(0, 1), kind.make(1, gates=gates), kind.make(2, gates=gates)
    world = Simulation().add(node("n1"), node("n2"), node("small", ""), kind.needs(), launcher, first)
    world.run(20)
    assert world.marked() == []
    assert [one.status.reason for one in world.claims.values()] == ["GangIncomplete"]
    world.add(last).go_on(60, lambda: all_bound(world))
    assert all_bound(world)
    assert {world.pods[one.metadata.uid].spec.node_name for one in (first, last)} == {"n1", "n2"}

    world.delete(last.metadata.uid)
    again = msgspec.structs.replace(last.metadata, uid="again", creation_timestamp=world.now)
    world.add(msgspec.structs.replace(last, metadata=again))
    world.go_on(60, lambda: in_phase(world, Phase.RELEASED) and in_phase(world, Phase.BOUND))
    assert world.pods["again"].spec.node_name in {"n1", "n2"}
    assert "GangIncomplete" not in {one.status.reason for one in world.claims.values()}


def after_losing_its_pods(*jobs: Job) -> str:
    """The phase of a waiting claim for a JobSet whose pods are all gone."""
    waiting = claim(gang=ref("g", "JobSet", "set-g"), phase=Phase.PENDING)
    world = Simulation().add(node("n1"), jobs, waiting).run(1)
    return str(world.claims[waiting.metadata.uid].status.phase)


def test_a_jobset_between_its_pods_keeps_its_claim_as_long_as_one_of_its_jobs_goes_on() -> None:
    owner = owned("JobSet", "g", "set-g")
    ended, suspended = job("a", ended="Complete", owner=owner), job("b", suspend=True, owner=owner)
    assert after_losing_its_pods(*jobset_jobs()) == Phase.PENDING
    assert after_losing_its_pods(jobset_jobs()[0], ended) == Phase.PENDING
    assert after_losing_its_pods(ended, suspended) == Phase.ROLLED_BACK
    assert after_losing_its_pods(job("other")) == Phase.ROLLED_BACK


def volcano(index: int, cards: int = 8, ns: str = "team-b", **more: object) -> Pod:
    return pod(f"v-{index}", cards, ns=ns, notes={VOLCANO: "g"}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*KINDS, Kind("Volcano", volcano)], ids=lambda kind: kind.name)
def test_d41_a_victims_whole_gang_counts_as_lost_whatever_its_kind(kind: Kind) -> None:
    running = [kind.make(index, 2, on=f"n{index}") for index in range(3)]
    seen = view([node(f"n{index}") for index in range(3)], running, kind.needs())
    (lost,) = victims_of(seen, [running[1]], {}, at(100))
    assert lost.lost_gpu_seconds == 3 * 2 * 100
