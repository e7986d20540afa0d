"""Check `bypassing-pods`: pods with cards that the scheduler with our extender, or HAMi, never saw."""

from collections.abc import Iterator
from typing import Final

from fleet.cards import finished
from fleet.doctor.checkup import Checkup
from fleet.doctor.findings import Code, Finding, Verdict, fine, shown
from fleet.doctor.schedulers import DEFAULT_NAME
from fleet.hami import booked_node, registered
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Pod

_FIX_HAMI: Final = (
    "HAMi counts none of their cards and will give them out again. Take the label hami.io/webhook: ignore off pods\n"
    "and namespaces, see that HAMi's webhook answers, and set on such pods: schedulerName: hami-scheduler\n"
    "then start them again: kubectl -n {namespace} delete pod {name}"
)
_FIX_SCHEDULER: Final = (
    "Set schedulerName on them to {names}, whose kube-scheduler asks our extender, take nodeName out of templates,\n"
    "or keep their nodes out of GPUPools."
)
_FIX_DAEMON: Final = (
    "A node whose DaemonSet holds cards is never whole, and its pods come back when they are stopped: run it without\n"
    "cards, or keep it off the nodes of GPUPools (nodeSelector)."
)


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Bound GPU pods on HAMi's nodes that HAMi has not booked; pods of other schedulers; DaemonSets with cards."""
    unbooked, elsewhere, daemons = [], [], []
    asked = _asked_names(seen)
    for uid, request in seen.view.requests.items():
        pod = seen.view.pods[uid]
        node = seen.view.nodes.get(pod.spec.node_name or "")
        if finished(pod) or node is None:
            continue
        if request.resource == DEFAULT_RESOURCE and registered(node) is not None and booked_node(pod) is None:
            unbooked.append(pod)
        elif asked and (pod.spec.scheduler_name or DEFAULT_NAME) not in asked and _pooled(seen, pod):
            elsewhere.append(pod)
        if (owner := pod.metadata.controller()) is not None and owner.kind == "DaemonSet":
            daemons.append(pod)
    findings = [*_hami(seen, unbooked), *_schedulers(seen, elsewhere, asked), *_daemons(seen, daemons)]
    return tuple(findings) or (
        fine("every pod with cards came by its scheduler", podsWithCards=len(seen.view.requests)),
    )


def _asked_names(seen: Checkup) -> frozenset[str]:
    """The scheduler names whose configuration, as far as it was found, asks our extender."""
    configs = [one for one in seen.scheduler_configs if any(each.ours for each in one.extenders())]
    return frozenset(name for one in configs for name in one.names)


def _pooled(seen: Checkup, pod: Pod) -> bool:
    return bool(seen.view.membership.by_node.get(pod.spec.node_name or ""))


def _cards(seen: Checkup, pods: list[Pod]) -> int:
    return sum(seen.view.requests[pod.metadata.uid].cards for pod in pods)


def _hami(seen: Checkup, pods: list[Pod]) -> Iterator[Finding]:
    if pods:
        cards = _cards(seen, pods)
        text = f"{len(pods)} pods hold {cards} cards of HAMi's nodes without HAMi: {shown(one.key for one in pods)}"
        evidence = {"pods": sorted(one.key for one in pods), "cards": cards, "byScheduler": _by_scheduler(pods)}
        first = min(pods, key=lambda one: one.key)
        fix = _FIX_HAMI.format(namespace=first.metadata.namespace, name=first.metadata.name)
        yield Finding(Code.BYPASSES_HAMI, Verdict.PROBLEM, text, evidence, fix)


def _schedulers(seen: Checkup, pods: list[Pod], asked: frozenset[str]) -> Iterator[Finding]:
    if pods:
        text = (
            f"{len(pods)} pods with {_cards(seen, pods)} cards came to nodes of GPUPools by other schedulers "
            f"({', '.join(_by_scheduler(pods))}): {shown(one.key for one in pods)}"
        )
        evidence = {"pods": sorted(one.key for one in pods), "byScheduler": _by_scheduler(pods)}
        fix = _FIX_SCHEDULER.format(names=" or ".join(sorted(asked)))
        yield Finding(Code.OTHER_SCHEDULER, Verdict.WARNING, text, evidence, fix)


def _daemons(seen: Checkup, pods: list[Pod]) -> Iterator[Finding]:
    if pods:
        cards = _cards(seen, pods)
        text = f"{len(pods)} pods of DaemonSets hold {cards} cards: {shown(one.key for one in pods)}"
        evidence = {"pods": sorted(one.key for one in pods), "cards": cards}
        yield Finding(Code.CARDS_OF_DAEMONSET, Verdict.WARNING, text, evidence, _FIX_DAEMON)


def _by_scheduler(pods: list[Pod]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pod in sorted(pods, key=lambda one: one.spec.scheduler_name or DEFAULT_NAME):
        name = pod.spec.scheduler_name or DEFAULT_NAME
        found[name] = found.get(name, 0) + 1
    return found
