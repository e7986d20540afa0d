"""Nodes where the kubelet has refused a member of the gang: the scheduler would send the next one there again."""

from datetime import datetime, timedelta
from typing import Final

from fleet.gangs import gang_key
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import WholeNodeClaim
from fleet.upkeep import member
from fleet.view import View

NOT_AGAIN: Final = timedelta(days=30)
"""Longer than any claim waits: the node is not tried again for the gang, by whatever claim."""

_REFUSALS: Final = frozenset({"TopologyAffinityError", "UnexpectedAdmissionError"})


def refused_start(view: View, claim: WholeNodeClaim) -> tuple[str, str] | None:
    """A held node whose kubelet has refused a member, and what it said; None if there is none (kubernetes#130145)."""
    held = {one.name for one in claim.status.nodes}
    for pod in _refused(view):
        if pod.spec.node_name in held and member(claim, pod):
            return pod.spec.node_name or "", _said(pod)
    return None


def refusing_nodes(view: View, claim: WholeNodeClaim, now: datetime) -> dict[str, str]:
    """Nodes that refused a member of the gang, for this claim or an earlier one, and the reason to be shown."""
    ref = claim.spec.gang
    if ref is None:
        return {}
    found = {
        one.node
        for other in view.claims_by_gang.get(gang_key(claim.metadata.namespace, ref), ())
        for one in other.status.avoid
        if one.reason == Reason.START_FAILED and one.until > now
    }
    found |= {pod.spec.node_name or "" for pod in _refused(view) if member(claim, pod)}
    return dict.fromkeys(sorted(found), str(Reason.START_FAILED))


def _refused(view: View) -> tuple[Pod, ...]:
    """Looked up once for all claims: there may be thousands of ended pods."""
    known: tuple[Pod, ...] | None = view.memo.get("refused")
    if known is None:
        ended = (pod for pod in view.pods.values() if pod.status.phase == "Failed")
        known = view.memo["refused"] = tuple(pod for pod in ended if pod.status.reason in _REFUSALS)
    return known


def _said(pod: Pod) -> str:
    why = ": ".join(text for text in (pod.status.reason, pod.status.message) if text)
    return f"pod {pod.key} was placed on node {pod.spec.node_name} and could not start: {why}"
