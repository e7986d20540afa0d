"""Nodes that stand together: grouped by topology domain, and compared by the harm that a whole set of them does."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.candidates import Candidate
from fleet.costs import joint_loss

Harm = tuple[int, int, int, int, int, bool, float, int, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes with one value of the topology label, least harm first; one domain without a name if none is asked for."""

    name: str
    nodes: tuple[Candidate, ...]


def grouped(every: Iterable[Candidate], topology_key: str | None) -> tuple[Domain, ...]:
    """The domains by name, each with its nodes as they are ordered; nodes of no domain are left out."""
    ordered = tuple(every)
    if topology_key is None:
        return (Domain("", ordered),)
    names = sorted({one.domain for one in ordered if one.domain})
    return tuple(Domain(name, tuple(one for one in ordered if one.domain == name)) for name in names)


def harm(nodes: tuple[Candidate, ...]) -> Harm:
    """Sorts sets of nodes as single nodes are: free ones first, then budgets, priority, places, cost, gangs, name.

    A gang that is hit on several nodes of the set is lost, and counted, once.
    """
    presses: Counter[str] = Counter()
    for one in nodes:
        presses.update({press.budget: press.pods for press in one.presses})
    allowed = {press.budget: press.allowed for one in nodes for press in one.presses}
    return (
        sum(one.occupied for one in nodes),
        sum(one.leaving for one in nodes if not one.occupied),
        sum(one.kept for one in nodes),
        sum(max(0, pods - allowed[name]) for name, pods in presses.items()),
        max((one.top_priority for one in nodes), default=0),
        any(one.homeless for one in nodes),
        joint_cost(nodes),
        len({gang.key for one in nodes for gang in one.gangs}),
        nodes[0].domain if nodes else "",
        tuple(one.node.metadata.name for one in nodes),
    )


def joint_cost(nodes: tuple[Candidate, ...]) -> float:
    """What emptying all of the nodes costs, in GPU-seconds as they are compared."""
    hits = (hit for one in nodes for hit in one.hits)
    return sum(one.idle for one in nodes) + joint_loss(hits, (gang for one in nodes for gang in one.gangs))
