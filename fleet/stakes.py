"""Wait or evict for one claim: the gangs on the nodes it would take, what bounds its wait, and what follows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fleet.backfill import START_MARGIN
from fleet.candidates import Candidate
from fleet.cards import grace
from fleet.costs import gang_loss
from fleet.errors import FleetError
from fleet.forecasts import LEAST_SLACK, Event, expected_end, saves
from fleet.objects import Pod
from fleet.patience import Limits, Stake, weigh
from fleet.reasons import Reason
from fleet.resources import Course, DrainAgreement, Victim, Weighing, WholeNodeClaim
from fleet.times import later, parse_duration
from fleet.view import View
from fleet.windows import usable_from

_Used = Mapping[str, DrainAgreement | None]
"""UIDs of those who would be stopped, each with the agreement that allows it."""
_WAITS = frozenset({Reason.WAIT_IS_CHEAPER, Reason.CHECKPOINT_SOON})


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Nodes that are expected to be free by themselves at `at`, stopping nobody."""

    nodes: tuple[Candidate, ...]
    at: datetime

    @property
    def names(self) -> frozenset[str]:
        return frozenset(one.node.metadata.name for one in self.nodes)


@dataclass(frozen=True, slots=True)
class Weighed:
    """The cheapest course for a claim, and the nodes it is about."""

    weighing: Weighing
    nodes: tuple[Candidate, ...]

    @property
    def reason(self) -> Reason:
        """Why nobody is stopped now."""
        checkpoint = self.weighing.course is Course.AWAIT_CHECKPOINT
        return Reason.CHECKPOINT_SOON if checkpoint else Reason.WAIT_IS_CHEAPER


def weigh_set(
    view: View,
    claim: WholeNodeClaim,
    nodes: tuple[Candidate, ...],
    victims: Sequence[Victim],
    now: datetime,
    longest: timedelta,
    elsewhere: Elsewhere | None = None,
) -> Weighed | None:
    """Weigh stopping the `victims` on these nodes against waiting; None if there is nobody to stop.

    `longest`: for how long nodes may be held without anybody being stopped.
    """
    if not victims:
        return None
    agreements = {(one.metadata.namespace, one.metadata.name): one for one in view.agreements}
    used = {victim.uid: agreements.get((victim.namespace, victim.agreement)) for victim in victims}
    stakes = _stakes(view, used, _cards(view, nodes), now)
    limits = _limits(view, claim, nodes, used, now, longest)
    here = weigh(stakes, limits)
    if elsewhere is None or elsewhere.at <= now or elsewhere.names == {one.node.metadata.name for one in nodes}:
        return Weighed(here, nodes)
    end = Event(elsewhere.at, elsewhere.at + LEAST_SLACK)
    loss = sum(stake.loss for stake in stakes)
    held = limits.hold_until if all(one.refused is None for one in elsewhere.nodes) else None
    there = weigh([Stake("", loss, end=end)], replace(limits, hold_until=held, cards=_cards(view, elsewhere.nodes)))
    if there.course is not Course.EVICT and there.cost < here.cost:
        return Weighed(there, elsewhere.nodes)
    return Weighed(here, nodes)


def _cards(view: View, nodes: Sequence[Candidate]) -> int:
    pools = (view.membership.pool_of(one.node.metadata.name) for one in nodes)
    return max(1, sum(pool.spec.cards_per_node for pool in pools if pool is not None))


def _stakes(view: View, used: _Used, cards: int, now: datetime) -> list[Stake]:
    pods: dict[str, list[Pod]] = {}
    for uid in used:
        if uid in view.pods:
            pods.setdefault(view.gang_key_of(view.pods[uid]), []).append(view.pods[uid])
    losses = {key: _loss(view, some, now) for key, some in pods.items()}
    until = later(now, sum(losses.values()) / cards)
    return [_stake(view, key, some, used, now, until) for key, some in pods.items()]


def _stake(view: View, key: str, pods: list[Pod], used: _Used, now: datetime, until: datetime) -> Stake:
    loss = _loss(view, pods, now)
    growth = max(0.0, _loss(view, pods, now + timedelta(seconds=1)) - loss)
    gang, stake = view.gangs.get(key), gang_loss(view, pods[0], now)
    members, base = gang.pods if gang else tuple(pods), stake.since
    floor = min(loss, stake.saved(len(pods), sum(view.classify(pod).cards for pod in pods)))
    timeout = _asked(used[pod.metadata.uid] for pod in pods) if stake.saved_at else None
    ends = [expected_end(view, pod) for pod in pods]
    known = [end for end in ends if end is not None and end.until > now]
    kind, name = key.split("/")[1:3]
    return Stake(
        f"{kind} {pods[0].metadata.namespace}/{name}",
        loss if timeout is None else min(loss, floor + growth * timeout.total_seconds()),
        growth,
        floor,
        saves=saves(members, base, now, until) if growth and timeout is None else (),
        end=Event(max(end.at for end in known), max(end.until for end in known)) if len(known) == len(ends) else None,
    )


def _asked(agreements: Iterable[DrainAgreement | None]) -> timedelta | None:
    """How long a gang that is asked for a checkpoint before it is stopped may take for it; None if it is not asked."""
    wishes = [one.spec.checkpoint if one else None for one in agreements]
    return max((parse_duration(one.timeout) for one in wishes if one and one.request), default=None)


def _loss(view: View, pods: list[Pod], moment: datetime) -> float:
    """What stopping these members of one gang throws away at the moment, unless the gang saves its work before."""
    gang = gang_loss(view, pods[0], moment)
    missed = sum(gang.missed.get(pod.metadata.uid, 0.0) for pod in pods)
    return gang.lost(len(pods), sum(view.classify(pod).cards for pod in pods), missed)


def _limits(
    view: View, claim: WholeNodeClaim, nodes: Sequence[Candidate], used: _Used, now: datetime, longest: timedelta
) -> Limits:
    plan = claim.status.plan
    slowest = max((grace(view.pods[uid]) for uid in used if uid in view.pods), default=timedelta(0))
    deadline = _deadline(claim)
    return Limits(
        now,
        _cards(view, nodes),
        hold_until=now + longest if all(one.refused is None for one in nodes) else None,
        latest=deadline - slowest - START_MARGIN if deadline else None,
        before=plan.weighing if plan and claim.status.reason in _WAITS else None,
        may_stop=lambda moment: all(one is None or _usable_at(one, moment) for one in used.values()),
    )


def _usable_at(agreement: DrainAgreement, moment: datetime) -> bool:
    spec = agreement.spec
    return (spec.expires is None or moment < spec.expires) and (
        not spec.windows or usable_from(spec.windows, moment) == moment
    )


def _deadline(claim: WholeNodeClaim) -> datetime | None:
    created = claim.metadata.creation_timestamp
    try:
        return created + parse_duration(claim.spec.deadline) if claim.spec.deadline and created else None
    except FleetError:
        return None
