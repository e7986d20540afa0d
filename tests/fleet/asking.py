"""Asking why a pod waits, and claims as the controller leaves them when they wait."""

from typing import Any

import msgspec

from fleet.objects import Condition, Pod
from fleet.planning import choose
from fleet.resources import Accepts, Overflow, Phase, WholeNodeClaim
from fleet.statuses import enter
from fleet.view import View
from fleet.why.explain import explain
from fleet.why.explanations import Explanation, Told
from tests.fleet.builders import at, claim, pool, view

NOW = at(1000)
NOTHING = Told()
SMALL = pool("small", accepts=Accepts.SMALL)
BIG = pool("big")
KEPT = pool("big", overflow=Overflow.NEVER)


def why(seen: View, name: str = "train-0", told: Told = NOTHING) -> Explanation:
    (found,) = [one for one in seen.pods.values() if one.metadata.name == name]
    return explain(seen, found, told, NOW)


def planned(seen: View, one: WholeNodeClaim, **reserved: str) -> WholeNodeClaim:
    """The claim as the controller leaves it when it waits."""
    choice = choose(seen, one, reserved, NOW)
    assert not choice.taken
    status = enter(one, Phase.PENDING, choice.reason, choice.message, NOW, plan=choice.plan, nodes=())
    return msgspec.structs.replace(one, status=status)


def waiting_claim(*objects: Any, **spec: Any) -> View:
    """A view with a claim for the gang `train` that waits for the reason the controller would give."""
    one = claim(**spec)
    return view(*objects, planned(view(*objects, one), one))


def conditions(one: Pod, *found: Condition) -> Pod:
    return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, conditions=found))


def refused(one: Pod, message: str = "0/2 nodes are available", reason: str = "Unschedulable") -> Pod:
    return conditions(one, Condition("PodScheduled", "False", reason, message, at(5)))
