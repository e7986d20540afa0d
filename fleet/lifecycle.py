"""The life of all claims: from one picture of the cluster, everything that is to be done now.

Each step is persisted in the claim's status before its side effects are asked for: a pass that changes a claim's
phase asks only for that write, and the next pass, on the persisted phase, asks for what the phase does. So any
write may be the last before a crash.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import msgspec

from fleet.actions import Action, Answer, Clear, Decision, Look, ProbeResult, Timing, Ungate, WriteStatus
from fleet.backfill import START_MARGIN, Ahead, end_if_taken, promised_end, start_limit
from fleet.cards import gated_by, terminating
from fleet.claiming import new_claims
from fleet.draining import drain
from fleet.errors import FleetError
from fleet.fitness import Obstacle
from fleet.freed import free_instead
from fleet.gangs import job_ended, jobs_of
from fleet.kueue.checks import check_actions, turn_lost
from fleet.kueue.victims import resumptions
from fleet.landing import land, open_nodes, settle_bound
from fleet.limits import DrainLimit
from fleet.marks import ENDED, HOLDING, strays
from fleet.names import CLAIM_KEY
from fleet.objects import Job
from fleet.planning import Choice, choose
from fleet.reasons import Reason
from fleet.records import resolutions, unspared
from fleet.requests import RequestClass
from fleet.resources import ClaimStatus, HeldNode, Phase, Policy, WholeNodeClaim
from fleet.starts import NOT_AGAIN, refused_start, refusing_nodes
from fleet.statuses import enter, give_back
from fleet.times import format_duration, parse_duration
from fleet.upkeep import Context, member, upkeep
from fleet.view import View, age_key

_ACTIVE = HOLDING | {Phase.PLANNED}
_WAITING = frozenset({Phase.PENDING, Phase.BLOCKED})


@dataclass(frozen=True, slots=True)
class _Taking:
    """What claims have taken, or wait for, so far in one pass, the oldest first.

    `reserved`: node name -> why no other claim has it; `ahead` is for those that may go ahead of others.
    """

    reserved: dict[str, str]
    ahead: Ahead
    drains: DrainLimit

    def take(self, choice: Choice, claim: WholeNodeClaim, now: datetime) -> None:
        self.reserved.update(dict.fromkeys(choice.wanted, str(Obstacle.HELD)))
        self.ahead.hold(choice.wanted, end_if_taken(claim, now))


def decide(
    view: View,
    looks: Mapping[str, Look],
    answers: Mapping[str, Answer],
    now: datetime,
    timing: Timing,
    probes: Mapping[str, ProbeResult] = MappingProxyType({}),
) -> Decision:
    """All actions due at `now`. `looks` and `probes` by node name, `answers` to evictions by pod UID."""
    decision = Decision()
    _step(decision, "outcomes of records", lambda: resolutions(view, now, looks, answers))
    _step(decision, "strays", lambda: _sweep(view))
    context = Context(view, looks, answers, now, timing, decision, probes)
    reserved: dict[str, str] = {}
    ahead = Ahead()
    claims = sorted(view.claims.values(), key=age_key)
    for claim in claims:
        if claim.status.phase in _ACTIVE and claim.spec.policy is not Policy.PREVIEW:
            reserved.update({held.name: str(Obstacle.HELD) for held in claim.status.nodes})
        if claim.status.phase in _ACTIVE | {Phase.BOUND}:
            # A node's taint outlives the holder's last step by a moment, and the promise with it.
            ahead.hold((held.name for held in claim.status.nodes), promised_end(claim))
    taking = _Taking(reserved, ahead, DrainLimit.of(view, claims, timing))
    for claim in claims:
        _advance_alone(context, claim, taking)
    _step(decision, "new claims", lambda: new_claims(context))
    _step(decision, "gates", lambda: _ungate(view))
    _step(decision, "admission checks", lambda: check_actions(view))
    _step(decision, "resumptions", lambda: resumptions(view, now))
    return decision


def _step(decision: Decision, name: str, wanted: Callable[[], Iterable[Action]]) -> None:
    """What is wanted for no claim in particular. An error in that is this step's; half of it is not done."""
    before = len(decision.actions)
    try:
        decision.actions.extend(wanted())
    except Exception as error:
        del decision.actions[before:]
        decision.failed[name] = error


