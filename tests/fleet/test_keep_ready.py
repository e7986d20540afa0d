"""keepReady: a service keeps its ready replicas, whatever is planned for how many claims, and changes since."""

from functools import partial
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.actions import Action, Evict, Look, Timing, WriteStatus
from fleet.fitness import Obstacle
from fleet.lifecycle import decide
from fleet.names import CLAIM_KEY
from fleet.objects import Condition, LabelSelector, Pod, Taint
from fleet.planning import Choice, choose
from fleet.readiness import is_ready
from fleet.reasons import Reason
from fleet.resources import HeldNode, Phase, Victim
from tests.fleet.builders import agreement, at, claim, members, node, owned, pod, ref, view
from tests.fleet.scenes import EVICT, gang, small
from tests.fleet.simulation import Simulation
from tests.fleet.world import replace


def replica(name: str, on: str | None = None, service: str = "web", **more: Any) -> Pod:
    """A one-card replica of a service; ready unless said otherwise."""
    return pod(name, on=on, **{"owner": owned("ReplicaSet", service), "ready": True, **more})


def chosen(*objects: Any, nodes: int = 1, reserved: dict[str, str] | None = None) -> Choice:
    """What a gang of so many whole-node pods gets."""
    return choose(view(*objects, members(nodes)), claim(nodes=nodes), reserved or {}, at(1000))


def taken(choice: Choice) -> list[str]:
    return [one.node.metadata.name for one in choice.taken]


# Counting the replicas of one service


def test_a_replica_is_stopped_if_enough_others_are_ready() -> None:
    web = [replica("web-0", "n1"), replica("web-1", "n9"), replica("web-2", "n9")]
    assert taken(chosen(node("n1"), web, agreement(keep_ready=2))) == ["n1"]


def test_d40_one_that_the_service_cannot_spare_is_not_and_the_figures_are_told() -> None:
    web = [replica("web-0", "n1"), replica("web-1", "n9"), replica("web-2", "n9")]
    waits = chosen(node("n1"), web, agreement(keep_ready=3))
    assert (waits.taken, waits.reason) == ((), Reason.KEEP_READY)
    assert "ReplicaSet team-v/web has 3 ready replica(s), 2 would be left, its owner keeps 3" in waits.message
    assert waits.plan is not None
    assert [(one.reason, one.nodes) for one in waits.plan.refused] == [(Reason.KEEP_READY, 1)]


@pytest.mark.parametrize(
    "other",
    [
        replica("other", "n9", ready=False),
        replica("other", "n9", ready=None),
        replica("other", "n9", going=1000),
        replica("other", "n9", phase="Failed"),
        replica("other", service="web"),
        replica("other", "n9", service="api"),
        replica("other", "n9", ns="team-w"),
        replica("other", "n9", owner=None),
    ],
    ids=["not ready", "not said to be", "terminating", "ended", "unbound", "other service", "other namespace", "bare"],
)
def test_only_ready_pods_of_the_same_controller_count(other: Pod) -> None:
    web = [replica("web-0", "n1"), other]
    assert chosen(node("n1"), web, agreement(keep_ready=1)).reason is Reason.KEEP_READY


def test_a_pod_without_controller_is_its_own_only_replica() -> None:
    bare = [pod("a", on="n1", ready=True), pod("b", on="n9", ready=True)]
    waits = chosen(node("n1"), bare, agreement(keep_ready=1))
    assert waits.reason is Reason.KEEP_READY
    assert "pod team-v/a has 1 ready replica(s), 0 would be left, its owner keeps 1" in waits.message


def test_replicas_of_one_node_count_together() -> None:
    web = [replica("web-0", "n1"), replica("web-1", "n1"), replica("web-2", "n9")]
    waits = chosen(node("n1"), web, agreement(keep_ready=2))
    assert "has 3 ready replica(s), 1 would be left, its owner keeps 2" in waits.message
    assert taken(chosen(node("n1"), web, agreement(keep_ready=1))) == ["n1"]


