"""What a plan shows: the controller's own decision, every node with its reason, and nothing changed."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.actions import Timing, WriteStatus
from fleet.errors import AskError
from fleet.lifecycle import decide
from fleet.marks import taint
from fleet.objects import Toleration
from fleet.preview import Course, Preview, preview
from fleet.resources import Accepts, Drain, HeldNode, Phase, Policy
from fleet.view import View
from fleet.wishes import Asked, Wish, made_up, of_pod
from tests.fleet.builders import T0, agreement, at, claim, members, node, owned, pod, pool, view

NOW = at(600)
TIMING = Timing()


def for_gang(seen: View, **wish: Any) -> Preview:
    return preview(made_up(seen, Wish("team-b", **wish), NOW), NOW, TIMING)


def for_pod(seen: View, name: str = "train-0") -> Preview:
    return preview(of_pod(seen, "team-b", name, NOW), NOW, TIMING)


def reasons(course: Course | None) -> dict[str, str]:
    assert course is not None
    return {one.node: one.reason for one in course.others}


def busy(count: int, *, ns: str = "team-v", first: int = 0, **more: Any) -> list[Any]:
    """Nodes n0, n1, ... with one pod each."""
    numbers = range(first, first + count)
    return [[node(f"n{index}"), pod(f"p{index}", on=f"n{index}", ns=ns, **more)] for index in numbers]


def test_free_nodes_are_taken_and_then_it_makes_no_difference_whether_others_may_be_stopped() -> None:
    found = for_gang(view(node("free"), busy(2), agreement()))
    assert found.now is not None
    assert (found.now.takes, found.now.nodes, found.now.teams, found.if_allowed) == (True, ("free",), (), None)
    assert reasons(found.now) == {"n0": "CostsMore", "n1": "CostsMore"}


def test_a_gang_that_waits_shows_what_it_would_do_if_it_might_stop_others() -> None:
    found = for_gang(view(busy(3), agreement()), nodes=2)
    assert found.now is not None
    assert found.if_allowed is not None
    assert (found.now.takes, found.now.reason) == (False, "WaitingForNaturalEnd")
    assert (found.if_allowed.takes, found.if_allowed.nodes) == (True, ("n0", "n1"))
    (team,) = found.if_allowed.teams
    assert (team.namespace, team.agreement, team.pods, team.gangs, team.lost_gpu_seconds) == (
        "team-v",
        "yes",
        2,
        2,
        1200.0,
    )
    assert found.if_allowed.plan.lost_gpu_seconds == 1200.0
    (next_best,) = found.if_allowed.next_best
    assert (next_best.node, next_best.victims, next_best.more) == ("n2", 1, 0.0)


def test_patience_that_is_not_over_is_shown_and_left_aside() -> None:
    found = for_gang(view(busy(1), agreement()), policy=Policy.WAIT_THEN_EVICT, patience="1h")
    assert found.now is not None
    assert (found.now.reason, found.now.wake_at) == ("PatienceNotOver", NOW + timedelta(hours=1))
    assert found.if_allowed is not None
    assert found.if_allowed.takes


def test_what_agreements_ask_still_counts_when_the_claims_own_patience_is_left_aside() -> None:
    found = for_gang(view(busy(1), agreement(patience="30m")))
    assert found.if_allowed is not None
    assert (found.if_allowed.takes, found.if_allowed.reason) == (False, "AgreementNotYet")
    (one,) = found.if_allowed.others or (None,)
    assert one is None or one.from_ == NOW + timedelta(minutes=30)


def test_every_reason_against_a_node_is_told_beside_it() -> None:
    seen = view(
        pool(),
        pool("still", drain=Drain.DISABLED),
        pool("small", accepts=Accepts.SMALL),
        node("a-free"),
        node("cordoned", cordoned=True),
        node("still-0", "still"),
        pod("s", on="still-0"),
        node("small-0", "small"),
        node("lost", ""),
        [node("n5"), pod("p5", on="n5", ns="team-w")],
        [node("n6"), pod("p6", on="n6", owner=owned("DaemonSet", "d"))],
        [node("n7"), pod("p7", on="n7")],
        agreement(),
    )
    found = for_gang(seen)
    assert reasons(found.now) == {
        "cordoned": "Cordoned",
        "still-0": "DrainDisabled",
        "small-0": "InAnotherPool",
        "lost": "InNoPool",
        "n5": "AgreementMissing",
        "n6": "UnevictablePod",
        "n7": "CostsMore",
    }
    told = {one.node: one.detail for one in found.now.others} if found.now else {}
    assert told["n5"] == "would have to agree: team-w"
    assert told["small-0"] == "pool small"
    assert found.now is not None
    assert found.now.consent_missing == (("team-w", 1),)


def test_older_claims_have_their_turn_first() -> None:
    """The made-up gang is the youngest: what older ones take or wait for is not there for it."""
    seen = view(node("n0"), node("n1"), members(1), claim())
    found = for_gang(seen)
    assert found.now is not None
    assert (found.now.nodes, reasons(found.now)) == (("n1",), {"n0": "HeldForAnotherClaim"})


def test_a_pod_whose_claim_has_nodes_shows_what_the_claim_does() -> None:
    held = claim(phase=Phase.DRAINING, held=[HeldNode("n0", "node-n0", T0)], reason="StoppingVictims")
    tainted = node("n0", taints=(taint(held.metadata.uid),))
    found = for_pod(view(tainted, pod("p0", on="n0"), members(1), held, agreement()))
    assert (found.now, found.if_allowed, found.exists) == (None, None, True)
    assert (found.status.phase, [one.name for one in found.status.nodes]) == (Phase.DRAINING, ["n0"])


def test_a_pod_with_a_waiting_claim_is_planned_for_by_it() -> None:
    seen = view(busy(1), members(1), claim(policy=Policy.WAIT), agreement())
    found = for_pod(seen)
    assert found.exists
    assert found.now is not None
    assert found.now.reason == "WaitingForNaturalEnd"


def test_a_pod_without_a_claim_is_planned_for_by_the_one_it_would_get() -> None:
    notes = {"wholenode.io/policy": "WaitThenEvict"}
    found = for_pod(view(busy(1), members(1, notes=notes), agreement()))
    assert (found.exists, found.claim.spec.policy) == (False, Policy.WAIT_THEN_EVICT)
    assert found.now is not None
    assert (found.now.takes, found.now.nodes, found.if_allowed) == (True, ("n0",), None)


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([], "there is no pod team-b/train-0"),
        ([pod("train-0", 1, ns="team-b")], "less than a node"),
        ([pod("train-0", 0, ns="team-b")], "no GPU cards"),
        ([pod("train-0", 8, ns="team-b", phase="Succeeded")], "has ended"),
        ([pod("train-0", 8, ns="team-b", going=5)], "being deleted"),
        (members(1, on="n9"), "has its node"),
    ],
)
def test_a_pod_that_waits_for_no_whole_node_has_no_plan(pods: list[Any], words: str) -> None:
    with pytest.raises(AskError, match=words):
        of_pod(view(node("n9"), pods), "team-b", "train-0", NOW)


def test_a_pod_that_can_never_fit_is_told_so() -> None:
    found = for_pod(view(node("n9"), pod("train-0", 9, ns="team-b")))
    assert found.now is not None
    assert (found.now.takes, found.now.reason) == (False, "NoPoolFits")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"pool": "none"}, "no pool none that accepts WholeNode .those that do: big"),
        ({"cards": 4}, "no pool that accepts WholeNode has nodes of 4 cards .pools and cards: big 8"),
        ({"pool": "small"}, "no pool small"),
    ],
)
def test_a_gang_for_which_there_is_no_pool_is_an_error(wish: dict[str, Any], words: str) -> None:
    seen = view(pool(), pool("small", accepts=Accepts.SMALL))
    with pytest.raises(AskError, match=words):
        made_up(seen, Wish("team-b", **wish), NOW)


def test_a_made_up_gang_tolerates_what_gpu_pods_tolerate_and_nothing_undoes_a_cordon() -> None:
    asked = made_up(view(node("n0")), Wish("team-b"), NOW)
    (made,) = asked.view.takers(asked.view.gang_of(asked.claim))
    assert made.spec.tolerations == (Toleration(operator="Exists"),)
    assert not preview(made_up(view(node("n0", cordoned=True)), Wish("team-b"), NOW), NOW, TIMING).now.takes  # type: ignore[union-attr]


def test_all_nodes_of_one_domain() -> None:
    racks = [node(f"n{index}", labels={"rack": "ab"[index % 2]}) for index in range(4)]
    found = for_gang(view(racks), nodes=2, topology_key="rack")
    assert found.now is not None
    assert found.now.nodes == ("n0", "n2")
    assert set(reasons(found.now).values()) <= {"OtherTopologyDomain", "NotNeeded"}


FLEETS = st.lists(
    st.tuples(
        st.sampled_from(["big", "small", ""]),
        st.sampled_from(["", "team-v", "team-w", "team-b"]),
        st.booleans(),
        st.integers(0, 500),
    ),
    max_size=7,
)


def fleet_of(rows: Iterable[tuple[str, str, bool, int]]) -> View:
    things: list[Any] = [pool(), pool("small", accepts=Accepts.SMALL), agreement()]
    for index, (where, tenant, cordoned, started) in enumerate(rows):
        things.append(node(f"n{index}", where, cordoned=cordoned))
        if tenant:
            things.append(pod(f"p{index}", 1, on=f"n{index}", ns=tenant, started=started))
    return view(things, members(1), claim(policy=Policy.WAIT))


@settings(deadline=None)
@given(FLEETS, st.integers(1, 3), st.sampled_from(list(Policy)))
def test_each_node_is_chosen_or_has_one_reason_and_the_picture_stays_as_it_was(
    rows: list[tuple[str, str, bool, int]], nodes: int, policy: Policy
) -> None:
    seen, again = fleet_of(rows), fleet_of(rows)
    found = for_gang(seen, nodes=nodes, policy=policy)
    assert seen == again
    assert found == for_gang(again, nodes=nodes, policy=policy)
    for course in filter(None, (found.now, found.if_allowed)):
        told = [one.node for one in course.others]
        assert len(told) == len(set(told))
        if told or course.takes:
            assert sorted([*told, *course.nodes]) == sorted(seen.nodes)
        assert course.plan.victim_count == sum(team.pods for team in course.teams)


@settings(deadline=None)
@given(FLEETS, st.integers(1, 2))
def test_the_plan_is_what_the_controller_does(rows: list[tuple[str, str, bool, int]], nodes: int) -> None:
    """The same claim, really there: its next status has the nodes that the plan showed."""
    asked = made_up(fleet_of(rows), Wish("team-b", nodes, policy=Policy.WAIT_THEN_EVICT), NOW)
    shown = preview(Asked(asked.view, asked.claim, exists=True), NOW, TIMING)
    written = [one for one in decide(asked.view, {}, {}, NOW, TIMING).actions if isinstance(one, WriteStatus)]
    (status,) = [one.status for one in written if one.claim.metadata.uid == asked.claim.metadata.uid]
    assert shown.now is not None
    held = tuple(one.name for one in status.nodes)
    assert (held, status.reason) == (shown.now.nodes if shown.now.takes else (), shown.now.reason)
    assert status.plan == (shown.now.plan if status.plan is not None else None)


def test_another_claims_preview_takes_nothing_from_the_plan() -> None:
    seen = view(node("n0"), claim("p", policy=Policy.PREVIEW))
    found = for_gang(replace(seen))
    assert found.now is not None
    assert found.now.nodes == ("n0",)
