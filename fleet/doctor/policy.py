"""Check `placement-policy`: whether small pods are spread so that no node, or no card, is left whole."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fleet.cards import finished, seat
from fleet.doctor.bindings import bound_at
from fleet.doctor.checkup import Checkup
from fleet.doctor.findings import Code, Finding, Verdict, fine, not_used
from fleet.fitness import closed, usable_cards
from fleet.hami import CARD_POLICY, NODE_POLICY, cards_of, registered
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Node, Pod
from fleet.requests import RequestClass
from fleet.resources import Accepts, Drain
from fleet.tally import free_cards
from fleet.view import View

_TWICE: Final = 2
_LEAST_LOST: Final = 2
"""Nodes, or cards by the node, that must be lost to spreading before it is called so."""
_FEW: Final = 10
"""Below one node in so many that spreading costs, it is a warning."""
_AGO: Final = (60, 300, 900)
_PACKING: Final = frozenset({"MostAllocated", "RequestedToCapacityRatio"})
_NODE_FLAG: Final = "node-scheduler-policy"
_CARD_FLAG: Final = "gpu-scheduler-policy"
_FIX_HAMI: Final = (
    "Give HAMi's scheduler extender these flags (its chart: scheduler.defaultSchedulerPolicy), and take annotations\n"
    "hami.io/node-scheduler-policy: spread and hami.io/gpu-scheduler-policy: spread from pods:\n"
    "--node-scheduler-policy=binpack --gpu-scheduler-policy=binpack"
)
_FIX_SCHEDULER: Final = (
    "Have kube-scheduler pack cards, and restart it:\n"
    "profiles:\n"
    "- schedulerName: default-scheduler\n"
    "  pluginConfig:\n"
    "  - name: NodeResourcesFit\n"
    "    args:\n"
    "      scoringStrategy:\n"
    "        type: MostAllocated\n"
    "        resources: [{name: nvidia.com/gpu, weight: 100}]\n"
    "or have it ask wholenode's extender, which gives small pods the fullest nodes (scheduler-config)."
)
_FIX_POOL: Final = (
    "What is spread already stays so until it ends, or is vacated under an agreement (see agreements). Keep small\n"
    "pods off the nodes for whole-node jobs: a GPUPool with accepts: Small for most nodes, one with accepts:\n"
    "WholeNode for the rest."
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the cards in use are. `needed` cards would do for the shares in use, `packed` nodes for all small pods."""

    nodes: int
    cards: int
    whole: int
    touched_nodes: int
    touched_cards: int
    needed: int
    packed: int
    free: int
    per_node: int

    @property
    def whole_if_packed(self) -> int:
        return max(self.whole, self.nodes - self.packed)


def check(seen: Checkup) -> tuple[Finding, ...]:
    """By what is there: policies only say how it came to be so, and what will become of a fleet that is empty yet."""
    nodes = _nodes(seen.view)
    if not nodes:
        return (not_used("no open node has cards"),)
    layout = _layout(seen.view, nodes)
    policies = tuple(_spreading(seen))
    evidence = _evidence(seen, nodes, layout, policies)
    lost = layout.whole_if_packed - layout.whole
    findings = []
    far = lost >= _LEAST_LOST and layout.touched_nodes >= _TWICE * layout.packed
    if far or (lost and not layout.whole):
        findings.append(_spread(seen, layout, evidence, policies))
    if layout.touched_cards >= _TWICE * layout.needed and layout.touched_cards - layout.needed >= layout.per_node:
        text = (
            f"{layout.touched_cards} cards hold shares that {layout.needed} would hold: "
            f"{layout.touched_cards - layout.needed} cards are touched for nothing, and nobody can have them whole"
        )
        findings.append(Finding(Code.CARDS_SPREAD, Verdict.PROBLEM, text, evidence, f"{_FIX_HAMI}\n{_FIX_POOL}"))
    if not findings and policies:
        text = f"pods would be spread: {'; '.join(policies)}; {layout.whole} of {layout.nodes} nodes are whole yet"
        findings.append(Finding(Code.SPREADING_POLICY, Verdict.WARNING, text, evidence, _fix(seen)))
    if findings:
        return tuple(findings)
    return (fine(f"{layout.whole} of {layout.nodes} nodes are whole, {layout.free} cards are free", **evidence),)


