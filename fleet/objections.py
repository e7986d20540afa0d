"""Which pods on a claim's nodes may not be stopped after all, asked again at the very moment they would be."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.actions import WriteStatus
from fleet.agreements import Consent, Verdict
from fleet.candidates import shortfalls
from fleet.cards import grace
from fleet.fitness import Obstacle
from fleet.kueue.victims import through_kueue, workloads_of
from fleet.objects import Pod
from fleet.occupants import unevictable
from fleet.reasons import Reason
from fleet.resources import Drain, DrainAgreement, Victim, WholeNodeClaim
from fleet.spending import Overdraft, Spending
from fleet.upkeep import Context
from fleet.wants import may_stop


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a pod may not be stopped, for people, and what the claim then waits for."""

    text: str
    reason: Reason = Reason.PROTECTED_POD


def objections(
    context: Context,
    claim: WholeNodeClaim,
    pods: Iterable[Pod],
    verdicts: Mapping[str, Verdict],
    ending: set[str],
    along: Iterable[Pod] = (),
) -> Mapping[str, Objection]:
    """Objections to stopping all of these pods, by UID; `ending` are UIDs of those that are going already.

    `along` are pods that Kueue would stop with them, most of them elsewhere: their nodes are nobody's business here,
    the consent of their owners is.
    """
    allowed, _, not_allowed, _ = may_stop(claim, context.now)
    pods, along, found = tuple(pods), tuple(along), dict[str, Objection]()
    for pod in pods:
        pool, consents = context.view.membership.pool_of(pod.spec.node_name or ""), verdicts[pod.metadata.uid].consent
        if not allowed:
            found[pod.metadata.uid] = Objection(not_allowed)
        elif pool is None or pool.spec.drain is not Drain.AGREED:
            found[pod.metadata.uid] = Objection(str(Reason.DRAIN_DISABLED))
        elif consents is not Consent.GIVEN:
            found[pod.metadata.uid] = Objection(str(consents))
        elif unevictable(pod):
            found[pod.metadata.uid] = Objection(str(Reason.UNEVICTABLE))
        elif grace(pod) > context.timing.drain_timeout:
            found[pod.metadata.uid] = Objection(str(Reason.GRACE_TOO_LONG))
    own = workloads_of(context.view, gang.pods) if (gang := context.view.gang_of(claim)) else frozenset[str]()
    for pod in (*pods, *along):
        consents, workload = verdicts[pod.metadata.uid].consent, through_kueue(context.view, pod) if own else None
        if workload is not None and workload.metadata.uid in own:
            found.setdefault(pod.metadata.uid, Objection(str(Obstacle.OWN_GANG)))
        elif consents is not Consent.GIVEN:
            found.setdefault(pod.metadata.uid, Objection(str(consents)))
    if not found:
        keeps = [(pod, verdicts[pod.metadata.uid].keep_ready) for pod in (*pods, *along)]
        needed = shortfalls(context.view, keeps, ending | _victims_in_writing(context))
        found = {uid: Objection(f"{Consent.KEEP_READY}: {short}") for uid, short in needed.items()}
    return found


def overdrawn(context: Context, claim: WholeNodeClaim, victims: Iterable[Victim]) -> Mapping[str, Overdraft]:
    """Which of the claim's victims (by UID) there is no budget for now, whether they are written down already or not.

    Counted are the victims of all other claims, those that are written down in this very pass among them: the picture
    of the cluster does not show them yet. What was written down before is asked again, because a budget may have been
    cut since.
    """
    agreements = _with_budget(context)
    wanted = {one.uid: one for one in victims if (one.namespace, one.agreement) in agreements}
    if not wanted:
        return {}
    namespaces = {one.namespace for one in wanted.values()}
    stops = context.view.spending(context.now).stops.items()
    spent = Spending(context.now, {uid: one for uid, one in stops if one.namespace in namespaces and uid not in wanted})
    for action in writes(context):
        if action.claim.metadata.uid != claim.metadata.uid:
            spent = spent.including(action.status.victims, action.claim.metadata.uid)
    return spent.overdrafts(wanted.values(), agreements, claim.metadata.uid)


def _with_budget(context: Context) -> Mapping[tuple[str, str], DrainAgreement]:
    return {
        (namespace, one.metadata.name): one
        for namespace, some in context.view.in_force(context.now).items()
        for one in some
        if one.spec.budget is not None
    }


def writes(context: Context) -> list[WriteStatus]:
    """What this pass has claims write down so far."""
    return [action for action in context.decision.actions if isinstance(action, WriteStatus)]


def _victims_in_writing(context: Context) -> set[str]:
    """UIDs of pods that claims decided to stop in this very pass: the picture of the cluster does not show that yet."""
    return {
        victim.uid for action in writes(context) for victim in action.status.victims if victim.evicted_at is not None
    }
