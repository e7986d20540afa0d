"""Check `quota-unit`: whether Kueue's quota admits more whole cards than there are, for it counts something else."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.doctor.checkup import Checkup, ClusterQueue, KueueConfiguration, KueueResources, Quota, Transformation
from fleet.doctor.findings import Code, Finding, Verdict, fine, not_used, shown
from fleet.doctor.wants import MEMORIES, TOTAL_MEMORY, Shape, counted, shapes
from fleet.errors import FleetError
from fleet.hami import CORES, MEMORY, registered
from fleet.kueue.objects import ResourceFlavor, Workload
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Node
from fleet.quantities import amount

_EIGHT: Final = 8
_BLOCKS: Final = "BlockUndeclared"
_PART: Final = 3
"""A made-up request for this part of each card's memory shows what a quota in memory lets in."""
_RECIPE: Final = KueueConfiguration(
    KueueResources(
        transformations=(
            Transformation(MEMORY, "Replace", DEFAULT_RESOURCE, {TOTAL_MEMORY: "1"}),
            Transformation(CORES, "Replace", DEFAULT_RESOURCE, {"nvidia.com/total-gpucores": "1"}),
        )
    )
)
"""HAMi's own recipe for Kueue: taken for granted where quotas count its names and the configuration is not readable."""
_CONFIGURATION: Final = (
    "and have Kueue count cards as they are and leave HAMi's other names out of quota: in its Configuration, in place\n"
    "of all its transformations of nvidia.com/ names (nvidia.com/gpu has none), then restart it:\n"
    "resources:\n"
    "  transformations:\n"
    "  - {input: nvidia.com/gpumem, strategy: Replace, outputs: {}}\n"
    "  - {input: nvidia.com/gpumem-percentage, strategy: Replace, outputs: {}}\n"
    "  - {input: nvidia.com/gpucores, strategy: Replace, outputs: {}}\n"
    "  - {input: nvidia.com/priority, strategy: Replace, outputs: {}}"
)


@dataclass(frozen=True, slots=True)
class Stock:
    """What the nodes of one flavor have: cards, what `allocatable` says of them, and the memory of one card in MiB."""

    cards: int
    slots: int
    memory_mib: int


def check(seen: Checkup) -> tuple[Finding, ...]:
    """All quotas on GPU resources, added up by flavor and compared with the cards of the flavor's nodes."""
    if not seen.queues:
        return (not_used("there are no ClusterQueues"),)
    config = seen.kueue_config or (_RECIPE if _counts_totals(seen.queues) else None)
    findings: list[Finding] = []
    evidence: dict[str, Any] = {"clusterQueues": len(seen.queues), "configurationRead": seen.kueue_config is not None}
    for flavor in _flavors(seen):
        stock = _stock(seen.view.nodes.values(), flavor)
        totals = _totals(seen, flavor.metadata.name)
        evidence[f"flavor {flavor.metadata.name}"] = {"cards": stock.cards, "slots": stock.slots, **totals}
        cards = totals.get(DEFAULT_RESOURCE)
        if cards is not None and cards > stock.cards:
            findings.append(_above(flavor.metadata.name, cards, stock))
        if (cards is None or cards > stock.cards) and not MEMORIES.isdisjoint(totals):
            findings.extend(_in_memory(seen, flavor.metadata.name, stock, config))
    findings.extend(_uncovered(seen, config))
    return tuple(findings) or (fine("no quota admits more cards than there are", **evidence),)


def _counts_totals(queues: Iterable[ClusterQueue]) -> bool:
    groups = (group for queue in queues for group in queue.spec.resource_groups or ())
    return any(TOTAL_MEMORY in group.covered_resources for group in groups)


def _flavors(seen: Checkup) -> Iterator[ResourceFlavor]:
    """Those that have quota on cards or their memory; one that was not read stands for all nodes."""
    known = {one.metadata.name: one for one in seen.view.flavors}
    wanted = {DEFAULT_RESOURCE, *MEMORIES}
    names = {name for name, quota in _quotas(seen) if quota.name in wanted}
    yield from (known[name] for name in sorted(names) if name in known)


def _quotas(seen: Checkup) -> Iterator[tuple[str, Quota]]:
    """Each quota of a queue or cohort, with its flavor."""
    queues = (one.spec.resource_groups or () for one in seen.queues)
    cohorts = (one.spec.resource_groups or () for one in seen.cohorts)
    for groups in (*queues, *cohorts):
        for group in groups:
            for flavor in group.flavors:
                yield from ((flavor.name, one) for one in flavor.resources)


