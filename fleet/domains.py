"""Nodes that stand together: grouped by topology domain, and compared by the harm that a whole set of them does."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from fleet.candidates import Candidate
from fleet.resources import Victim

Harm = tuple[int, int, int, int, float, int, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes with one value of the topology label, least harm first; one domain without a name if none is asked for."""

    name: str
    nodes: tuple[Candidate, ...]


def grouped(every: Iterable[Candidate], topology_key: str | None) -> tuple[Domain, ...]:
    """The domains by name, each with its nodes in the order of their own harm; nodes of no domain are left out."""
    ordered = sorted(every, key=lambda one: one.order)
    if topology_key is None:
        return (Domain("", tuple(ordered)),)
    names = sorted({one.domain for one in ordered if one.domain})
    return tuple(Domain(name, tuple(one for one in ordered if one.domain == name)) for name in names)


def harm(nodes: tuple[Candidate, ...]) -> Harm:
    """Sorts sets of nodes as single nodes are: free ones first, then priority, cost, victims, name.

    A gang that is hit on several nodes of the set is lost, and counted, once.
    """
    victims = once(victim for one in nodes for victim in one.victims)
    return (
        sum(one.occupied for one in nodes),
        sum(one.leaving for one in nodes if not one.occupied),
        sum(one.kept for one in nodes),
        max((one.top_priority for one in nodes), default=0),
        sum(victim.lost_gpu_seconds for victim in victims),
        len(victims),
        nodes[0].domain if nodes else "",
        tuple(one.node.metadata.name for one in nodes),
    )


def once(victims: Iterable[Victim]) -> tuple[Victim, ...]:
    """A gang that is hit on several nodes is lost once: its later pods add nothing."""
    counted: set[str] = set()
    found = []
    for victim in victims:
        found.append(msgspec.structs.replace(victim, lost_gpu_seconds=0.0) if victim.gang in counted else victim)
        counted.add(victim.gang)
    return tuple(found)
