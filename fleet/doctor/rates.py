"""Check `rate-limits`: whether a client's own request limit, not a lack of cards, is what pods wait for."""

import math
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from fleet.doctor.bindings import Pace, has_room, pace, untried
from fleet.doctor.checkup import Checkup, Program
from fleet.doctor.findings import Code, Finding, Verdict, fine
from fleet.doctor.schedulers import DEFAULT_NAME, Configuration
from fleet.hami import booked_node
from fleet.objects import Pod
from fleet.tally import free_cards

HAMI_CALLS: Final = 9
"""API calls of HAMi's scheduler for one pod: choice 1, lock 4, pod 1, binding 1, events 2 (HAMi 2.10)."""
RETRY_CALLS: Final = 5
"""What a binding that fails costs once more: choice 1, lock 2, events 2."""
PLAIN_CALLS: Final = 2
"""API calls of kube-scheduler alone: binding and event."""
HAMI_QPS: Final = 5.0
HAMI_BURST: Final = 10
"""HAMi's `--kube-qps` and `--kube-burst` where they are not given, or 0 (client-go's defaults)."""
SCHEDULER_QPS: Final = 50.0
SCHEDULER_BURST: Final = 100
"""kube-scheduler's own, likewise."""
LOW_PODS_PER_SECOND: Final = 2.0
"""A limit below this is noticed when a few dozen pods come at once."""
_LOOKED_AT: Final = 200
"""Waiting pods for which room is looked for: more say nothing more."""
_WINDOW_SECONDS: Final = 300.0
_YOUNG_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 15.0
_LEAST_WAITING: Final = 2
_FAILED: Final = frozenset({"BindingFailed"})


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Rates first, for they need nobody's settings; then the settings, which say what the most can be."""
    limits = [*_hami_limits(seen), *_scheduler_limits(seen)]
    lowest = min(limits, key=lambda one: one["mostPodsPerSecond"], default=None)
    waits = untried(seen.view, seen.at, _YOUNG_SECONDS)
    fitting = tuple(pod for pod in waits[:_LOOKED_AT] if has_room(seen.view, pod))
    found = pace(seen.view, fitting, seen.at, _WINDOW_SECONDS)
    evidence: dict[str, Any] = {"waiting": len(fitting), "cardsFree": _cards_free(seen), "limits": limits}
    if found is not None:
        evidence |= _figures(seen, found)
    if found is not None and _limited(found) and not found.placed:
        return (_nobody(found, fitting, evidence),)
    if found is not None and _limited(found):
        return (_rate_limited(seen, found, lowest, evidence),)
    if lowest is not None and lowest["mostPodsPerSecond"] < LOW_PODS_PER_SECOND:
        summary = f"{_told(lowest)}; nothing waits because of it now"
        return (Finding(Code.LOW_CLIENT_LIMIT, Verdict.WARNING, summary, evidence, _fix(lowest)),)
    known = "" if limits else "; what the schedulers' own limits are is not known"
    if found is None:
        return (fine(f"no GPU pod waits where there is room for it{known}", **evidence),)
    return (fine(f"{found.placed} GPU pods were placed in {found.seconds:.0f} s{known}", **evidence),)


def _limited(found: Pace) -> bool:
    long = found.seconds >= _LEAST_SECONDS
    return long and found.waiting >= _LEAST_WAITING and found.per_second < LOW_PODS_PER_SECOND


def _nobody(found: Pace, fitting: tuple[Pod, ...], evidence: dict[str, Any]) -> Finding:
    names = ", ".join(sorted({pod.spec.scheduler_name or DEFAULT_NAME for pod in fitting}))
    text = (
        f"{found.waiting} GPU pods wait for the scheduler {names} that has neither refused nor placed one in "
        f"{found.seconds:.0f} s, with {evidence['cardsFree']} cards free: it does not run, or its extender does not "
        "answer (HAMi's answers nothing until it has seen all nodes: 10 calls each at its limit)"
    )
    fix = f"See that a scheduler of that name runs, and its log: kubectl get pods -A | grep -i scheduler\n{_fix(None)}"
    return Finding(Code.NOBODY_SCHEDULES, Verdict.PROBLEM, text, evidence, fix)


