"""Whole lives of claims in the simulated cluster: from a waiting gang to bound, one claim and many."""

from fleet.actions import Clear, CreateClaim, Evict, Hold, LookAt, Open, Steer, WriteStatus
from fleet.names import POLICY
from fleet.objects import Toleration
from fleet.reasons import Reason
from fleet.resources import Phase, Policy
from tests.fleet.builders import agreement, at, claim, members, node, pod, ref
from tests.fleet.scenes import EVICT, GATED, all_bound, busy, gang, in_phase, small
from tests.fleet.simulation import Simulation

FULL_LIFE = ["Planned", "Cordoning", "Draining", "ProvingEmpty", "Ready", "Landing", "Bound"]


def test_a_gang_gets_the_node_that_costs_least_and_its_victims_keep_their_grace() -> None:
    scene = Simulation().add(
        node("n1"),
        small(5, "n1", started=-100),
        node("n2"),
        small(3, "n2", grace=4, started=-100),
        agreement(),
        gang(deadline="5m"),
    )
    scene.run(60, until=lambda: all_bound(scene))
    made = scene.the_claim()
    assert scene.phases() == FULL_LIFE
    assert scene.where("train") == ["n2"]
    assert scene.evicted() == ["n2-0", "n2-1", "n2-2"]
    assert made.status.node_names == "n2"
    stopped_at = made.status.victims[0].evicted_at
    assert stopped_at is not None
    running_seconds = (stopped_at - at(-100)).total_seconds()
    assert made.status.lost_gpu_seconds == round(3 * running_seconds, 3), "3 cards, from the start of each pod"
    assert [one.cards for one in made.status.victims] == [1, 1, 1]
    assert {one.agreement for one in made.status.victims} == {"yes"}
    gone_at = max(one.at for one in scene.evictions)
    proved = made.status.nodes[0].proved_empty_at
    assert proved is not None
    assert (proved - gone_at).total_seconds() >= 4, "not before the grace of 4 s is over"
    scene.go_on(2)
    assert scene.marked() == [], "taint and label are gone"
    assert scene.where("n1-") == ["n1"] * 5, "the other node is left alone"
    assert len(scene.claims) == 1, "no second claim for a gang that is bound"


def test_steps_come_in_the_order_that_keeps_others_out() -> None:
    scene = busy(["n1"]).add(gang())
    scene.run(60, until=lambda: all_bound(scene))
    kinds = [type(one) for one in scene.done]
    first_evict, first_hold = kinds.index(Evict), kinds.index(Hold)
    first_open, first_steer = kinds.index(Open), kinds.index(Steer)
    assert first_hold < first_evict < first_open < first_steer
    planned = next(
        index
        for index, one in enumerate(scene.done)
        if isinstance(one, WriteStatus) and one.status.phase is Phase.PLANNED
    )
    recorded = next(
        index for index, one in enumerate(scene.done) if isinstance(one, WriteStatus) and one.status.victims
    )
    assert planned < first_hold, "the intent is persisted before the taint"
    assert recorded < first_evict, "victims are persisted before they are stopped"
    assert LookAt in kinds[first_hold:first_evict], "eligibility is checked on a fresh list after the taint"


def test_the_gap_after_the_last_victim_is_a_moment() -> None:
    scene = busy(["n1"], each=8).add(gang())
    scene.run(60, until=lambda: all_bound(scene))
    gone = max(one.at for one in scene.evictions)
    assert (scene.now - gone).total_seconds() < 3 + 0.25, "grace of 3 s and a quarter second"


def test_free_nodes_are_taken_at_once_and_nobody_is_stopped() -> None:
    scene = busy(["n1", "n2"]).add(node("n3"), gang())
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n3"]
    assert scene.evictions == []
    assert scene.the_claim().status.lost_gpu_seconds == 0


def test_a_gang_of_three_lands_whole() -> None:
    scene = busy(["n1", "n2", "n3", "n4"], each=2).add(gang(3))
    scene.run(60, until=lambda: all_bound(scene))
    assert len(set(scene.where("train"))) == 3
    assert len(scene.evictions) == 6
    scene.go_on(2)
    assert scene.marked() == []


def test_g02_of_an_incomplete_gang_nothing_is_placed_and_nothing_drained() -> None:
    scene = busy(["n1", "n2", "n3", "n4"]).add(gang(4)[:3])
    scene.run(30)
    assert scene.evictions == []
    assert scene.marked() == []
    made = scene.the_claim()
    assert (made.status.phase, made.status.reason) == (Phase.PENDING, Reason.GANG_INCOMPLETE)
    assert "3 of 4" in made.status.message


