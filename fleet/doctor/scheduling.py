"""Check `scheduler-config`: the extenders of kube-scheduler, their order and settings, and which pods they see."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from fleet.cards import finished
from fleet.doctor.checkup import Checkup
from fleet.doctor.findings import Code, Finding, Verdict, fine
from fleet.doctor.schedulers import DEFAULT_NAME, DEFAULT_TIMEOUT, Configuration, Extender
from fleet.errors import FleetError
from fleet.hami import registered
from fleet.times import parse_duration

_LONGEST_SECONDS: Final = 5.0
_SHORTEST_SECONDS: Final = 0.5
_HAMI_SECONDS: Final = 30.0
_LONGEST_BACKOFF: Final = 2
_ALL: Final = 100
_OURS: Final = (
    "extenders:\n"
    "- urlPrefix: http://wholenode-extender.wholenode-system.svc:8080/v1   # yours: kubectl get service -A -l "
    "app.kubernetes.io/part-of=wholenode\n"
    "  filterVerb: filter\n"
    "  preemptVerb: preempt\n"
    "  nodeCacheCapable: true\n"
    "  ignorable: false\n"
    "  httpTimeout: 1s"
)
_SHORT_BACKOFF: Final = "podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 2"
_MANAGED: Final = (
    "  managedResources: [{name: nvidia.com/gpu, ignoredByScheduler: false}]   # else pods without cards ask us too,\n"
    "  # and wait when we are down, our own among them; name every pool's resourceName"
)
_WHERE: Final = "Put this first under extenders in the KubeSchedulerConfiguration, and restart kube-scheduler:"


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Every configuration that was found; then whether pods with cards are of a profile that asks us."""
    if not seen.scheduler_configs:
        return (*_not_found(), *_silent(seen))
    findings = [one for config in seen.scheduler_configs for one in _of(seen, config)]
    findings += [*_not_ours(seen), *_silent(seen)]
    sources = [one.source for one in seen.scheduler_configs]
    extenders = {one.source: [_name(each) for each in one.extenders()] for one in seen.scheduler_configs}
    return tuple(findings) or (
        fine("extenders are asked in the right order and way", sources=sources, asked=extenders),
    )


def _not_found() -> tuple[Finding, ...]:
    text = "no KubeSchedulerConfiguration was found in the cluster's ConfigMaps: it is a file beside kube-scheduler"
    fix = "Name the file: wholenode doctor --scheduler-config /etc/kubernetes/scheduler-config.yaml"
    return (Finding(Code.NOT_FOUND, Verdict.UNKNOWN, text, {}, fix),)


def _of(seen: Checkup, config: Configuration) -> Iterator[Finding]:
    if config.problem:
        text = f"{config.source}: {config.problem}: kube-scheduler would not start with it"
        yield Finding(Code.UNREADABLE, Verdict.PROBLEM, text, {"source": config.source}, "Correct the field named.")
        return
    order = config.extenders()
    ours = [one for one in order if one.ours]
    hami = [one for one in order if one.hami]
    if ours:
        yield from _placed(config, ours[0], hami)
        yield from _our_settings(config, ours[0])
        yield from _backoff(config)
    elif hami or _serves_cards(seen, config):
        text = f"{config.source}: wholenode's extender is not asked, so no pool and no held node counts there"
        fix = f"{_WHERE}\n{_OURS}" if hami else f"{_WHERE}\n{_OURS}\n{_MANAGED}"
        yield _finding(Code.EXTENDER_MISSING, Verdict.PROBLEM, config, text, fix)
    for one in hami:
        yield from _hami_settings(config, one)
    yield from _together(config, order)


def _placed(config: Configuration, ours: Extender, hami: list[Extender]) -> Iterator[Finding]:
    order = config.extenders()
    if ours.ignorable:
        text = (
            f"{config.source}: our extender is ignorable: kube-scheduler asks it last, and goes on without it when it "
            "is down"
        )
        fix = "In our entry: ignorable: false"
        yield _finding(Code.EXTENDER_IGNORABLE, Verdict.PROBLEM, config, text, fix)
    elif any(order.index(one) < order.index(ours) for one in hami):
        text = (
            f"{config.source}: HAMi's extender is asked before ours: it chooses one node and books cards there, "
            "whatever we say afterwards"
        )
        fix = "Move our entry before HAMi's under extenders, and restart kube-scheduler."
        yield _finding(Code.EXTENDER_ORDER, Verdict.PROBLEM, config, text, fix)


