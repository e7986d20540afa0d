"""The one writer of our taint and label on nodes. It never touches anything else of a node, nor another claim's marks.

Each write is a JSON patch bound to the resource version it was decided on, so other taints keep every field they have
and their order. On a conflict the node is read and the decision made again, a few times.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from cluster.client import Api
from cluster.errors import Conflict, HeldByAnother, Invalid, NotFound, NotHeld
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Taint

_ATTEMPTS: Final = 5
_NO_SCHEDULE: Final = "NoSchedule"
_LABEL_POINTER: Final = "/metadata/labels/" + CLAIM_KEY.replace("~", "~0").replace("/", "~1")
_DECODER: Final = msgspec.json.Decoder(Node)

Patch = list[dict[str, Any]]


async def hold(api: Api, node: Node, claim_uid: str) -> Node:
    """Close the node for everybody but the claim: add our taint. Nothing is written if it is there already.

    Raises HeldByAnother; Conflict if the node keeps changing; NotFound if it is gone or was made anew.
    """
    return await _change(api, node, lambda seen: _hold_patch(seen, claim_uid))


async def release_to(api: Api, node: Node, claim_uid: str) -> Node:
    """Open the held node for the claim's gang: set our label. Nothing is written if it is there already.

    Raises NotHeld if our taint is not on the node, HeldByAnother, Conflict, NotFound.
    """
    return await _change(api, node, lambda seen: _release_patch(seen, claim_uid))


async def clear(api: Api, node: Node, claim_uid: str) -> Node:
    """Take this claim's taint and label off the node, if they are there; another claim's marks stay.

    Raises Conflict, NotFound.
    """
    return await _change(api, node, lambda seen: _clear_patch(seen, claim_uid))


def _hold_patch(node: Node, claim_uid: str) -> Patch:
    _refuse_foreign(node, claim_uid)
    if _has_taint(node, claim_uid):
        return []
    taint = {"key": CLAIM_KEY, "value": claim_uid, "effect": _NO_SCHEDULE}
    if node.spec.taints:
        return [{"op": "add", "path": "/spec/taints/-", "value": taint}]
    return [{"op": "add", "path": "/spec/taints", "value": [taint]}]


def _release_patch(node: Node, claim_uid: str) -> Patch:
    _refuse_foreign(node, claim_uid)
    if not _has_taint(node, claim_uid):
        raise NotHeld(f"node {node.metadata.name} does not carry the taint of claim {claim_uid}")
    if node.metadata.label(CLAIM_KEY) == claim_uid:
        return []
    if node.metadata.labels is None:
        return [{"op": "add", "path": "/metadata/labels", "value": {CLAIM_KEY: claim_uid}}]
    return [{"op": "add", "path": _LABEL_POINTER, "value": claim_uid}]


def _clear_patch(node: Node, claim_uid: str) -> Patch:
    patch: Patch = [
        {"op": "remove", "path": f"/spec/taints/{index}"}
        for index, taint in reversed(list(enumerate(node.spec.taints or ())))
        if _is_ours(taint, claim_uid)
    ]
    if node.metadata.label(CLAIM_KEY) == claim_uid:
        patch.append({"op": "remove", "path": _LABEL_POINTER})
    return patch


def _is_ours(taint: Taint, claim_uid: str) -> bool:
    return taint.key == CLAIM_KEY and (taint.value or "") == claim_uid


def _has_taint(node: Node, claim_uid: str) -> bool:
    return any(_is_ours(taint, claim_uid) and taint.effect == _NO_SCHEDULE for taint in node.spec.taints or ())


def _refuse_foreign(node: Node, claim_uid: str) -> None:
    holders = {taint.value or "" for taint in node.spec.taints or () if taint.key == CLAIM_KEY}
    label = node.metadata.label(CLAIM_KEY)
    if label is not None:
        holders.add(label)
    if others := holders - {claim_uid}:
        raise HeldByAnother(f"node {node.metadata.name} is held for claim {', '.join(sorted(others))}")


async def _change(api: Api, node: Node, decide: Callable[[Node], Patch]) -> Node:
    path, uid = f"/api/v1/nodes/{node.metadata.name}", node.metadata.uid
    for _ in range(_ATTEMPTS):
        patch = decide(node)
        if not patch:
            return node
        version = {"op": "replace", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version}
        try:
            return _DECODER.decode(await api.patch(path, [version, *patch], "json"))
        except (Conflict, Invalid) as error:
            found = _DECODER.decode(await api.get(path))
            if uid and found.metadata.uid != uid:
                raise NotFound(f"node {found.metadata.name} was deleted and made anew") from error
            # An index of the patch that is not there any more is refused as Invalid before versions are compared.
            if isinstance(error, Invalid) and found.metadata.resource_version == node.metadata.resource_version:
                raise
            node = found
    raise Conflict(f"node {node.metadata.name} changes too often to be written: {_ATTEMPTS} tries")
