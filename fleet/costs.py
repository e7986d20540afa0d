"""What stopping running pods costs: gangs whole and once, elastic ones by the member, services their warm-up."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from fleet.choosing import Hit
from fleet.gangs import gang_ref
from fleet.ledger import loss, serves, warm_up_seconds
from fleet.objects import Pod
from fleet.readiness import service_of
from fleet.records import job_key
from fleet.resources import Victim
from fleet.view import View

_FAIR_FOR = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class GangLoss:
    """What stopping a running gang throws away: `seconds` on each of its `cards`.

    While no more than `spare` of its `members` are stopped, the others go on and only the stopped ones' cards count.
    `weight` is for comparisons only (`weights`).
    """

    key: str
    members: int
    cards: int
    spare: int
    seconds: float
    saved_at: datetime | None
    weight: float = 1.0

    def lost(self, members: int, cards: int) -> float:
        """GPU-seconds lost if so many members with so many cards are stopped together."""
        return self.seconds * (self.cards if members > self.spare else min(cards, self.cards))


def gang_loss(view: View, pod: Pod, now: datetime) -> GangLoss:
    """The loss of the pod's gang at `now`, as far as it is bound."""
    key = view.gang_key_of(pod)
    known: GangLoss | None = view.memo.get(("loss", key, now))
    if known is None:
        known = view.memo["loss", key, now] = _gang_loss(view, pod, key, now)
    return known


def _gang_loss(view: View, pod: Pod, key: str, now: datetime) -> GangLoss:
    gang = view.gangs.get(key)
    bound = [one for one in (gang.pods if gang else (pod,)) if one.spec.node_name]
    alone = gang is None or gang.ref.kind == "Pod"
    warm_up = _warm_up(view, pod) if alone and serves(pod) else None
    lost = loss(((one, view.classify(one).cards) for one in bound), now, warm_up)
    minimum = gang.minimum if gang else 0
    spare = max(0, len(bound) - minimum) if minimum else 0
    weight = weights(view, now).get(pod.metadata.namespace, 1.0)
    return GangLoss(key, len(bound), lost.cards, spare, lost.seconds, lost.saved_at, weight)


def _warm_up(view: View, pod: Pod) -> float:
    service = service_of(pod)
    known = view.memo.get(("warm-up", service))
    if known is None:
        ready = sorted(view.replicas.ready.get(service, frozenset()))
        known = view.memo["warm-up", service] = warm_up_seconds(view.pods[uid] for uid in ready if uid in view.pods)
    return float(known)


def victims_of(
    view: View, pods: Iterable[Pod], agreements: Mapping[str, str], now: datetime, counted: Collection[str] = ()
) -> tuple[Victim, ...]:
    """The records of pods that are, or would be, stopped together at `now`; `agreements`: their names, by pod UID.

    A gang's whole loss stands with the first of its pods, the others add nothing. Of a gang that goes on without
    them each pod has its own loss. `counted` are keys of gangs whose loss is booked already.
    """
    bare = (_victim(view, pod, agreements.get(pod.metadata.uid, ""), now) for pod in pods)
    victims = [(victim, loss) for victim, loss in bare]
    losses = {one.key: one for _, one in victims}
    return priced((victim for victim, _ in victims), losses, counted)


def priced(
    victims: Iterable[Victim], losses: Mapping[str, GangLoss], counted: Collection[str] = ()
) -> tuple[Victim, ...]:
    """The victims with what is lost if all of them are stopped together; `losses` by gang, as `victims_of` has it."""
    victims = tuple(victims)
    together: dict[str, int] = {}
    for one in victims:
        together[one.gang] = together.get(one.gang, 0) + 1
    found, done = [], set(counted)
    for one in victims:
        gang = losses[one.gang]
        lost = gang.lost(together[one.gang], one.cards)
        if together[one.gang] > gang.spare:
            lost = 0.0 if one.gang in done else lost
            done.add(one.gang)
        found.append(msgspec.structs.replace(one, lost_gpu_seconds=round(lost, 3)))
    return tuple(found)


def hits_of(victims: Iterable[Victim]) -> tuple[Hit, ...]:
    """How many members of each gang, with how many cards, the victims are."""
    found: dict[str, tuple[int, int]] = {}
    for victim in victims:
        members, cards = found.get(victim.gang, (0, 0))
        found[victim.gang] = members + 1, cards + victim.cards
    return tuple(Hit(gang, members, cards) for gang, (members, cards) in found.items())


def joint_loss(hits: Iterable[Hit], gangs: Iterable[GangLoss]) -> float:
    """What stopping all of them loses as it counts in comparisons: more for namespaces that have lost much lately."""
    losses = {one.key: one for one in gangs}
    stopped: dict[str, tuple[int, int]] = {}
    for hit in hits:
        members, cards = stopped.get(hit.gang, (0, 0))
        stopped[hit.gang] = members + hit.members, cards + hit.cards
    return sum(losses[key].weight * losses[key].lost(*stopped[key]) for key in sorted(stopped))


def _victim(view: View, pod: Pod, agreement: str, now: datetime) -> tuple[Victim, GangLoss]:
    # A pod that a look has found may not have reached the caches yet.
    gang = gang_loss(view, pod, now)
    victim = Victim(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or "",
        cards=view.classify(pod).cards,
        priority=pod.spec.priority or 0,
        gang=gang.key,
        agreement=agreement,
        job=job_of(view, pod),
        saved_at=gang.saved_at,
    )
    return victim, gang


def job_of(view: View, pod: Pod) -> str:
    """The job that budgets and cool-downs count the pod by."""
    uid = pod.metadata.uid
    known = view.memo.get(("job", uid))
    if known is None:
        known = view.memo["job", uid] = job_key(pod, gang_ref(pod, view.jobs))
    return str(known)


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
