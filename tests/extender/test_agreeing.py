"""Several replicas agree: the answer follows from what the cluster is, not from how the extender came to know it."""

import asyncio
import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.marks import taint
from fleet.names import CLAIM_KEY
from fleet.objects import Pod
from fleet.resources import Accepts, GangRef, Overflow, Phase
from tests.extender.asgi import Rig
from tests.extender.test_app import by_name, gpu_pod
from tests.fleet.builders import agreement, claim, node, pod, pool

NAMES = [f"n{number}" for number in range(6)]
POOLS = ("small", "big", "lent")
PHASES = (Phase.PENDING, Phase.DRAINING, Phase.READY, Phase.BOUND, Phase.ROLLED_BACK)


@st.composite
def nodes(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from(NAMES))
    held = draw(st.sampled_from((None, None, "uid-w1", "uid-w2")))
    label = {CLAIM_KEY: held} if held and draw(st.booleans()) else {}
    return node(
        name,
        draw(st.sampled_from(POOLS)),
        cards=draw(st.sampled_from((8, 8, 7))),
        taints=(taint(held),) if held else (),
        labels=label,
        cordoned=draw(st.integers(0, 5)) == 0,
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    return pod(
        draw(st.sampled_from([f"p{number}" for number in range(8)])),
        draw(st.integers(1, 8)),
        on=draw(st.sampled_from((None, *NAMES))),
        phase=draw(st.sampled_from(("Pending", "Running", "Succeeded"))),
    )


claims = st.builds(
    lambda number, phase: claim(
        f"w{number}", uid=f"uid-w{number}", gang=GangRef("Gang", f"train-{number}"), phase=phase
    ),
    st.integers(1, 2),
    st.sampled_from(PHASES),
)
pools = st.builds(
    lambda accepts, overflow, name: pool(name, accepts=accepts, overflow=overflow),
    st.sampled_from(list(Accepts)),
    st.sampled_from(list(Overflow)),
    st.sampled_from(POOLS),
)
agreements = st.builds(agreement, st.sampled_from(("a1", "a2")))
things = st.one_of(nodes(), nodes(), pods(), pods(), claims, pools, agreements)
histories = st.lists(st.tuples(things, st.booleans()), min_size=4, max_size=40)
"""What happens to the cluster: each thing is put, and gone again if the flag says so."""


def questions() -> list[tuple[str, dict[str, Any]]]:
    asking = [
        gpu_pod(1),
        gpu_pod(8),
        gpu_pod(1, namespace="team-b"),
        gpu_pod(0),
        gpu_pod(9),
        *(
            gpu_pod(8, namespace="team-b", metadata={"annotations": {"wholenode.io/gang": f"train-{number}"}})
            for number in (1, 2)
        ),
        gpu_pod(2, status={"nominatedNodeName": "n1"}),
    ]
    names = [*NAMES, "unknown"]
    return [
        one
        for pod_ in asking
        for one in (
            ("filter", by_name(names, pod_)),
            ("prioritize", by_name(names, pod_)),
            ("preempt", {"Pod": pod_, "NodeNameToMetaVictims": {name: {"Pods": []} for name in names}}),
        )
    ]


def answers(rig: Rig) -> list[bytes]:
    return [rig.desk.verbs[f"/v1/{verb}"](json.dumps(question).encode())[1] for verb, question in questions()]


def final(history: list[tuple[Any, bool]]) -> list[Any]:
    """What is there at the end."""
    there: dict[tuple[type, str], Any] = {}
    for thing, gone in history:
        key = (type(thing), thing.metadata.uid)
        there[key] = thing
        if gone:
            del there[key]
    return list(there.values())


@given(history=histories, seed=st.integers(0, 2**32))
def test_replicas_that_learned_in_another_order_or_started_later_answer_alike(
    history: list[tuple[Any, bool]], seed: int
) -> None:
    async def play() -> None:
        lived = Rig()
        for thing, gone in history:
            lived.put(thing)
            if seed % 3 == 0:
                answers(lived)  # what is asked in between changes nothing
            if gone:
                lived.remove(thing)
        there = final(history)
        restarted = Rig(*there)
        other = Rig()
        mixed = list(there)
        random.Random(seed).shuffle(mixed)
        other.put(*mixed)
        assert answers(lived) == answers(restarted) == answers(other)

    asyncio.run(play())
