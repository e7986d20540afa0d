"""What every claim that has chosen nodes checks on each pass, and the looks it takes at them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from fleet.actions import Answer, Decision, EvictionAnswer, Look, LookAt, ProbeResult, Timing, WriteStatus
from fleet.cards import finished, terminating
from fleet.fitness import Obstacle, obstacle
from fleet.gangs import belongs
from fleet.kueue.victims import leaving
from fleet.marks import holds
from fleet.objects import Node, Pod
from fleet.reasons import Reason
from fleet.records import outcome_of, with_victims
from fleet.requests import RequestClass
from fleet.resources import Accepts, ClaimStatus, HeldNode, Outcome, Phase, Victim, WholeNodeClaim
from fleet.statuses import give_back
from fleet.view import View

_SOONEST_LOOK = timedelta(milliseconds=20)
"""Between two looks at a node whose pods the cache shows going: they go one by one."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_REASONS = {
    Obstacle.CORDONED: "it was cordoned",
    Obstacle.NOT_READY: "it is not ready",
    Obstacle.TAINTED: "it got a taint the gang does not tolerate",
    Obstacle.HELD: "another claim holds it",
    Obstacle.MISSING_CARDS: "it no longer has all its cards",
    Obstacle.UNREADABLE: "the list of its cards that HAMi wrote cannot be read any more",
    Obstacle.NOT_WANTED: "its labels no longer match the gang's selector",
}


@dataclass(frozen=True, slots=True)
class Context:
    """All that one pass over the claims goes by; what is to be done is collected in `decision`."""

    view: View
    looks: Mapping[str, Look]
    answers: Mapping[str, Answer]
    now: datetime
    timing: Timing
    decision: Decision
    probes: Mapping[str, ProbeResult] = field(default_factory=dict)

    def write(self, claim: WholeNodeClaim, status: ClaimStatus) -> None:
        """Record a step. When it is done with the nodes, victims written down but not stopped are struck off."""
        done = not status.nodes or status.phase is Phase.BOUND
        self.decision.actions.append(WriteStatus(claim, self.struck(claim, status) if done else status))

    def struck(self, claim: WholeNodeClaim, status: ClaimStatus) -> ClaimStatus:
        """The status without the victims that nobody has stopped: of whom there is no record, nobody has.

        Not those whose record is open: their eviction may be on its way. `records.unspared` sees to them later.
        """
        if not status.victims:
            return status
        return with_victims(status, tuple(one for one in status.victims if not self._unharmed(claim, one)))

    def _unharmed(self, claim: WholeNodeClaim, victim: Victim) -> bool:
        outcome = outcome_of(self.view, claim.metadata.uid, victim)
        if outcome is Outcome.PENDING or outcome is None:
            return outcome is None
        answer, pod = self.answers.get(victim.uid), self.view.pods.get(victim.uid)
        accepted = answer is not None and answer.kind is EvictionAnswer.ACCEPTED
        return not accepted and pod is not None and not terminating(pod) and not leaving(self.view, pod)

    def say(self, claim: WholeNodeClaim, status: ClaimStatus) -> None:
        """Renew the texts of a status; a change of reason is worth a write at once, new figures alone are not."""
        urgent = (status.phase, status.reason) != (claim.status.phase, claim.status.reason)
        self.decision.actions.append(WriteStatus(claim, status, urgent))

    def say_if_new(self, claim: WholeNodeClaim, status: ClaimStatus) -> None:
        """Renew the texts unless they say the same already."""
        old = claim.status
        if (status.phase, status.reason, status.message, status.drained_by) != (
            old.phase,
            old.reason,
            old.message,
            old.drained_by,
        ):
            self.say(claim, status)

    def node_of(self, held: HeldNode) -> Node | None:
        """The held node, if it still is the one that was chosen: a namesake with another UID is not."""
        node = self.view.nodes.get(held.name)
        return node if node is not None and node.metadata.uid == held.uid else None

    def look(self, name: str, not_before: datetime) -> Look | None:
        """A look at the node that is fresh enough and was taken at `not_before` or later; else one is asked for.

        Repeated every second, and at once when the cache does not know a card holder, or shows the last one gone. One
        that misses somebody whom the cache shows on the node says nothing any more. A time further ahead than any wait
        is of before the clock was set back: it holds nothing up.
        """
        now, look = self.now, self.looks.get(name)
        if not_before > now + self.timing.settle_before_proof:
            not_before = _LONG_AGO
        if now < not_before:
            self.decision.wake(not_before)
            return None
        if look is None or look.at < not_before or look.at > now:
            self.decision.actions.append(LookAt(name))
            return None
        missed = self._missed(name, look)
        again = look.at + (_SOONEST_LOOK if missed or self._outdated(name, look) else self.timing.look_every)
        if now >= again:
            self.decision.actions.append(LookAt(name))
            return None
        self.decision.wake(again)
        return None if missed else look

    def _missed(self, name: str, look: Look) -> bool:
        """Whether somebody has been bound to the node since.

        Whom the cache shows there in a state older than the list has gone: the list knows more, also while a watch is
        silent (C07).
        """
        seen = {pod.metadata.uid for pod in look.pods}
        there = (pod for pod in self.view.gpu_pods_on(name) if pod.spec.node_name == name and not terminating(pod))
        return any(pod.metadata.uid not in seen and pod.metadata.revision > look.revision for pod in there)

    def _outdated(self, name: str, look: Look) -> bool:
        shown, pods = self.card_holders(look), self.view.pods
        return bool(shown) and (not self.view.gpu_pods_on(name) or any(pod.metadata.uid not in pods for pod in shown))

    def card_holders(self, look: Look) -> tuple[Pod, ...]:
        """Pods of a look that hold cards, terminating ones included."""
        return tuple(
            pod
            for pod in look.pods
            if not finished(pod) and self.view.classify(pod).request_class is not RequestClass.NONE
        )