def test_g05_a_foreign_gate_on_one_member_keeps_every_node_closed() -> None:
    waiting = gang(2)
    gated = gang(2, gates=(*GATED, "kueue.x-k8s.io/admission"))[1]
    scene = busy(["n1", "n2"]).add(waiting[0], gated)
    scene.run(30)
    assert scene.the_claim().status.reason == Reason.FOREIGN_GATE
    assert scene.evictions == []


def test_g06_two_nodes_empty_the_third_never() -> None:
    scene = busy(["n1", "n2"]).add(node("n3"), gang(3, deadline="60s"))
    scene.add(small(1, "n3", finalizers=("example.com/stuck",)))
    started: list[str] = []
    scene.run(59, until=lambda: started.extend(scene.where("train")))
    scene.run(62)
    assert started == []
    assert scene.where("train") == []
    assert scene.the_claim().status.phase is Phase.FAILED
    assert scene.the_claim().status.reason == Reason.DEADLINE
    assert scene.marked() == []


def test_g07_small_pods_pouring_in_land_on_no_held_node() -> None:
    """Every other one tolerates all taints: only the filter keeps those out. Who came before the taint is a victim."""
    scene = busy(["n1", "n2"], each=1).add(node("n3"), small(1, "n3", grace=20), gang(3))
    everything = (Toleration(operator="Exists"),)
    for index in range(40):
        drop = pod(f"rain-{index}", created=index * 0.7, tolerations=everything if index % 2 else ())
        scene.later(index * 0.7, lambda drop=drop: scene.add(drop))
    bound: set[str] = set()
    held: list[str] = []
    empty_while_n3_drains: set[str] = set()

    def none_landed_on_a_held_node() -> bool:
        """Called after every action of the controller and at the end of every step."""
        rain = [one for one in scene.pods.values() if one.metadata.name.startswith("rain-") and one.spec.node_name]
        assert [one.metadata.name for one in rain if one.metadata.uid not in bound and one.spec.node_name in held] == []
        bound.update(one.metadata.uid for one in rain)
        held[:] = scene.marked()
        if held and scene.card_holders("n3"):
            empty_while_n3_drains.update(name for name in ("n1", "n2") if not scene.card_holders(name))
        return all_bound(scene)

    scene.after = lambda _: none_landed_on_a_held_node()
    scene.run(40, until=none_landed_on_a_held_node)
    assert empty_while_n3_drains == {"n1", "n2"}
    assert sorted(scene.where("train")) == ["n1", "n2", "n3"]
    assert all(scene.card_holders(name)[0].metadata.name.startswith("train") for name in ("n1", "n2", "n3"))


def test_claims_of_several_gangs_never_share_a_node() -> None:
    scene = busy(["n1", "n2", "n3", "n4", "n5"], each=2)
    for index in range(4):
        scene.later(index * 0.3, lambda index=index: scene.add(gang(1, f"g{index}", created=index * 0.3)))
    scene.run(60, until=lambda: len(scene.claims) == 4 and all_bound(scene))
    assert len({scene.where(f"g{index}")[0] for index in range(4)}) == 4
    assert len(scene.evictions) == 8


def test_two_gangs_of_three_and_four_nodes_one_gets_all_and_the_other_none() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(4)], gang(3, "a"), gang(3, "b", created=1))
    scene.run(20)
    assert len(scene.where("a")) == 3
    assert scene.where("b") == []
    other = next(one for one in scene.claims.values() if one.spec.gang and one.spec.gang.name == "b")
    assert other.status.phase is Phase.PENDING
    assert other.status.nodes == ()


def test_without_an_agreement_nobody_is_ever_stopped_and_the_owners_are_named() -> None:
    scene = Simulation().add(node("n1"), small(2, "n1"), node("n2"), small(1, "n2", ns="team-w"), gang())
    scene.run(60)
    made = scene.the_claim()
    assert scene.eviction_calls == []
    assert scene.marked() == []
    assert (made.status.phase, made.status.reason) == (Phase.PENDING, Reason.AGREEMENT_MISSING)
    assert "would have to consent: team-v, team-w" in made.status.message
    assert made.status.plan is not None
    assert made.status.plan.consent_missing == ("team-v", "team-w")