def _sweep(view: View) -> Iterator[Action]:
    """Take off every mark of ours that no claim stands behind: after a release, a rollback, a crash, or by hand."""
    for name, node in view.nodes.items():
        pods = view.pods_by_node.get(name, ())
        for stray in strays(node, view.claims, pods):
            yield Clear(node, stray.claim_uid, stray.label_stays)


def _ungate(view: View) -> Iterator[Action]:
    """The gate was put on by the pools of that time; a pod that is no whole-node pod by today's would wait for ever."""
    for uid, pod in view.pods.items():
        if pod.spec.scheduling_gates and CLAIM_KEY in gated_by(pod) and not terminating(pod):
            request = view.requests.get(uid)
            if request is None or request.request_class is RequestClass.SMALL:
                yield Ungate(pod)


def _advance_alone(context: Context, claim: WholeNodeClaim, taking: _Taking) -> None:
    """Decide one claim. An error in that is this claim's: half of what it wants is not done, and the others go on.

    What it holds, or has begun to take, stays closed to the others in this pass.
    """
    decision = context.decision
    wanted, wake_at = len(decision.actions), decision.wake_at
    try:
        _advance(context, claim, taking)
    except Exception as error:
        del decision.actions[wanted:]
        decision.wake_at = wake_at
        decision.choices.pop(claim.metadata.uid, None)
        decision.failed[claim.metadata.uid] = error


def _advance(context: Context, claim: WholeNodeClaim, taking: _Taking) -> None:
    phase, settled = claim.status.phase, unspared(context.view, claim)
    if settled is not None:
        context.decision.actions.append(WriteStatus(claim, settled))
        return
    if phase in ENDED:
        settle_bound(context, claim)
        return
    ended = _over(context, claim)
    if ended is not None:
        context.write(claim, ended)
        return
    if phase in _WAITING or claim.spec.policy is Policy.PREVIEW:
        _wait(context, claim, taking)
        return
    given_back = (
        _not_started(context, claim)
        or _quota_lost(context, claim)
        or upkeep(context, claim)
        or _torn(context, claim)
        or _too_late(context, claim, taking.ahead)
    )
    if given_back is not None:
        context.write(claim, given_back)
        return
    free = free_instead(context, claim, _avoided(context, claim) | taking.reserved, taking.ahead)
    if free is not None:
        _change_over(context, claim, free, taking)
        return
    if phase is Phase.PLANNED:
        context.write(claim, enter(claim, Phase.CORDONING, Reason.HOLDING, claim.status.message, context.now))
    elif phase in {Phase.CORDONING, Phase.DRAINING, Phase.PROVING_EMPTY}:
        drain(context, claim)
    elif phase is Phase.READY:
        open_nodes(context, claim)
    else:
        land(context, claim)


