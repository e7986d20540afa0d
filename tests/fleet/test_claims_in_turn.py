"""Claims one after another, in whole lives and on random fleets: who gets what, and who delays whom."""

import random
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import lifecycle
from fleet.actions import LookAt, Timing, WriteStatus
from fleet.lifecycle import decide
from fleet.planning import Choice, choose
from fleet.reasons import Reason
from fleet.resources import ClaimStatus, HeldNode, Phase, Policy, WholeNodeClaim
from fleet.upkeep import Context
from fleet.view import View
from tests.fleet.builders import agreement, claim, members, node, ref, view
from tests.fleet.scenes import EVICT, gang, small
from tests.fleet.simulation import Simulation
from tests.fleet.test_backfill import MARGIN, NOW, RACK, ends, run, statuses


def two_gangs(younger: float | None) -> Simulation:
    """n2 is busy until 300 s; from 1 s on `old` wants both nodes, from 2 s on `new` wants one for so many seconds."""
    scene = Simulation().add(node("n1"), node("n2"), small(1, "n2", notes=run(300)))
    scene.later(300, lambda: scene.end("team-v.n2-0"))
    scene.later(1, lambda: scene.add(gang(2, "old", created=1, notes=EVICT)))
    if younger is not None:
        scene.later(2, lambda: scene.add(gang(1, "new", created=2, notes={**EVICT, **run(younger)})))
    return scene


def test_g08_the_older_gang_starts_when_it_would_have_started_alone() -> None:
    scene = two_gangs(100)
    scene.run(60)
    assert scene.where("new") == ["n1"]
    scene.later(120, lambda: scene.end("team-b.new-0"))
    scene.run(310, until=lambda: len(scene.where("old")) == 2)
    alone = two_gangs(None)
    alone.run(310, until=lambda: len(alone.where("old")) == 2)
    assert scene.where("old") == ["n1", "n2"]
    assert abs(scene.seconds - alone.seconds) < 0.5


def test_g08_a_run_that_is_too_long_waits_for_the_older_gang() -> None:
    scene = two_gangs(290)
    scene.run(310, until=lambda: len(scene.where("old")) == 2)
    assert scene.where("old") == ["n1", "n2"]
    assert scene.where("new") == []


def test_one_that_does_not_start_in_time_gives_the_node_back() -> None:
    scene = two_gangs(200)
    with patch.object(scene, "_schedule"):  # kube-scheduler is gone
        scene.run(3)
        new = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "new")
        scene.run(2 + MARGIN - 1)
        assert scene.claims[new.metadata.uid].status.node_names == "n1"
        scene.run(2 + MARGIN + 2)
    given_back = scene.claims[new.metadata.uid].status
    assert (given_back.phase, given_back.reason, given_back.nodes) == (Phase.BLOCKED, Reason.OLDER_CLAIM, ())
    assert scene.marked() == []


def test_nodes_that_no_older_claim_waits_for_are_not_given_back() -> None:
    scene = Simulation().add(node("n1"), gang(1, "new", notes={**EVICT, **run(200)}))
    scene.run(1).add(gang(1, "younger", created=1))
    with patch.object(scene, "_schedule"):
        scene.run(3 * MARGIN)
    assert scene.marked() == ["n1"]
    assert all(Phase.BLOCKED not in {at_.phase for at_ in one.status.phases} for one in scene.claims.values())


# Random fleets


fleets = st.lists(
    st.tuples(
        st.sampled_from(["free", "free", "agreed", "refused", "ends", "ends", "cordoned"]),
        st.sampled_from(["a", "b"]),  # the node's rack
        st.integers(1, 5),  # hundreds of seconds from now, when it ends or since when it runs
    ),
    min_size=1,
    max_size=7,
)
requests = st.lists(
    st.tuples(
        st.integers(1, 4),  # nodes
        st.sampled_from([Policy.WAIT, Policy.WAIT_THEN_EVICT]),
        st.sampled_from([None, "0s", "100s", "200s", "340s"]),  # expected run
        st.sampled_from([None, None, RACK]),
        st.sampled_from(["0s", "1200s", "1400s"]),  # patience
    ),
    min_size=1,
    max_size=5,
)
Shape = list[tuple[str, str, int]]
Wishes = list[tuple[int, Policy, str | None, str | None, str]]


