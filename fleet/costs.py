"""What stopping running pods costs: gangs whole and once, elastic ones by the member, services their warm-up."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from fleet.gangs import Gang, known_ref
from fleet.kueue.victims import through_kueue
from fleet.ledger import Work, serves, warm_up_seconds, work_of
from fleet.objects import Pod
from fleet.options import Hit
from fleet.readiness import service_of
from fleet.records import job_key, stops_of
from fleet.requests import Request
from fleet.resources import GangRef, RecordSpec, Victim
from fleet.view import View

_FAIR_FOR = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class GangLoss:
    """What stopping a running gang throws away: `seconds` on each of its `cards`, counted from `since`.

    While no more than `spare` of its `members` are stopped, the others go on and only the stopped ones' cards count;
    nobody goes on where Kueue stops the whole job. A member that came later has lost less by what `missed` says
    (GPU-seconds, by pod UID). Of the seconds, `restart` are lost right after a checkpoint too.
    `weight` is for comparisons only (`weights`).
    """

    key: str
    members: int
    cards: int
    spare: int
    seconds: float
    saved_at: datetime | None
    since: datetime
    restart: float = 0.0
    missed: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def whole(self) -> float:
        """GPU-seconds lost with all of it."""
        return max(0.0, self.seconds * self.cards - sum(self.missed.values()))

    def lost(self, members: int, cards: int, missed: float = 0.0) -> float:
        """GPU-seconds lost if so many members with so many cards, who have `missed` so much, are stopped together."""
        return self.whole if members > self.spare else min(max(0.0, self.seconds * cards - missed), self.whole)

    def own(self, victim: Victim) -> float:
        """GPU-seconds lost with this member if the others go on."""
        return max(0.0, self.seconds * victim.cards - self.missed.get(victim.uid, 0.0))

    def saved(self, members: int, cards: int) -> float:
        """As `lost`, right after the next checkpoint."""
        return self.restart * (self.cards if members > self.spare else min(cards, self.cards))


def gang_loss(view: View, pod: Pod, now: datetime) -> GangLoss:
    """The loss of the pod's gang at `now`, as far as it is bound."""
    key = view.gang_key_of(pod)
    known: GangLoss | None = view.memo.get(("loss", key, now))
    if known is None:
        known = view.memo["loss", key, now] = _gang_loss(view, pod, key, now)
    return known


def _gang_loss(view: View, pod: Pod, key: str, now: datetime) -> GangLoss:
    gang = view.gangs.get(key)
    asked = tuple([view.classify(one) for one in (gang.pods if gang else (pod,))])
    stake = view.memory.recall(("at stake", key), _at_stake, gang, pod if gang is None else None, asked)
    stops = stops_of(view, key) if gang else ()
    work = stake.work
    if saved := tuple([one.saved_at for one in stops if one.saved_at is not None]):
        work = replace(work, told=(*work.told, *saved))
    lost = work.lost(now, _warm_up(view, pod) if stake.serves else None, _hit_at(stops, gang))
    weight = weights(view, now).get(pod.metadata.namespace, 1.0)
    spare = 0 if through_kueue(view, pod) else stake.spare
    missed = {
        uid: (min(begun, now) - lost.since).total_seconds() * cards
        for uid, cards, begun in stake.starts
        if begun > lost.since
    }
    return GangLoss(
        key,
        stake.members,
        lost.cards,
        spare,
        lost.seconds,
        lost.saved_at,
        lost.since,
        lost.restart_seconds,
        missed,
        weight,
    )


def _hit_at(stops: Iterable[RecordSpec], gang: Gang | None) -> datetime | None:
    """When all work of the gang was last lost by a stop of members of it; None if it never was.

    A gang that goes on without those that were stopped lost no work of the others.
    """
    needs_all = gang is None or not gang.minimum
    return max((one.at for one in stops if needs_all or one.ends_gang), default=None)