def test_replicas_on_several_nodes_of_one_plan_count_together() -> None:
    web = [replica("web-1", "n1"), replica("web-2", "n2"), replica("web-3", "n9")]
    nodes = [node("n1"), node("n2")]
    assert taken(chosen(nodes, web, agreement(keep_ready=1), nodes=2)) == ["n1", "n2"]
    assert taken(chosen(nodes, web, agreement(keep_ready=2), nodes=1)) == ["n1"]
    waits = chosen(nodes, web, agreement(keep_ready=2), nodes=2)
    assert (waits.taken, waits.reason) == ((), Reason.KEEP_READY)
    assert "ReplicaSet team-v/web has 3 ready replica(s), 1 would be left, its owner keeps 2" in waits.message


def test_nodes_that_do_not_go_together_give_way_to_others() -> None:
    """n1 costs least, but goes with neither of the others."""
    pods = [
        replica("web-1", "n1", started=900),
        replica("api-1", "n1", "api", started=900),
        replica("web-2", "n2"),
        replica("api-2", "n3", "api"),
    ]
    found = chosen([node("n1"), node("n2"), node("n3")], pods, agreement(keep_ready=1), nodes=2)
    assert taken(found) == ["n2", "n3"]


def test_free_nodes_need_nobody_to_be_spared() -> None:
    web = [replica("web-1", "n1"), replica("web-2", "n2")]
    nodes = [node("n1"), node("n2"), node("free")]
    assert taken(chosen(nodes, web, agreement(keep_ready=1), nodes=2)) == ["free", "n1"]


def test_replicas_already_being_stopped_for_another_claim_are_gone() -> None:
    web = [replica("web-1", "n1"), replica("web-2", "n2"), replica("web-3", "n9")]
    recorded = Victim("team-v", "web-2", web[1].metadata.uid, "n2", 1, evicted_at=at(990))
    other = claim("other", gang=ref("other"), victims=(recorded,), phase=Phase.DRAINING, held=[HeldNode("n2")])
    assert taken(chosen(node("n1"), web, agreement(keep_ready=1), other)) == ["n1"]
    waits = chosen(node("n1"), web, agreement(keep_ready=2), other)
    assert "has 2 ready replica(s), 1 would be left, its owner keeps 2" in waits.message


def test_replicas_on_nodes_that_another_claim_has_taken_are_gone() -> None:
    web = [replica("web-1", "n1"), replica("web-2", "n2")]
    held = {"n2": str(Obstacle.HELD)}
    nodes = [node("n1"), node("n2")]
    assert chosen(nodes, web, agreement(keep_ready=1), reserved=held).reason is Reason.KEEP_READY
    kept_for_older = {"n2": str(Reason.OLDER_CLAIM)}
    assert taken(chosen(nodes, web, agreement(keep_ready=1), reserved=kept_for_older)) == ["n1"]


def test_of_several_nodes_those_that_go_together_with_what_is_taken_are_found() -> None:
    """Each of n1 and n2 could go beside n3, which another claim has taken; both could not."""
    web = [replica(f"web-{index}", f"n{index}") for index in (1, 2, 3)] + [replica("web-9", "n9")]
    nodes = [node("n1"), node("n2"), node("n3")]
    held = {"n3": str(Obstacle.HELD)}
    waits = chosen(nodes, web, agreement(keep_ready=2), nodes=2, reserved=held)
    assert (waits.taken, waits.reason) == ((), Reason.KEEP_READY)
    assert "has 3 ready replica(s), 1 would be left, its owner keeps 2" in waits.message
    assert taken(chosen(nodes, web, agreement(keep_ready=2), nodes=1, reserved=held)) == ["n1"]


def test_terms_that_time_does_not_mend_are_told_before_missing_replicas() -> None:
    pods = [replica("web-1", "n1"), pod("other", on="n1", ns="team-w")]
    assert chosen(node("n1"), pods, agreement(keep_ready=1)).reason is Reason.AGREEMENT_MISSING


