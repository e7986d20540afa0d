"""Evictions in order of growing regret: whoever may refuse first, then cheap gangs, then dear ones.

What is guaranteed: a later wave is asked for only when the API server has accepted every eviction of the waves before
it, across all nodes of the claim; within a wave the calls are sent in order of regret. So a cancel, a refusal or a
deadline in the middle has cost the least. The first wave are pods that a PodDisruptionBudget covers, then come the
gangs with the smaller half of the loss, then the others. Of a gang, the pod whose record carries the loss goes first
and alone: the loss is booked if any of them goes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.budgets import matching
from fleet.objects import Pod
from fleet.resources import Victim
from fleet.view import View

_COVERED, _CHEAP, _DEAR = range(3)


@dataclass(frozen=True, slots=True)
class Regret:
    """How dear each gang of one drain is, and which pod of it carries the loss."""

    waves: Mapping[str, int]
    order: Mapping[str, tuple[int, float, str]]
    carriers: Mapping[str, str]

    @classmethod
    def of(cls, victims: Iterable[Victim]) -> "Regret":
        """From everybody recorded in this drain, those that are gone included: the waves stay what they were."""
        losses: dict[str, float] = {}
        priorities: dict[str, int] = {}
        carriers: dict[str, str] = {}
        for one in victims:
            losses[one.gang] = losses.get(one.gang, 0.0) + one.lost_gpu_seconds
            priorities[one.gang] = max(one.priority, priorities.get(one.gang, one.priority))
            carriers.setdefault(one.gang, one.uid)
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
        """Of the running pods, all recorded, those whose eviction may be asked for now, the least regretted first.

        `accepted` are UIDs of those whose eviction the API server has taken: they are on their way.
        """
        left = [pod for pod in running if pod.metadata.uid not in accepted]
        if not left:
            return ()
        unsaid = {pod.metadata.uid for pod in left}
        waves = {pod.metadata.uid: self._wave(view, pod, victims[pod.metadata.uid]) for pod in left}
        first = min(waves.values())

        def may_go(pod: Pod) -> bool:
            carrier = self.carriers[victims[pod.metadata.uid].gang]
            return waves[pod.metadata.uid] == first and (carrier == pod.metadata.uid or carrier not in unsaid)

        return sorted(
            (pod for pod in left if may_go(pod)), key=lambda pod: (self.order[victims[pod.metadata.uid].gang], pod.key)
        )

    def _wave(self, view: View, pod: Pod, victim: Victim) -> int:
        return _COVERED if matching(pod, view.budgets) else self.waves[victim.gang]
