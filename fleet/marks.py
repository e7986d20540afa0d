"""Our marks on a node, the taint and shield of a held one and the label of a released one: read, and judged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.cards import finished
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod, Taint
from fleet.resources import HeldNode, Phase, WholeNodeClaim
from fleet.selectors import tolerates
from fleet.shields import shielded_for

HOLDING = frozenset({Phase.CORDONING, Phase.DRAINING, Phase.PROVING_EMPTY, Phase.READY, Phase.LANDING})
"""Phases in which a claim's nodes carry its taint, and the shield."""

OPEN = frozenset({Phase.READY, Phase.LANDING})
"""Phases in which a claim's nodes carry its label too: they are open to its gang.

It stays when they are over for as long as a pod there selects it: a kubelet that restarts ends pods whose node selector
no longer fits (kubernetes#124586).
"""

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


def opened_for(node: Node) -> str | None:
    """UID of the claim that holds the node and has opened it to its gang; a label without the taint opens nothing."""
    opened = labelled_for(node)
    return opened if opened is not None and holds(node, opened) else None


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
    """A claim's marks on a node that nothing stands behind any more. `label_stays`: all of them but the label."""

    node_name: str
    claim_uid: str
    label_stays: bool = False


def strays(node: Node, claims: Mapping[str, WholeNodeClaim], pods: Iterable[Pod] = ()) -> tuple[Stray, ...]:
    """Marks on the node that must go: of a claim that is gone, ended, or holds another node of that name.

    `pods` are those on the node, with or without cards: as long as one of them selects the label, that stays.
    """
    held, opened = {*holders(node)}, labelled_for(node)
    if (shielded := shielded_for(node)) is not None:
        held.add(shielded)
    found = {uid for uid in held if not _stands_behind(claims.get(uid), node, HOLDING)}
    keeps = opened is not None and (
        _stands_behind(claims.get(opened), node, OPEN) or any(_selects(pod, opened) for pod in pods)
    )
    if opened is not None and not keeps:
        found.add(opened)
    return tuple(Stray(node.metadata.name, uid, keeps and uid == opened) for uid in sorted(found))


def _selects(pod: Pod, claim_uid: str) -> bool:
    return not finished(pod) and (pod.spec.node_selector or {}).get(CLAIM_KEY) == claim_uid


def _stands_behind(claim: WholeNodeClaim | None, node: Node, phases: frozenset[Phase]) -> bool:
    return claim is not None and claim.status.phase in phases and any(_is(held, node) for held in claim.status.nodes)


def _is(held: HeldNode, node: Node) -> bool:
    return held.name == node.metadata.name and held.uid == node.metadata.uid
