"""A program of ours behind a proxy, for one test on a control plane that others use too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kwok.controlplane import ControlPlane
from kwok.faultproxy import Proxy, proxy
from kwok.faults import Call
from kwok.product import CONTROLLER, EXTENDER, Product
from kwok.workloads import Manifest

API = "admissionregistration.k8s.io/v1"


@contextlib.asynccontextmanager
async def controller_behind(plane: ControlPlane, product: Product) -> AsyncIterator[Proxy]:
    """The controller started anew with a proxy between it and the API server; the usual one again afterwards."""
    async with proxy(product.kubeconfig(CONTROLLER)) as between:
        product.through[CONTROLLER] = between.url
        await start_again(plane, product)
        try:
            yield between
        finally:
            between.begin()
            between.let_go()
            del product.through[CONTROLLER]
            await start_again(plane, product)


@contextlib.asynccontextmanager
async def extender_behind(between: Proxy, plane: ControlPlane, product: Product) -> AsyncIterator[None]:
    """The extender started anew, ready or not, with the proxy before the API server; the usual one again afterwards."""
    product.through[EXTENDER] = between.url
    await asyncio.to_thread(plane.stop_component, EXTENDER)
    await asyncio.to_thread(product.launch, EXTENDER)
    try:
        yield
    finally:
        between.let_go()
        del product.through[EXTENDER]
        await start_again(plane, product, EXTENDER)


async def start_again(plane: ControlPlane, product: Product, name: str = CONTROLLER) -> None:
    """End the program, if it runs, and start it."""
    await asyncio.to_thread(plane.stop_component, name)
    await asyncio.to_thread(product.launch, name)
    await product.ready(name)


def evicts(name: str = "") -> Callable[[Call], bool]:
    """Matches evictions of the pod of that name, or of any."""
    return lambda call: call.evicts and (not name or f"/pods/{name}/" in call.path)


def budget(name: str, namespace: str, least: int, labels: Mapping[str, str]) -> Manifest:
    """A PodDisruptionBudget that keeps `least` of the pods."""
    spec = {"minAvailable": least, "selector": {"matchLabels": dict(labels)}}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}


def no_evictions(namespace: str, message: str) -> tuple[Manifest, Manifest]:
    """A policy, and its binding, by which the API server refuses every eviction of the namespace."""
    name = f"{namespace}-no-evictions"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "validations": [{"expression": "false", "message": message, "reason": "Forbidden"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kinds = (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding))
    made = [{"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in kinds]
    return made[0], made[1]
