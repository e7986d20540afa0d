"""Check `agreements`: pools that may be vacated by agreement where nobody, or not everybody, has agreed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from fleet.agreements import problems
from fleet.cards import terminating
from fleet.doctor.checkup import Checkup
from fleet.doctor.findings import Code, Finding, Verdict, fine, not_used, shown
from fleet.errors import FleetError
from fleet.marks import ENDED
from fleet.requests import RequestClass
from fleet.resources import Accepts, Drain, GPUPool, Policy, WholeNodeClaim
from fleet.times import parse_duration

_A_WHILE: Final = timedelta(seconds=15)
"""As long as a claim may take to choose its nodes."""
_AGREEMENT: Final = (
    "The team of {namespace} decides; whole-node jobs of BENEFICIARY may then stop its pods there:\n"
    "apiVersion: wholenode.io/v1alpha1\n"
    "kind: DrainAgreement\n"
    "metadata: {{name: agreed, namespace: {namespace}}}\n"
    "spec:\n"
    "  beneficiaries: [{{namespace: BENEFICIARY}}]\n"
    "  patience: 10m"
)


@dataclass(slots=True)
class _Held:
    pods: int = 0
    cards: int = 0
    nodes: set[str] = field(default_factory=set)


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Void agreements; namespaces that hold cards where nodes may be vacated, without one; pools never vacated."""
    pools = [pool for pool in seen.view.pools if pool.spec.accepts is Accepts.WHOLE_NODE]
    if not pools:
        return (not_used("no GPUPool accepts WholeNode"),)
    findings = [*_void(seen), *_missing(seen, pools), *_disabled(seen, pools)]
    valid = sum(map(len, seen.view.in_force(seen.at).values()))
    agreed = sum(pool.spec.drain is Drain.AGREED for pool in pools)
    return tuple(findings) or (
        fine("whoever holds cards where nodes may be vacated has agreed", agreements=valid, poolsThatDrain=agreed),
    )


def _void(seen: Checkup) -> Iterator[Finding]:
    for one in sorted(seen.view.agreements, key=lambda each: (each.metadata.namespace, each.metadata.name)):
        found = problems(one, seen.at)
        if found:
            name = f"{one.metadata.namespace}/{one.metadata.name}"
            text = f"DrainAgreement {name} is void: {'; '.join(found)}"
            fix = f"kubectl -n {one.metadata.namespace} edit drainagreement {one.metadata.name}"
            yield Finding(Code.VOID_AGREEMENT, Verdict.PROBLEM, text, {"agreement": name, "problems": found}, fix)


def _missing(seen: Checkup, pools: list[GPUPool]) -> Iterator[Finding]:
    held: dict[str, _Held] = {}
    names = {pool.metadata.name for pool in pools if pool.spec.drain is Drain.AGREED}
    for node in seen.view.nodes:
        pool = seen.view.membership.pool_of(node)
        if pool is None or pool.metadata.name not in names:
            continue
        for pod in seen.view.gpu_pods_on(node):
            request = seen.view.requests[pod.metadata.uid]
            if not terminating(pod) and request.request_class is not RequestClass.WHOLE_NODE:
                one = held.setdefault(pod.metadata.namespace, _Held())
                one.pods, one.cards = one.pods + 1, one.cards + request.cards
                one.nodes.add(node)
    agreed = seen.view.in_force(seen.at)
    silent = {namespace: one for namespace, one in held.items() if not agreed.get(namespace)}
    if not silent:
        return
    order = sorted(silent.items(), key=lambda each: (-each[1].cards, each[0]))
    told = ", ".join(f"{name} ({one.cards} cards on {len(one.nodes)} nodes)" for name, one in order[:5])
    text = f"no valid DrainAgreement in {len(silent)} namespaces with cards where nodes may be vacated: {told}"
    evidence = {
        "namespaces": {name: {"pods": one.pods, "cards": one.cards, "nodes": len(one.nodes)} for name, one in order},
        "claimsWaiting": len(_waiting(seen)),
    }
    verdict = Verdict.PROBLEM if _waiting(seen) else Verdict.WARNING
    yield Finding(Code.NO_AGREEMENT, verdict, text, evidence, _AGREEMENT.format(namespace=order[0][0]))


def _waiting(seen: Checkup) -> list[str]:
    """Claims that may stop others, and have no node though their patience has been over for a while."""
    return [
        f"{one.metadata.namespace}/{one.metadata.name}"
        for one in seen.view.claims.values()
        if one.spec.policy is Policy.WAIT_THEN_EVICT
        and one.status.phase not in ENDED
        and not one.status.nodes
        and _impatient(one, seen.at)
    ]


def _impatient(claim: WholeNodeClaim, now: datetime) -> bool:
    made = claim.metadata.creation_timestamp
    try:
        return made is None or now >= made + parse_duration(claim.spec.patience) + _A_WHILE
    except FleetError:
        return True


def _disabled(seen: Checkup, pools: list[GPUPool]) -> Iterator[Finding]:
    waiting = _waiting(seen)
    closed = [pool.metadata.name for pool in pools if pool.spec.drain is Drain.DISABLED]
    if waiting and len(closed) == len(pools):
        text = f"{len(waiting)} claims may stop others and wait, but no pool may be vacated: {shown(waiting)}"
        fix = f'kubectl patch gpupool {closed[0]} --type=merge -p \'{{"spec":{{"drain":"Agreed"}}}}\''
        evidence = {"claims": sorted(waiting), "pools": closed}
        yield Finding(Code.DRAIN_DISABLED, Verdict.PROBLEM, text, evidence, fix)
