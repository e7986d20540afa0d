"""Writes to Kueue's objects, each with a precondition: our check's entry, and whether a Workload is active."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from cluster.client import Api
from cluster.errors import Conflict, Invalid
from fleet.kueue.objects import API_VERSION, DEACTIVATED_FOR, AdmissionCheck, CheckState, PodSetUpdate, Workload

_ROOT: Final = f"/apis/{API_VERSION}"
_WORKLOAD: Final = msgspec.json.Decoder(Workload)
_CHECK: Final = msgspec.json.Decoder(AdmissionCheck)

Patch = list[dict[str, Any]]


async def set_check(
    api: Api, workload: Workload, check: str, state: str, message: str, updates: tuple[PodSetUpdate, ...], at: datetime
) -> Workload:
    """Write our entry on the version that was decided on. Raises Conflict if it has changed since, NotFound.

    The other entries, and what Kueue counts in ours, stay as they are.
    """
    entries = workload.status.admission_checks or ()
    index = next((number for number, one in enumerate(entries) if one.name == check), None)
    if index is None:
        raise Conflict(f"workload {workload.key} has no entry of check {check} any more")
    entry = CheckState(check, state, message, at, entries[index].retry_count, updates)
    path = f"/status/admissionChecks/{index}"
    version = {"op": "replace", "path": "/metadata/resourceVersion", "value": workload.metadata.resource_version}
    patch: Patch = [version, {"op": "replace", "path": path, "value": _with_message(entry)}]
    try:
        return _WORKLOAD.decode(await api.patch(f"{_path(workload)}/status", patch, "json"))
    except Invalid as error:
        # An entry of the patch that is not there any more is refused as Invalid before versions are compared.
        found = _WORKLOAD.decode(await api.get(_path(workload)))
        if found.metadata.resource_version == workload.metadata.resource_version:
            raise
        raise Conflict(f"workload {workload.key} has changed since it was looked at") from error


def _with_message(entry: CheckState) -> dict[str, Any]:
    """The message is required by the schema, empty or not."""
    return {**msgspec.to_builtins(entry), "message": entry.message}


async def activate_check(api: Api, check: AdmissionCheck, at: datetime) -> AdmissionCheck:
    """Set the check's condition Active. Raises NotFound, Conflict (a namesake with another UID)."""
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "wholenode looks after this check",
        "lastTransitionTime": msgspec.to_builtins(at),
        "observedGeneration": check.metadata.generation,
    }
    others = [msgspec.to_builtins(one) for one in check.status.conditions or () if one.type != "Active"]
    body = {
        "metadata": {"uid": check.metadata.uid, "resourceVersion": check.metadata.resource_version},
        "status": {"conditions": [*others, condition]},
    }
    return _CHECK.decode(await api.patch(f"{_ROOT}/admissionchecks/{check.metadata.name}/status", body, "merge"))


async def stop_workload(
    api: Api, workload: Workload, claim_uid: str, still_allowed: Callable[[], bool] = lambda: True
) -> Workload | None:
    """Make the Workload inactive, marked with the claim, in one write. Raises Conflict, NotFound.

    One that is inactive already was made so by somebody else, and is left to them: Conflict, decide anew.
    `still_allowed` is asked last thing, after the wait in the token bucket; None if it is not any more.
    """
    if not workload.active:
        raise Conflict(f"workload {workload.key} is inactive already")
    await api.turn()
    if not still_allowed():
        return None
    body = {
        "metadata": {**_identity(workload), "annotations": {DEACTIVATED_FOR: claim_uid}},
        "spec": {"active": False},
    }
    return _WORKLOAD.decode(await api.patch(_path(workload), body, "merge", urgent=True))


async def resume_workload(api: Api, workload: Workload) -> Workload:
    """Set a Workload that we stopped active again and take the mark off, in one write. Raises Conflict, NotFound."""
    body = {
        "metadata": {**_identity(workload), "annotations": {DEACTIVATED_FOR: None}},
        "spec": {"active": True},
    }
    return _WORKLOAD.decode(await api.patch(_path(workload), body, "merge"))


def _identity(workload: Workload) -> dict[str, str]:
    return {"uid": workload.metadata.uid, "resourceVersion": workload.metadata.resource_version}


def _path(workload: Workload) -> str:
    return f"{_ROOT}/namespaces/{workload.metadata.namespace}/workloads/{workload.metadata.name}"
