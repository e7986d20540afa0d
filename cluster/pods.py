"""Everything we do to pods: evict, steer, poke, ask for a checkpoint; and the consistent look at one node's pods."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from cluster.client import Api
from cluster.errors import Conflict, Expired, Invalid, NotFound
from cluster.listing import ObjectDecoder, list_all
from fleet.names import CHECKPOINT_REQUESTED, CLAIM_KEY, POKE
from fleet.objects import Pod

_ATTEMPTS: Final = 5
_NO_SCHEDULE: Final = "NoSchedule"
_SELECTOR_POINTER: Final = "/spec/nodeSelector/" + CLAIM_KEY.replace("~", "~0").replace("/", "~1")
_DECODER: Final = msgspec.json.Decoder(Pod)
_LIST_DECODER: Final = ObjectDecoder(Pod)

Patch = list[dict[str, Any]]


class EvictOutcome(Enum):
    ACCEPTED = "accepted"
    """The API server took the eviction; the pod is terminating, not gone."""
    GONE = "gone"
    """This very pod does not exist any more (a namesake may)."""
    WITHDRAWN = "withdrawn"
    """Not asked for: what allowed it had changed by the time its turn came."""


async def evict(
    api: Api, pod: Pod, still_allowed: Callable[[], bool] = lambda: True, grace_seconds: int | None = None
) -> EvictOutcome:
    """Ask the Eviction API to stop exactly this pod, by UID. Never a plain DELETE.

    `still_allowed` is asked last thing, after the wait in the token bucket.

    Raises DisruptionBudgetRefused, SeveralBudgets, Throttled, Forbidden, NamespaceTerminating, Unavailable (then it is
    unknown whether it was taken: look at the pod before asking again), Conflict.
    """
    options: dict[str, Any] = {"preconditions": {"uid": pod.metadata.uid}}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
        "deleteOptions": options,
    }
    await api.turn()
    if not still_allowed():
        return EvictOutcome.WITHDRAWN
    try:
        await api.create(f"{_path(pod)}/eviction", body, urgent=True)
    except NotFound:
        return EvictOutcome.GONE
    except Conflict:
        if await _is_gone(api, pod):
            return EvictOutcome.GONE
        raise
    return EvictOutcome.ACCEPTED


async def pods_on_node(api: Api, node_name: str) -> tuple[tuple[Pod, ...], int]:
    """All pods bound to the node, terminating and ended ones included, not older than this call (a quorum LIST).

    And the revision of the cluster that the list shows.
    """
    query = {"fieldSelector": f"spec.nodeName={node_name}"}
    try:
        pods, revision = await list_all(api, "/api/v1/pods", _LIST_DECODER, query)
    except Expired:
        pods, revision = await list_all(api, "/api/v1/pods", _LIST_DECODER, query)
    return tuple(pods), revision


async def steer(api: Api, pod: Pod, claim_uid: str) -> Pod:
    """Send the pod to the claim's nodes, in one write: selector and toleration in, our gate out.

    A pod without our gate gets the toleration only: its selector cannot change any more. Nothing is written if
    nothing is missing. Raises NotFound if this very pod is gone, Invalid if its selector names another claim,
    Conflict if it keeps changing.
    """
    for _ in range(_ATTEMPTS):
        patch = _steer_patch(pod, claim_uid)
        if not patch:
            return pod
        version = {"op": "replace", "path": "/metadata/resourceVersion", "value": pod.metadata.resource_version}
        try:
            return _DECODER.decode(await api.patch(_path(pod), [version, *patch], "json"))
        except (Conflict, Invalid) as error:
            found = await _read_same(api, pod)
            # An index of the patch that is not there any more is refused as Invalid before versions are compared.
            if isinstance(error, Invalid) and found.metadata.resource_version == pod.metadata.resource_version:
                raise
            pod = found
    raise Conflict(f"pod {pod.key} changes too often to be written: {_ATTEMPTS} tries")


async def ungate(api: Api, pod: Pod) -> Pod:
    """Lift our gate and change nothing else. Raises NotFound if this very pod is gone, Conflict if it changed."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if CLAIM_KEY not in gates:
        return pod
    patch: Patch = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": pod.metadata.resource_version},
        {"op": "remove", "path": f"/spec/schedulingGates/{gates.index(CLAIM_KEY)}"},
    ]
    return _DECODER.decode(await api.patch(_path(pod), patch, "json"))


async def poke(api: Api, pod: Pod, value: str) -> Pod:
    """Change an annotation so that kube-scheduler tries the pod again. Raises NotFound if this very pod is gone."""
    return await _annotate(api, pod, POKE, value)


async def ask_checkpoint(api: Api, pod: Pod, value: str) -> Pod:
    """Say by annotation since when a checkpoint is asked for. Raises NotFound if this very pod is gone."""
    return await _annotate(api, pod, CHECKPOINT_REQUESTED, value)


async def _annotate(api: Api, pod: Pod, key: str, value: str) -> Pod:
    patch = {"metadata": {"uid": pod.metadata.uid, "annotations": {key: value}}}
    try:
        return _DECODER.decode(await api.patch(_path(pod), patch, "merge"))
    except (Conflict, Invalid):
        await _read_same(api, pod)  # another UID is refused as a change of an immutable field
        raise


def _steer_patch(pod: Pod, claim_uid: str) -> Patch:
    patch: Patch = []
    selector = pod.spec.node_selector
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if CLAIM_KEY in gates:
        chosen = (selector or {}).get(CLAIM_KEY)
        if chosen is None:
            path, value = (_SELECTOR_POINTER, claim_uid) if selector else ("/spec/nodeSelector", {CLAIM_KEY: claim_uid})
            patch.append({"op": "add", "path": path, "value": value})
        elif chosen != claim_uid:
            raise Invalid(
                f"pod {pod.key} selects nodes of claim {chosen}, so it cannot be sent to those of {claim_uid}"
            )
        patch.append({"op": "remove", "path": f"/spec/schedulingGates/{gates.index(CLAIM_KEY)}"})
    if not _tolerates(pod, claim_uid):
        toleration = {"key": CLAIM_KEY, "operator": "Equal", "value": claim_uid, "effect": _NO_SCHEDULE}
        # Appended, not rewritten: other tolerations have fields that our structs do not carry.
        path = "/spec/tolerations/-" if pod.spec.tolerations else "/spec/tolerations"
        patch.append({"op": "add", "path": path, "value": toleration if pod.spec.tolerations else [toleration]})
    return patch


def _tolerates(pod: Pod, claim_uid: str) -> bool:
    return any(
        one.key == CLAIM_KEY
        and one.value == claim_uid
        and one.operator in {None, "Equal"}
        and one.effect in {None, "", _NO_SCHEDULE}
        for one in pod.spec.tolerations or ()
    )


async def _read_same(api: Api, pod: Pod) -> Pod:
    found = _DECODER.decode(await api.get(_path(pod)))
    if found.metadata.uid != pod.metadata.uid:
        raise NotFound(f"pod {pod.key} was deleted and made anew")
    return found


async def _is_gone(api: Api, pod: Pod) -> bool:
    try:
        await _read_same(api, pod)
    except NotFound:
        return True
    return False


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
