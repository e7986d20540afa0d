"""The label in the simulated cluster: it outlives the taint for as long as a pod on the node selects it."""

from fleet.marks import labelled_for, tainted_for
from fleet.resources import Phase
from tests.fleet.builders import agreement, node
from tests.fleet.scenes import all_bound, busy, gang, small
from tests.fleet.simulation import Simulation


def labels(scene: Simulation) -> dict[str, str | None]:
    return {name: labelled_for(one) for name, one in sorted(scene.nodes.items())}


def test_a_kubelet_that_restarts_finds_the_label_its_pods_select_until_the_last_of_them_has_ended() -> None:
    scene = busy(["n1", "n2"], each=1).add(gang(2))
    scene.run(60, until=lambda: all_bound(scene))
    uid = scene.the_claim().metadata.uid
    scene.go_on(30)
    assert labels(scene) == {"n1": uid, "n2": uid}
    assert [tainted_for(one) for one in scene.nodes.values()] == [None, None]
    assert scene.marked() == []
    first = next(one for one in scene.pods.values() if one.metadata.name == "train-0")
    scene.end(first.metadata.uid)
    scene.go_on(5)
    assert labels(scene) == {name: None if name == first.spec.node_name else uid for name in ("n1", "n2")}
    scene.end("team-b.train-1")
    scene.go_on(5)
    assert labels(scene) == {"n1": None, "n2": None}


def test_the_label_stays_though_the_claim_is_deleted_while_its_gang_runs() -> None:
    scene = Simulation().add(node("n1"), gang())
    scene.run(60, until=lambda: all_bound(scene))
    uid = scene.the_claim().metadata.uid
    scene.claims.clear()
    scene.go_on(5)
    assert labels(scene) == {"n1": uid}
    scene.delete("team-b.train-0")
    scene.go_on(10)
    assert labels(scene) == {"n1": None}


def test_the_label_of_a_gang_that_agreed_to_be_stopped_keeps_no_other_claim_from_the_node_and_is_replaced() -> None:
    scene = Simulation().add(node("n1"), gang(), agreement(ns="team-b", to=("team-c",)))
    scene.run(60, until=lambda: all_bound(scene))
    (earlier,) = scene.claims
    scene.add(gang(name="next", ns="team-c", created=scene.seconds))
    scene.go_on(90, until=lambda: bool(scene.where("next")))
    assert scene.where("next") == ["n1"]
    (later,) = (uid for uid in scene.claims if uid != earlier)
    scene.go_on(5)
    assert labels(scene) == {"n1": later}
    assert scene.claims[later].status.phase is Phase.BOUND
    assert scene.evicted() == ["train-0"]


def test_small_pods_may_have_a_node_again_that_still_carries_a_label() -> None:
    scene = Simulation().add(node("n1"), gang(), agreement())
    scene.run(60, until=lambda: all_bound(scene))
    scene.end("team-b.train-0")
    scene.add(small(1, "n1", prefix="after"))
    scene.go_on(5)
    assert scene.marked() == []
