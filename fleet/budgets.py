"""PodDisruptionBudgets: whether pods could be evicted at all, read before anybody is stopped."""

from collections.abc import Iterable
from typing import Final

from fleet.objects import DisruptionBudget, Pod
from fleet.readiness import is_ready
from fleet.selectors import labels_match

NOT_READY: Final = (
    "the pod is not ready, so the budget can be met only with others: "
    "unhealthyPodEvictionPolicy: AlwaysAllow lets such pods go"
)
"""What its owner can do about a pod that never gets ready and holds up a drain (kubernetes#72320)."""


def matching(pod: Pod, budgets: Iterable[DisruptionBudget]) -> tuple[DisruptionBudget, ...]:
    """Budgets of the pod's namespace that select it. In policy/v1 an empty selector is everybody, none is nobody."""
    labels = pod.metadata.labels or {}
    return tuple(
        budget
        for budget in budgets
        if budget.metadata.namespace == pod.metadata.namespace
        and budget.spec.selector is not None
        and labels_match(budget.spec.selector, labels)
    )


def forbidden(pods: Iterable[Pod], budgets: tuple[DisruptionBudget, ...]) -> str | None:
    """Which budget would let none of the pods it covers go, or why the Eviction API could not decide; None if neither.

    A budget that lets some of them go is no obstacle: the others follow once replacements are ready. Pods that have not
    begun to run are evicted whatever budgets say.
    """
    for pod in pods:
        if pod.status.phase == "Pending":
            continue
        found = matching(pod, budgets)
        if len(found) > 1:
            names = " and ".join(sorted(map(_name, found)))
            return f"two budgets, {names}, cover pod {pod.key}, which the Eviction API refuses"
        for budget in found:
            if budget.status.disruptions_allowed <= 0 and not waives(pod, budget):
                advice = "" if is_ready(pod) or not pod.status.conditions else f"; {NOT_READY}"
                return f"budget {_name(budget)} allows no disruption now{advice}"
    return None


def waives(pod: Pod, budget: DisruptionBudget) -> bool:
    """Whether the budget lets the pod go without counting it: one that is not ready, if the budget says so."""
    return not is_ready(pod) and _lets_unready_go(budget)


def _name(budget: DisruptionBudget) -> str:
    return f"{budget.metadata.namespace}/{budget.metadata.name}"


def _lets_unready_go(budget: DisruptionBudget) -> bool:
    """Whether a running pod that is not ready may go although no disruption is allowed: it counts as none.

    By default (IfHealthyBudget) while the budget is met without it, see "Unhealthy Pod Eviction Policy" of Kubernetes.
    """
    if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
        return True
    return budget.status.current_healthy >= budget.status.desired_healthy > 0