def _over(context: Context, claim: WholeNodeClaim) -> ClaimStatus | None:
    """The claim's last status, if its gang is gone or its deadline has passed."""
    view, now = context.view, context.now
    if claim.spec.gang is not None and _gone(view, claim):
        failed = _failed_start(view, claim)
        if failed is not None:
            return enter(claim, Phase.FAILED, Reason.START_FAILED, failed, now, nodes=())
        text = "the gang ended or was deleted before it was bound"
        return enter(claim, Phase.ROLLED_BACK, Reason.BENEFICIARY_GONE, text, now, nodes=())
    gang = view.gang_of(claim)
    held = {one.name for one in claim.status.nodes}
    takers = view.takers(gang)
    bound = [pod for pod in takers if pod.spec.node_name]
    elsewhere = [pod for pod in bound if pod.spec.node_name not in held]
    if bound and len(bound) == len(takers) and len(elsewhere) == len(bound):
        text = f"the gang was bound to other nodes, among them {bound[0].spec.node_name}"
        return enter(claim, Phase.ROLLED_BACK, Reason.LANDED_ELSEWHERE, text, now, nodes=())
    created = claim.metadata.creation_timestamp
    if claim.spec.deadline and created:
        try:
            deadline = created + parse_duration(claim.spec.deadline)
        except FleetError:
            return None
        # Part of a gang that is bound must not be left alone: the landing has a time limit of its own.
        landing = claim.status.phase is Phase.LANDING and len(bound) > len(elsewhere)
        if now >= deadline and not landing:
            text = f"not bound within {format_duration(deadline - created)}; last: {claim.status.message}"
            return enter(claim, Phase.FAILED, Reason.DEADLINE, text, now, nodes=())
        context.decision.wake(deadline)
    return None


def _failed_start(view: View, claim: WholeNodeClaim) -> str | None:
    """What the kubelet said when it refused a member on a node of the claim (kubernetes#130145)."""
    held = {one.name for one in claim.status.nodes}
    for pod in view.pods.values():
        if pod.spec.node_name in held and pod.status.phase == "Failed" and member(claim, pod):
            why = ": ".join(text for text in (pod.status.reason, pod.status.message) if text) or "no reason given"
            return f"pod {pod.key} was placed on node {pod.spec.node_name} and could not start: {why}"
    return None


def _gone(view: View, claim: WholeNodeClaim) -> bool:
    ref = claim.spec.gang
    if ref is None or view.gang_of(claim) is not None:
        return False
    return all(
        _independent(view, job)
        or job_ended(job)
        or bool(job.spec.suspend)
        or job.metadata.deletion_timestamp is not None
        for job in jobs_of(ref, view.jobs)
    )


def _independent(view: View, job: Job) -> bool:
    """Whether the Job has come to run pods that are gangs of their own: they have claims of their own, too."""
    return any(
        gang.ref.kind == "Pod" and (owner := pod.metadata.controller()) is not None and owner.uid == job.metadata.uid
        for gang in view.gangs.values()
        for pod in gang.pods
    )


def _torn(context: Context, claim: WholeNodeClaim) -> ClaimStatus | None:
    """The status that gives the nodes back, if they are no longer of one topology domain and nobody has landed yet."""
    key = claim.spec.topology_key
    takers = context.view.takers(context.view.gang_of(claim))
    names = [held.name for held in claim.status.nodes]
    if key is None or any(pod.spec.node_name in names for pod in takers):
        return None
    names += [pod.spec.node_name for pod in takers if pod.spec.node_name]
    nodes = [context.view.nodes[name] for name in names if name in context.view.nodes]
    domains = {node.metadata.label(key) or "" for node in nodes}
    if len(domains) == 1 and "" not in domains:
        return None
    text = f"the nodes are not of one {key} any more: {', '.join(sorted(names))}"
    return give_back(claim, Reason.NODE_UNFIT, text, context.now, context.timing)


def _too_late(context: Context, claim: WholeNodeClaim, ahead: Ahead) -> ClaimStatus | None:
    """The status that gives back nodes an older claim waits for, if the gang is not on them as soon as promised.

    Only nodes that stand empty: whoever had others stopped for them, or has a member on them, goes on.
    """
    names, limit = [held.name for held in claim.status.nodes], start_limit(claim)
    if limit is None or claim.status.victims or ahead.kept.keys().isdisjoint(names):
        return None
    if context.now < limit:
        context.decision.wake(limit)
        return None
    if any(context.view.gpu_pods_on(name) for name in names):
        return None
    text = f"not started within {format_duration(START_MARGIN)} on nodes that an older claim waits for"
    return give_back(claim, Reason.OLDER_CLAIM, text, context.now, context.timing)


