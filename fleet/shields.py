"""The shield of a held node against node autoscalers, which take an emptied node for one that nobody needs.

Cluster Autoscaler and Karpenter leave a node alone that carries their annotation. We add only those that are absent and
note which, so that exactly these are taken off again: what somebody else has put there, or changed since, stays.
"""

from collections.abc import Mapping
from typing import Final

from fleet.names import SHIELD
from fleet.objects import Node

ANNOTATIONS: Final = {
    "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
    "karpenter.sh/do-not-disrupt": "true",
}
"""What keeps an autoscaler from removing the node."""


def shielded_for(node: Node) -> str | None:
    """UID of the claim the node's shield was put up for; None without a shield."""
    note = node.metadata.annotation(SHIELD)
    return None if note is None else note.partition(":")[0]


def put_up(annotations: Mapping[str, str] | None, claim_uid: str) -> dict[str, str]:
    """The annotations to add for the claim. A shield that was left behind is taken over."""
    present = annotations or {}
    ours = set(_noted(present)) & set(_unchanged(present))
    added = {key: value for key, value in ANNOTATIONS.items() if key not in present}
    keys = sorted(ours | set(added))
    return {**added, SHIELD: f"{claim_uid}:{','.join(keys)}"}


def take_down(annotations: Mapping[str, str] | None, claim_uid: str) -> tuple[str, ...]:
    """Keys of the annotations to remove: those noted as the claim's that still say what we wrote, and the note."""
    present = annotations or {}
    if present.get(SHIELD, "").partition(":")[0] != claim_uid or SHIELD not in present:
        return ()
    return (*sorted(set(_noted(present)) & set(_unchanged(present))), SHIELD)


def _noted(annotations: Mapping[str, str]) -> list[str]:
    return annotations.get(SHIELD, "").partition(":")[2].split(",")


def _unchanged(annotations: Mapping[str, str]) -> list[str]:
    return [key for key, value in ANNOTATIONS.items() if annotations.get(key) == value]
