"""Stopping who agreed: everything that is asked and written down before a pod on a claim's nodes is evicted.

The order is fixed. If somebody may not be stopped the nodes are given back. While pods are expected to end by
themselves nobody is touched. Checkpoints are asked for and waited for. Then each pod is written down twice, in the
claim's status and in a record of its own, and only then evicted, the least regretted first. Every pass starts from the
top, so what changes in between protects whoever is still there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec

from fleet.actions import AskCheckpoint, CreateRecord, Evict, EvictionAnswer, Look
from fleet.agreements import Consent, Verdict
from fleet.booking import accepted, before, drained_victims, undecided
from fleet.budgets import NOT_READY, matching
from fleet.cards import finished, terminating
from fleet.checkpoints import Saving, saving
from fleet.consents import consent
from fleet.costs import job_of, victims_of
from fleet.endings import drained_by
from fleet.forecasts import expected_end
from fleet.gangs import gang_key
from fleet.kueue.objects import Workload
from fleet.kueue.stops import ask_kueue, at_kueue, brought_home, refusal_of
from fleet.kueue.victims import fellows, leaving, through_kueue
from fleet.limits import lodges
from fleet.objections import Objection, objections, overdrawn
from fleet.objects import Pod
from fleet.readiness import is_ready
from fleet.reasons import Reason
from fleet.records import outcome_of, pending_elsewhere, record_of, standing, unharmed
from fleet.regret import Regret
from fleet.requests import RequestClass
from fleet.resources import ClaimStatus, Outcome, Phase, Victim, WholeNodeClaim
from fleet.returns import comes_back
from fleet.statuses import enter, entered_at, give_back
from fleet.times import clock
from fleet.upkeep import Context, member

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """Card holders still on the claim's nodes, and what they are waited for, if it is not only their end."""

    left: tuple[Pod, ...]
    wait: tuple[Reason, str] | None = None


def stop_strangers(context: Context, claim: WholeNodeClaim, looks: Mapping[str, Look]) -> Progress | None:
    """Have every card holder that is not of the gang stopped, or give the nodes back.

    Planned victims and pods that slipped in are treated alike. None means that the claim's status is being written:
    nothing else is asked for in this pass.
    """
    # A member that is going holds its cards until it is gone, like anybody else.
    strangers = tuple(
        pod
        for look in looks.values()
        for pod in (_as_it_is(context, one) for one in context.card_holders(look))
        if terminating(pod) or not _may_stay(context, claim, pod)
    )
    running = sorted(
        (pod for pod in strangers if _runs(context, pod) and not lodges(context, claim, pod)),
        key=lambda pod: (not matching(pod, context.view.budgets), pod.key),
    )
    if not running:
        return Progress(strangers, at_kueue(context, strangers))
    return _Stopping(context, claim, strangers, tuple(running)).step(looks)