@given(st.data())
def test_a_plan_never_takes_what_a_service_must_keep_and_finds_a_way_if_there_is_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    names = [f"n{index}" for index in range(data.draw(st.integers(count, 5)))]
    places = st.lists(st.tuples(st.sampled_from(["elsewhere", *names]), st.booleans()), max_size=5)
    services = {name: (data.draw(st.integers(1, 3)), data.draw(places)) for name in ("a", "b", "c")}
    pods = [
        replica(f"{name}-{index}", on, name, ready=ready, ns=f"team-{name}")
        for name, (_, placed) in services.items()
        for index, (on, ready) in enumerate(placed)
    ]
    agreements = [agreement(ns=f"team-{name}", keep_ready=kept) for name, (kept, _) in services.items()]

    def fits(some: tuple[str, ...]) -> bool:
        """Counted from the drawn figures: a service that is hit keeps enough ready replicas elsewhere."""
        return all(
            sum(ready and on not in some for on, ready in placed) >= kept
            for kept, placed in services.values()
            if any(on in some for on, _ in placed)
        )

    found = chosen([node(name) for name in names], pods, agreements, nodes=count)
    possible = any(fits(some) for some in combinations(names, count))
    if possible:
        assert len(found.taken) == count
        assert fits(tuple(taken(found)))
    else:
        assert (found.taken, found.reason) == ((), Reason.KEEP_READY)


# Consent is asked for again right before evicting


def set_ready(simulation: Simulation, uid: str, ready: bool) -> None:
    now = simulation.pods.get(uid)
    if now is None:
        return
    conditions = (Condition("Ready", "True" if ready else "False"),)
    simulation.pods[uid] = replace(now, status=replace(now.status, conditions=conditions))


def test_d40_a_replica_lost_between_plan_and_eviction_protects_the_others() -> None:
    cluster = Simulation().add(node("n1"), agreement(keep_ready=2))
    cluster.add(replica("web-0", "n1"), replica("web-1", "n9"), replica("web-2", "n9"), gang())
    cluster.later(0.3, lambda: set_ready(cluster, "team-v.web-2", False))
    cluster.run(5)
    held = cluster.the_claim()
    assert cluster.evicted() == []
    assert cluster.phases() == ["Planned", "Cordoning", "Draining", "Blocked"]
    assert held.status.reason == Reason.PROTECTED_POD
    assert held.status.message == (
        "pod team-v/web-0 on node n1 may not be stopped: TooFewReadyReplicas: "
        "ReplicaSet team-v/web has 2 ready replica(s), 1 would be left, its owner keeps 2; the nodes are given back"
    )
    assert cluster.marked() == []


def test_d40_a_replica_that_is_written_down_as_a_victim_is_looked_at_again_before_it_is_evicted() -> None:
    cluster = Simulation().add(node("n1"), agreement(keep_ready=1))
    web = [replica("web-0", "n1"), replica("web-1", "n9")]
    cluster.add(web, gang()).run(0.3)
    cluster.after = lambda action: (
        set_ready(cluster, "team-v.web-1", False)
        if isinstance(action, WriteStatus) and action.status.victims and not cluster.evictions
        else None
    )
    cluster.run(5)
    assert cluster.evicted() == []
    assert cluster.the_claim().status.reason == Reason.PROTECTED_POD
    assert cluster.the_claim().status.victims == ()


def test_a_service_that_has_grown_meanwhile_is_no_obstacle_any_more() -> None:
    cluster = Simulation().add(node("n1"), agreement(keep_ready=1), replica("web-0", "n1"), gang())
    cluster.run(5)
    assert cluster.the_claim().status.reason == Reason.KEEP_READY
    cluster.add(replica("web-1", "n9")).run(20)
    assert cluster.the_claim().status.phase is Phase.BOUND
    assert cluster.evicted() == ["web-0"]


def test_two_claims_that_decide_in_the_same_pass_do_not_share_a_services_last_replicas() -> None:
    web = [replica("web-1", "n1"), replica("web-2", "n2")]
    two = [
        claim(f"c{index}", gang=ref(f"g{index}"), phase=Phase.DRAINING, held=[HeldNode(f"n{index}", f"node-n{index}")])
        for index in (1, 2)
    ]
    two = [
        replace(one, status=replace(one.status, nodes=(replace(one.status.nodes[0], held_at=at(0)),))) for one in two
    ]
    nodes = [
        node(f"n{index}", taints=(Taint(CLAIM_KEY, "NoSchedule", two[index - 1].metadata.uid),)) for index in (1, 2)
    ]
    gangs = [members(1, gang=f"g{index}") for index in (1, 2)]
    looks = {f"n{index}": Look(at(10), (web[index - 1],)) for index in (1, 2)}
    decision = decide(view(nodes, web, two, gangs, agreement(keep_ready=1)), looks, {}, at(10), Timing())
    written = [one for one in decision.actions if isinstance(one, WriteStatus)]
    assert [(one.claim.metadata.name, one.status.phase, one.status.reason) for one in written] == [
        ("c1", Phase.DRAINING, Reason.EVICTING),
        ("c2", Phase.BLOCKED, Reason.PROTECTED_POD),
    ]