def cluster(shape: Shape, wishes: Wishes) -> list[Any]:
    made: list[Any] = [agreement()]
    for index, (state, rack, hundreds) in enumerate(shape):
        name = f"n{index}"
        made.append(node(name, labels={RACK: rack}, cordoned=state == "cordoned"))
        if state == "ends":
            made.extend(ends(100 * hundreds, name, ns="team-w"))
        elif state in {"agreed", "refused"}:
            made.extend(small(1, name, ns="team-v" if state == "agreed" else "team-w", started=100 * hundreds))
    for index, (count, policy, length, key, patience) in enumerate(wishes):
        made.extend(members(count, gang=f"g{index}"))
        made.append(
            claim(
                f"c{index}",
                nodes=count,
                gang=ref(f"g{index}"),
                policy=policy,
                run=length,
                topology=key,
                patience=patience,
                created=index,
            )
        )
    return made


def one_pass(objects: Iterable[Any]) -> tuple[dict[str, ClaimStatus], dict[str, Choice]]:
    """The statuses after a pass, and what each claim that looked for nodes was answered."""
    choices: dict[str, Choice] = {}

    def spy(seen: View, one: WholeNodeClaim, *rest: Any, **named: Any) -> Choice:
        choices[one.metadata.name] = choose(seen, one, *rest, **named)
        return choices[one.metadata.name]

    with patch.object(lifecycle, "choose", spy):
        return statuses(view(objects)), choices


def after(objects: list[Any], found: dict[str, ClaimStatus]) -> list[Any]:
    return [
        msgspec.structs.replace(one, status=found[one.metadata.name]) if isinstance(one, WholeNodeClaim) else one
        for one in objects
    ]


@given(fleets, requests)
def test_no_two_claims_choose_the_same_node_and_all_get_all_or_none(shape: Shape, wishes: Wishes) -> None:
    found, _ = one_pass(cluster(shape, wishes))
    taken = [held.name for one in found.values() for held in one.nodes]
    assert len(taken) == len(set(taken)) <= sum(state != "cordoned" for state, _, _ in shape)
    for index, (count, _, _, key, _) in enumerate(wishes):
        nodes = [held.name for held in found[f"c{index}"].nodes]
        assert len(nodes) in {0, count}
        if key:
            assert len({shape[int(name[1:])][1] for name in nodes}) <= 1


@given(fleets, requests, requests)
def test_no_older_claim_is_expected_to_start_later_for_younger_ones(
    shape: Shape, older: Wishes, younger: Wishes
) -> None:
    """The older claims come to rest, the younger ones come and take what they may, the older ones look again."""
    objects = cluster(shape, [*older, *younger])
    late = {f"c{index}" for index in range(len(older), len(older) + len(younger))}
    rest = [one for one in objects if not (isinstance(one, WholeNodeClaim) and one.metadata.name in late)]
    before: dict[str, Choice] = {}
    for _ in range(len(older) + 2):
        found, before = one_pass(rest)
        rest = after(rest, found)
    joined = [*rest, *(one for one in objects if isinstance(one, WholeNodeClaim) and one.metadata.name in late)]
    for _ in range(2):
        found, now = one_pass(joined)
        joined = after(joined, found)
    for name, choice in before.items():
        start, later = choice.start_at, now[name].start_at
        assert start is None or (later is not None and later <= start)