def member(claim: WholeNodeClaim, pod: Pod) -> bool:
    """Whether the pod is of the gang the claim is for."""
    return claim.spec.gang is not None and belongs(pod, claim.metadata.namespace, claim.spec.gang)


def upkeep(context: Context, claim: WholeNodeClaim) -> ClaimStatus | None:
    """The status that gives the nodes back, if one of them can no longer be had; None if all are as they should be."""
    takers = context.view.takers(context.view.gang_of(claim))
    waiting = [pod for pod in takers if not pod.spec.node_name]
    if claim.status.phase is not Phase.LANDING and len(waiting) > len(claim.status.nodes):
        text = f"{len(waiting)} pods wait now, nodes were chosen for {len(claim.status.nodes)}"
        return give_back(claim, Reason.GANG_GREW, text, context.now, context.timing)
    for held in claim.status.nodes:
        node = context.node_of(held)
        if node is None:
            return _back(context, claim, held, Reason.NODE_GONE, "it was deleted or replaced by a namesake")
        pool = context.view.membership.pool_of(held.name)
        if pool is None or pool.spec.accepts is not Accepts.WHOLE_NODE:
            taken = f"pool {pool.metadata.name} is for small pods now" if pool else "it is in no pool, or in several"
            return _back(context, claim, held, Reason.NODE_LEFT_POOL, taken)
        if held.held_at is not None and not holds(node, claim.metadata.uid):
            return _back(context, claim, held, Reason.TAINT_REMOVED, "somebody took our taint off")
        blocked = obstacle(node, pool, waiting, claim.metadata.uid)
        if blocked is not None:
            return _back(context, claim, held, Reason.NODE_UNFIT, _REASONS.get(blocked, str(blocked)))
    return None


def _back(context: Context, claim: WholeNodeClaim, held: HeldNode, reason: Reason, why: str) -> ClaimStatus:
    text = f"node {held.name} is given up: {why}"
    return give_back(claim, reason, text, context.now, context.timing, avoid=(held.name,))
