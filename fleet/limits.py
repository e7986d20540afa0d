"""The limits of a drain: how long one may last, and how many nodes may be drained at the same time."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fleet.actions import Timing
from fleet.cards import terminating
from fleet.checkpoints import longest_timeout
from fleet.consents import consent
from fleet.kueue.victims import fellows
from fleet.lodgers import may_finish
from fleet.objects import Pod
from fleet.planning import Choice
from fleet.reasons import Reason
from fleet.resources import Phase, WholeNodeClaim
from fleet.statuses import entered_at
from fleet.upkeep import Context
from fleet.view import View

_DRAINING = frozenset({Phase.PLANNED, Phase.CORDONING, Phase.DRAINING, Phase.PROVING_EMPTY})


def drain_limit(context: Context, claim: WholeNodeClaim) -> datetime:
    """When the nodes are given back if they are not empty by then.

    The time-out is for stopping. It runs from the moment the first pod was written down as a victim; before that, from
    the end of the time in which nobody is stopped, and the longest wait for a checkpoint comes on top. So neither of
    them eats up the time that pods have to end.
    """
    held = entered_at(claim.status, Phase.CORDONING) or context.now
    stopped = [one.evicted_at for one in claim.status.victims if one.evicted_at is not None and one.evicted_at >= held]
    if stopped:
        return min(stopped) + context.timing.drain_timeout
    begins = max(held, claim.status.stop_nobody_until or held) + context.timing.drain_timeout
    return begins if context.now < begins else begins + _checkpoint_wait(context, claim)


def _checkpoint_wait(context: Context, claim: WholeNodeClaim) -> timedelta:
    view, now = context.view, context.now
    terms = {
        (namespace, one.metadata.name): one.spec.checkpoint
        for namespace, some in view.in_force(now).items()
        for one in some
    }
    running = [pod for held in claim.status.nodes for pod in view.gpu_pods_on(held.name) if not terminating(pod)]
    everybody = (*running, *fellows(view, running))
    names = ((pod.metadata.namespace, consent(view, claim, pod, now).agreement) for pod in everybody)
    return longest_timeout(wish for name in names if (wish := terms.get(name)) is not None)


def lodges(context: Context, claim: WholeNodeClaim, pod: Pod) -> bool:
    """Whether the pod is a lodger: it came while the node was drained, to be gone before, and keeps its word."""
    since = next((one.held_at for one in claim.status.nodes if one.name == pod.spec.node_name), None)
    started = pod.status.start_time or context.now
    # Pods tell when they started in whole seconds.
    if since is None or started < since.replace(microsecond=0) or claim.status.phase is Phase.LANDING:
        return False
    return may_finish(pod, drain_limit(context, claim), context.now)


@dataclass(slots=True)
class DrainLimit:
    """How many more nodes may be drained, counted over all claims in one pass, oldest claim first.

    Nodes that are free are nobody's business here. A claim that needs more than the limit by itself may go when nothing
    else is drained. As soon as one has to wait no younger one goes ahead of it, or it could wait for ever.
    """

    limit: int
    draining: int
    closed: bool = False

    @classmethod
    def of(cls, view: View, claims: Iterable[WholeNodeClaim], timing: Timing) -> "DrainLimit":
        held = (one for claim in claims if claim.status.phase in _DRAINING for one in claim.status.nodes)
        return cls(timing.most_draining, sum(bool(view.gpu_pods_on(one.name)) for one in held))

    def apply(self, choice: Choice) -> Choice:
        """The choice, or the wait for a drain to be over if it needs more nodes drained than may be."""
        wanted = sum(one.occupied for one in choice.taken)
        if not self.limit or not wanted:
            return choice
        if not self.closed and (self.draining + wanted <= self.limit or not self.draining):
            self.draining += wanted
            return choice
        self.closed = True
        names = tuple(one.node.metadata.name for one in choice.taken)
        text = f"{wanted} node(s) would have to be drained, {self.draining} are, and no more than {self.limit} may be"
        text += " at the same time; the oldest claim is next"
        return replace(choice, taken=(), wanted=names, reason=Reason.DRAIN_LIMIT, message=text)