def _our_settings(config: Configuration, ours: Extender) -> Iterator[Finding]:
    if not ours.node_cache_capable:
        text = (
            f"{config.source}: our extender is sent whole Node objects (nodeCacheCapable is false): about 10 kB a node "
            "with each call, and answers in that form lose what the scheduler knows of the nodes (kubernetes#141781)"
        )
        yield _finding(Code.NODES_IN_BODY, Verdict.PROBLEM, config, text, "In our entry: nodeCacheCapable: true")
    yield from _timeout(config, ours)
    yield from _tls(config, ours)
    if ours.prioritize_verb and ours.weight <= 0:
        text = (
            f"{config.source}: our extender has a prioritizeVerb and no weight: kube-scheduler does not start with that"
        )
        fix = "In our entry: weight: 130 (above all scores of kube-scheduler's own), or no prioritizeVerb"
        yield _finding(Code.NO_WEIGHT, Verdict.PROBLEM, config, text, fix)
    share = min(config.shares_of_nodes)
    if share != _ALL:
        said = "not set, so it looks at a part of a large fleet" if not share else f"{share}"
        text = f"{config.source}: percentageOfNodesToScore is {said}: a free node may never be looked at"
        fix = "percentageOfNodesToScore: 100"
        yield _finding(Code.NODES_UNSEEN, Verdict.WARNING, config, text, fix)


def _timeout(config: Configuration, ours: Extender) -> Iterator[Finding]:
    seconds = _seconds(ours)
    if seconds is None or seconds <= 0:
        text = f"{config.source}: httpTimeout {ours.http_timeout!r} of our extender is no duration"
        yield _finding(Code.UNREADABLE, Verdict.PROBLEM, config, text, "In our entry: httpTimeout: 1s")
    elif seconds >= _LONGEST_SECONDS:
        said = "" if ours.http_timeout else " (kube-scheduler's default)"
        text = (
            f"{config.source}: httpTimeout of our extender is {seconds:g} s{said}: if it hangs, each try holds "
            "up all others for so long"
        )
        yield _finding(Code.SLOW_TIMEOUT, Verdict.WARNING, config, text, "In our entry: httpTimeout: 1s")
    elif seconds < _SHORTEST_SECONDS:
        text = f"{config.source}: httpTimeout of our extender is {seconds:g} s: a short pause of it refuses pods"
        yield _finding(Code.SHORT_TIMEOUT, Verdict.WARNING, config, text, "In our entry: httpTimeout: 1s")


def _seconds(one: Extender) -> float | None:
    try:
        return parse_duration(one.http_timeout or DEFAULT_TIMEOUT).total_seconds()
    except FleetError:
        return None


def _tls(config: Configuration, one: Extender) -> Iterator[Finding]:
    https = one.url_prefix.startswith("https://")
    tls = one.tls
    whose = "HAMi's" if one.hami else "our"
    if one.enable_https and not https:
        text = f"{config.source}: enableHTTPS of {whose} extender has no effect: its urlPrefix begins with http://"
        fix = "Begin urlPrefix with https://, or take enableHTTPS out."
        yield _finding(Code.TLS_NOT_ENABLED, Verdict.PROBLEM, config, text, fix)
    elif https and not one.enable_https and not (tls and tls.has_authority):
        text = (
            f"{config.source}: {whose} extender has an https:// address without enableHTTPS and without a CA: its "
            "certificate is judged by the machine's own list, which does not know it"
        )
        yield _finding(Code.TLS_NOT_ENABLED, Verdict.PROBLEM, config, text, _tls_fix(one))
    elif tls and tls.insecure and tls.has_authority:
        text = f"{config.source}: {whose} extender has both insecure and a CA: kube-scheduler does not start with that"
        yield _finding(Code.UNVERIFIED_TLS, Verdict.PROBLEM, config, text, _tls_fix(one))
    elif https and not (tls and tls.has_authority):
        text = (
            f"{config.source}: {whose} extender is asked by HTTPS without a CA file: kube-scheduler silently takes any "
            "certificate"
        )
        yield _finding(Code.UNVERIFIED_TLS, Verdict.PROBLEM, config, text, _tls_fix(one))


def _tls_fix(one: Extender) -> str:
    whose = "HAMi's" if one.hami else "our"
    return f"In {whose} entry:\nenableHTTPS: true\ntlsConfig: {{caFile: /etc/kubernetes/wholenode/ca.crt}}"


def _backoff(config: Configuration) -> Iterator[Finding]:
    first, longest = config.document.pod_initial_backoff_seconds, config.document.pod_max_backoff_seconds
    if longest < first:
        text = f"{config.source}: podMaxBackoffSeconds {longest} is below podInitialBackoffSeconds {first}"
        yield _finding(Code.LONG_BACKOFF, Verdict.PROBLEM, config, text, _SHORT_BACKOFF)
    elif longest > _LONGEST_BACKOFF:
        text = (
            f"{config.source}: a pod that was refused a few times is left alone for up to {longest} s, also when its "
            "node is ready"
        )
        yield _finding(Code.LONG_BACKOFF, Verdict.WARNING, config, text, _SHORT_BACKOFF)


