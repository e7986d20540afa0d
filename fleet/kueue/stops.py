"""Having Kueue stop a whole job for a claim: when it may be asked, and what is waited for until its pods go."""

from collections.abc import Iterable, Mapping

from fleet.actions import Evict, EvictionAnswer, StopWorkload
from fleet.cards import terminating
from fleet.kueue.disruptions import shortage
from fleet.kueue.objects import Workload
from fleet.kueue.victims import leaving, through_kueue, workload_of
from fleet.objections import Objection
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Victim, WholeNodeClaim
from fleet.upkeep import Context
from fleet.view import View

_SHOWN = 3


def ask_kueue(
    context: Context, claim: WholeNodeClaim, workload: Workload, pods: Iterable[Pod], victims: Mapping[str, Victim]
) -> str | None:
    """Ask for the Workload's end, or say what keeps it from happening: Kueue asks no disruption budget, so we count.

    `pods` are all its running pods. That it has been asked for is seen by the Workload alone: then none is running.
    """
    pods = tuple(pods)
    short = shortage(context.view, pods, _going(context))
    if short is not None:
        return f"Workload {workload.key} may not be stopped yet: {short}"
    named = tuple(victims[pod.metadata.uid] for pod in pods)
    context.decision.actions.append(StopWorkload(claim, workload, named))
    return None


def refusal_of(context: Context, pods: Iterable[Pod]) -> str | None:
    """What the API server has said against stopping the Workload of these pods for good; None if nothing."""
    answers = (context.answers.get(pod.metadata.uid) for pod in pods)
    return next((one.text for one in answers if one is not None and one.kind is EvictionAnswer.REFUSED), None)


def brought_home(
    view: View, against: Mapping[str, Objection], running: Iterable[Pod], along: Iterable[Pod]
) -> Mapping[str, Objection]:
    """Objections by UID of those who run on the nodes.

    What speaks against stopping a pod of a job that goes `along`, elsewhere, speaks against stopping its fellows here.
    """
    running = tuple(running)
    found = {pod.metadata.uid: against[pod.metadata.uid] for pod in running if pod.metadata.uid in against}
    for pod in along:
        why, workload = against.get(pod.metadata.uid), through_kueue(view, pod)
        if why is None or workload is None:
            continue
        text = f"Kueue would stop pod {pod.key} on node {pod.spec.node_name} with it: {why.text}"
        for one in running:
            if through_kueue(view, one) is workload:
                found.setdefault(one.metadata.uid, Objection(text, why.reason))
    return found


def at_kueue(context: Context, strangers: Iterable[Pod]) -> tuple[Reason, str] | None:
    """What is waited for while Kueue stops jobs whose pods nobody has deleted yet."""
    some = [pod for pod in strangers if not terminating(pod) and leaving(context.view, pod)]
    found = sorted({one.key for pod in some if (one := workload_of(context.view, pod)) is not None})
    if not found:
        return None
    names = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    return Reason.EVICTING, f"Kueue is stopping {len(some)} pod(s) of Workload {names}"


def _going(context: Context) -> list[Pod]:
    """Pods that this very pass asks to stop, for whatever claim."""
    uids: list[str] = []
    for action in context.decision.actions:
        if isinstance(action, Evict):
            uids.append(action.victim.uid)
        elif isinstance(action, StopWorkload):
            uids.extend(one.uid for one in action.victims)
    return [context.view.pods[uid] for uid in uids if uid in context.view.pods]
