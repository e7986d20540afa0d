"""Check `taint-writers`: whether somebody else rewrites the list of taints that ours is in."""

from collections import Counter
from typing import Final

from fleet.doctor.checkup import Checkup
from fleet.doctor.findings import Code, Finding, Verdict, fine, shown
from fleet.reasons import Reason
from fleet.resources import Phase

_EXPECTED: Final = frozenset({"wholenode", "kube-controller-manager", "kubelet", "kubectl", "cloud-controller-manager"})
"""Writers that change one taint and leave the others; people with kubectl are seen at once."""
_PEOPLE: Final = "kubectl"
_FIX: Final = (
    "spec.taints is one list: who writes it whole drops the taints of others. Have {who} add and remove its own entry\n"
    "only (a JSON patch with the node's resourceVersion), or keep it off the nodes of GPUPools. Who wrote last:\n"
    "kubectl get node {node} --show-managed-fields -o yaml"
)


def check(seen: Checkup) -> tuple[Finding, ...]:
    """Taints of ours that were taken away; and who, beside those who are known to take care, writes the list."""
    others = [one for one in seen.taint_writers if one.applies or not one.manager.startswith(tuple(_EXPECTED))]
    others = [one for one in others if one.manager.partition("-")[0] != _PEOPLE or one.applies]
    counts = Counter(one.manager for one in others)
    removed = [
        claim
        for claim in seen.view.claims.values()
        if claim.status.reason == Reason.TAINT_REMOVED and claim.status.phase is Phase.BLOCKED
    ]
    evidence = {
        "claimsThatLostTheirTaint": sorted(f"{one.metadata.namespace}/{one.metadata.name}" for one in removed),
        "nodesByWriter": dict(sorted(Counter(one.manager for one in seen.taint_writers).items())),
    }
    node = others[0].node if others else next(iter(sorted(seen.view.nodes)), "NODE")
    who = ", ".join(sorted(counts)) or "whoever removed it"
    fix = _FIX.format(who=who, node=node)
    if removed:
        names = shown(f"{one.metadata.namespace}/{one.metadata.name}" for one in removed)
        text = f"our taint was taken off nodes of {len(removed)} claims: {names}"
        text = f"{text}; spec.taints is also written by {who}" if counts else text
        return (Finding(Code.TAINT_REMOVED, Verdict.PROBLEM, text, evidence, fix),)
    if counts:
        told = ", ".join(f"{manager} ({number} nodes)" for manager, number in sorted(counts.items()))
        text = f"spec.taints is also written by {told}: if that writes the whole list, our taint is lost"
        return (Finding(Code.SEVERAL_TAINT_WRITERS, Verdict.WARNING, text, evidence, fix),)
    return (fine("nobody else is known to write taints", **evidence),)
