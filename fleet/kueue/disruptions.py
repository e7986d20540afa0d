"""PodDisruptionBudgets of jobs that Kueue stops: it does not ask for them, so we count before anybody is stopped."""

from collections.abc import Iterable

from fleet.budgets import matching, waives
from fleet.cards import terminating
from fleet.kueue.victims import leaving
from fleet.objects import DisruptionBudget, Pod
from fleet.readiness import is_ready
from fleet.view import View


def shortage(view: View, pods: Iterable[Pod], going: Iterable[Pod] = ()) -> str | None:
    """Which budget does not allow that all these pods of one job are stopped at once; None if all do.

    `going` are further pods that are being stopped in this very moment. Unlike the Eviction API, which decides pod by
    pod and refuses a pod under two budgets, this asks each budget for all of them.
    """
    pods = tuple(pods)
    uids = {pod.metadata.uid for pod in pods}
    others = tuple(pod for pod in going if pod.metadata.uid not in uids)
    for budget in _covering(view, pods):
        wanted = sum(_counts(pod, budget) for pod in pods)
        allowed = _allowed(view, budget) - sum(_counts(pod, budget) for pod in others)
        if wanted > max(0, allowed):
            name = f"{budget.metadata.namespace}/{budget.metadata.name}"
            return f"budget {name} allows {max(0, allowed)} disruption(s) now, the whole job would be {wanted}"
    return None


def _covering(view: View, pods: Iterable[Pod]) -> tuple[DisruptionBudget, ...]:
    if not view.budgets:
        return ()
    found = {one.metadata.uid or one.metadata.name: one for pod in pods for one in matching(pod, view.budgets)}
    return tuple(sorted(found.values(), key=lambda one: one.metadata.name))


def _counts(pod: Pod, budget: DisruptionBudget) -> bool:
    """Whether stopping the pod is a disruption to the budget."""
    return pod.status.phase != "Pending" and not waives(pod, budget) and bool(matching(pod, (budget,)))


def _allowed(view: View, budget: DisruptionBudget) -> int:
    """What the budget allows, less what its status cannot show yet: jobs that Kueue has only begun to stop.

    The status also lags behind pods that were just deleted; so it is not believed where fewer are ready than it needs.
    """
    key = ("disruptions", budget.metadata.namespace, budget.metadata.name)
    known: int | None = view.memo.get(key)
    if known is None:
        covered = [pod for pod in view.pods.values() if not terminating(pod) and matching(pod, (budget,))]
        going = [pod for pod in covered if leaving(view, pod)]
        known = budget.status.disruptions_allowed - sum(_counts(pod, budget) for pod in going)
        if budget.status.desired_healthy > 0:
            ready = sum(is_ready(pod) for pod in covered) - sum(is_ready(pod) for pod in going)
            known = min(known, ready - budget.status.desired_healthy)
        view.memo[key] = known
    return known
