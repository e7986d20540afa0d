"""Reading raw objects as the API server has them: a pod's cards, gang and end, a node's marks, a claim's nodes.

Written apart from the product's own reading, which is what the checks that use this are about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kwok.nodes import GPU
from kwok.queues import GROUP_NAME, GROUP_SIZE
from kwok.workloads import GANG, GANG_SIZE

Object = Mapping[str, Any]

MARK = "wholenode.io/claim"
"""Key of our taint, our label and our gate."""

CHOSEN = frozenset({"Planned", "Cordoning", "Draining", "ProvingEmpty", "Ready", "Landing"})
"""Phases in which a claim's nodes are its own."""
HELD = frozenset({"Draining", "ProvingEmpty", "Ready", "Landing"})
"""Phases in which every node of a claim carries its taint."""
OPEN = frozenset({"Ready", "Landing"})
"""Phases in which a claim's nodes are open to its gang: they carry its label, too."""
DEFAULT_SCHEDULER = "default-scheduler"


def uid(item: Object) -> str:
    """The object's UID."""
    return str(item["metadata"]["uid"])


def shown(item: Object) -> str:
    """`namespace/name`, for people."""
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def revision(item: Object) -> int:
    """The store's revision of the object's last change: one order for all kinds, since they share one store."""
    return int(item["metadata"]["resourceVersion"])


def annotation(item: Object, key: str) -> str:
    """The annotation's text, or an empty one."""
    return str((item["metadata"].get("annotations") or {}).get(key, ""))


def node_of(pod: Object) -> str:
    """Name of the node the pod is bound to, or an empty text."""
    return str(pod["spec"].get("nodeName") or "")


def ended(pod: Object) -> bool:
    """Whether it has ended for good."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def stray_marks(nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
    """Names of nodes with a taint of ours, or with a label of ours that no pod there selects."""
    needed = {
        (node_of(pod), (pod["spec"].get("nodeSelector") or {}).get(MARK))
        for pod in pods
        if node_of(pod) and not ended(pod)
    }
    return [
        str(node["metadata"]["name"])
        for node in nodes
        if taints(node) or (label(node) and (node["metadata"]["name"], label(node)) not in needed)
    ]


def terminating(pod: Object) -> bool:
    """Whether it is being deleted; it holds its cards until it is gone."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def waits(pod: Object) -> bool:
    """Whether it still wants a node."""
    return not node_of(pod) and not ended(pod) and not terminating(pod)


def cards(pod: Object, resource: str) -> int:
    """What kube-scheduler sets aside: containers and sidecars together, or an init container beside the sidecars."""
    spec = pod["spec"]
    running = sum(_limit(one, resource) for one in spec.get("containers") or ())
    beside = start = 0
    for one in spec.get("initContainers") or ():
        if one.get("restartPolicy") == "Always":
            beside += _limit(one, resource)
            start = max(start, beside)
        else:
            start = max(start, beside + _limit(one, resource))
    return max(running + beside, start)


def _limit(container: Object, resource: str) -> int:
    return int((container.get("resources", {}).get("limits") or {}).get(resource, 0))


def allocatable(node: Object, resource: str) -> int:
    """Cards the node offers."""
    return int(node.get("status", {}).get("allocatable", {}).get(resource, 0))


def taints(node: Object) -> list[str]:
    """Claim UIDs on taints of ours."""
    return [str(one.get("value", "")) for one in node["spec"].get("taints") or () if one["key"] == MARK]


def label(node: Object) -> str:
    """Claim UID on the label of ours, or an empty text."""
    return str((node["metadata"].get("labels") or {}).get(MARK, ""))


def phase(claim: Object) -> str:
    """The claim's phase; one without a status is Pending."""
    return str(claim.get("status", {}).get("phase") or "Pending")


def reason(claim: Object) -> str:
    """The claim's reason, or an empty text."""
    return str(claim.get("status", {}).get("reason") or "")


def chosen_nodes(claim: Object) -> list[Object]:
    """`status.nodes` of a claim."""
    return list(claim.get("status", {}).get("nodes") or ())


def preview(claim: Object) -> bool:
    """Whether the claim only plans."""
    return bool(claim["spec"].get("policy") == "Preview")


def _owner(pod: Object) -> Object:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), {})


def gang(pod: Object) -> tuple[str, str, str, str]:
    """(namespace, kind, name, UID) of the pod's gang, as in a claim's `spec.gang`; every Job here is a gang."""
    namespace, owner = pod["metadata"]["namespace"], _owner(pod)
    name = annotation(pod, GANG) or (pod["metadata"].get("labels") or {}).get(GROUP_NAME)
    if name:
        return namespace, "Gang", name, str(owner.get("uid", ""))
    if owner.get("kind") == "Job":
        return namespace, "Job", str(owner["name"]), str(owner["uid"])
    return namespace, "Pod", str(pod["metadata"]["name"]), uid(pod)


def gang_of_claim(claim: Object) -> tuple[str, str, str, str]:
    """The gang that a claim is for, comparable with `gang`."""
    ref = claim["spec"].get("gang") or {}
    return claim["metadata"]["namespace"], ref.get("kind", ""), ref.get("name", ""), ref.get("uid", "")


def declared_size(pod: Object) -> int:
    """How many pods the gang says it has; 0 if it does not say."""
    return int(annotation(pod, GANG_SIZE) or annotation(pod, GROUP_SIZE) or 0)


class Pools:
    """The pools of a fleet that stay as they are, and what follows for pods and nodes."""

    def __init__(self, pools: Iterable[Object]) -> None:
        self.pools = tuple(pools)
        self.resources = tuple(sorted({GPU, *(self.resource(pool) for pool in self.pools)}))

    @staticmethod
    def resource(pool: Object) -> str:
        """Name of the resource that counts the pool's cards."""
        return str(pool["spec"].get("resourceName", GPU))

    def of(self, node: Object) -> list[Object]:
        """The pools that select the node."""
        labels = node["metadata"].get("labels") or {}
        return [
            pool
            for pool in self.pools
            if all(labels.get(key) == value for key, value in pool["spec"]["nodeSelector"]["matchLabels"].items())
        ]

    def asks(self, pod: Object) -> tuple[str, int]:
        """(resource, cards) that the pod asks for; no pod here asks for two kinds of cards. 0 cards: no GPU pod."""
        found = [(resource, number) for resource in self.resources if (number := cards(pod, resource))]
        return found[0] if found else (GPU, 0)

    def serving(self, pod: Object) -> list[Object]:
        """The WholeNode pools whose nodes have exactly what the pod asks for."""
        wish = self.asks(pod)
        return [
            pool
            for pool in self.pools
            if pool["spec"]["accepts"] == "WholeNode" and (self.resource(pool), pool["spec"]["cardsPerNode"]) == wish
        ]

    def whole(self, pod: Object) -> bool:
        """Whether the pod wants a node of its own."""
        return bool(self.serving(pod))

    def holders(self, pods: Iterable[Object], node: str) -> list[Object]:
        """Pods that hold cards of the node, terminating ones included."""
        return [pod for pod in pods if node_of(pod) == node and not ended(pod) and self.asks(pod)[1]]

    def open_to_small(self, node: Object, *, consents: bool) -> bool:
        """Whether a small pod may have the node, as far as pools go."""
        found = self.of(node)
        if len(found) != 1:
            return not found
        spec = found[0]["spec"]
        return spec["accepts"] == "Small" or (spec.get("overflow") == "Reclaimable" and consents)
