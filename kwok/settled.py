"""Whether a cluster has come to rest rightly: what may still run does, and what waits has a true reason to.

An oracle beside the product: it knows pools, agreements and cards, and works out anew who could have a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kwok.readings import (
    CHOSEN,
    MARK,
    Object,
    Pools,
    allocatable,
    annotation,
    declared_size,
    ended,
    gang,
    gang_of_claim,
    label,
    node_of,
    phase,
    preview,
    reason,
    shown,
    stray_marks,
    taints,
    terminating,
    uid,
    waits,
)
from kwok.stages import DURATION

_KEEPS_NOTHING = frozenset({"GangIncomplete", "NoPoolFits", "MoreNodesThanPoolHas", "PinnedToAnotherClaim"})
_GIVEN_UP = "Failed"


class Rest:
    """Asks `live`, the objects of each kind by UID, as `kwok.history.History` keeps them; pools stay as they are."""

    def __init__(self, live: Mapping[str, Mapping[str, Object]], pools: Iterable[Object]) -> None:
        self._live = live
        self._pools = Pools(pools)

    def unsettled(self) -> Iterator[str]:
        """What is still under way, or waits without need or without a reason; nothing at rest. What is cheap first."""
        yield from self._moving()
        yield from self._nodes()
        yield from self._jobs()
        yield from self._waiting_claims()
        yield from self._waiting_pods()

    def reached(self) -> bool:
        """Whether nothing is unsettled."""
        return next(self.unsettled(), None) is None

    def _all(self, kind: str) -> list[Object]:
        return list(self._live[kind].values())

    def _moving(self) -> Iterator[str]:
        for pod in self._all("pods"):
            if terminating(pod):
                yield f"pod {shown(pod)} is ending"
            elif node_of(pod) and not ended(pod):
                if pod["status"].get("phase") != "Running":
                    yield f"pod {shown(pod)} has not started on {node_of(pod)}"
                elif annotation(pod, DURATION):
                    yield f"pod {shown(pod)} still runs"
        for claim in self._all("claims"):
            if phase(claim) == "Blocked" or (phase(claim) in CHOSEN and not preview(claim)):
                yield f"claim {shown(claim)} is {phase(claim)}: {reason(claim)}"

    def _waiting_pods(self) -> Iterator[str]:
        for pod in self._all("pods"):
            if waits(pod):
                yield from self._whole(pod) if self._pools.whole(pod) else self._small(pod)

    def _small(self, pod: Object) -> Iterator[str]:
        conditions = pod["status"].get("conditions") or ()
        if not any((one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable") for one in conditions):
            yield f"pod {shown(pod)} has not been tried"
        consents = bool(self._agreed(pod["metadata"]["namespace"]))
        resource, wanted = self._pools.asks(pod)
        for node in self._all("nodes"):
            if not wanted or (
                self._pools.open_to_small(node, consents=consents)
                and not taints(node)
                and allocatable(node, resource) - self._used(shown(node), resource) >= wanted
            ):
                yield f"pod {shown(pod)} waits, though node {shown(node)} has room for it"
                return

    def _whole(self, pod: Object) -> Iterator[str]:
        claims = [claim for claim in self._all("claims") if gang_of_claim(claim) == gang(pod)]
        live = [claim for claim in claims if phase(claim) in {"Pending", "Planned"}]
        if not live:
            if not any(phase(claim) == _GIVEN_UP for claim in claims):
                yield f"pod {shown(pod)} waits and no claim waits for it: {[phase(claim) for claim in claims]}"
        elif not any(reason(claim) for claim in live):
            yield f"pod {shown(pod)} waits, and its claim does not say why"

    def _waiting_claims(self) -> Iterator[str]:
        """Oldest first, as the product serves them."""
        older: list[Object] = []
        for claim in sorted(self._all("claims"), key=_age):
            if phase(claim) == "Pending":
                yield from self._pending(claim, older)
                older.append(claim)

    def _pending(self, claim: Object, older: list[Object]) -> Iterator[str]:
        members = [
            pod
            for pod in self._all("pods")
            if gang(pod) == gang_of_claim(claim) and not ended(pod) and not terminating(pod)
        ]
        takers = [pod for pod in members if self._pools.whole(pod)]
        waiting = [pod for pod in takers if waits(pod)]
        if not waiting:
            yield f"claim {shown(claim)} waits for a gang without a waiting member"
            return
        incomplete = len(members) < self._size(members)
        if incomplete != (reason(claim) == "GangIncomplete"):
            yield f"claim {shown(claim)} says {reason(claim)}, {len(members)} of {self._size(members)} pods exist"
        pins = {str((pod["spec"].get("nodeSelector") or {}).get(MARK, uid(claim))) for pod in waiting}
        pinned = pins != {uid(claim)}
        if pinned != (reason(claim) == "PinnedToAnotherClaim") and not incomplete:
            yield f"claim {shown(claim)} says {reason(claim)}, its pods select {sorted(pins)}"
        if incomplete or pinned or preview(claim):
            return
        wish = self._pools.asks(waiting[0])
        rivals = [
            one
            for one in older
            if reason(one) not in _KEEPS_NOTHING and not preview(one) and self._wish_of(one) in (wish, None)
        ]
        had = [
            shown(node)
            for node in self._all("nodes")
            if self._to_be_had(node, waiting[0], claim["metadata"]["namespace"], claim["spec"].get("policy", "Wait"))
        ]
        if len(had) >= len(waiting) and not rivals:
            yield f"claim {shown(claim)} says {reason(claim)}, {len(waiting)} nodes are to be had: {had}"

    def _size(self, members: list[Object]) -> int:
        _, kind, _, key = gang(members[0])
        if kind == "Job" and key in self._live["jobs"]:
            job = self._live["jobs"][key]
            return min(int(job["spec"]["parallelism"]), self._left(job))
        return max(1, *(declared_size(pod) for pod in members))

    def _wish_of(self, claim: Object) -> tuple[str, int] | None:
        key = gang_of_claim(claim)
        return next((self._pools.asks(pod) for pod in self._all("pods") if gang(pod) == key), None)

    def _to_be_had(self, node: Object, member: Object, namespace: str, policy: str) -> bool:
        """Whether a gang of `namespace` could have the node: idle, or vacated with the consent of all on it."""
        pools = self._pools.of(node)
        if len(pools) != 1 or pools[0] not in self._pools.serving(member) or taints(node):
            return False
        resource, wanted = self._pools.asks(member)
        if allocatable(node, resource) != wanted:
            return False
        on_it = self._pools.holders(self._all("pods"), shown(node))
        may_stop = policy == "WaitThenEvict" and pools[0]["spec"].get("drain") == "Agreed"
        return not on_it or (
            may_stop
            and all(namespace in self._agreed(pod["metadata"]["namespace"]) for pod in on_it)
            and all(gang(pod) != gang(member) for pod in on_it)
        )

    def _agreed(self, namespace: str) -> set[str]:
        """Namespaces that the agreements of `namespace` name."""
        return {
            one["namespace"]
            for agreement in self._all("agreements")
            if agreement["metadata"]["namespace"] == namespace
            for one in agreement["spec"]["beneficiaries"]
        }

    def _used(self, name: str, resource: str) -> int:
        holders = self._pools.holders(self._all("pods"), name)
        return sum(number for kind, number in map(self._pools.asks, holders) if kind == resource)

    def _nodes(self) -> Iterator[str]:
        for node in self._all("nodes"):
            if stray_marks((node,), self._all("pods")):
                yield f"node {shown(node)} carries marks of {sorted({*taints(node), label(node)} - {''})}"

    def _jobs(self) -> Iterator[str]:
        for job in self._all("jobs"):
            conditions = job.get("status", {}).get("conditions") or ()
            if terminating(job) or any(one["type"] in {"Complete", "Failed"} for one in conditions):
                continue
            pods = [pod for pod in self._all("pods") if gang(pod)[3] == uid(job) and not ended(pod)]
            if len(pods) < min(int(job["spec"]["parallelism"]), self._left(job)):
                yield f"job {shown(job)} has {len(pods)} pods"

    @staticmethod
    def _left(job: Object) -> int:
        return int(job["spec"]["completions"]) - int(job.get("status", {}).get("succeeded") or 0)


def _age(claim: Object) -> tuple[str, str, str]:
    metadata = claim["metadata"]
    return metadata["creationTimestamp"], metadata["namespace"], metadata["name"]
