"""What a plan may be asked for: the gang of a pod that is there, or a gang that is only made up."""

from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from fleet.cards import finished, terminating, waiting
from fleet.errors import AskError
from fleet.gangs import Gang
from fleet.marks import ENDED
from fleet.names import EXPECTED_RUN, GANG, GANG_SIZE, KUEUE_QUEUE, PATIENCE, POLICY, TOPOLOGY_KEY
from fleet.naming import claim_name, claim_spec
from fleet.objects import Container, Metadata, Pod, PodSpec, PodStatus, Resources, Toleration
from fleet.requests import RequestClass
from fleet.resources import Accepts, GPUPool, Policy, WholeNodeClaim
from fleet.view import View

_MADE_UP = "made-up"
_MADE_UP_GANG = "made up for a plan"
"""No gang of somebody is called so: it would be taken for the same."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A gang that does not exist: `nodes` pods, each with `cards` cards, or all cards of a node of the pool.

    Durations are Go-style. Without a pool the first that accepts whole nodes of so many cards says what a node has.
    `queue` is the Kueue LocalQueue it would come from.
    """

    namespace: str
    nodes: int = 1
    pool: str | None = None
    cards: int | None = None
    policy: Policy = Policy.WAIT
    patience: str | None = None
    expected_run: str | None = None
    topology_key: str | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One claim to plan for, in a picture that has it. `exists`: it is there, and not thought up for the question."""

    view: View
    claim: WholeNodeClaim
    exists: bool


def made_up(view: View, wish: Wish, now: datetime) -> Asked:
    """The picture with the gang in it, as if it had been submitted at `now`: every other claim is older.

    Its pods tolerate every taint and select no nodes. Raises AskError if no such pool takes whole nodes.
    """
    pool = _pool(view, wish)
    pods = tuple(_member(wish, pool, index, now) for index in range(wish.nodes))
    view = replace(view, pods={**view.pods, **{pod.metadata.uid: pod for pod in pods}})
    gang = view.gangs[view.gang_key_of(pods[0])]
    spec = msgspec.structs.replace(claim_spec(gang, view.takers(gang)), pool=wish.pool)
    claim = WholeNodeClaim(Metadata(_MADE_UP, wish.namespace, _MADE_UP, creation_timestamp=now), spec)
    return Asked(_with(view, claim), claim, exists=False)


def of_pod(view: View, namespace: str, name: str, now: datetime) -> Asked:
    """The claim of the pod's gang; if it has none yet, the one that would be made for it now. Raises AskError."""
    key = f"{namespace}/{name}"
    pod = next((one for one in view.pods.values() if one.key == key), None)
    if pod is None:
        raise AskError(f"there is no pod {key}")
    if finished(pod) or terminating(pod):
        raise AskError(f"pod {key} has ended, or is being deleted: there is nothing to plan for it")
    request = view.requests.get(pod.metadata.uid)
    gang = view.gangs.get(view.gang_key_of(pod))
    if request is None or gang is None:
        raise AskError(f"pod {key} asks for no GPU cards: wholenode plans nothing for it")
    takers = view.takers(gang)
    if not takers and request.request_class is RequestClass.SMALL:
        text = (
            f"pod {key} asks for {request.cards} card(s), less than a node: nodes are planned for whole-node pods only"
        )
        raise AskError(f"{text}; `wholenode why {key}` says where it may go")
    if takers and not any(map(waiting, takers)):
        raise AskError(f"pod {key} waits for no whole node: every member of its gang that takes one has its node")
    claim = _live_claim(view, gang)
    if claim is not None:
        return Asked(view, claim, exists=True)
    earlier = len(view.claims_by_gang.get(gang.key, ()))
    meta = Metadata(claim_name(gang, earlier), namespace, _MADE_UP, creation_timestamp=now)
    claim = WholeNodeClaim(meta, claim_spec(gang, takers))
    return Asked(_with(view, claim), claim, exists=False)


def _live_claim(view: View, gang: Gang) -> WholeNodeClaim | None:
    claims = [one for one in view.claims_by_gang.get(gang.key, ()) if one.status.phase not in ENDED]
    acting = [one for one in claims if one.spec.policy is not Policy.PREVIEW]
    return next(reversed(acting or claims), None)


def _with(view: View, claim: WholeNodeClaim) -> View:
    return replace(view, claims={**view.claims, claim.metadata.uid: claim})


def _pool(view: View, wish: Wish) -> GPUPool:
    whole = sorted(
        (one for one in view.pools if one.spec.accepts is Accepts.WHOLE_NODE), key=lambda one: one.metadata.name
    )
    names = ", ".join(one.metadata.name for one in whole) or "none"
    fitting = [
        one for one in whole if wish.pool in (None, one.metadata.name) and wish.cards in (None, one.spec.cards_per_node)
    ]
    if fitting:
        return fitting[0]
    if wish.pool is not None and all(one.metadata.name != wish.pool for one in whole):
        raise AskError(f"there is no pool {wish.pool} that accepts WholeNode (those that do: {names})")
    sizes = ", ".join(f"{one.metadata.name} {one.spec.cards_per_node}" for one in whole)
    if not whole:
        raise AskError("there is no pool that accepts WholeNode: make a GPUPool for the nodes first")
    raise AskError(f"no pool that accepts WholeNode has nodes of {wish.cards} cards (pools and cards: {sizes})")


def _member(wish: Wish, pool: GPUPool, index: int, now: datetime) -> Pod:
    said = {
        GANG: _MADE_UP_GANG,
        GANG_SIZE: str(wish.nodes),
        POLICY: str(wish.policy),
        PATIENCE: wish.patience,
        EXPECTED_RUN: wish.expected_run,
        TOPOLOGY_KEY: wish.topology_key,
    }
    cards: dict[str, str | int] = {pool.spec.resource_name: str(wish.cards or pool.spec.cards_per_node)}
    name = f"{_MADE_UP}-{index}"
    return Pod(
        Metadata(
            name,
            wish.namespace,
            f"{_MADE_UP}/{index}",
            labels={KUEUE_QUEUE: wish.queue} if wish.queue else None,
            annotations={key: text for key, text in said.items() if text},
            creation_timestamp=now,
        ),
        PodSpec((Container("main", Resources(cards, cards)),), tolerations=(Toleration(operator="Exists"),)),
        PodStatus("Pending"),
    )
