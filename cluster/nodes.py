"""The one writer of our marks on nodes: taint, label and shield. It touches nothing else, nor another claim's marks.

Each write is a JSON patch bound to the resource version it was decided on, so other taints keep every field they have
and their order. On a conflict the node is read and the decision made again, a few times.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from cluster.client import Api
from cluster.errors import Conflict, HeldByAnother, Invalid, NotFound, NotHeld
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Taint
from fleet.shields import put_up, take_down

_ATTEMPTS: Final = 5
_NO_SCHEDULE: Final = "NoSchedule"
_LABELS: Final = "/metadata/labels"
_ANNOTATIONS: Final = "/metadata/annotations"
_DECODER: Final = msgspec.json.Decoder(Node)

Patch = list[dict[str, Any]]


async def hold(api: Api, node: Node, claim_uid: str) -> Node:
    """Close the node for everybody but the claim, and to autoscalers: add our taint and shield, in one write.

    Nothing is written if the taint is there already. The label of a gang that runs there does not stand in the way.

    Raises HeldByAnother; Conflict if the node keeps changing; NotFound if it is gone or was made anew.
    """
    return await _change(api, node, lambda seen: _hold_patch(seen, claim_uid))


async def release_to(api: Api, node: Node, claim_uid: str) -> Node:
    """Open the held node for the claim's gang: set our label, whatever it says. Nothing is written if it is right.

    Raises NotHeld if our taint is not on the node, HeldByAnother, Conflict, NotFound.
    """
    return await _change(api, node, lambda seen: _release_patch(seen, claim_uid))


async def clear(api: Api, node: Node, claim_uid: str, *, label_stays: bool = False) -> Node:
    """Take this claim's taint, shield and (unless `label_stays`) label off the node, in one write.

    Another claim's marks stay, and what others have written. Raises Conflict, NotFound.
    """
    return await _change(api, node, lambda seen: _clear_patch(seen, claim_uid, label_stays=label_stays))


def _hold_patch(node: Node, claim_uid: str) -> Patch:
    _refuse_foreign(node, claim_uid)
    if _has_taint(node, claim_uid):
        return []
    taint = {"key": CLAIM_KEY, "value": claim_uid, "effect": _NO_SCHEDULE}
    if node.spec.taints:
        tainted: Patch = [{"op": "add", "path": "/spec/taints/-", "value": taint}]
    else:
        tainted = [{"op": "add", "path": "/spec/taints", "value": [taint]}]
    notes = node.metadata.annotations
    return tainted + _add(_ANNOTATIONS, notes, put_up(notes, claim_uid))


def _release_patch(node: Node, claim_uid: str) -> Patch:
    _refuse_foreign(node, claim_uid)
    if not _has_taint(node, claim_uid):
        raise NotHeld(f"node {node.metadata.name} does not carry the taint of claim {claim_uid}")
    if node.metadata.label(CLAIM_KEY) == claim_uid:
        return []
    return _add(_LABELS, node.metadata.labels, {CLAIM_KEY: claim_uid})


def _clear_patch(node: Node, claim_uid: str, *, label_stays: bool) -> Patch:
    patch: Patch = [
        {"op": "remove", "path": f"/spec/taints/{index}"}
        for index, taint in reversed(list(enumerate(node.spec.taints or ())))
        if _is_ours(taint, claim_uid)
    ]
    patch += _remove(_ANNOTATIONS, take_down(node.metadata.annotations, claim_uid))
    if node.metadata.label(CLAIM_KEY) == claim_uid and not label_stays:
        patch += _remove(_LABELS, (CLAIM_KEY,))
    return patch


def _add(path: str, present: Mapping[str, str] | None, entries: Mapping[str, str]) -> Patch:
    if present is None:
        return [{"op": "add", "path": path, "value": dict(entries)}]
    return [{"op": "add", "path": _pointer(path, key), "value": value} for key, value in entries.items()]


def _remove(path: str, keys: Iterable[str]) -> Patch:
    return [{"op": "remove", "path": _pointer(path, key)} for key in keys]


def _pointer(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _is_ours(taint: Taint, claim_uid: str) -> bool:
    return taint.key == CLAIM_KEY and (taint.value or "") == claim_uid


def _has_taint(node: Node, claim_uid: str) -> bool:
    return any(_is_ours(taint, claim_uid) and taint.effect == _NO_SCHEDULE for taint in node.spec.taints or ())


def _refuse_foreign(node: Node, claim_uid: str) -> None:
    holders = {taint.value or "" for taint in node.spec.taints or () if taint.key == CLAIM_KEY}
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
