"""Check `node-locks`: HAMi binds one pod at a time on a node; a lock that stays, or is fought for, holds others up."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from fleet.cards import finished
from fleet.doctor.checkup import Checkup
from fleet.doctor.findings import Code, Finding, Verdict, fine, not_used, shown
from fleet.errors import FleetError
from fleet.hami import LOCK, LOCK_EXPIRES_AFTER, registered
from fleet.times import parse_time

_LONG: Final = timedelta(seconds=30)
"""A device plugin takes well below a second; kube-scheduler gives up on HAMi's bind after 30 s."""
_EXPIRY: Final = f"{LOCK_EXPIRES_AFTER.total_seconds() / 60:.0f} min"
_RECENT: Final = timedelta(minutes=5)
_LEAST_FAILED: Final = 5
_WORDS: Final = ("node lock", "nodelock", "mutex.lock", "has been locked", "lock node")
_YOUNG: Final = timedelta(seconds=10)
"""Nodes and pods are read side by side: the holder of a younger lock may have been made since."""
_FIX_GONE: Final = (
    "HAMi takes such a lock over with its next binding there; until then, or for {expiry}, no claim can prove\n"
    "the node empty. Sooner: kubectl annotate node {node} hami.io/mutex.lock-"
)
_FIX_ENDED: Final = (
    "HAMi takes such a lock over after {expiry}; sooner: kubectl annotate node {node} hami.io/mutex.lock-\n"
    "If it happens again, shorten it (HAMi's scheduler extender): --node-lock-timeout=30s"
)
_FIX_OLD: Final = (
    "HAMi's device plugin on the node has not finished; look at its log:\n"
    "kubectl get pods -A -o wide --field-selector spec.nodeName={node} | grep device-plugin\n"
    "Then: kubectl annotate node {node} hami.io/mutex.lock-"
)
_FIX_FIGHT: Final = (
    "Label the pods of gangs scheduling.x-k8s.io/pod-group: NAME (HAMi 2.10 then waits instead of failing),\n"
    "keep kube-scheduler's podMaxBackoffSeconds low (2), and raise the rate limits (see rate-limits). Where many\n"
    "small pods come at once, --node-scheduler-policy=spread halves the fight but breaks whole nodes up."
)


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Locks by age and by whether their pod still exists; then bindings that failed because of one."""
    if not any(registered(node) is not None for node in seen.view.nodes.values()):
        return (not_used("no node is HAMi's"),)
    locks = tuple(_locks(seen))
    findings = [*_ended(locks), *_gone(locks), *_old(locks), *_fights(seen)]
    ages = [one["ageSeconds"] for one in locks]
    return tuple(findings) or (fine("no lock stays", locks=len(locks), oldestSeconds=max(ages, default=0)),)


def _locks(seen: Checkup) -> Iterator[dict[str, Any]]:
    pods = {(one.metadata.namespace, one.metadata.name): one for one in seen.view.pods.values()}
    for name, node in sorted(seen.view.nodes.items()):
        text = node.metadata.annotation(LOCK)
        if not text:
            continue
        taken_at, _, rest = text.partition(",")
        namespace, _, pod = rest.partition(",")
        holder = pods.get((namespace, pod))
        yield {
            "node": name,
            "pod": f"{namespace}/{pod}",
            "ageSeconds": round(_age(taken_at, seen.at).total_seconds(), 1),
            "podExists": holder is not None,
            "podEnded": holder is not None and finished(holder),
        }


def _age(taken_at: str, now: datetime) -> timedelta:
    """A lock whose time cannot be read is as old as one can be."""
    try:
        return max(timedelta(0), now - parse_time(taken_at))
    except FleetError:
        return LOCK_EXPIRES_AFTER


def _ended(locks: tuple[dict[str, Any], ...]) -> Iterator[Finding]:
    found = [one for one in locks if one["podEnded"]]
    if found:
        text = f"{len(found)} nodes are locked for pods that have ended: {shown(one['node'] for one in found)}"
        fix = _FIX_ENDED.format(expiry=_EXPIRY, node=found[0]["node"])
        yield Finding(Code.LOCK_OF_ENDED_POD, Verdict.PROBLEM, text, {"locks": found}, fix)


def _gone(locks: tuple[dict[str, Any], ...]) -> Iterator[Finding]:
    found = [one for one in locks if not one["podExists"] and one["ageSeconds"] >= _YOUNG.total_seconds()]
    if found:
        text = f"{len(found)} nodes are locked for pods that are gone: {shown(one['node'] for one in found)}"
        fix = _FIX_GONE.format(expiry=_EXPIRY, node=found[0]["node"])
        yield Finding(Code.LOCK_OF_GONE_POD, Verdict.WARNING, text, {"locks": found}, fix)


def _old(locks: tuple[dict[str, Any], ...]) -> Iterator[Finding]:
    running = [one for one in locks if one["podExists"] and not one["podEnded"]]
    found = [one for one in running if one["ageSeconds"] >= _LONG.total_seconds()]
    if found:
        oldest = max(one["ageSeconds"] for one in found)
        names = shown(one["node"] for one in found)
        text = f"{len(found)} nodes are locked for {_LONG.seconds} s or longer (up to {oldest:.0f} s): {names}"
        fix = _FIX_OLD.format(node=found[0]["node"])
        yield Finding(Code.OLD_LOCK, Verdict.PROBLEM, text, {"locks": found}, fix)


def _fights(seen: Checkup) -> Iterator[Finding]:
    since = seen.at - _RECENT
    events = [
        one
        for one in seen.events
        if one.last is not None and one.last >= since and any(word in one.message.lower() for word in _WORDS)
    ]
    failed = sum(one.count for one in events)
    if failed < _LEAST_FAILED:
        return
    bound = Counter(pod.spec.node_name for uid in seen.view.requests if (pod := seen.view.pods[uid]).spec.node_name)
    evidence = {
        "failedBindings": failed,
        "pods": len({one.pod for one in events}),
        "minutes": _RECENT.seconds // 60,
        "nodesWithPods": len(bound),
        "mostPodsOfANode": max(bound.values(), default=0),
    }
    text = (
        f"{failed} bindings of {evidence['pods']} pods failed in {evidence['minutes']} min for the node was locked; "
        f"{evidence['nodesWithPods']} nodes have pods with cards, up to {evidence['mostPodsOfANode']} each"
    )
    yield Finding(Code.LOCK_CONTENTION, Verdict.WARNING, text, evidence, _FIX_FIGHT)
