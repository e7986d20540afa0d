"""Evictions in order of growing regret: whoever may refuse first, then cheap gangs, then dear ones.

What is guaranteed: a later wave is asked for only when the API server has accepted every eviction of the waves before
it, across all nodes of the claim; within a wave the calls are sent in order of regret. So a cancel, a refusal or a
deadline in the middle has cost the least. The first wave are pods that a PodDisruptionBudget covers, then come the
gangs with the smaller half of the loss, then the others. Of a gang, the pod whose record carries the loss goes first
and alone: the loss is booked if any of them goes. Where several carry it, since the gang goes on without some, they go
one after the other. A job that Kueue stops as a whole goes with the dearest of its pods.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.budgets import matching
from fleet.kueue.victims import through_kueue
from fleet.objects import Pod
from fleet.resources import Victim
from fleet.view import View

_COVERED, _CHEAP, _DEAR = range(3)


@dataclass(frozen=True, slots=True)
class Regret:
    """How dear each gang of one drain is, and which pods of it carry the loss, in the order in which they must go."""

    waves: Mapping[str, int]
    order: Mapping[str, tuple[int, float, str]]
    carriers: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, victims: Iterable[Victim]) -> "Regret":
        """From everybody recorded in this drain, those that are gone included: the waves stay what they were."""
        losses: dict[str, float] = {}
        priorities: dict[str, int] = {}
        carriers: dict[str, tuple[str, ...]] = {}
        for one in victims:
            losses[one.gang] = losses.get(one.gang, 0.0) + one.lost_gpu_seconds
            priorities[one.gang] = max(one.priority, priorities.get(one.gang, one.priority))
            if one.lost_gpu_seconds or one.gang not in carriers:
                carriers[one.gang] = (*carriers.get(one.gang, ()), one.uid)
        order = {gang: (priorities[gang], losses[gang], gang) for gang in losses}
        half, so_far = sum(losses.values()) / 2, 0.0
        waves: dict[str, int] = {}
        for gang in sorted(order, key=lambda key: order[key]):
            so_far += losses[gang]
            waves[gang] = _CHEAP if so_far <= half or not waves else _DEAR
        return cls(waves, order, carriers)

    def next_to_go(
        self, view: View, running: Iterable[Pod], victims: Mapping[str, Victim], accepted: Collection[str]
    ) -> Sequence[Pod]:
        """Of the running pods, all recorded, those whose end may be asked for now, the least regretted first.

        `accepted` are UIDs of those that are on their way. Of a job that Kueue stops as a whole it is all or none.
        """
        left = [pod for pod in running if pod.metadata.uid not in accepted]
        if not left:
            return ()
        unsaid, unit = {pod.metadata.uid for pod in left}, _units(view, left)
        together: dict[str, list[int]] = {}
        for pod in left:
            together.setdefault(unit[pod.metadata.uid], []).append(self._wave(view, pod, victims[pod.metadata.uid]))
        waves = {one: _COVERED if _COVERED in some else max(some) for one, some in together.items()}

        def waits(pod: Pod) -> bool:
            uid = pod.metadata.uid
            carriers = self.carriers[victims[uid].gang]
            first = carriers[: carriers.index(uid)] if uid in carriers else carriers
            return any(one in unsaid and unit[one] != unit[uid] for one in first)

        wait = {unit[pod.metadata.uid] for pod in left if waits(pod)}
        # Gangs that are spread over several jobs of Kueue's may wait for each other: then the order gives way.
        ready = [pod for pod in left if unit[pod.metadata.uid] not in wait] or left
        wave = min(waves[unit[pod.metadata.uid]] for pod in ready)
        due = [pod for pod in ready if waves[unit[pod.metadata.uid]] == wave]
        return sorted(due, key=lambda pod: (self.order[victims[pod.metadata.uid].gang], pod.key))

    def _wave(self, view: View, pod: Pod, victim: Victim) -> int:
        return _COVERED if matching(pod, view.budgets) else self.waves[victim.gang]


def _units(view: View, pods: Iterable[Pod]) -> Mapping[str, str]:
    """What is stopped in one go, by pod UID: the Workload where Kueue does it, else the pod."""
    found = {pod.metadata.uid: through_kueue(view, pod) for pod in pods}
    return {uid: one.metadata.uid if one else uid for uid, one in found.items()}