def _spread(seen: Checkup, layout: Layout, evidence: dict[str, Any], policies: Iterable[str]) -> Finding:
    code = Code.NODES_SPREAD if layout.whole else Code.NO_WHOLE_NODE
    wholes = "no node is" if not layout.whole else "1 node is" if layout.whole == 1 else f"{layout.whole} nodes are"
    head = f"{layout.free} cards are free and {wholes} whole"
    text = (
        f"{head}: small pods hold {layout.touched_cards} cards on {layout.touched_nodes} of {layout.nodes} nodes and "
        f"would fit on {layout.packed}, which would leave {layout.whole_if_packed} whole"
    )
    why = "; ".join(policies)
    text = f"{text} ({why})" if why else text
    lent = evidence["nodesToVacate"]
    text = f"{text}; {lent} can be vacated under agreements" if lent else text
    # The last few cards of a full fleet lie about however well it is packed.
    many = _FEW * (layout.whole_if_packed - layout.whole) >= layout.nodes
    verdict = Verdict.PROBLEM if many and not layout.whole and not lent else Verdict.WARNING
    return Finding(code, verdict, text, evidence, f"{_fix(seen)}\n{_FIX_POOL}")


def _nodes(view: View) -> tuple[tuple[Node, str], ...]:
    """The open nodes that whole-node jobs could use, with their card resource: those of such pools, else all."""
    of_pools = [pool for pool in view.pools if pool.spec.accepts is Accepts.WHOLE_NODE]
    found = []
    for name, node in sorted(view.nodes.items()):
        pool = view.membership.pool_of(name)
        resource = pool.spec.resource_name if pool else DEFAULT_RESOURCE
        wanted = pool in of_pools if of_pools else True
        if wanted and not closed(node) and usable_cards(node, resource) > 0:
            found.append((node, resource))
    return tuple(found)