def _hami_settings(config: Configuration, hami: Extender) -> Iterator[Finding]:
    if not hami.node_cache_capable:
        text = (
            f"{config.source}: HAMi's extender is sent whole Node objects (nodeCacheCapable is false): HAMi 2.10 takes "
            "that for a simulation, thinks all cards empty and books none"
        )
        yield _finding(Code.NODES_IN_BODY, Verdict.PROBLEM, config, text, "In HAMi's entry: nodeCacheCapable: true")
    seconds = _seconds(hami)
    if seconds is not None and seconds < _HAMI_SECONDS:
        text = (
            f"{config.source}: httpTimeout of HAMi's extender is {seconds:g} s: it waits up to 28 s for a node's lock "
            "when it binds"
        )
        yield _finding(Code.SHORT_TIMEOUT, Verdict.WARNING, config, text, "In HAMi's entry: httpTimeout: 30s")
    if not hami.local:
        yield from _tls(config, hami)


def _together(config: Configuration, order: Iterable[Extender]) -> Iterator[Finding]:
    """What kube-scheduler refuses to start with: a resource, or the binding, in two hands."""
    order = tuple(order)
    counts = Counter(name for one in order for name in one.managed)
    twice = sorted(name for name, number in counts.items() if number > 1)
    if twice:
        text = (
            f"{config.source}: {', '.join(twice)} stands in managedResources of several extenders: kube-scheduler does "
            "not start with that"
        )
        fix = "Leave managedResources out of our entry; HAMi's has the cards for itself."
        yield _finding(Code.MANAGED_TWICE, Verdict.PROBLEM, config, text, fix)
    binders = [one for one in order if one.bind_verb]
    if len(binders) > 1:
        text = f"{config.source}: {len(binders)} extenders have a bindVerb: kube-scheduler does not start with that"
        fix = "Leave bindVerb out of every entry but HAMi's."
        yield _finding(Code.BIND_TWICE, Verdict.PROBLEM, config, text, fix)
    if any(one.hami for one in order) and any(one.ours and one.managed and not one.bind_verb for one in order):
        text = f"{config.source}: our extender is asked only for pods with {_managed(order)}; HAMi's shares name others"
        fix = "Leave managedResources out of our entry."
        if not twice:
            yield _finding(Code.MANAGED_TWICE, Verdict.WARNING, config, text, fix)


def _managed(order: Iterable[Extender]) -> str:
    return ", ".join(sorted(name for one in order if one.ours for name in one.managed))


def _serves_cards(seen: Checkup, config: Configuration) -> bool:
    return bool(config.names & _schedulers_of_pods(seen).keys())


def _schedulers_of_pods(seen: Checkup) -> Counter[str]:
    """How many pods with cards, that have not ended, name each scheduler."""
    pods = (seen.view.pods[uid] for uid in seen.view.requests)
    return Counter(pod.spec.scheduler_name or DEFAULT_NAME for pod in pods if not finished(pod))


def _not_ours(seen: Checkup) -> Iterator[Finding]:
    """Pods with cards of a scheduler whose configuration was not found at all."""
    known = {name for one in seen.scheduler_configs for name in one.names}
    asked = {n for one in seen.scheduler_configs if any(each.ours for each in one.extenders()) for n in one.names}
    others = {name: number for name, number in _schedulers_of_pods(seen).items() if name not in known}
    if others and asked:
        told = ", ".join(f"{name} ({number} pods)" for name, number in sorted(others.items()))
        text = f"pods with cards name schedulers of which no configuration was found: {told}"
        fix = f"Give the pods schedulerName: {min(asked)}, or name that scheduler's file with --scheduler-config."
        yield Finding(
            Code.NOT_OUR_PROFILE, Verdict.WARNING, text, {"podsByScheduler": dict(sorted(others.items()))}, fix
        )
    hami = any(registered(node) is not None for node in seen.view.nodes.values())
    if hami and asked and not any(one.hami for config in seen.scheduler_configs for one in config.extenders()):
        text = "nodes are registered with HAMi, but no configuration that was found asks HAMi's extender after ours"
        fix = "Name the file of HAMi's scheduler with --scheduler-config, or add our entry to its ConfigMap (first)."
        yield Finding(Code.NOT_OUR_PROFILE, Verdict.WARNING, text, {"asksUs": sorted(asked)}, fix)


def _silent(seen: Checkup) -> Iterator[Finding]:
    for one in seen.answering:
        if not one.ready:
            text = f"Service {one.service} of our extender does not answer that it is ready: {one.detail}"
            namespace = one.service.partition("/")[0]
            fix = f"kubectl -n {namespace} get pods -l app.kubernetes.io/component=extender"
            yield Finding(Code.EXTENDER_SILENT, Verdict.PROBLEM, text, {"service": one.service}, fix)


def _name(one: Extender) -> str:
    return "wholenode" if one.ours else "HAMi" if one.hami else one.address


def _finding(code: Code, verdict: Verdict, config: Configuration, text: str, fix: str) -> Finding:
    evidence: dict[str, Any] = {"source": config.source, "asked": [_name(one) for one in config.extenders()]}
    return Finding(code, verdict, text, evidence, fix)