@dataclass(frozen=True, slots=True)
class _AtStake:
    """What a gang loses by, whatever the time. `serves`: it is a replica of a service.

    `starts`: UID, cards and start of each member.
    """

    members: int
    spare: int
    work: Work
    serves: bool
    starts: tuple[tuple[str, int, datetime], ...]


def _at_stake(gang: Gang | None, alone: Pod | None, asked: tuple[Request, ...]) -> _AtStake:
    pods = gang.pods if gang else (alone,) if alone else ()
    bound = [(pod, request.cards) for pod, request in zip(pods, asked, strict=True) if pod.spec.node_name]
    minimum = gang.minimum if gang else 0
    work = work_of([pod for pod, _ in bound], [cards for _, cards in bound])
    single = gang is None or gang.ref.kind == "Pod"
    spare = max(0, len(bound) - minimum) if minimum else 0
    starts = [(one.metadata.uid, cards, one.status.start_time) for one, cards in bound]
    known = tuple([(uid, cards, start) for uid, cards, start in starts if start is not None])
    return _AtStake(len(bound), spare, work, single and serves(pods[0]), known)


def _warm_up(view: View, pod: Pod) -> float:
    service = service_of(pod)
    known = view.memo.get(("warm-up", service))
    if known is None:
        ready = sorted(view.replicas.ready.get(service, frozenset()))
        known = view.memo["warm-up", service] = warm_up_seconds(view.pods[uid] for uid in ready if uid in view.pods)
    return float(known)


def victims_of(
    view: View, pods: Iterable[Pod], agreements: Mapping[str, str], now: datetime, before: Sequence[Victim] = ()
) -> tuple[Victim, ...]:
    """The records of pods that are, or would be, stopped together at `now`; `agreements`: their names, by pod UID.

    A gang's whole loss stands with the first of its pods, the others add nothing. Of a gang that goes on without
    them each pod has its own loss, and the one that leaves too few has the rest. `before` are others that run still
    and are to be stopped together with them, with what is booked for them.
    """
    victims: list[Victim] = []
    losses: dict[str, GangLoss] = {}
    for pod in pods:
        victim, gang = bare(view, pod), gang_loss(view, pod, now)
        known = losses.get(gang.key, gang)
        unknown = pod.metadata.uid not in view.pods and gang.key in view.gangs
        losses[gang.key] = _joined(view, known, victim, pod, now) if unknown else known
        agreement = agreements.get(victim.uid)
        victims.append(msgspec.structs.replace(victim, agreement=agreement) if agreement else victim)
    return priced(victims, losses, before)


def _joined(view: View, gang: GangLoss, victim: Victim, pod: Pod, now: datetime) -> GangLoss:
    """The loss with one more member: a look has found it, and the caches do not know it yet."""
    late = max(0.0, (min(now, pod.status.start_time or now) - gang.since).total_seconds())
    missed = {**gang.missed, victim.uid: late * victim.cards}
    members, minimum = gang.members + 1, view.gangs[gang.key].minimum
    spare = max(0, members - minimum) if minimum and not through_kueue(view, pod) else 0
    return replace(gang, members=members, cards=gang.cards + victim.cards, spare=spare, missed=missed)


def priced(
    victims: Iterable[Victim], losses: Mapping[str, GangLoss], before: Sequence[Victim] = ()
) -> tuple[Victim, ...]:
    """The victims with what is lost if all of them are stopped together; `losses` by gang, as `victims_of` has it."""
    victims = tuple(victims)
    return tuple(
        [
            msgspec.structs.replace(one, lost_gpu_seconds=lost, saved_at=losses[one.gang].saved_at, ends_gang=ends)
            for one, (lost, ends) in zip(victims, _split(victims, losses, before), strict=True)
        ]
    )


def each_lost(victims: Sequence[Victim], losses: Mapping[str, GangLoss], before: Sequence[Victim] = ()) -> list[float]:
    """What `priced` books with each of the victims."""
    return [lost for lost, _ in _split(victims, losses, before)]