def _totals(seen: Checkup, flavor: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, quota in _quotas(seen):
        if name == flavor and quota.name in {DEFAULT_RESOURCE, *MEMORIES}:
            found[quota.name] = found.get(quota.name, 0) + _value(quota)
    return found


def _value(quota: Quota) -> int:
    try:
        return amount(quota.nominal_quota)
    except FleetError:
        return 0


def _stock(nodes: Iterable[Node], flavor: ResourceFlavor) -> Stock:
    """Of all the flavor's nodes, cordoned or broken ones too: quota is not changed for a bad hour."""
    wanted = flavor.spec.node_labels or {}
    cards = slots = memory = 0
    for node in nodes:
        if any(node.metadata.label(key) != value for key, value in wanted.items()):
            continue
        offered = _capacity(node)
        known = registered(node)
        cards += offered if known is None else len(known)
        slots += offered
        memory = max((memory, *(card.devmem for card in known or ())))
    return Stock(cards, slots, memory)


def _capacity(node: Node) -> int:
    for side in (node.status.capacity, node.status.allocatable):
        try:
            if side and DEFAULT_RESOURCE in side:
                return amount(side[DEFAULT_RESOURCE])
        except FleetError:
            return 0
    return 0


def _above(flavor: str, quota: int, stock: Stock) -> Finding:
    sliced = stock.slots > stock.cards
    evidence = {
        "flavor": flavor,
        "resource": DEFAULT_RESOURCE,
        "quota": quota,
        "cards": stock.cards,
        "slots": stock.slots,
        "wholeCardRequests": quota,
        "eightCardRequests": quota // _EIGHT,
        "eightCardRequestsThatFit": stock.cards // _EIGHT,
        "arithmetic": f"{quota} / 8 = {quota // _EIGHT} requests of 8 cards; "
        f"{stock.cards} / 8 = {stock.cards // _EIGHT} fit at most",
    }
    fix = (
        f"Set the nominalQuota values of {DEFAULT_RESOURCE} on flavor {flavor} so that they add up to {stock.cards} "
        f"(now {quota}): they count cards, not what `allocatable` says."
    )
    text = (
        f"flavor {flavor}: {quota} {DEFAULT_RESOURCE} of quota for {stock.cards} cards admit {quota // _EIGHT} "
        f"requests of 8 cards where {stock.cards // _EIGHT} fit"
    )
    if sliced:
        text = f"{text}: it counts HAMi's slots ({stock.slots}), and a request for 8 is for 8 whole cards"
        return Finding(Code.QUOTA_IN_SLOTS, Verdict.PROBLEM, text, evidence, fix)
    return Finding(Code.QUOTA_ABOVE_CARDS, Verdict.WARNING, text, evidence, fix)


def _in_memory(seen: Checkup, flavor: str, stock: Stock, config: KueueConfiguration | None) -> Iterator[Finding]:
    for queue in seen.queues:
        for name, quota in _memory_quotas(queue, flavor):
            made_up = _made_up(stock, config)
            yours = shapes(_of_queue(seen, queue.metadata.name), config)
            real = {(one.cards, tuple(sorted(one.counts.items()))) for one in yours}
            new = [one for one in made_up if (one.cards, tuple(sorted(one.counts.items()))) not in real]
            lines = [_line(one, name, quota, stock) for one in (*yours, *new) if _admissible(one, queue, config)]
            yield _memory_finding(queue, flavor, name, quota, stock, lines)


def _admissible(shape: Shape, queue: ClusterQueue, config: KueueConfiguration | None) -> bool:
    """Whether the queue covers all that the request counts, or need not."""
    if config is not None and config.resources.quota_check_strategy != _BLOCKS:
        return True
    return shape.counts.keys() <= _covered(queue)


def _covered(queue: ClusterQueue) -> set[str]:
    return {name for group in queue.spec.resource_groups or () for name in group.covered_resources}


def _memory_quotas(queue: ClusterQueue, flavor: str) -> Iterator[tuple[str, int]]:
    for group in queue.spec.resource_groups or ():
        for one in group.flavors:
            if one.name == flavor:
                yield from ((quota.name, _value(quota)) for quota in one.resources if quota.name in MEMORIES)


def _made_up(stock: Stock, config: KueueConfiguration | None) -> Iterator[Shape]:
    whole = {DEFAULT_RESOURCE: _EIGHT}
    parts = {DEFAULT_RESOURCE: _EIGHT, MEMORY: max(1, stock.memory_mib // _PART)}
    yield from (Shape(_EIGHT, counted(wants, config), 0) for wants in (whole, parts))


def _line(shape: Shape, name: str, quota: int, stock: Stock) -> dict[str, Any]:
    cost = shape.counts.get(name, 0)
    admitted = quota // cost if cost else None
    return {
        "cardsOfOne": shape.cards,
        "countsForOne": cost,
        "workloads": shape.workloads,
        "admitted": admitted,
        "cardsAdmitted": None if admitted is None else admitted * shape.cards,
        "cardsOfQuota": quota // stock.memory_mib if stock.memory_mib else None,
    }


def _memory_finding(
    queue: ClusterQueue, flavor: str, name: str, quota: int, stock: Stock, lines: list[dict[str, Any]]
) -> Finding:
    worth = quota // stock.memory_mib if stock.memory_mib else None
    over = [one for one in lines if one["admitted"] is None or one["cardsAdmitted"] > (worth or stock.cards)]
    told = "; ".join(_sentence(one, quota) for one in over[:3])
    is_worth = f"{quota} MiB" + (f" = {worth} cards of {stock.memory_mib} MiB" if worth is not None else "")
    text = f"ClusterQueue {queue.metadata.name} counts cards of flavor {flavor} in memory ({name}: {is_worth})"
    evidence = {
        "clusterQueue": queue.metadata.name,
        "flavor": flavor,
        "resource": name,
        "quota": quota,
        "cardsOfQuota": worth,
        "cards": stock.cards,
        "memoryOfOneCard": stock.memory_mib,
        "requests": lines,
        "arithmetic": told,
    }
    fix = f"{_in_cards(queue, flavor, name, stock.cards if worth is None else worth)}\n{_CONFIGURATION}"
    if not over:
        return Finding(Code.QUOTA_IN_MEMORY, Verdict.WARNING, text, evidence, fix)
    return Finding(Code.QUOTA_IN_MEMORY, Verdict.PROBLEM, f"{text}: {told}", evidence, fix)


def _in_cards(queue: ClusterQueue, flavor: str, memory: str, cards: int) -> str:
    """The queue's group with cards in place of memory; what else is in it stays, or Kueue would admit nothing more."""
    group = next(
        one
        for one in queue.spec.resource_groups or ()
        if any(each.name == flavor and memory in {quota.name for quota in each.resources} for each in one.flavors)
    )
    of_cards = {memory, DEFAULT_RESOURCE}
    covered = ", ".join((*(one for one in group.covered_resources if one not in of_cards), DEFAULT_RESOURCE))
    lines = [
        f"Count cards: kubectl edit clusterqueue {queue.metadata.name}   # borrowing and lending limits in cards too",
        "resourceGroups:",
        f"- coveredResources: [{covered}]",
        "  flavors:",
    ]
    for each in group.flavors:
        lines += [f"  - name: {each.name}", "    resources:"]
        kept = [one for one in each.resources if one.name not in of_cards]
        lines += [f"    - {{name: {one.name}, nominalQuota: {one.nominal_quota}}}" for one in kept]
        own = str(cards) if each.name == flavor else "CARDS   # of this flavor"
        lines.append(f"    - name: {DEFAULT_RESOURCE}\n      nominalQuota: {own}")
    return "\n".join(lines)


def _sentence(line: Mapping[str, Any], quota: int) -> str:
    cards, cost = line["cardsOfOne"], line["countsForOne"]
    if line["admitted"] is None:
        return f"a request for {cards} cards without memory counts 0, so any number of them is admitted"
    return (
        f"a request for {cards} cards that counts {cost} is admitted {line['admitted']} times ({quota} / {cost}), "
        f"which is {line['cardsAdmitted']} cards"
    )


def _of_queue(seen: Checkup, queue: str) -> tuple[Workload, ...]:
    return tuple(one for one in seen.view.workloads.values() if _queue_of(seen, one) == queue)


def _queue_of(seen: Checkup, one: Workload) -> str | None:
    if one.status.admission is not None:
        return one.status.admission.cluster_queue
    return seen.local_queues.get((one.metadata.namespace, one.spec.queue_name))


def _uncovered(seen: Checkup, config: KueueConfiguration | None) -> Iterator[Finding]:
    """GPU Workloads that wait although Kueue never will admit them: they ask for what no quota knows.

    Without Kueue's configuration that is a guess: it may leave the resource out.
    """
    verdict = Verdict.WARNING if seen.kueue_config is None else Verdict.PROBLEM
    if config is not None and config.resources.quota_check_strategy != _BLOCKS:
        return
    queues = {one.metadata.name: one for one in seen.queues}
    lacking: dict[tuple[str, str], list[str]] = {}
    for one in seen.view.workloads.values():
        queue = queues.get(_queue_of(seen, one) or "")
        if queue is None or not one.active or one.is_true("QuotaReserved") or one.is_true("Finished"):
            continue
        for shape in shapes((one,), config):
            for name in shape.counts.keys() - _covered(queue):
                lacking.setdefault((queue.metadata.name, name), []).append(one.key)
    for (name, resource), keys in sorted(lacking.items()):
        text = f"ClusterQueue {name} does not cover {resource}: {len(keys)} Workloads are never admitted: {shown(keys)}"
        if verdict is Verdict.WARNING:
            text = f"{text}; unless Kueue's configuration, which was not found (--kueue-config), leaves it out"
        evidence = {"clusterQueue": name, "resource": resource, "workloads": sorted(keys)}
        fix = (
            f"Add {resource} to coveredResources of ClusterQueue {name}, with a quota, or have Kueue leave it out "
            f"(its Configuration, then restart it):\nresources:\n  transformations:\n"
            f"  - {{input: {resource}, strategy: Replace, outputs: {{}}}}"
        )
        yield Finding(Code.UNCOVERED_RESOURCE, verdict, text, evidence, fix)
