"""Where Kueue's own topology has put the pods of a pod set: read from the Workload's assignment (v1beta2)."""

from typing import Any

import msgspec

from fleet.kueue.objects import PodSetAssignment
from fleet.objects import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, PodSpec, Requirement

HOSTNAME = "kubernetes.io/hostname"


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Individual(_Part, frozen=True):
    roots: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""


class _Values(_Part, frozen=True):
    universal: str | None = None
    individual: _Individual | None = None

    def all(self) -> tuple[str, ...]:
        if self.individual is None:
            return (self.universal,) if self.universal is not None else ()
        one = self.individual
        return tuple(f"{one.prefix}{root}{one.suffix}" for root in one.roots)


class _Slice(_Part, frozen=True):
    values_per_level: tuple[_Values, ...] = ()


class _Assignment(_Part, frozen=True):
    levels: tuple[str, ...] = ()
    slices: tuple[_Slice, ...] = ()


def places(assignment: PodSetAssignment) -> tuple[Requirement, ...]:
    """What a node must be like to be one of those Kueue has chosen: one requirement a level; none without topology.

    Which pod goes to which of them is Kueue's to say when the pods are there. What cannot be read says nothing.
    """
    raw: Any = assignment.topology_assignment
    if not raw:
        return ()
    try:
        read = msgspec.convert(raw, _Assignment)
    except msgspec.ValidationError:
        return ()
    found = []
    for index, level in enumerate(read.levels):
        values = [value for one in read.slices if index < len(one.values_per_level) for value in _at(one, index)]
        if values:
            found.append(Requirement(level, "In", tuple(dict.fromkeys(values))))
    return tuple(found)


def _at(one: _Slice, index: int) -> tuple[str, ...]:
    return one.values_per_level[index].all()


def bound_to(spec: PodSpec, wanted: tuple[Requirement, ...]) -> PodSpec:
    """The spec with the requirements added to each term of its node affinity."""
    if not wanted:
        return spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    terms = (required.node_selector_terms if required else None) or (NodeSelectorTerm(),)
    narrowed = tuple(
        msgspec.structs.replace(one, match_expressions=(*(one.match_expressions or ()), *wanted)) for one in terms
    )
    return msgspec.structs.replace(spec, affinity=Affinity(NodeAffinity(NodeSelector(narrowed))))
