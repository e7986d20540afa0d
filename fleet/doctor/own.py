"""Check `wholenode`: whether our own parts are there, run, and fit each other and what is installed beside them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import fields

from fleet.doctor.checkup import Checkup, Definition
from fleet.doctor.findings import Code, Finding, Verdict, fine, shown
from fleet.kueue.objects import API_VERSION, CONTROLLER_NAME
from fleet.kueue.objects import GROUP as KUEUE_GROUP
from fleet.kueue.objects import VERSION as KUEUE_VERSION
from fleet.names import GROUP, VERSION
from fleet.resources import Accepts, DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim
from fleet.summaries import pool_status

_KINDS: Final = (GPUPool, DrainAgreement, WholeNodeClaim, DrainRecord)
_CRD_FIX: Final = "wholenode crds | kubectl apply --server-side -f -"
_PART_OF: Final = "app.kubernetes.io/part-of"
_LEAST_STALE: Final = timedelta(seconds=5)
_POOL_CODES: Final = {"NodesInSeveralPools": Code.POOLS_OVERLAP, "NoNodes": Code.POOL_EMPTY}


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Kinds first: without them nothing else is there."""
    gone = [one for one in ("gpupools", "drainagreements", "wholenodeclaims") if one in seen.absent]
    if gone:
        text = f"wholenode is not installed: the cluster does not serve {', '.join(gone)}"
        return (Finding(Code.NOT_INSTALLED, Verdict.PROBLEM, text, {"absent": gone}, _CRD_FIX),)
    findings = [*_definitions(seen), *_pools(seen), *_programs(seen), *_lease(seen), *_gate(seen), *_kueue(seen)]
    evidence: dict[str, Any] = {
        "pools": {one.metadata.name: pool_status(seen.view, one, seen.at).nodes for one in seen.view.pools},
        "claims": len(seen.view.claims),
        "leases": {one.name: one.holder for one in seen.leases},
    }
    return tuple(findings) or (fine("our own parts are there and in order", **evidence),)


def _definitions(seen: Checkup) -> Iterator[Finding]:
    known = {one.name: one for one in seen.definitions}
    if not known:
        return
    for kind in _KINDS:
        name = f"{kind.definition.plural}.{GROUP}"
        lacking = _lacking(known.get(name), kind)
        if lacking:
            text = f"the CRD {name} is older than this program: it lacks {', '.join(lacking)}"
            yield Finding(Code.OLD_CRD, Verdict.PROBLEM, text, {"crd": name, "lacks": lacking}, _CRD_FIX)


def _lacking(found: Definition | None, kind: Any) -> list[str]:
    if found is None:
        return ["the whole definition"]
    if VERSION not in found.served:
        return [f"version {VERSION}"]
    parts = {one.name: one.type for one in fields(kind)}
    spec = [f"spec.{name}" for name in _names(parts["spec"]) if name not in found.spec_fields]
    status = [f"status.{name}" for name in _names(parts["status"]) if name not in found.status_fields]
    return [*spec, *status]


def _names(struct: Any) -> list[str]:
    return sorted(one.encode_name for one in fields(struct))


def _pools(seen: Checkup) -> Iterator[Finding]:
    if not seen.view.pools:
        text = "there is no GPUPool: no pod counts as a whole-node pod, and nothing is held or vacated"
        fix = (
            "Label the nodes (kubectl label node NODE pool=big), then kubectl apply -f FILE with:\n"
            "apiVersion: wholenode.io/v1alpha1\nkind: GPUPool\nmetadata: {name: big}\nspec:\n"
            "  nodeSelector: {matchLabels: {pool: big}}\n  accepts: WholeNode\n  cardsPerNode: 8"
        )
        yield Finding(Code.POOL_EMPTY, Verdict.WARNING, text, {}, fix)
    for pool in sorted(seen.view.pools, key=lambda one: one.metadata.name):
        said = pool_status(seen.view, pool, seen.at).conditions[0]
        if said.status != "True":
            code = _POOL_CODES.get(said.reason or "", Code.POOL_UNFIT)
            text = f"GPUPool {pool.metadata.name}: {said.message}"
            fix = f"kubectl edit gpupool {pool.metadata.name}   # spec.nodeSelector.matchLabels, spec.cardsPerNode"
            evidence = {
                "pool": pool.metadata.name,
                "reason": said.reason,
                "nodes": pool_status(seen.view, pool, seen.at).nodes,
            }
            yield Finding(code, Verdict.PROBLEM, text, evidence, fix)
    none = [name for name, pools in seen.view.membership.by_node.items() if not pools and seen.view.gpu_pods_on(name)]
    if none and any(pool.spec.accepts is Accepts.SMALL for pool in seen.view.pools):
        text = f"{len(none)} nodes with pods with cards are in no GPUPool: {shown(none)}"
        fix = f"kubectl label node {min(none)} pool=NAME   # as a pool's nodeSelector has it"
        yield Finding(Code.POOL_UNFIT, Verdict.WARNING, text, {"nodes": sorted(none)}, fix)