def _quota_lost(context: Context, claim: WholeNodeClaim) -> ClaimStatus | None:
    """The status that gives the nodes back because Kueue has taken back the quota of pods that exist already."""
    pod = turn_lost(context.view, context.view.gang_of(claim))
    if pod is None:
        return None
    text = f"Kueue's gate on pod {pod.metadata.name} is closed, and its Workload does not stand at our check any more"
    return give_back(claim, Reason.FOREIGN_GATE, text, context.now, context.timing)


def _not_started(context: Context, claim: WholeNodeClaim) -> ClaimStatus | None:
    """The status that gives the nodes back because the kubelet of one of them refused a member."""
    refused = refused_start(context.view, claim)
    if refused is None:
        return None
    node, text = refused
    return give_back(claim, Reason.START_FAILED, text, context.now, context.timing, avoid=(node,), avoid_for=NOT_AGAIN)


def _change_over(context: Context, claim: WholeNodeClaim, free: Choice, taking: _Taking) -> None:
    """Take free nodes instead of those that are drained; the marks on these stray then, and are swept."""
    names, before = ", ".join(free.wanted), claim.status.node_names
    text = f"free node(s) {names} are taken: the drain of {before} is dropped before anybody was stopped"
    taking.take(free, claim, context.now)
    status = enter(claim, Phase.PLANNED, Reason.FREE_NODE, text, context.now, nodes=_held(free), plan=free.plan)
    context.write(claim, msgspec.structs.replace(context.struck(claim, status), stop_nobody_until=None))


def _avoided(context: Context, claim: WholeNodeClaim) -> dict[str, str]:
    """Nodes that the claim has given back, or that its gang could not start on, and the reason to be shown."""
    lately = {one.node: str(Obstacle.AVOIDED) for one in claim.status.avoid if one.until > context.now}
    return lately | refusing_nodes(context.view, claim, context.now)


def _held(choice: Choice) -> tuple[HeldNode, ...]:
    return tuple(HeldNode(one.node.metadata.name, one.node.metadata.uid) for one in choice.taken)


def _wait(context: Context, claim: WholeNodeClaim, taking: _Taking) -> None:
    """Pending, Blocked and Preview: look for nodes; until then the next best ones are kept from younger claims."""
    now, status, reserved, ahead = context.now, claim.status, taking.reserved, taking.ahead
    timing = context.timing
    choice = choose(
        context.view,
        claim,
        _avoided(context, claim) | reserved,
        now,
        timing.drain_timeout,
        ahead,
        cool_down=timing.cool_down,
        cost_ceiling=timing.cost_ceiling,
    )
    preview = claim.spec.policy is Policy.PREVIEW
    due = status.retry_at is None or now >= status.retry_at
    if not preview and due:
        choice = taking.drains.apply(choice)
    context.decision.choices[claim.metadata.uid] = choice
    if status.phase is Phase.BLOCKED and status.retry_at is not None and now < status.retry_at:
        context.decision.wake(status.retry_at)
        if not preview:
            ahead.keep(choice.wanted, status.retry_at if choice.taken else choice.start_at)
        return
    context.decision.wake(choice.wake_at)
    if choice.taken and not preview:
        taking.take(choice, claim, now)
    elif not preview:
        ahead.keep(choice.wanted, choice.start_at)
    if choice.taken and not preview:
        planned = enter(
            claim,
            Phase.PLANNED,
            choice.reason,
            choice.message,
            now,
            nodes=_held(choice),
            plan=choice.plan,
            retry_at=None,
            stop_nobody_until=choice.stop_nobody_until,
        )
        context.write(claim, planned)
        return
    _say(context, claim, choice, preview=preview)


def _say(context: Context, claim: WholeNodeClaim, choice: Choice, *, preview: bool) -> None:
    phase = Phase.PLANNED if preview and choice.taken else Phase.PENDING
    reason = Reason.PREVIEW if phase is Phase.PLANNED else choice.reason
    said = enter(claim, phase, reason, choice.message, context.now, plan=choice.plan, retry_at=None, nodes=())
    context.say_if_new(claim, said)