def _split(
    victims: Sequence[Victim], losses: Mapping[str, GangLoss], before: Sequence[Victim]
) -> Iterator[tuple[float, bool]]:
    """Of each of the victims what it loses, and whether its gang has too few left without it and those ahead of it."""
    sizes: dict[str, int] = {}
    for one in (*before, *victims):
        sizes[one.gang] = sizes.get(one.gang, 0) + 1
    booked: dict[str, float] = {}
    place: dict[str, int] = {}
    for one in before:
        booked[one.gang] = booked.get(one.gang, 0.0) + one.lost_gpu_seconds
        place[one.gang] = place.get(one.gang, 0) + 1
    for one in victims:
        gang, at = losses[one.gang], place.get(one.gang, 0)
        lost, ends = gang.own(one), at >= gang.spare
        if sizes[one.gang] > gang.spare:
            left = max(0.0, gang.whole - booked.get(one.gang, 0.0))
            lost = left if ends else min(lost, left)
        booked[one.gang] = booked.get(one.gang, 0.0) + lost
        place[one.gang] = at + 1
        yield round(lost, 3), ends


def hits_of(victims: Iterable[Victim]) -> tuple[Hit, ...]:
    """How many members of each gang, with how many cards, the victims are."""
    found: dict[str, tuple[int, int]] = {}
    for victim in victims:
        members, cards = found.get(victim.gang, (0, 0))
        found[victim.gang] = members + 1, cards + victim.cards
    return tuple(Hit(gang, members, cards) for gang, (members, cards) in found.items())


def since_they_came(
    hits: tuple[Hit, ...], victims: Iterable[Victim], losses: Mapping[str, GangLoss]
) -> tuple[Hit, ...]:
    """The hits with what those of the victims who came later have not lost."""
    if not any(losses[one.gang].missed for one in hits):
        return hits
    missed: dict[str, float] = {}
    for one in victims:
        missed[one.gang] = missed.get(one.gang, 0.0) + losses[one.gang].missed.get(one.uid, 0.0)
    return tuple([replace(one, missed=missed[one.gang]) for one in hits])


def joint_loss(hits: Iterable[Hit], gangs: Iterable[GangLoss]) -> float:
    """What stopping all of them loses as it counts in comparisons: more for namespaces that have lost much lately."""
    losses = {one.key: one for one in gangs}
    stopped: dict[str, tuple[int, int, float]] = {}
    for hit in hits:
        members, cards, missed = stopped.get(hit.gang, (0, 0, 0.0))
        stopped[hit.gang] = members + hit.members, cards + hit.cards, missed + hit.missed
    return sum(losses[key].weight * losses[key].lost(*stopped[key]) for key in sorted(stopped))


def bare(view: View, pod: Pod) -> Victim:
    """The record of a pod without agreement, loss and checkpoint: what is true of it whatever the time."""
    # A pod that a look has found may not have reached the caches yet.
    ref, key = known_ref(pod, view.jobs, view.memory)
    return view.memory.recall(("victim", pod.metadata.uid), _bare, pod, ref, key, view.classify(pod))


def _bare(pod: Pod, ref: GangRef, gang: str, asked: Request) -> Victim:
    return Victim(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or "",
        cards=asked.cards,
        priority=pod.spec.priority or 0,
        gang=gang,
        job=job_key(pod, ref),
    )


def job_of(view: View, pod: Pod) -> str:
    """The job that budgets and cool-downs count the pod by."""
    return bare(view, pod).job


def weights(view: View, now: datetime) -> Mapping[str, float]:
    """How much more the losses of each namespace weigh, 1 to 2: by its share of all that was lost in seven days.

    For comparing only: nobody is always the cheapest. Namespaces that lost nothing are left out.
    """
    known: Mapping[str, float] | None = view.memo.get(("weights", now))
    if known is None:
        lost = view.spending(now).lost_by_namespace(now - _FAIR_FOR)
        total = sum(lost.values())
        known = view.memo["weights", now] = {name: 1 + one / total for name, one in lost.items()}
    return known