def left_ready(cluster: Simulation, service: str) -> int:
    return sum(
        is_ready(one)
        for one in cluster.pods.values()
        if (owner := one.metadata.controller()) is not None and owner.name == service
    )


@settings(max_examples=60)
@given(st.data())
def test_no_eviction_ever_undercuts_what_a_service_keeps(data: st.DataObject) -> None:
    """Several claims at once, services over several nodes, replicas that come and go."""
    names = [f"n{index}" for index in range(data.draw(st.integers(2, 4)))]
    kept = {name: data.draw(st.integers(1, 2)) for name in ("a", "b")}
    cluster = Simulation().add([node(name) for name in names], node("s", "other"))
    cluster.add([agreement(ns=f"team-{name}", keep_ready=number) for name, number in kept.items()])
    for name in kept:
        places = data.draw(st.lists(st.sampled_from([*names, "s"]), min_size=1, max_size=5))
        for index, on in enumerate(places):
            one = replica(f"{name}-{index}", on, name, ns=f"team-{name}", grace=1, ready=data.draw(st.booleans()))
            cluster.add(one)
            for moment in data.draw(st.lists(st.floats(0, 8), max_size=2)):
                cluster.later(moment, partial(set_ready, cluster, one.metadata.uid, data.draw(st.booleans())))
    for index in range(data.draw(st.integers(1, 3))):
        cluster.add(gang(data.draw(st.integers(1, 2)), f"g{index}", created=index))

    def watch(action: Action) -> None:
        if isinstance(action, Evict):
            service = action.victim.namespace.removeprefix("team-")
            assert left_ready(cluster, service) >= kept[service], f"{action.victim.name} was not to be spared"

    cluster.after = watch
    cluster.run(12)


def test_services_under_an_agreement_without_keep_ready_may_lose_all() -> None:
    cluster = Simulation().add(node("n1"), small(3, "n1", owner=owned("ReplicaSet", "web")), agreement(), gang())
    cluster.run(10)
    assert len(cluster.evicted()) == 3


def test_the_most_demanding_agreement_of_a_services_replicas_counts() -> None:
    """Two replicas of one service under different agreements of their namespace, told apart by labels."""
    first, second = replica("web-0", "n1", labels={"tier": "gold"}), replica("web-1", "n1", labels={"tier": "tin"})
    rest = replica("web-2", "n9")
    gold = agreement("gold", select=LabelSelector({"tier": "gold"}), keep_ready=2)
    tin = agreement("tin", select=LabelSelector({"tier": "tin"}), keep_ready=1)
    assert chosen(node("n1"), first, second, rest, gold, tin).reason is Reason.KEEP_READY
    assert taken(chosen(node("n1"), second, rest, gold, tin)) == ["n1"]


def test_a_younger_claim_does_not_take_the_replica_that_an_older_one_relies_on() -> None:
    def seconds_until_old_lands(*, younger: bool) -> float:
        service = owned("ReplicaSet", "svc")
        scene = Simulation().add(node("n1"), node("n2"), agreement(keep_ready=1))
        scene.add(*(pod(f"a-{index}", 1, on=f"n{index}", owner=service, ready=True) for index in (1, 2)))
        scene.later(1, lambda: scene.add(gang(1, "old", created=1, notes={**EVICT, "wholenode.io/patience": "100s"})))
        if younger:
            scene.later(2, lambda: scene.add(gang(1, "new", created=2, notes=EVICT)))
        scene.run(400, until=lambda: scene.where("old"))
        return scene.seconds

    assert seconds_until_old_lands(younger=True) <= seconds_until_old_lands(younger=False) + 5
