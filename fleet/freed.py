"""A drain that has become needless: enough nodes are free now, and nobody has been stopped yet."""

from collections.abc import Mapping

import msgspec

from fleet.backfill import Ahead
from fleet.booking import accepted, drained_victims
from fleet.cards import terminating
from fleet.fitness import ready
from fleet.marks import tainted_for
from fleet.planning import Choice, choose
from fleet.resources import Phase, Policy, WholeNodeClaim
from fleet.upkeep import Context


def free_instead(context: Context, claim: WholeNodeClaim, reserved: Mapping[str, str], ahead: Ahead) -> Choice | None:
    """Free nodes for the whole claim, to be taken instead of those it drains; None if there are not enough.

    Only while it has others to stop and none of them has been: then the work of those is lost already, and changing
    nodes would only lose time.
    """
    held = {one.name for one in claim.status.nodes}
    if claim.status.phase not in {Phase.CORDONING, Phase.DRAINING} or _begun(context, claim):
        return None
    busy = [name for name in held if any(not terminating(pod) for pod in context.view.gpu_pods_on(name))]
    others = {name: why for name, why in reserved.items() if name not in held}
    if not busy or not _enough(context, len(busy), held, others):
        return None
    waits = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, policy=Policy.WAIT))
    choice = choose(context.view, waits, others, context.now, context.timing.drain_timeout, ahead)
    taken = {one.node.metadata.name for one in choice.taken}
    if not taken or taken == held or any(one.leaving for one in choice.taken):
        return None
    return choice


def _begun(context: Context, claim: WholeNodeClaim) -> bool:
    for victim in drained_victims(claim):
        pod = context.view.pods.get(victim.uid)
        if accepted(context, victim.uid) or pod is None or terminating(pod):
            return True
    return False


def _enough(context: Context, wanted: int, held: set[str], others: Mapping[str, str]) -> bool:
    """Whether so many nodes look free at all: cheaper to find out than a choice."""
    view = context.view
    free = (
        name
        for name, node in view.nodes.items()
        if name not in held
        and name not in others
        and name in view.membership.by_node
        and tainted_for(node) is None
        and ready(node)
        and not view.gpu_pods_on(name)
    )
    return sum(1 for _ in free) >= wanted
