"""Decks of 50 random workloads each, drawn by hypothesis, and the objects they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hypothesis import strategies as st

from kwok.nodes import GPU
from kwok.workloads import Manifest, make_job, make_pod

OTHER_GPU = "amd.com/gpu"
WORKLOAD = "workload"
"""Label with the workload's name on all its pods."""
CONSENTS = {"team-a": ("research", "lab"), "team-b": ("lab",)}
"""Namespaces with an agreement, and whom it names."""
NAMESPACES = ("research", "lab", "team-a", "team-b", "team-c")
DECK = 50


class Fate(StrEnum):
    """What befalls a workload, and at which event."""

    NONE = "runs its time"
    DELETED_AT_ONCE = "is deleted right after it was made"
    DELETED_WHEN_HELD = "is deleted when its claim holds nodes"
    DELETED_WHEN_BOUND = "is deleted when its first pod is bound"
    MEMBER_RECREATED = "its first member is deleted and made anew when one is bound"
    MEMBER_LOST = "its first member is deleted for good when its claim holds nodes"
    GUEST_WHEN_HELD = "somebody places a pod by hand on a node that its claim holds"
    GUEST_WHEN_OPEN = "somebody places a pod by hand on a node that is open to it"


@dataclass(frozen=True)
class Workload:
    """`kind`: pod, gang (bare pods with our annotation) or job (Indexed). `by_hand`: number of the node it goes to."""

    kind: str = "pod"
    namespace: str = "research"
    cards: int = 1
    shape: str = "plain"
    resource: str = GPU
    size: int = 1
    missing: int = 0
    seconds: float | None = None
    policy: str = "Wait"
    fate: Fate = Fate.NONE
    guest: str = "team-a"
    by_hand: int | None = None

    def objects(self, name: str) -> list[Manifest]:
        """What to create, in order; all names begin with `name`."""
        notes = {"wholenode.io/policy": self.policy}
        if self.kind == "job":
            job = make_job(
                name, self.namespace, pods=self.size, annotations=notes, labels={WORKLOAD: name},
                duration_seconds=self.seconds, cards=0,
            )  # fmt: skip
            self._ask(job["spec"]["template"]["spec"])
            return [job]
        numbered = [f"{name}-{index}" for index in range(self.size - self.missing)] if self.kind == "gang" else [name]
        pods = [
            make_pod(
                one, self.namespace, cards=0, duration_seconds=self.seconds, annotations=notes,
                labels={WORKLOAD: name}, gang=(name, self.size) if self.kind == "gang" else None,
            )
            for one in numbered
        ]  # fmt: skip
        for pod in pods:
            self._ask(pod["spec"])
        return pods

    def _ask(self, spec: Manifest) -> None:
        """Write the cards into the pod, in one of the ways in which people do."""
        main = spec["containers"][0]
        if self.shape == "pair":
            half = self.cards // 2
            spec["containers"] = [{**main, **self._asks(half)}, {**main, "name": "b", **self._asks(self.cards - half)}]
        elif self.shape == "init":
            spec["initContainers"] = [{**main, "name": "init", **self._asks(self.cards)}]
            spec["containers"] = [{**main, **self._asks(1)}]
        elif self.shape == "sidecar":
            spec["initContainers"] = [{**main, "name": "side", "restartPolicy": "Always", **self._asks(1)}]
            spec["containers"] = [{**main, **self._asks(self.cards - 1)}]
        else:
            spec["containers"] = [{**main, **self._asks(self.cards)}]

    def _asks(self, cards: int) -> Manifest:
        limits = {self.resource: str(cards)}
        return {"resources": {"limits": limits} if self.shape == "limits" else {"limits": limits, "requests": limits}}


namespaces = st.sampled_from(NAMESPACES)
lasts = st.sampled_from([0.3, 0.8, 1.5, 2.5])
policies = st.sampled_from(["WaitThenEvict", "Wait", "WaitThenEvict", "WaitThenEvict", "Preview"])
whole_fates = st.sampled_from([*Fate, Fate.NONE, Fate.NONE, Fate.NONE])
single_fates = whole_fates.filter(lambda one: one not in {Fate.MEMBER_LOST, Fate.MEMBER_RECREATED})
small = st.builds(
    Workload,
    namespace=namespaces,
    cards=st.sampled_from([1, 1, 1, 2, 2, 3, 5, 6, 7]),
    seconds=lasts | st.none(),
    fate=st.sampled_from([Fate.NONE, Fate.NONE, Fate.NONE, Fate.DELETED_WHEN_BOUND, Fate.DELETED_AT_ONCE]),
)
odd_small = st.builds(
    Workload,
    namespace=namespaces,
    cards=st.sampled_from([2, 3, 5, 6]),
    shape=st.sampled_from(["pair", "init", "sidecar", "limits"]),
    seconds=lasts,
)
no_cards = st.builds(Workload, namespace=namespaces, cards=st.just(0), seconds=lasts)
too_many = st.builds(Workload, namespace=namespaces, cards=st.integers(9, 16))
whole_pod = st.builds(
    Workload,
    namespace=namespaces,
    cards=st.sampled_from([8, 8, 4]),
    shape=st.sampled_from(["plain", "pair", "init", "sidecar", "limits"]),
    seconds=lasts,
    policy=policies,
    fate=single_fates,
    guest=namespaces,
)
other_gpu = st.builds(
    Workload,
    resource=st.just(OTHER_GPU),
    namespace=namespaces,
    cards=st.sampled_from([8, 1, 3, 8]),
    seconds=lasts,
    policy=policies,
)
gang = st.builds(
    Workload,
    kind=st.just("gang"),
    namespace=namespaces,
    cards=st.sampled_from([8, 8, 8, 4]),
    size=st.integers(1, 4),
    seconds=lasts | lasts | st.none(),
    policy=policies,
    fate=whole_fates,
    guest=namespaces,
)
job = st.builds(
    Workload,
    kind=st.just("job"),
    namespace=namespaces,
    cards=st.just(8),
    size=st.integers(1, 4),
    seconds=lasts | lasts | st.none(),
    policy=policies,
    fate=whole_fates,
    guest=namespaces,
)
too_large = st.builds(
    Workload,
    kind=st.just("gang"),
    namespace=namespaces,
    cards=st.just(4),
    size=st.integers(5, 9),
    policy=policies,
)
incomplete = st.builds(
    Workload,
    kind=st.just("gang"),
    namespace=namespaces,
    cards=st.just(8),
    size=st.integers(2, 4),
    missing=st.just(1),
    policy=policies,
)
by_hand = st.builds(
    Workload,
    namespace=st.sampled_from(["team-a", "team-b", "team-a", "team-c"]),
    cards=st.sampled_from([1, 2, 3]),
    by_hand=st.integers(0, 99),
    seconds=st.none() | lasts,
)
_MIX = (
    (small, 14), (odd_small, 4), (no_cards, 2), (too_many, 1), (whole_pod, 6), (other_gpu, 4), (gang, 6), (job, 5),
    (too_large, 1), (incomplete, 1), (by_hand, 6),
)  # fmt: skip


@st.composite
def decks(draw: st.DrawFn) -> list[Workload]:
    """Every deck has so many workloads of each sort; their order and everything else about them is drawn."""
    deck = [draw(sort) for sort, count in _MIX for _ in range(count)]
    return draw(st.permutations(deck))
