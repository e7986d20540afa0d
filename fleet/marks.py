"""Our two marks on a node, the taint of a held node and the label of a released one: read, and judged."""

from dataclasses import dataclass

from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod, Taint
from fleet.resources import HeldNode, Phase, WholeNodeClaim
from fleet.selectors import tolerates

HOLDING = frozenset({Phase.CORDONING, Phase.DRAINING, Phase.PROVING_EMPTY, Phase.READY, Phase.LANDING})
"""Phases in which a claim's nodes carry its taint."""

OPEN = frozenset({Phase.READY, Phase.LANDING})
"""Phases in which a claim's nodes carry its label too: they are open to its gang."""

ENDED = frozenset({Phase.BOUND, Phase.RELEASED, Phase.ROLLED_BACK, Phase.FAILED})
"""Phases from which a claim takes no node any more."""


def holders(node: Node) -> tuple[str, ...]:
    """UIDs on all taints of our key: one at most is a claim's, others were put on by hand."""
    return tuple(one.value or "" for one in node.spec.taints or () if one.key == CLAIM_KEY)


def tainted_for(node: Node) -> str | None:
    """UID on the node's first taint of our key; None if it has none, which makes the node open to everybody."""
    return next(iter(holders(node)), None)


def holds(node: Node, claim_uid: str) -> bool:
    """Whether the node carries exactly the taint that keeps everybody but this claim's gang away."""
    return taint(claim_uid) in (node.spec.taints or ())


def labelled_for(node: Node) -> str | None:
    """UID of the claim whose label the node carries."""
    return node.metadata.label(CLAIM_KEY)


def taint(claim_uid: str) -> Taint:
    """The taint of a node that the claim holds."""
    return Taint(key=CLAIM_KEY, effect="NoSchedule", value=claim_uid)


def steered(pod: Pod, claim_uid: str) -> bool:
    """Whether the pod is ready to land on the claim's nodes: our gate is off and the taint is tolerated."""
    gated = any(gate.name == CLAIM_KEY for gate in pod.spec.scheduling_gates or ())
    return not gated and tolerates(pod.spec.tolerations, taint(claim_uid))


@dataclass(frozen=True, slots=True)
class Stray:
    """A mark of ours that no live claim stands behind."""

    node_name: str
    claim_uid: str


def strays(node: Node, claims: dict[str, WholeNodeClaim]) -> tuple[Stray, ...]:
    """Marks on the node that must go: of a claim that is gone, ended, or holds another node of that name."""
    marks = [(uid, HOLDING) for uid in holders(node)]
    if (opened := labelled_for(node)) is not None:
        marks.append((opened, OPEN))
    found = {uid for uid, phases in marks if not _stands_behind(claims.get(uid), node, phases)}
    return tuple(Stray(node.metadata.name, uid) for uid in sorted(found))


def _stands_behind(claim: WholeNodeClaim | None, node: Node, phases: frozenset[Phase]) -> bool:
    return claim is not None and claim.status.phase in phases and any(_is(held, node) for held in claim.status.nodes)


def _is(held: HeldNode, node: Node) -> bool:
    return held.name == node.metadata.name and held.uid == node.metadata.uid
