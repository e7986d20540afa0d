"""HAMi's mutating webhook: what it adds to a pod that asks for parts of cards, and what it turns away."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from typing import Any

from fleet.errors import QuantityError
from fleet.quantities import count
from kwok.hami.devices import CORES, GPU, MEMORY, PERCENTAGE, WHOLE

DEFAULT_SCHEDULER = "default-scheduler"


class RefusedError(Exception):
    """The pod must not be let in."""


def mutated(pod: Mapping[str, Any], scheduler_name: str) -> dict[str, Any] | None:
    """The pod's spec as HAMi wants it; None if it is none of its business. Raises RefusedError."""
    spec: dict[str, Any] = copy.deepcopy(dict(pod["spec"]))
    if spec.get("schedulerName", DEFAULT_SCHEDULER) not in {DEFAULT_SCHEDULER, scheduler_name}:
        return None
    every = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    sharing = [one for one in every if _complete(one)]
    if not sharing:
        return None
    if spec.get("nodeName"):
        raise RefusedError("pod has node assigned")
    if any((one.get("securityContext") or {}).get("privileged") for one in every):
        raise RefusedError("a privileged container may not share cards")
    spec["schedulerName"] = scheduler_name
    return spec


def _complete(container: dict[str, Any]) -> bool:
    """Add one card to a wish for parts alone, and all cores to one for whole cards; whether it asks for cards."""
    limits = (container.get("resources") or {}).get("limits") or {}
    if GPU not in limits:
        if not any(_number(limits, name) for name in (MEMORY, PERCENTAGE, CORES)):
            return False
        limits[GPU] = "1"
    if not _number(limits, GPU):
        return False
    percentage = _number(limits, PERCENTAGE)
    if CORES not in limits and not _number(limits, MEMORY) and percentage in {0, WHOLE}:
        limits[CORES] = str(WHOLE)
    container["resources"]["limits"] = limits
    return True


def _number(limits: Mapping[str, Any], name: str) -> int:
    try:
        return count(limits.get(name, 0))
    except QuantityError:
        return 0


def review(asked: Mapping[str, Any], scheduler_name: str) -> dict[str, Any]:
    """The answer to one AdmissionReview, in its own version."""
    request = asked["request"]
    answer: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    try:
        spec = mutated(request["object"], scheduler_name)
    except RefusedError as error:
        answer |= {"allowed": False, "status": {"message": str(error), "code": 403}}
    else:
        if spec is not None:
            patch = [{"op": "replace", "path": "/spec", "value": spec}]
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": asked["apiVersion"], "kind": "AdmissionReview", "response": answer}
