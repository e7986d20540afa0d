"""Choosing nodes: free ones first, then the least harm, all or none, and a reason where nothing is chosen."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.actions import Decision, Evict, Hold, Timing, WriteStatus
from fleet.lifecycle import decide
from fleet.names import EXPECTED_RUN
from fleet.objects import Pod
from fleet.planning import Choice, choose
from fleet.reasons import Reason
from fleet.resources import Drain, Phase, Policy, WholeNodeClaim
from fleet.view import View
from tests.fleet.builders import agreement, at, claim, container, job, members, node, owned, pod, pool, ref, view
from tests.fleet.scenes import small

NOW = at(1000)


def chosen(seen: View, one: WholeNodeClaim, **reserved: str) -> Choice:
    return choose(seen, one, reserved, NOW)


def taken(seen: View, one: WholeNodeClaim, **reserved: str) -> list[str]:
    return [candidate.node.metadata.name for candidate in chosen(seen, one, **reserved).taken]


def after(seen: View) -> dict[str, WriteStatus]:
    """What one pass writes, by claim name."""
    decision: Decision = decide(seen, {}, {}, NOW, Timing())
    return {one.claim.metadata.name: one for one in decision.actions if isinstance(one, WriteStatus)}


def test_free_nodes_come_first_by_name() -> None:
    seen = view(node("n3"), node("n2"), node("n1"), small(1, "n1"), agreement(), members(1))
    found = chosen(seen, claim())
    assert [one.node.metadata.name for one in found.taken] == ["n2"]
    assert found.plan is not None
    assert (found.reason, found.plan.victims, found.plan.lost_gpu_seconds) == (Reason.PLANNED, (), 0)


def test_a_node_that_empties_anyway_comes_after_free_ones_and_before_victims() -> None:
    leaving = pod("going", 8, on="n1", ns="team-w", going=1010)
    busy = [node("n1"), leaving, node("n2"), small(1, "n2"), agreement(), members(1)]
    assert taken(view(busy), claim()) == ["n1"]
    assert taken(view(busy, node("n3")), claim()) == ["n3"]
    assert taken(view(busy), claim(policy=Policy.WAIT)) == ["n1"], "nobody needs to be stopped for it"


def test_the_least_harm_is_priority_then_cost_then_victims_then_name() -> None:
    def harm(*pods: Pod) -> list[str]:
        names = sorted({one.spec.node_name or "" for one in pods})
        return taken(view([node(name) for name in names], list(pods), agreement(max_priority=9), members(1)), claim())

    cheap, dear = pod("a", on="n2", started=990), pod("b", on="n1", started=0)
    assert harm(cheap, dear) == ["n2"]
    assert harm(pod("a", on="n2", started=990, priority=5), dear) == ["n1"], "a lower priority outweighs any cost"
    one, two = pod("a", 2, on="n2", started=900), small(2, "n1", started=900, grace=5)
    assert harm(one, *two) == ["n2"], "the same cost, fewer victims"
    assert harm(pod("a", on="n2", started=900), pod("b", on="n1", started=900)) == ["n1"], "by name at last"


def test_d41_the_gang_of_a_victim_counts_whole() -> None:
    gang = [
        pod("g-0", 8, on="n1", gang="g", size=2, started=900),
        pod("g-1", 8, on="n9", gang="g", size=2, started=900),
    ]
    young = small(7, "n2", started=940)
    seen = view(node("n1"), node("n2"), node("n9", "other"), gang, young, agreement(), members(1))
    found = chosen(seen, claim())
    assert [one.node.metadata.name for one in found.taken] == ["n2"]
    assert found.plan is not None
    assert found.plan.lost_gpu_seconds == 7 * 60
    assert [(one.node, one.lost_gpu_seconds) for one in found.plan.runners_up] == [("n1", 16 * 100)]


def test_a_gang_with_two_pods_on_a_node_costs_once() -> None:
    pair = [pod(f"g-{index}", on="n1", gang="g", size=2, started=900) for index in range(2)]
    single = pod("s", 3, on="n2", started=900)
    assert taken(view(node("n1"), node("n2"), pair, single, agreement(), members(1)), claim()) == ["n1"]


def test_a_gang_hit_on_two_nodes_is_in_the_plan_once() -> None:
    spread = [pod(f"g-{index}", on=f"n{index}", gang="g", size=2, started=900) for index in range(2)]
    found = chosen(view(node("n0"), node("n1"), spread, agreement(), members(2)), claim(nodes=2))
    assert found.plan is not None
    assert found.plan.lost_gpu_seconds == 2 * 100
    assert sorted(one.lost_gpu_seconds for one in found.plan.victims) == [0, 200]


def test_all_nodes_or_none() -> None:
    seen = view(node("n1"), node("n2"), node("n3", cordoned=True), members(3), agreement())
    found = chosen(seen, claim(nodes=3))
    assert found.taken == ()
    assert found.reason is Reason.NO_USABLE_NODE
    assert "2 of 3 may be taken" in found.message
    assert "1 Cordoned" in found.message
    assert taken(view(node("n1"), node("n2"), node("n3"), members(3)), claim(nodes=3)) == ["n1", "n2", "n3"]


def test_free_and_vacated_nodes_are_combined() -> None:
    seen = view(node("n1"), node("n2"), node("n3"), small(2, "n1"), small(1, "n2"), agreement(), members(2))
    assert taken(seen, claim(nodes=2)) == ["n3", "n2"]


@pytest.mark.parametrize(
    ("seen", "one", "reason"),
    [
        (view(node("n1"), members(3)[:2]), claim(nodes=3), Reason.GANG_INCOMPLETE),
        (view(node("n1")), claim(), Reason.GANG_INCOMPLETE),
        (view(node("n1"), members(1, gates=("other/gate",))), claim(), Reason.FOREIGN_GATE),
        (view(node("n1"), pod("x", 9, gang="train", ns="team-b")), claim(), Reason.NO_POOL),
        (view(node("n1"), members(1)), claim(in_pool="none"), Reason.NO_POOL),
        (view(node("n1"), members(2)), claim(nodes=2), Reason.TOO_FEW_NODES),
        (view(node("n1", ready=False), members(1)), claim(), Reason.NO_USABLE_NODE),
        (
            view(pool(drain=Drain.DISABLED), node("n1"), small(1, "n1"), agreement(), members(1)),
            claim(),
            "DrainDisabled",
        ),
        (view(node("n1"), small(1, "n1"), members(1)), claim(), Reason.AGREEMENT_MISSING),
        (view(node("n1"), small(1, "n1", priority=7), agreement(), members(1)), claim(), Reason.AGREEMENT_TERMS),
        (view(node("n1"), small(1, "n1"), agreement(patience="1h"), members(1)), claim(), Reason.AGREEMENT_TIME),
        (view(node("n1"), small(1, "n1"), agreement(), members(1)), claim(policy=Policy.WAIT), Reason.POLICY_WAIT),
        (view(node("n1"), small(1, "n1"), agreement(), members(1)), claim(patience="1h"), Reason.PATIENCE),
        (view(node("n1"), small(1, "n1"), agreement(), members(1)), claim(patience="soon"), Reason.PATIENCE),
    ],
)
def test_every_wait_has_its_reason(seen: View, one: WholeNodeClaim, reason: Reason) -> None:
    found = chosen(seen, one)
    assert (found.taken, found.reason) == ((), reason)
    assert found.message


def test_an_unevictable_pod_rules_its_node_out() -> None:
    for kind in ("DaemonSet", "Node"):
        fixed = pod("x", on="n1", owner=owned(kind, "x"))
        assert chosen(view(node("n1"), fixed, agreement(), members(1)), claim()).reason is Reason.UNEVICTABLE
    mirror = pod("x", on="n1", notes={"kubernetes.io/config.mirror": "abc"})
    assert chosen(view(node("n1"), mirror, agreement(), members(1)), claim()).reason is Reason.UNEVICTABLE


def test_one_pod_without_consent_protects_the_whole_node_and_is_named() -> None:
    mixed = [small(3, "n1"), small(1, "n1", prefix="w", ns="team-w"), small(1, "n1", prefix="x", ns="team-x")]
    found = chosen(view(node("n1"), mixed, agreement(), members(1)), claim())
    assert found.taken == ()
    assert found.plan is not None
    assert found.plan.consent_missing == ("team-w", "team-x")
    assert "would have to consent: team-w, team-x" in found.message
    assert [(one.reason, one.nodes, one.example) for one in found.plan.refused] == [("AgreementMissing", 1, "n1")]


def test_when_only_time_is_missing_it_says_when() -> None:
    waits = chosen(view(node("n1"), small(1, "n1"), agreement(patience="1h"), members(1)), claim())
    assert waits.wake_at == at(3600)
    own = chosen(view(node("n1"), small(1, "n1"), agreement(), members(1)), claim(patience="1h"))
    assert own.wake_at == at(3600)
    young = view(node("n1"), small(1, "n1", started=990), agreement(min_runtime="60s"), members(1))
    assert chosen(young, claim()).wake_at == at(1050)
    both = [*small(1, "n1", started=990), *small(1, "n1", prefix="x", started=970)]
    assert chosen(view(node("n1"), both, agreement(min_runtime="60s"), members(1)), claim()).wake_at == at(1050)


def test_a_natural_end_that_is_declared_is_told() -> None:
    ending = small(1, "n1", started=900, notes={EXPECTED_RUN: "10m"})
    found = chosen(view(node("n1"), ending, members(1)), claim(policy=Policy.WAIT))
    assert found.plan is not None
    assert found.plan.expected_free_at == at(1500)
    assert "2027-01-04T12:25:00" in found.message
    unknown = chosen(view(node("n1"), ending, small(1, "n1", prefix="x"), members(1)), claim(policy=Policy.WAIT))
    assert unknown.plan is not None
    assert unknown.plan.expected_free_at is None
    second = view(node("n1"), node("n2"), ending, small(1, "n2"), members(2))
    one_of_two = chosen(second, claim(nodes=2, policy=Policy.WAIT))
    assert one_of_two.plan is not None
    assert one_of_two.plan.expected_free_at is None, "the other node's end is not known"


@pytest.mark.parametrize("patience", ["0s", "1h"])
def test_policy_wait_never_takes_an_occupied_node(patience: str) -> None:
    seen = view(node("n1"), small(1, "n1"), agreement(), members(1))
    assert taken(seen, claim(policy=Policy.WAIT, patience=patience)) == []


def test_a_preview_shows_the_victims_whatever_its_patience() -> None:
    seen = view(node("n1"), small(2, "n1"), agreement())
    found = chosen(seen, claim(policy=Policy.PREVIEW, gang=ref("nobody"), patience="1h"))
    assert found.plan is not None
    assert found.reason is Reason.PLANNED
    assert [one.name for one in found.plan.victims] == ["n1-0", "n1-1"]


def test_the_pool_of_the_claim_and_the_pool_of_the_node() -> None:
    seen = view(pool("big"), pool("other"), node("n1"), node("n2", "other"), members(1))
    assert taken(seen, claim()) == ["n1"]
    assert taken(seen, claim(in_pool="other")) == ["n2"]
    both = view(pool("big"), pool("twin", labels={"pool": "big"}), node("n1"), members(1))
    found = chosen(both, claim())
    assert (found.taken, found.reason) == ((), Reason.NO_USABLE_NODE)
    assert "1 InSeveralPools" in found.message


def test_p18_a_node_of_no_pool_is_never_taken() -> None:
    assert chosen(view(node("n1", ""), members(1)), claim()).reason is Reason.TOO_FEW_NODES


def test_p10_p11_room_beside_the_cards_counts() -> None:
    wants_cpu = pod("m", containers=(container(8, cpu="64"),), ns="team-b", gang="train", size=1)
    web = pod("web", 0, cpu="100", on="n1")
    found = chosen(view(node("n1"), web, wants_cpu), claim())
    assert (found.taken, found.reason) == ((), Reason.NO_USABLE_NODE)
    assert "1 NotEnoughCPU" in found.message
    victim = pod("v", cpu="100", on="n1")
    assert taken(view(node("n1"), victim, agreement(), wants_cpu), claim()) == ["n1"], "its CPU goes with the victim"
    full = chosen(view(node("n1", pods="1"), pod("web", 0, on="n1"), members(1)), claim())
    assert "1 PodLimitReached" in full.message


def two_claims(free: int, first: int, second: int, second_policy: Policy = Policy.WAIT) -> dict[str, WriteStatus]:
    nodes = [node(f"n{index}") for index in range(5)]
    busy = [small(1, f"n{index}") for index in range(free, 5)]
    old = claim("old", nodes=first, gang=ref("a"), policy=Policy.WAIT)
    new = claim("new", nodes=second, gang=ref("b"), policy=second_policy, created=1)
    pods = [members(first, gang="a"), members(second, gang="b")]
    return after(view(nodes, busy, old, new, pods, agreement()))


def test_g01_the_older_claim_gets_all_and_the_younger_none() -> None:
    found = two_claims(free=4, first=3, second=3)
    assert found["old"].status.phase is Phase.PLANNED
    assert (found["new"].status.phase, found["new"].status.nodes) == (Phase.PENDING, ())


def test_two_claims_that_both_fit_take_different_nodes() -> None:
    found = two_claims(free=5, first=3, second=2)
    assert not set(found["old"].status.node_names.split(",")) & set(found["new"].status.node_names.split(","))
    assert found["new"].status.phase is Phase.PLANNED


def test_g08_a_younger_claim_does_not_take_what_the_older_one_waits_for() -> None:
    found = two_claims(free=1, first=5, second=1)
    assert found["old"].status.phase is found["new"].status.phase is Phase.PENDING
    assert found["new"].status.reason == Reason.OLDER_CLAIM


def test_g08_a_younger_claim_goes_ahead_where_it_delays_nobody() -> None:
    incomplete = view(
        node("n1"),
        node("n2"),
        [claim("old", nodes=2, gang=ref("a")), claim("new", gang=ref("b"), created=1)],
        [members(2, gang="a")[0], members(1, gang="b")],
    )
    assert after(incomplete)["old"].status.reason == Reason.GANG_INCOMPLETE
    assert after(incomplete)["new"].status.phase is Phase.PLANNED, "the older gang is not complete"
    other = two_claims(free=0, first=4, second=1, second_policy=Policy.WAIT_THEN_EVICT)
    assert other["new"].status.node_names == "n4", "the older one waits for n0 to n3"


def test_d43_a_node_of_another_claim_is_not_to_be_had() -> None:
    held = chosen(view(node("n1"), members(1)), claim(), n1="HeldForAnotherClaim")
    assert held.taken == ()
    assert "1 HeldForAnotherClaim" in held.message


def test_an_unchanged_wait_is_not_written_again() -> None:
    seen = view(node("n1"), small(1, "n1"), members(1), claim())
    first = after(seen)["c"].status
    again = view(node("n1"), small(1, "n1"), members(1), claim().__class__(claim().metadata, claim().spec, first))
    assert after(again) == {}


fleets = st.lists(
    st.tuples(
        st.integers(0, 4),  # small pods on the node
        st.sampled_from(["team-v", "team-v", "team-w"]),
        st.integers(0, 3),  # priority
        st.integers(0, 999),  # started
    ),
    min_size=1,
    max_size=6,
)


def fleet(shape: list[tuple[int, str, int, int]], wanted: int) -> list[Any]:
    made: list[Any] = [agreement(max_priority=2), *members(wanted)]
    for index, (count, ns, priority, started) in enumerate(shape):
        made.append(node(f"n{index}"))
        made.extend(small(count, f"n{index}", ns=ns, priority=priority, started=started))
    return made


@given(fleets, st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_anything(
    shape: list[tuple[int, str, int, int]], wanted: int, chance: random.Random
) -> None:
    objects = fleet(shape, wanted)
    one = claim(nodes=wanted)
    first = chosen(view(objects), one)
    chance.shuffle(objects)
    assert chosen(view(objects), one) == first


@given(fleets, st.integers(1, 3), st.sampled_from([{"cordoned": True}, {"ready": False}, {"cards": 7}, {"pool": ""}]))
def test_a_node_that_cannot_be_used_changes_no_choice(
    shape: list[tuple[int, str, int, int]], wanted: int, useless: dict[str, Any]
) -> None:
    objects, one = fleet(shape, wanted), claim(nodes=wanted)
    before, now = chosen(view(objects), one), chosen(view(objects, node("a-useless", **useless)), one)
    assert [each.node.metadata.name for each in now.taken] == [each.node.metadata.name for each in before.taken]
    if now.plan is not None and before.plan is not None:
        assert now.plan.victims == before.plan.victims


@given(fleets, st.integers(1, 3))
def test_no_other_set_of_nodes_would_cost_less(shape: list[tuple[int, str, int, int]], wanted: int) -> None:
    """Against trying all sets: the highest priority stopped, and among the same priorities the loss."""
    found = chosen(view(fleet(shape, wanted)), claim(nodes=wanted))
    usable = [
        (index, priority if count else 0, count * (1000 - started))
        for index, (count, ns, priority, started) in enumerate(shape)
        if not count or (ns == "team-v" and priority <= 2)
    ]
    sets = [(max(one[1] for one in some), some) for some in itertools.combinations(usable, wanted)]
    if not sets:
        assert found.taken == ()
        return
    assert found.plan is not None
    assert len(found.taken) == wanted
    victims = found.plan.victims
    assert max((one.priority for one in victims), default=0) == min(priority for priority, _ in sets)
    if len({one[1] for one in usable}) == 1:
        least = min(sum(one[2] for one in some) for _, some in sets)
        assert found.plan.lost_gpu_seconds == least


@given(fleets, st.integers(1, 3), st.sampled_from(list(Policy)), st.booleans())
def test_one_pass_stops_and_holds_nobody(
    shape: list[tuple[int, str, int, int]], wanted: int, policy: Policy, consented: bool
) -> None:
    objects = [one for one in fleet(shape, wanted) if consented or not hasattr(one.spec, "beneficiaries")]
    decision = decide(view(objects, claim(nodes=wanted, policy=policy)), {}, {}, NOW, Timing())
    assert not [one for one in decision.actions if isinstance(one, Hold | Evict)]
    if not consented or policy is Policy.WAIT:
        for one in decision.actions:
            if isinstance(one, WriteStatus) and one.status.phase is Phase.PLANNED:
                assert one.status.plan is not None
                assert one.status.plan.victims == ()


def test_a_job_of_independent_pods_gets_a_claim_for_each() -> None:
    owner = owned("Job", "sweep", "job-sweep")
    pods = [pod(f"sweep-{index}", 8, ns="team-b", owner=owner) for index in range(3)]
    made = decide(view(pods, job("sweep", parallelism=3, indexed=False)), {}, {}, NOW, Timing()).actions
    assert len(made) == 3


def test_members_that_take_whole_nodes_of_different_kinds_are_told_so_before_anything_is_done() -> None:
    pools = [pool("big"), pool("four", cards=4)]
    two = [pod("t-0", 8, ns="team-b", gang="train", size=2), pod("t-1", 4, ns="team-b", gang="train", size=2)]
    found = choose(view(pools, node("n1"), node("m1", "four", cards=4), two), claim(nodes=2), {}, at(0))
    assert (found.taken, found.wanted, found.reason) == ((), (), Reason.NO_POOL)
    assert "4 nvidia.com/gpu, 8 nvidia.com/gpu" in found.message
