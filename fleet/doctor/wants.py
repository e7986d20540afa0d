"""What requests count in Kueue's quota: its own transformations applied, and whole cards told from parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.cards import asks
from fleet.doctor.checkup import KueueConfiguration, Transformation
from fleet.errors import QuantityError
from fleet.hami import MEMORY
from fleet.kueue.objects import PodSet, Workload
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Metadata, Pod
from fleet.quantities import milli

TOTAL_MEMORY: Final = "nvidia.com/total-gpumem"
MEMORIES: Final = frozenset({MEMORY, TOTAL_MEMORY})
"""Names under which quotas count the memory of cards, in MiB."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one kind: so many cards, and what each counts by resource name after Kueue's transformations."""

    cards: int
    counts: Mapping[str, int]
    workloads: int = 1


def asked(one: PodSet) -> dict[str, int]:
    """What one pod of the set asks for. Empty if a quantity cannot be read."""
    try:
        return asks(Pod(Metadata(one.name), one.template.spec))
    except QuantityError:
        return {}


def counted(wants: Mapping[str, int], config: KueueConfiguration | None) -> dict[str, int]:
    """What Kueue (0.17) counts for one pod that wants this: prefixes are left out first, then come transformations.

    Without a configuration nothing is transformed.
    """
    resources = config.resources if config else KueueConfiguration().resources
    excluded = tuple(resources.exclude_resource_prefixes or ())
    rules: dict[str, Transformation] = {one.input: one for one in resources.transformations or ()}
    kept = {name: value for name, value in wants.items() if not (excluded and name.startswith(excluded))}
    found: dict[str, int] = {}
    for name, value in kept.items():
        rule = rules.get(name)
        if rule is None:
            found[name] = found.get(name, 0) + value
            continue
        # By what is left of the request: a resource that is left out multiplies nothing.
        times = value * (kept.get(rule.multiply_by, 1) if rule.multiply_by else 1)
        if rule.strategy != "Replace":
            found[name] = found.get(name, 0) + times
        for output, factor in (rule.outputs or {}).items():
            found[output] = found.get(output, 0) + _times(times, factor)
    return found


def _times(value: int, factor: str | float) -> int:
    """The product, rounded up; a factor that cannot be read counts nothing (Kueue would not start with it)."""
    try:
        return -(-value * milli(str(factor)) // 1000)
    except QuantityError:
        return 0


def shapes(workloads: Iterable[Workload], config: KueueConfiguration | None) -> tuple[Shape, ...]:
    """The different GPU requests among the Workloads, the largest first."""
    found: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
    for one in workloads:
        cards, counts = 0, dict[str, int]()
        for pods in one.spec.pod_sets or ():
            wants = asked(pods)
            cards += wants.get(DEFAULT_RESOURCE, 0) * pods.count
            for name, value in counted(wants, config).items():
                counts[name] = counts.get(name, 0) + value * pods.count
        if cards:
            key = (cards, tuple(sorted(counts.items())))
            found[key] = found.get(key, 0) + 1
    return tuple(Shape(cards, dict(counts), number) for (cards, counts), number in sorted(found.items(), reverse=True))
