"""What must never happen, looked at with every stored change of the whole cluster, in the order of storing.

1. **Cards.** The cards of all pods bound to a node and not ended, terminating ones included, never exceed what the
   node offers, for each resource.
2. **All or none.** A member of a whole-node gang is bound only to a node open to its gang's claim, while the claim is
   Ready or Landing and every node of it carries its taint: all of them are proved empty, so the places of all members
   are there before the first is bound. (If a stranger makes the claim give its nodes back, a binding may still be
   under way to a node that was open to it.) At rest no gang is partly bound, unless a member of it was deleted
   (`partly_bound`).
3. **Alone.** When a whole-node pod is bound, no other pod holds cards of that node.
4. **Held nodes.** From Draining to Landing every node of a claim carries its taint, and it is in one claim only; the
   label comes no earlier than Ready, and then all nodes of the claim are free of card holders; it may outlive the
   taint while a pod there selects it. kube-scheduler binds no
   small pod to a node that is Ready or Landing. While a node is tainted and not yet proved empty, a binding may be
   under way, which is why there is a proof; but no pod made after the claim has said that schedulers had their
   moment (any reason of Draining after WaitingForScheduler) is bound there.
5. **Pools.** kube-scheduler binds small pods to nodes of Small pools, of no pool, or lent to their namespace.
6. **Consent.** Nobody is evicted unless a claim has recorded the pod as its victim, and an agreement of the pod's
   namespace names the claim's namespace. kube-scheduler preempts nobody.

A pod that was bound by somebody else (`nodeName` set at creation, another scheduler) may go anywhere. It counts like
every other one, except a **stranger**: one that came so to a node that was held, or that had no room for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kwok.history import Change
from kwok.readings import (
    CHOSEN,
    DEFAULT_SCHEDULER,
    HELD,
    OPEN,
    Object,
    Pools,
    allocatable,
    chosen_nodes,
    gang,
    gang_of_claim,
    label,
    node_of,
    phase,
    preview,
    reason,
    shown,
    taints,
    uid,
    waits,
)

_EVICTED = "EvictionByEvictionAPI"


class Invariants:
    """The cluster as it was after each change; `violations` in words, `tally` of what was looked at."""

    def __init__(self, pools: Iterable[Object]) -> None:
        self.pools = Pools(pools)
        self.violations: list[str] = []
        self.tally: Counter[str] = Counter()
        self.strangers: set[str] = set()
        self._pods: dict[str, Object] = {}
        self._nodes: dict[str, Object] = {}
        self._claims: dict[str, Object] = {}
        self._agreements: dict[str, Object] = {}
        self._made_at: dict[str, int] = {}
        self._settled_at: dict[str, int] = {}
        self._given_back: dict[tuple[str, str, str, str], set[str]] = {}
        self._lost_a_member: set[tuple[str, str, str, str]] = set()

    def take(self, changes: Iterable[Change]) -> None:
        """Look at each change; they must come in the order of storing, without gaps."""
        for change in changes:
            found: list[str] = []
            if change.kind == "pods":
                found = self._pod(change)
            elif change.kind == "nodes":
                found = self._node(change)
            elif change.kind == "claims":
                found = self._claim(change)
            elif change.kind == "agreements":
                self._agreements[uid(change.object)] = change.object
                if change.deleted:
                    del self._agreements[uid(change.object)]
            self.tally["changes"] += 1
            self.violations += [f"revision {change.revision}: {text}" for text in found]

    def partly_bound(self) -> list[str]:
        """Gangs that are partly bound now, members that have ended being counted as bound; to be asked at rest only."""
        bound: set[tuple[str, str, str, str]] = set()
        waiting: dict[tuple[str, str, str, str], Object] = {}
        for pod in self._pods.values():
            if self.pools.whole(pod):
                if node_of(pod):
                    bound.add(gang(pod))
                elif waits(pod):
                    waiting[gang(pod)] = pod
        return [
            f"gang {'/'.join(key[:3])} is partly bound: {shown(pod)} waits"
            for key, pod in waiting.items()
            if key in bound and key not in self._lost_a_member
        ]

    def _pod(self, change: Change) -> list[str]:
        pod = change.object
        old = self._pods.get(uid(pod))
        if change.deleted:
            self._pods.pop(uid(pod), None)
            self._lost_a_member.add(gang(pod))
            return []
        self._pods[uid(pod)] = pod
        self._made_at.setdefault(uid(pod), change.revision)
        found = self._evicted(old, pod)
        if node_of(pod) and not (old and node_of(old)):
            found += self._bound(pod, scheduled=old is not None and pod["spec"]["schedulerName"] == DEFAULT_SCHEDULER)
        return found + self._too_many_cards(node_of(pod))

    def _bound(self, pod: Object, *, scheduled: bool) -> list[str]:
        node = self._nodes.get(node_of(pod))
        if node is None or not self.pools.asks(pod)[1]:
            return []
        if not scheduled:
            self.tally["bound by others"] += 1
            if taints(node) or self._too_many_cards(node_of(pod)):
                self.strangers.add(uid(pod))
                self.tally["strangers"] += 1
            return []
        if self.pools.whole(pod):
            self.tally["whole-node pods bound"] += 1
            return self._beside(pod, node) + self._unheld_places(pod, node)
        self.tally["small pods bound"] += 1
        return self._held_against(pod, node) + self._wrong_pool(pod, node)

    def _too_many_cards(self, name: str) -> list[str]:
        node = self._nodes.get(name)
        if node is None:
            return []
        used: Counter[str] = Counter()
        for pod in self.pools.holders(self._pods.values(), name):
            if uid(pod) not in self.strangers:
                resource, number = self.pools.asks(pod)
                used[resource] += number
        return [
            f"node {name} has {allocatable(node, resource)} {resource}, its pods hold {number}"
            for resource, number in used.items()
            if number > allocatable(node, resource)
        ]

    def _beside(self, pod: Object, node: Object) -> list[str]:
        others = [
            shown(one)
            for one in self.pools.holders(self._pods.values(), node_of(pod))
            if uid(one) != uid(pod) and uid(one) not in self.strangers
        ]
        return [f"whole-node pod {shown(pod)} is bound to {shown(node)} beside {', '.join(others)}"] if others else []

    def _unheld_places(self, pod: Object, node: Object) -> list[str]:
        mine = [claim for claim in self._holding(shown(node), OPEN) if gang_of_claim(claim) == gang(pod)]
        if not mine or label(node) != uid(mine[0]):
            if shown(node) in self._given_back.get(gang(pod), ()):
                self.tally["bindings under way"] += 1
                return []
            return [f"whole-node pod {shown(pod)} is bound to {shown(node)}, which is open to no claim of its gang"]
        names = [one["name"] for one in chosen_nodes(mine[0])]
        missing = [name for name in names if name not in self._nodes or taints(self._nodes[name]) != [uid(mine[0])]]
        if missing:
            return [f"{shown(pod)} is bound while its gang's other nodes are not all held: {missing}"]
        return []

    def _held_against(self, pod: Object, node: Object) -> list[str]:
        found = []
        for claim in self._holding(shown(node), HELD):
            settled = self._settled_at.get(uid(claim))
            late = settled is not None and self._made_at[uid(pod)] > settled
            if phase(claim) in OPEN or late:
                found.append(f"small pod {shown(pod)} is bound to {shown(node)}, {phase(claim)} for {shown(claim)}")
            else:
                self.tally["bindings under way"] += 1
        return found

    def _wrong_pool(self, pod: Object, node: Object) -> list[str]:
        namespace = pod["metadata"]["namespace"]
        consents = any(one["metadata"]["namespace"] == namespace for one in self._agreements.values())
        if self.pools.open_to_small(node, consents=consents):
            return []
        return [f"small pod {shown(pod)} is bound to {shown(node)}, which its pool keeps for others"]

    def _evicted(self, old: Object | None, pod: Object) -> list[str]:
        why = _disruption(pod)
        if not why or (old is not None and _disruption(old)):
            return []
        self.tally["evictions"] += 1
        if why != _EVICTED:
            return [f"pod {shown(pod)} was stopped: {why}"]
        recorded = [
            claim["metadata"]["namespace"]
            for claim in self._claims.values()
            if any(victim["uid"] == uid(pod) for victim in claim.get("status", {}).get("victims") or ())
        ]
        allowed = {
            one["namespace"]
            for agreement in self._agreements.values()
            if agreement["metadata"]["namespace"] == pod["metadata"]["namespace"]
            for one in agreement["spec"]["beneficiaries"]
        }
        if not recorded:
            return [f"pod {shown(pod)} was evicted and stands in no claim"]
        if not allowed & set(recorded):
            return [f"pod {shown(pod)} was evicted for {recorded} without consent: it agreed to {sorted(allowed)}"]
        return []

    def _node(self, change: Change) -> list[str]:
        node, name = change.object, change.object["metadata"]["name"]
        if change.deleted:
            self._nodes.pop(name, None)
            return []
        old = self._nodes.get(name)
        self._nodes[name] = node
        found = self._too_many_cards(name)
        for claim in self._holding(name, HELD):
            if uid(claim) not in taints(node):
                found.append(f"node {name} lost its taint while {shown(claim)} is {phase(claim)}")
        if label(node) and label(node) != (label(old) if old else ""):
            opener = self._claims.get(label(node))
            if opener is None or phase(opener) not in OPEN:
                found.append(f"node {name} is opened for a claim that is not Ready: {opener and shown(opener)}")
        return found

    def _claim(self, change: Change) -> list[str]:
        claim, key = change.object, uid(change.object)
        if change.deleted:
            self._claims.pop(key, None)
            return []
        old = self._claims.get(key)
        self._claims[key] = claim
        before = phase(old) if old else "Pending"
        if phase(claim) not in HELD:
            self._settled_at.pop(key, None)
        elif (phase(claim), reason(claim)) != ("Draining", "WaitingForScheduler"):
            self._settled_at.setdefault(key, change.revision)
        if before == "Landing" and reason(claim) == "ProtectedPodOnNode":
            self._given_back[gang_of_claim(claim)] = {one["name"] for one in chosen_nodes(old or {})}
        if preview(claim) or phase(claim) not in CHOSEN:
            return []
        found = []
        for one in chosen_nodes(claim):
            also = [shown(other) for other in self._holding(one["name"], CHOSEN) if uid(other) != key]
            if also:
                found.append(f"node {one['name']} is chosen by {shown(claim)} and by {', '.join(also)}")
            held = self._nodes.get(one["name"])
            if held is None:
                continue
            if phase(claim) in HELD and key not in taints(held):
                found.append(f"{shown(claim)} is {phase(claim)}, but {one['name']} does not carry its taint")
            if phase(claim) == "Ready" and before != "Ready":
                there = self.pools.holders(self._pods.values(), one["name"])
                found += [f"{one['name']} is called empty for {shown(claim)}, {shown(pod)} is there" for pod in there]
        if phase(claim) == "Landing" and before != "Landing":
            self.tally["gangs landing"] += 1
        return found

    def _holding(self, name: str, phases: frozenset[str]) -> list[Object]:
        return [
            claim
            for claim in self._claims.values()
            if phase(claim) in phases and not preview(claim) and any(one["name"] == name for one in chosen_nodes(claim))
        ]


def _disruption(pod: Object) -> str:
    """Why the pod was chosen to be stopped by somebody else than its owner, or an empty text."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((str(one["reason"]) for one in conditions if one["type"] == "DisruptionTarget"), "")
