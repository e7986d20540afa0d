"""Pods that have their place: running, starting, or failing to start."""

from fleet.cards import finished, terminating
from fleet.objects import Pod
from fleet.why.answers import No
from fleet.why.explanations import Kind, Told, Wait

_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
_NOT_ABOUT_STARTING = frozenset({"Evicted", "DeadlineExceeded", "Preempting", "Terminated", "NodeLost", "Shutdown"})


def placed(pod: Pod, told: Told) -> tuple[Kind, No]:
    """What becomes of a pod that has a node, or has ended."""
    node = pod.spec.node_name
    if finished(pod):
        return _ended(pod, told)
    if terminating(pod):
        return Kind.NOT_WAITING, No(Wait.ENDING, "It is being deleted.", "it is gone")
    for one in told.containers:
        if one.waiting not in _STARTING:
            words = f"{one.waiting}: {one.message}" if one.message else one.waiting
            text = f"It was placed on node {node}, and container {one.name} does not start: {words}"
            return Kind.START_FAILED, No(Wait.CONTAINER, text, "the cause is mended, or the pod is deleted")
    if pod.status.phase == "Running":
        return Kind.NOT_WAITING, No(Wait.RUNNING, f"It runs on node {node}.", "it does not wait")
    if told.kubelet is not None:
        text = f"It was placed on node {node} and does not start: {told.kubelet.reason}: {told.kubelet.message}"
        return Kind.START_FAILED, No(Wait.KUBELET, text, "the cause is mended, or the pod is deleted")
    return Kind.NOT_WAITING, No(Wait.STARTING, f"It was placed on node {node} and is starting.", "its containers run")


def _ended(pod: Pod, told: Told) -> tuple[Kind, No]:
    why = pod.status.reason or ""
    refused = pod.status.phase == "Failed" and pod.spec.node_name and why and why not in _NOT_ABOUT_STARTING
    if refused and not any(one.ran for one in told.containers):
        words = f"{why}: {pod.status.message}" if pod.status.message else why
        text = f"It was placed on node {pod.spec.node_name}, and the node refused to start it: {words}"
        return Kind.START_FAILED, No(Wait.KUBELET, text, "its owner makes a new pod; this one has ended")
    return Kind.NOT_WAITING, No(Wait.ENDED, f"It has ended ({pod.status.phase}).", "it does not wait")
