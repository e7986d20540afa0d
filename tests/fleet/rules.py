"""The rules that hold in the simulated cluster whenever the controller is at rest, written apart from the code."""

from datetime import timedelta

from fleet.actions import Timing
from fleet.cards import terminating
from fleet.marks import ENDED, HOLDING, OPEN, labelled_for, tainted_for
from fleet.objects import Pod
from fleet.reasons import Reason
from fleet.resources import Phase, Policy, WholeNodeClaim
from fleet.upkeep import member
from tests.fleet.builders import T0
from tests.fleet.world import World

_SETTLING = Timing().settle_before_proof
_STRANGER_SEEN_WITHIN = timedelta(seconds=1.2)


def check(world: World) -> None:
    """The rules that hold whenever the controller is at rest."""
    holders: dict[str, str] = {}
    for claim in world.claims.values():
        phase = claim.status.phase
        if phase not in ENDED:
            assert claim.status.reason, f"claim {claim.metadata.name} is {phase} without a reason"
        if claim.spec.policy is Policy.PREVIEW or phase not in HOLDING | {Phase.PLANNED}:
            continue
        for held in claim.status.nodes:
            assert held.name not in holders, f"{held.name} belongs to two claims"
            holders[held.name] = claim.metadata.uid
        if phase in OPEN:
            _check_open(world, claim)
    for node in world.nodes.values():
        for mark in (tainted_for(node), labelled_for(node)):
            if mark is not None:
                assert holders.get(node.metadata.name) == mark, f"a mark of {mark} strayed on {node.metadata.name}"


def _check_open(world: World, claim: WholeNodeClaim) -> None:
    """Nothing but the gang is on an open node, unless it slipped in and is being dealt with."""
    recorded = {one.uid for one in claim.status.victims}
    for held in claim.status.nodes:
        assert held.proved_empty_at is not None, f"{held.name} is open without proof"
        assert held.held_at is not None, f"{held.name} is open and was never held"
        assert held.proved_empty_at >= held.held_at + _SETTLING, f"{held.name} was proved empty too early"
        for pod in world.card_holders(held.name):
            fresh = world.now - world.starts.get(pod.metadata.uid, T0) <= _STRANGER_SEEN_WITHIN
            waited_for = claim.status.reason == Reason.PROTECTED_POD and pod.key in claim.status.message
            dealt_with = terminating(pod) or pod.metadata.uid in recorded or fresh or waited_for
            assert member(claim, pod) or dealt_with, f"{pod.key} sits on open node {held.name}"


def agreed(world: World, pod: Pod, claim: WholeNodeClaim) -> bool:
    """Whether an agreement of the simple kind (no selector, no waits) allows it: written apart from the code."""
    return any(
        one.metadata.namespace == pod.metadata.namespace
        and claim.metadata.namespace in {who.namespace for who in one.spec.beneficiaries}
        and (pod.spec.priority or 0) <= one.spec.victims.max_priority
        and (one.spec.expires is None or world.now < one.spec.expires)
        for one in world.agreements
    )