def _programs(seen: Checkup) -> Iterator[Finding]:
    for one in seen.programs:
        if one.labels.get(_PART_OF) != "wholenode" or one.ready >= one.wanted:
            continue
        verdict = Verdict.WARNING if one.ready else Verdict.PROBLEM
        text = f"Deployment {one.deployment}: {one.ready} of {one.wanted} pods are ready"
        namespace, _, name = one.deployment.partition("/")
        fix = f"kubectl -n {namespace} describe deployment {name}"
        evidence = {"deployment": one.deployment, "ready": one.ready, "wanted": one.wanted}
        yield Finding(Code.NOT_READY, verdict, text, evidence, fix)


def _lease(seen: Checkup) -> Iterator[Finding]:
    if "leases" in seen.missing:
        return
    fix = "kubectl get pods -A -l app.kubernetes.io/component=controller,app.kubernetes.io/part-of=wholenode"
    if not seen.leases:
        text = "no controller has ever taken its lease: nobody makes or serves claims"
        yield Finding(Code.LEASE_STALE, Verdict.PROBLEM, text, {}, fix)
    for one in seen.leases:
        age = seen.at - one.renewed_at if one.renewed_at else None
        longest = max(_LEAST_STALE, timedelta(seconds=2 * one.lease_seconds))
        if one.holder and age is not None and age <= longest:
            continue
        since = f"was last renewed {age.total_seconds():.0f} s ago" if age is not None else "was never renewed"
        text = f"no controller leads: lease {one.name} ({one.holder or 'held by nobody'}) {since}"
        evidence = {"lease": one.name, "holder": one.holder, "leaseSeconds": one.lease_seconds}
        yield Finding(Code.LEASE_STALE, Verdict.PROBLEM, text, evidence, fix)


def _gate(seen: Checkup) -> Iterator[Finding]:
    """Without the policy pods are placed right too, after being refused by the scheduler first."""
    wholes = any(pool.spec.accepts is Accepts.WHOLE_NODE for pool in seen.view.pools)
    if seen.gates or not wholes or "mutatingadmissionpolicies" in seen.missing:
        return
    text = "no admission policy of ours gates whole-node pods: the scheduler refuses each before its claim is ready"
    if "mutatingadmissionpolicies" in seen.absent:
        text = f"{text} (it needs Kubernetes 1.37)"
    fix = (
        f"helm upgrade wholenode deploy/chart --namespace {_namespace(seen)} --reuse-values "
        "--set admission.enabled=true   # Kubernetes 1.37 or newer"
    )
    yield Finding(Code.NO_GATE, Verdict.WARNING, text, {}, fix)


def _namespace(seen: Checkup) -> str:
    """Where our own programs run."""
    ours = (one.deployment for one in seen.programs if one.labels.get(_PART_OF) == "wholenode")
    return next(ours, "wholenode-system/").partition("/")[0]


def _kueue(seen: Checkup) -> Iterator[Finding]:
    kinds = next((one for one in seen.definitions if one.name == f"workloads.{KUEUE_GROUP}"), None)
    if kinds is not None and KUEUE_VERSION not in kinds.served:
        served = ", ".join(sorted(kinds.served)) or "nothing"
        text = f"Kueue is too old for wholenode: it serves {served}, not {KUEUE_VERSION}; nothing of it is seen here"
        fix = f"Install Kueue 0.17 or later, with {API_VERSION}."
        yield Finding(Code.OLD_KUEUE, Verdict.PROBLEM, text, {"served": sorted(kinds.served)}, fix)
    for one in seen.view.checks:
        active = any(each.type == "Active" and each.status == "True" for each in one.status.conditions or ())
        if one.spec.controller_name == CONTROLLER_NAME and not active:
            text = f"AdmissionCheck {one.metadata.name} is ours and not Active: queues that use it admit nothing"
            fix = "Start wholenode's controller; it marks the check as soon as it leads."
            yield Finding(Code.CHECK_INACTIVE, Verdict.PROBLEM, text, {"check": one.metadata.name}, fix)
    for queue in seen.queues:
        said = next((each for each in queue.status.conditions or () if each.type == "Active"), None)
        if said is not None and said.status != "True":
            text = f"ClusterQueue {queue.metadata.name} is inactive: {said.reason}: {said.message}"
            fix = f"kubectl describe clusterqueue {queue.metadata.name}"
            evidence = {"clusterQueue": queue.metadata.name, "reason": said.reason}
            yield Finding(Code.QUEUE_INACTIVE, Verdict.PROBLEM, text, evidence, fix)