def test_policy_wait_stops_nobody_and_takes_the_node_when_it_empties() -> None:
    scene = busy(["n1"], each=2).add(gang(notes={POLICY: "Wait"}))
    scene.later(10, lambda: scene.end("team-v.n1-0"))
    scene.later(12, lambda: scene.end("team-v.n1-1"))
    scene.run(11)
    assert scene.the_claim().status.reason == Reason.POLICY_WAIT
    scene.run(30, until=lambda: all_bound(scene))
    assert scene.eviction_calls == []
    assert scene.where("train") == ["n1"]


def test_policy_wait_stops_nobody_even_if_a_pod_slips_in() -> None:
    scene = Simulation().add(node("n1"), agreement(), gang(notes={POLICY: "Wait"}))
    late = pod("late", created=0.1)
    scene.later(0.5, lambda: scene.bind(late, "n1"))
    scene.run(15)
    assert scene.eviction_calls == []
    assert scene.the_claim().status.phase in {Phase.BLOCKED, Phase.PENDING}
    assert scene.marked() == []


def test_nobody_is_stopped_before_the_claims_patience_is_over() -> None:
    scene = busy(["n1"]).add(gang(patience="20s"))
    scene.run(19)
    assert scene.the_claim().status.reason == Reason.PATIENCE
    assert scene.eviction_calls == []
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.evictions[0].at >= at(20)


def test_a_preview_writes_nothing_but_its_status() -> None:
    scene = busy(["n1", "n2"]).add(members(1), claim(policy=Policy.PREVIEW, gang=ref()))
    scene.claims["uid-team-b-c"]  # made by hand; the gang itself gets a claim of its own with policy Wait
    scene.run(20)
    preview = scene.claims["uid-team-b-c"]
    assert (preview.status.phase, preview.status.reason) == (Phase.PLANNED, Reason.PREVIEW)
    assert preview.status.plan is not None
    assert [one.name for one in preview.status.plan.victims] == ["n1-0", "n1-1", "n1-2"]
    assert {type(one) for one in scene.done} == {WriteStatus, CreateClaim}
    assert scene.eviction_calls == []
    assert scene.marked() == []


def test_a_gang_that_only_asks_for_a_preview_gets_one_claim() -> None:
    scene = busy(["n1"]).add(gang(notes={POLICY: "Preview"}))
    scene.run(10)
    assert len(scene.claims) == 1
    assert {type(one) for one in scene.done} == {WriteStatus, CreateClaim}


def test_a_recreated_member_gets_a_node_of_its_own() -> None:
    scene = Simulation().add([node(f"n{index}") for index in range(4)], agreement(), gang(3))
    scene.run(20, until=lambda: all_bound(scene))
    scene.delete("team-b.train-1")
    scene.add(gang(3, created=21)[1])
    again = scene.pods["team-b.train-1"]
    scene.pods.pop("team-b.train-1")
    scene.add(
        again.__class__(
            again.metadata.__class__(
                "train-1b",
                "team-b",
                uid="team-b.train-1b",
                annotations=again.metadata.annotations,
                creation_timestamp=at(21),
            ),
            again.spec,
            again.status,
        )
    )
    scene.run(60, until=lambda: in_phase(scene, Phase.RELEASED) and in_phase(scene, Phase.BOUND))
    assert len(set(scene.where("train"))) == 3
    latest = max(scene.claims.values(), key=lambda one: one.metadata.name)
    assert latest.spec.nodes == 1
    assert scene.evictions == []


def test_a_bound_claim_is_released_when_its_gang_ends() -> None:
    scene = Simulation().add(node("n1"), gang())
    scene.run(20, until=lambda: all_bound(scene))
    scene.end("team-b.train-0")
    scene.run(30)
    assert scene.the_claim().status.phase is Phase.RELEASED
    assert scene.the_claim().status.reason == Reason.GANG_ENDED


def test_clearing_is_the_last_thing_done_to_a_node() -> None:
    scene = busy(["n1"]).add(gang())
    scene.run(60, until=lambda: all_bound(scene))
    scene.go_on(5)
    node_writes = [one for one in scene.done if isinstance(one, Hold | Open | Clear)]
    assert [type(one) for one in node_writes] == [Hold, Open, Clear]


def test_the_policy_of_the_gang_is_that_of_its_claim() -> None:
    scene = busy(["n1"]).add(gang(notes={**EVICT, "wholenode.io/patience": "1h", "wholenode.io/deadline": "2h"}))
    scene.run(1)
    spec = scene.the_claim().spec
    assert (spec.nodes, spec.policy, spec.patience, spec.deadline) == (1, Policy.WAIT_THEN_EVICT, "1h", "2h")