def _layout(view: View, nodes: Iterable[tuple[Node, str]]) -> Layout:
    nodes = tuple(nodes)
    per_node = max(usable_cards(node, resource) for node, resource in nodes)
    # A node that a whole-node pod has to itself, as it should, is no matter of spreading.
    shared = [one for one in nodes if not _whole_taken(view, one[0])]
    touched = [(node, view.tally.on(node.metadata.name)) for node, _ in shared]
    cards = sum(use.touched for _, use in touched)
    needed = sum(use.plain for _, use in touched) + _least_cards(touched)
    return Layout(
        nodes=len(shared),
        cards=sum(usable_cards(node, resource) for node, resource in nodes),
        whole=sum(
            not use.touched and usable_cards(node, resource) == per_node
            for (node, resource), (_, use) in zip(shared, touched, strict=True)
        ),
        touched_nodes=sum(use.touched > 0 for _, use in touched),
        touched_cards=cards,
        needed=needed,
        packed=-(-needed // per_node),
        free=sum(free_cards(node, resource, view.tally.on(node.metadata.name)) for node, resource in nodes),
        per_node=per_node,
    )


def _whole_taken(view: View, node: Node) -> bool:
    there = view.gpu_pods_on(node.metadata.name)
    return any(view.classify(pod).request_class is RequestClass.WHOLE_NODE for pod in there)


def _least_cards(touched: Iterable[tuple[Node, Any]]) -> int:
    """How few cards the shares in use would do with, by memory, processors and number."""
    memory = cores = slots = 0.0
    for node, use in touched:
        known = {card.id: card for card in cards_of(node) or ()}
        for uuid, taken in use.cards.items():
            card = known.get(uuid)
            # A card handed out as a device, or unknown to the register, is taken whole.
            memory += taken.memory_mib / card.devmem if card and card.devmem else 1
            cores += taken.cores / card.devcore if card and card.devcore else 0
            slots += taken.slots / card.count if card and card.count else 1
    most = max(memory, cores, slots)
    return int(most) + (most > int(most))


def _evidence(seen: Checkup, nodes: Any, layout: Layout, policies: Iterable[str]) -> dict[str, Any]:
    pods = [
        len([pod for pod in seen.view.gpu_pods_on(node.metadata.name) if _small(seen.view, pod)]) for node, _ in nodes
    ]
    spread = {str(count): pods.count(count) for count in sorted(set(pods))}
    return {
        "nodes": layout.nodes,
        "cardsFree": layout.free,
        "wholeNodesFree": layout.whole,
        "wholeNodesIfPacked": layout.whole_if_packed,
        "nodesTouched": layout.touched_nodes,
        "cardsTouched": layout.touched_cards,
        "cardsNeeded": layout.needed,
        "nodesToVacate": sum(_can_be_vacated(seen, node) for node, _ in nodes),
        "nodesBySmallPods": spread,
        "trend": tuple(_trend(seen, nodes)),
        "policies": tuple(policies),
    }


def _can_be_vacated(seen: Checkup, node: Node) -> bool:
    """Whether all who hold cards there have an agreement, so that whole-node jobs need not wait for its ends."""
    pool = seen.view.membership.pool_of(node.metadata.name)
    if pool is None or pool.spec.drain is not Drain.AGREED:
        return False
    agreed = seen.view.in_force(seen.at)
    there = seen.view.gpu_pods_on(node.metadata.name)
    return bool(there) and all(_small(seen.view, pod) and agreed.get(pod.metadata.namespace) for pod in there)


def _small(view: View, pod: Pod) -> bool:
    return view.classify(pod).request_class is RequestClass.SMALL


def _trend(seen: Checkup, nodes: Any) -> Iterator[dict[str, Any]]:
    """Whole nodes as they were, as far as pods that are still there tell; then as the watch saw it, and now."""
    names = [node.metadata.name for node, _ in nodes]
    since: dict[str, list[datetime]] = {}
    for name in names:
        for pod in seen.view.gpu_pods_on(name):
            since.setdefault(name, []).append(bound_at(pod) or pod.metadata.creation_timestamp or seen.at)
    for seconds in reversed(_AGO):
        moment = seen.at - timedelta(seconds=seconds)
        untouched = sum(all(start > moment for start in since.get(name, ())) for name in names)
        yield {"secondsAgo": seconds, "wholeNodes": untouched, "from": "start times"}
    if seen.earlier is not None and seen.earlier_at is not None:
        before = {seat(pod) for uid in seen.earlier.requests if not finished(pod := seen.earlier.pods[uid])}
        ago = round((seen.at - seen.earlier_at).total_seconds(), 1)
        yield {"secondsAgo": ago, "wholeNodes": sum(name not in before for name in names), "from": "watching"}
    yield {"secondsAgo": 0, "wholeNodes": sum(name not in since for name in names), "from": "now"}


def _spreading(seen: Checkup) -> Iterator[str]:
    """Every setting found that spreads, in words."""
    for one in seen.hami_programs:
        if (one.flag(_NODE_FLAG) or "binpack") == "spread":
            yield f"HAMi ({one.deployment}) spreads over nodes: --{_NODE_FLAG}=spread"
        if (one.flag(_CARD_FLAG) or "spread") == "spread":
            given = "" if one.flag(_CARD_FLAG) else ", which is its default"
            yield f"HAMi ({one.deployment}) spreads over cards: --{_CARD_FLAG}=spread{given}"
    notes = [
        pod
        for pod in seen.view.pods.values()
        if "spread" in {pod.metadata.annotation(CARD_POLICY), pod.metadata.annotation(NODE_POLICY)}
    ]
    if notes:
        yield f"{len(notes)} pods ask for it by annotation {CARD_POLICY} or {NODE_POLICY}"
    for config in seen.scheduler_configs:
        if config.problem or any(one.ours or one.hami for one in config.extenders()):
            continue
        for profile in config.document.profiles or ():
            if str(profile.scoring().get("type", "LeastAllocated")) not in _PACKING:
                yield f"{config.source} spreads: profile {profile.scheduler_name} scores LeastAllocated"


def _fix(seen: Checkup) -> str:
    hami = seen.hami_programs or any(registered(node) is not None for node in seen.view.nodes.values())
    return _FIX_HAMI if hami else _FIX_SCHEDULER