@given(fleets, requests)
def test_whoever_goes_ahead_is_done_when_the_older_could_start(shape: Shape, wishes: Wishes) -> None:
    """Of all nodes a younger claim takes, those an older one waits for are back by then: worked out from outside."""
    found, choices = one_pass(cluster(shape, wishes))
    for older in range(len(wishes)):
        for younger in range(older + 1, len(wishes)):
            lent = {one.name for one in found[f"c{younger}"].nodes} & set(choices[f"c{older}"].wanted)
            if lent:
                length, start = wishes[younger][2], choices[f"c{older}"].start_at
                assert length is not None
                assert start is not None
                assert (start - NOW).total_seconds() >= MARGIN + int(length[:-1])


@given(fleets, requests, st.randoms(use_true_random=False))
def test_a_pass_does_not_depend_on_the_order_of_anything(shape: Shape, wishes: Wishes, chance: random.Random) -> None:
    objects = cluster(shape, wishes)
    first = one_pass(objects)
    chance.shuffle(objects)
    assert one_pass(objects) == first


def asks_and_breaks(context: Context, one: WholeNodeClaim, *_: Any) -> None:
    context.decision.actions.append(LookAt("n1"))
    context.decision.wake(NOW)
    raise KeyError(one.metadata.name)


def test_a_claim_that_cannot_be_decided_stops_no_other_and_keeps_its_nodes() -> None:
    """Half of what it wanted is not done, the gang has no second claim, and the younger claim takes another node."""
    held = HeldNode("n1", "node-n1", NOW, NOW)
    broken = claim("old", phase=Phase.CORDONING, held=[held], created=1, gang=ref("one"))
    other = claim("new", created=2, gang=ref("two"))
    seen = view(node("n1"), node("n2"), members(1, gang="one"), members(1, gang="two"), broken, other)
    with patch.object(lifecycle, "upkeep", asks_and_breaks):
        decision = decide(seen, {}, {}, NOW, Timing())
    assert {uid: repr(error) for uid, error in decision.failed.items()} == {broken.metadata.uid: "KeyError('old')"}
    (planned,) = decision.actions
    assert isinstance(planned, WriteStatus)
    assert (planned.claim, planned.status.node_names) == (other, "n2")
    assert decision.wake_at != NOW, "it does not keep the loop awake either"
    assert not decide(seen, {}, {}, NOW, Timing()).failed


STEPS = {
    "resolutions": "outcomes of records",
    "strays": "strays",
    "new_claims": "new claims",
    "check_actions": "admission checks",
    "resumptions": "resumptions",
}


@pytest.mark.parametrize("function", STEPS)
def test_a_step_that_is_for_no_claim_stops_none_when_it_breaks(function: str) -> None:
    waiting = claim("one", gang=ref("one"))
    seen = view(node("n1"), members(1, gang="one"), waiting)

    def breaks(*_: Any) -> Any:
        yield LookAt("half of it")
        raise KeyError(function)

    def raises(*_: Any) -> Any:
        raise KeyError(function)

    with patch.object(lifecycle, function, raises if function == "strays" else breaks):
        decision = decide(seen, {}, {}, NOW, Timing())
    assert {what: repr(error) for what, error in decision.failed.items()} == {
        STEPS[function]: f"KeyError('{function}')"
    }
    (planned,) = decision.actions
    assert isinstance(planned, WriteStatus)
    assert planned.status.node_names == "n1"


def test_a_waiting_claim_that_cannot_be_decided_lets_the_younger_one_take_the_node() -> None:
    broken, other = claim("old", created=1, gang=ref("one")), claim("new", created=2, gang=ref("two"))
    seen = view(node("n1"), members(1, gang="one"), members(1, gang="two"), broken, other)
    found = lifecycle.choose

    def breaks(view_: View, one: WholeNodeClaim, *rest: Any, **more: Any) -> Choice:
        if one is broken:
            raise ZeroDivisionError
        return found(view_, one, *rest, **more)

    with patch.object(lifecycle, "choose", breaks):
        decision = decide(seen, {}, {}, NOW, Timing())
    assert (set(decision.failed), set(decision.choices)) == ({broken.metadata.uid}, {other.metadata.uid})
    (planned,) = decision.actions
    assert isinstance(planned, WriteStatus)
    assert (planned.claim, planned.status.node_names) == (other, "n1")