class _Stopping:
    """One pass over the card holders of one claim: `strangers` are all of them, `running` those that are not going.

    `whole` are these and whoever Kueue stops together with them, wherever it runs: all are asked, and written down.
    """

    def __init__(
        self, context: Context, claim: WholeNodeClaim, strangers: tuple[Pod, ...], running: tuple[Pod, ...]
    ) -> None:
        self.context, self.claim, self.strangers, self.running = context, claim, strangers, running
        self.view, self.now, self.uid = context.view, context.now, claim.metadata.uid
        self.along = fellows(context.view, running)
        self.whole = (*running, *self.along)
        self.since = entered_at(claim.status, Phase.CORDONING) or context.now
        self.saved = {one.gang: one.saved_at for one in drained_victims(claim) if one.saved_at is not None}
        self.verdicts: Mapping[str, Verdict] = {pod.metadata.uid: self._verdict(pod) for pod in self.whole}

    def step(self, looks: Mapping[str, Look]) -> Progress | None:
        ending = {pod.metadata.uid for pod in self.strangers if terminating(pod) or leaving(self.view, pod)}
        found = objections(self.context, self.claim, self.running, self.verdicts, ending, self.along)
        against = self._brought_home(found)
        until = self.claim.status.stop_nobody_until
        if until is not None and self.now < until:
            return self._leave_alone(against, until)
        if against:
            return self._protect(against)
        known = self._known()
        new = [pod for pod in self.whole if pod.metadata.uid not in known]
        against = self._returned(new)
        if against:
            return self._protect(against)
        saves = self._saves([pod for pod in self.whole if not accepted(self.context, pod.metadata.uid)], looks)
        if saves.missing:
            missing = {uid: Objection(text, Reason.CHECKPOINT_MISSING) for uid, text in saves.missing.items()}
            return self._protect(self._brought_home(missing))
        if saves.waiting:
            self.context.decision.actions.extend(AskCheckpoint(self.claim, pod, self.now) for pod in saves.asks)
            self.context.decision.wake(saves.due)
            return self._waits(Reason.CHECKPOINTING, str(saves))
        victims = known | self._victims(new)
        over = overdrawn(self.context, self.claim, victims.values())
        if over:
            spent = {uid: Objection(one.text, Reason.AGREEMENT_BUDGET) for uid, one in over.items()}
            return self._protect(self._brought_home(spent))
        if new:
            return self._record([victims[pod.metadata.uid] for pod in new])
        return self._evict(known)

    # Who is there

    def _verdict(self, pod: Pod) -> Verdict:
        """As the agreements have it. The member that told of the gang's checkpoint may have been stopped before."""
        one = consent(self.view, self.claim, pod, self.now)
        saved = one.consent is Consent.CHECKPOINT and self.view.gang_key_of(pod) in self.saved
        return replace(one, consent=Consent.GIVEN) if saved else one

    def _known(self) -> dict[str, Victim]:
        """Victims among the running pods that are written down as they should be.

        Not one whose agreement has been replaced by another since, nor one whose gang's loss stands with a pod that
        nobody has stopped: these are written down anew, or the wrong owner, or nobody, would be told of the loss. Nor
        one that is left of an earlier drain, or was spared: that intention is over.
        """
        victims = drained_victims(self.claim)
        recorded = {one.uid: one for one in victims if outcome_of(self.view, self.uid, one) is not Outcome.SPARED}
        stale: set[str] = set()
        first = set[str]()
        for one in victims:
            if (one.lost_gpu_seconds or one.gang not in first) and self._unharmed(one):
                stale.add(one.gang)
            first.add(one.gang)
            verdict = self.verdicts.get(one.uid)
            going = accepted(self.context, one.uid)
            if verdict is not None and not going and one.agreement != verdict.agreement:
                stale.add(one.gang)
        found = {}
        for pod in self.whole:
            victim = recorded.get(pod.metadata.uid)
            if victim is None:
                continue
            if accepted(self.context, victim.uid) or victim.gang not in stale:
                found[victim.uid] = victim
        return found

    def _unharmed(self, victim: Victim) -> bool:
        """Whether nobody has stopped the victim: who runs no more and has no record has left by himself."""
        outcome = outcome_of(self.view, self.uid, victim)
        gone = all(pod.metadata.uid != victim.uid for pod in self.whole)
        return unharmed(self.view, self.uid, victim) or (outcome is None and gone)

    def _victims(self, new: list[Pod]) -> dict[str, Victim]:
        """What is written down of the new ones."""
        agreements = {pod.metadata.uid: self.verdicts[pod.metadata.uid].agreement for pod in new}
        unharmed = [one.uid for one in self.claim.status.victims if self._unharmed(one)]
        others = before(self.context, self.claim, new, unharmed) if new else ()
        found = victims_of(self.view, new, agreements, self.now, others)
        return {one.uid: msgspec.structs.replace(one, evicted_at=self.now) for one in found}

    # What keeps everybody from being stopped

    def _leave_alone(self, against: Mapping[str, Objection], until: datetime) -> Progress | None:
        """Everybody here is expected to end by himself. Who is not, and may not be stopped either, ends the wait."""
        self.context.decision.wake(until)
        unforeseen = {
            pod.metadata.uid: against[pod.metadata.uid]
            for pod in self.running
            if pod.metadata.uid in against
            and ((end := expected_end(self.view, pod)) is None or end.at > until or end.until <= self.now)
        }
        if unforeseen:
            return self._protect(unforeseen)
        text = f"{len(self.running)} pod(s) are expected to end by themselves; nobody is stopped before"
        return self._waits(Reason.SOFT_VACATE, f"{text} {clock(until)}")

    def _returned(self, new: list[Pod]) -> dict[str, Objection]:
        victims = drained_victims(self.claim)
        text = "its controller puts pods on this very node again and again, although it is tainted"
        return {
            pod.metadata.uid: Objection(text, Reason.POD_RETURNS)
            for pod in self.running
            if pod in new and comes_back(pod, job_of(self.view, pod), pod.spec.node_name or "", victims)
        }

    def _saves(self, pods: list[Pod], looks: Mapping[str, Look]) -> Saving:
        terms = {
            (namespace, one.metadata.name): one.spec.checkpoint
            for namespace, some in self.view.in_force(self.now).items()
            for one in some
        }
        asked = []
        for pod in pods:
            wish = terms.get((pod.metadata.namespace, self.verdicts[pod.metadata.uid].agreement))
            if wish is not None:
                asked.append((pod, wish))
        if not asked:
            return Saving()
        looked = {pod.metadata.uid: pod for look in looks.values() for pod in look.pods}
        return saving(self.view, asked, looked, self.since, self.now, self.saved)

    def _brought_home(self, against: Mapping[str, Objection]) -> Mapping[str, Objection]:
        return brought_home(self.view, against, self.running, self.along)

    def _protect(self, against: Mapping[str, Objection]) -> Progress | None:
        """Give the nodes back for the first of those that may not be stopped; always None."""
        pod = next(one for one in self.running if one.metadata.uid in against)
        node, why, claim = pod.spec.node_name or "", against[pod.metadata.uid], self.claim
        if claim.status.phase is Phase.LANDING and self._partly_landed():
            # Giving the nodes back now would leave half a gang: the stranger's end is waited for.
            text = f"pod {pod.key} on node {node} may not be stopped: {why.text}"
            text += "; the gang is partly bound and waits for its end"
            self.context.say_if_new(claim, enter(claim, Phase.LANDING, Reason.PROTECTED_POD, text, self.now))
            return None
        text = f"pod {pod.key} on node {node} may not be stopped: {why.text}; the nodes are given back"
        self.context.write(claim, give_back(claim, why.reason, text, self.now, self.context.timing, avoid=(node,)))
        return None

    def _partly_landed(self) -> bool:
        held = {one.name for one in self.claim.status.nodes}
        return any(pod.spec.node_name in held for pod in self.view.takers(self.view.gang_of(self.claim)))

    def _waits(self, reason: Reason, text: str) -> Progress:
        return Progress(self.strangers, (reason, text))

    # Writing down, and stopping

    def _record(self, new: list[Victim]) -> Progress | None:
        claim, elsewhere = self.claim, [one for one in new if pending_elsewhere(self.view, one.uid, self.uid)]
        if elsewhere:
            name = f"{elsewhere[0].namespace}/{elsewhere[0].name}"
            text = f"what another claim was to do with pod {name} is cleared up first"
            return self._waits(Reason.EVICTING, text)
        uids = {one.uid for one in new}
        open_ = undecided(self.context, claim, [pod for pod in self.whole if pod.metadata.uid in uids])
        if open_ is not None:
            text = f"what another claim was to do with gang {open_} is cleared up first"
            return self._waits(Reason.EVICTING, text)
        kept = [one for one in claim.status.victims if one.uid not in uids and not self._unharmed(one)]
        victims = (*kept, *new)
        count = len(drained_victims(claim)) + len(uids.difference(one.uid for one in drained_victims(claim)))
        lost = round(sum(victim.lost_gpu_seconds for victim in victims), 3)
        text = _stopping(count)
        phase = claim.status.phase if claim.status.phase in {Phase.READY, Phase.LANDING} else Phase.DRAINING
        status = enter(claim, phase, Reason.EVICTING, text, self.now, victims=victims, lost_gpu_seconds=lost)
        if phase is Phase.DRAINING:
            status = msgspec.structs.replace(
                status, drained_by=drained_by(self.context, claim, self.strangers, victims)
            )
        self.context.write(claim, status)
        return None

    def _evict(self, victims: Mapping[str, Victim]) -> Progress | None:
        if not self._all_recorded(victims):
            return self._waits(Reason.EVICTING, _stopping(len(drained_victims(self.claim))))
        taken = {uid for uid in victims if accepted(self.context, uid)}
        refusals, jobs = [], set[str]()
        for pod in Regret.of(drained_victims(self.claim)).next_to_go(self.view, self.whole, victims, taken):
            workload = through_kueue(self.view, pod)
            if workload is None:
                refusal = self._ask(pod, victims[pod.metadata.uid])
            elif workload.metadata.uid not in jobs:
                jobs.add(workload.metadata.uid)
                refusal = self._ask_kueue(workload, victims)
            else:
                continue
            if isinstance(refusal, ClaimStatus):
                self.context.write(self.claim, refusal)
                return None
            if refusal is not None:
                refusals.append(refusal)
        if refusals:
            return self._waits(Reason.BUDGET, "; ".join(refusals[:_SHOWN]))
        return self._waits(Reason.EVICTING, _stopping(len(drained_victims(self.claim))))

    def _all_recorded(self, victims: Mapping[str, Victim]) -> bool:
        """Whether each of them has its record; those that are missing are asked for. Until then nobody is stopped."""
        missing = [one for one in victims.values() if standing(self.view, self.claim, one) is None]
        missing = [one for one in missing if not accepted(self.context, one.uid)]
        agreements = {(one.metadata.namespace, one.metadata.name): one for one in self.view.agreements}
        ref, namespace = self.claim.spec.gang, self.claim.metadata.namespace
        gang = gang_key(namespace, ref) if ref else ""
        for one in missing:
            record = record_of(self.claim, one, gang, agreements.get((one.namespace, one.agreement)), self.now)
            self.context.decision.actions.append(CreateRecord(self.claim, record))
        return not missing

    def _ask(self, pod: Pod, victim: Victim) -> str | ClaimStatus | None:
        """Ask for the eviction, or say what keeps it from happening: a text to show, or the status that gives up."""
        answer = self.context.answers.get(victim.uid)
        if answer is None:
            self.context.decision.actions.append(Evict(self.claim, victim))
            return None
        if answer.kind is EvictionAnswer.REFUSED:
            text = f"stopping pod {pod.key}{self._under(pod)} was refused: {answer.text}"
            avoid = (pod.spec.node_name or "",)
            return give_back(self.claim, Reason.EVICTION_REFUSED, text, self.now, self.context.timing, avoid=avoid)
        if answer.retry_at is None or self.now >= answer.retry_at:
            self.context.decision.actions.append(Evict(self.claim, victim))
        else:
            self.context.decision.wake(answer.retry_at)
        advice = "" if is_ready(pod) or not pod.status.conditions else f"; {NOT_READY}"
        return f"pod {pod.key}{self._under(pod)} may not go yet: {answer.text}{advice}"

    def _ask_kueue(self, workload: Workload, victims: Mapping[str, Victim]) -> str | ClaimStatus | None:
        """As `_ask`, for all pods of one Workload at once."""
        pods = [pod for pod in self.whole if through_kueue(self.view, pod) is workload]
        refused = refusal_of(self.context, pods)
        if refused is not None:
            text = f"stopping Workload {workload.key} was refused: {refused}"
            avoid = tuple(sorted({pod.spec.node_name or "" for pod in pods if pod in self.running}))
            return give_back(self.claim, Reason.EVICTION_REFUSED, text, self.now, self.context.timing, avoid=avoid)
        return ask_kueue(self.context, self.claim, workload, pods, victims)

    def _under(self, pod: Pod) -> str:
        names = [f"{one.metadata.namespace}/{one.metadata.name}" for one in matching(pod, self.view.budgets)]
        return f" under PodDisruptionBudget {' and '.join(sorted(names))}" if names else ""


def _stopping(count: int) -> str:
    return f"stopping {count} pod(s) whose owners agreed"


def _as_it_is(context: Context, pod: Pod) -> Pod:
    """The pod of a look, or as the cache has it if somebody has told it to go since: that is never taken back."""
    known = context.view.pods.get(pod.metadata.uid, pod)
    return known if terminating(known) and not terminating(pod) else pod


def _runs(context: Context, pod: Pod) -> bool:
    """Whether nobody has told it, or its job, to go, and it has not ended since the look that it is known from."""
    known = context.view.pods.get(pod.metadata.uid, pod)
    return not terminating(pod) and not finished(known) and not leaving(context.view, pod)


def _may_stay(context: Context, claim: WholeNodeClaim, pod: Pod) -> bool:
    """Whether the card holder is what the node is vacated for: a member that takes the whole node."""
    return member(claim, pod) and context.view.classify(pod).request_class is RequestClass.WHOLE_NODE
