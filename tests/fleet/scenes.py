"""Ready-made scenes for the simulated cluster: a busy fleet and a waiting gang."""

from collections.abc import Iterable
from typing import Any

from fleet.names import CLAIM_KEY, DEADLINE, PATIENCE, POLICY
from fleet.objects import Pod
from fleet.resources import Phase
from tests.fleet.builders import agreement, members, node, pod
from tests.fleet.simulation import Simulation

EVICT = {POLICY: "WaitThenEvict"}
GATED = (CLAIM_KEY,)


def gang(
    count: int = 1, name: str = "train", *, patience: str = "", deadline: str = "", ns: str = "team-b", **more: Any
) -> list[Pod]:
    """A waiting whole-node gang that may have others stopped, behind our gate."""
    notes = {**EVICT, **({PATIENCE: patience} if patience else {}), **({DEADLINE: deadline} if deadline else {})}
    return members(count, gang=name, ns=ns, **{"notes": notes, "gates": GATED, **more})


def small(count: int, on: str, *, prefix: str = "", ns: str = "team-v", grace: int = 3, **more: Any) -> list[Pod]:
    """Running one-card pods on a node: <prefix or node>-0, -1, …"""
    return [pod(f"{prefix or on}-{index}", on=on, ns=ns, grace=grace, **more) for index in range(count)]


def busy(nodes: Iterable[str] = ("n1", "n2"), each: int = 3, **simulation: Any) -> Simulation:
    """Nodes with `each` small agreeing pods on every one of them."""
    made = Simulation(**simulation)
    for name in nodes:
        made.add(node(name), small(each, name))
    return made.add(agreement())


def in_phase(simulation: Simulation, phase: Phase, count: int = 1) -> bool:
    return sum(one.status.phase is phase for one in simulation.claims.values()) >= count


def all_bound(simulation: Simulation) -> bool:
    return bool(simulation.claims) and all(one.status.phase is Phase.BOUND for one in simulation.claims.values())