def _rate_limited(seen: Checkup, found: Pace, lowest: dict[str, Any] | None, evidence: dict[str, Any]) -> Finding:
    waits = f"{found.waiting} GPU pods wait that no scheduler has refused, {evidence['cardsFree']} cards are free, and "
    rate = f"{found.placed} were placed in the last {found.seconds:.0f} s ({found.per_second:.2f} a second)"
    calls = evidence["callsPerPod"]
    if lowest is not None and lowest["mostPodsPerSecond"] < LOW_PODS_PER_SECOND:
        return Finding(
            Code.CLIENT_RATE_LIMIT, Verdict.PROBLEM, f"{waits}{rate}. {_told(lowest)}", evidence, _fix(lowest)
        )
    used = found.per_second * calls
    if lowest is not None:
        text = (
            f"{waits}{rate}: about {used:.1f} API calls a second, far below the limits that were read. Something else "
            "holds the scheduler up: see node-locks, and the scheduler's log"
        )
        return Finding(Code.CLIENT_RATE_LIMIT, Verdict.WARNING, text, evidence, _fix(None))
    text = (
        f"{waits}{rate}: at about {calls:g} API calls a pod that is {used:.1f} calls a second, as of a client that is "
        f"limited to {HAMI_QPS:g} a second (the default: at most {HAMI_QPS / calls:.2f} pods a second)"
    )
    return Finding(Code.CLIENT_RATE_LIMIT, Verdict.PROBLEM, text, evidence, _fix(None))


def _figures(seen: Checkup, found: Pace) -> dict[str, Any]:
    hami = any(booked_node(pod) is not None for pod in seen.view.pods.values())
    failed = sum(one.count for one in seen.events if one.reason in _FAILED and one.last and one.last >= found.since)
    retries = RETRY_CALLS * failed / found.placed if found.placed else 0.0
    figures: dict[str, Any] = {
        "placed": found.placed,
        "windowSeconds": round(found.seconds, 1),
        "podsPerSecond": round(found.per_second, 3),
        "failedBindings": failed,
        "callsPerPod": round(HAMI_CALLS + retries, 1) if hami else PLAIN_CALLS,
    }
    if found.to_choice:
        figures["secondsToChoiceMedian"] = round(median(found.to_choice), 1)
        figures["secondsToBindingMedian"] = round(median(found.to_binding), 1)
    return figures


def _hami_limits(seen: Checkup) -> Iterator[dict[str, Any]]:
    for one in seen.hami_programs:
        qps, burst = _number(one, "kube-qps", HAMI_QPS), _number(one, "kube-burst", HAMI_BURST)
        given = _number(one, "kube-qps", 0.0) != 0
        if qps < 0:  # client-go's way to say that there is no limit
            continue
        yield _limit(f"Deployment {one.deployment}", "hami", qps, burst, HAMI_CALLS, given=given)


def _number(one: Program, flag: str, otherwise: float) -> float:
    try:
        value = float(one.flag(flag) or otherwise)
    except ValueError:
        return otherwise
    return value if value and math.isfinite(value) else otherwise


def _scheduler_limits(seen: Checkup) -> Iterator[dict[str, Any]]:
    for one in seen.scheduler_configs:
        if not one.problem and one.document.client_connection.qps >= 0:
            yield _scheduler_limit(one)


def _scheduler_limit(one: Configuration) -> dict[str, Any]:
    client = one.document.client_connection
    qps, burst = client.qps or SCHEDULER_QPS, client.burst or SCHEDULER_BURST
    return _limit(one.source, "kube-scheduler", qps, burst, PLAIN_CALLS, given=True)


def _limit(source: str, who: str, qps: float, burst: float, calls: int, *, given: bool) -> dict[str, Any]:
    return {
        "source": source,
        "of": who,
        "qps": qps,
        "burst": burst,
        "given": given,
        "callsPerPod": calls,
        "mostPodsPerSecond": round(qps / calls, 2),
    }


def _told(limit: dict[str, Any]) -> str:
    how = "is limited to" if limit["given"] else "says nothing of it and is limited to"
    return (
        f"{limit['source']} {how} {limit['qps']:g} calls a second (burst {limit['burst']:g}): at about "
        f"{limit['callsPerPod']} calls a pod at most {limit['mostPodsPerSecond']:.2f} pods a second"
    )


def _fix(limit: dict[str, Any] | None) -> str:
    scheduler = (
        "In the KubeSchedulerConfiguration, then restart kube-scheduler:\nclientConnection: {qps: 500, burst: 1000}"
    )
    hami = (
        "Give HAMi's scheduler extender (container vgpu-scheduler-extender) these flags; in HAMi's chart:\n"
        "scheduler:\n  extender:\n    extraArgs: [--kube-qps=1000, --kube-burst=2000]"
    )
    if limit is None:
        return f"{hami}\n{scheduler}"
    return hami if limit["of"] == "hami" else scheduler


def _cards_free(seen: Checkup) -> int:
    view = seen.view
    resources = view.classifier.resources
    return sum(
        free_cards(node, resource, view.tally.on(name)) for name, node in view.nodes.items() for resource in resources
    )
