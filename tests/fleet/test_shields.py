"""The shield against node autoscalers: put up with the taint, taken off with it, and nobody else's words touched."""

from fleet.marks import Stray, strays, taint
from fleet.names import SHIELD
from fleet.resources import HeldNode, Phase
from fleet.shields import ANNOTATIONS, put_up, shielded_for, take_down
from tests.fleet.builders import claim, node
from tests.fleet.scenes import all_bound, busy, gang, in_phase
from tests.fleet.simulation import Simulation, replace

DOWN, KARPENTER = ANNOTATIONS
KEYS = f"{DOWN},{KARPENTER}"


def noted(scene: Simulation, name: str = "n1") -> dict[str, str]:
    return dict(scene.nodes[name].metadata.annotations or {})


def test_n11_a_held_node_is_shielded_and_loses_the_shield_at_the_end() -> None:
    scene = busy(["n1"]).add(gang())
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    uid = scene.the_claim().metadata.uid
    assert noted(scene) == {**ANNOTATIONS, SHIELD: f"{uid}:{KEYS}"}
    scene.run(60, until=lambda: all_bound(scene))
    scene.go_on(5)
    assert noted(scene) == {}


def test_n11_annotations_that_were_there_before_stay_as_they_were() -> None:
    scene = busy(["n1"]).add(gang())
    before = {DOWN: "true", "example.com/rack": "r1"}
    scene.change_node("n1", annotations=before)
    scene.run(10, until=lambda: in_phase(scene, Phase.DRAINING))
    assert noted(scene)[SHIELD].endswith(f":{KARPENTER}")
    assert noted(scene)[KARPENTER] == "true"
    scene.run(60, until=lambda: all_bound(scene))
    scene.go_on(5)
    assert noted(scene) == before


def test_n11_a_value_that_somebody_changed_meanwhile_is_theirs() -> None:
    up = put_up(None, "c-1")
    assert take_down(up, "c-1") == (*ANNOTATIONS, SHIELD)
    assert take_down({**up, KARPENTER: "false"}, "c-1") == (DOWN, SHIELD)
    assert take_down({key: value for key, value in up.items() if key != DOWN}, "c-1") == (KARPENTER, SHIELD)
    assert take_down(up, "c-2") == ()
    assert take_down(ANNOTATIONS, "") == ()


def test_a_shield_left_behind_is_taken_over_with_what_it_had_set() -> None:
    left = {**put_up({KARPENTER: "true"}, "gone"), KARPENTER: "true"}
    assert put_up(left, "new") == {SHIELD: f"new:{DOWN}"}
    assert take_down({**left, **put_up(left, "new")}, "new") == (DOWN, SHIELD)


def test_n11_a_shield_of_a_dead_claim_is_swept_though_the_taint_is_gone() -> None:
    orphan = node("n1")
    orphan = replace(orphan, metadata=replace(orphan.metadata, annotations=put_up(None, "gone")))
    assert shielded_for(orphan) == "gone"
    assert strays(orphan, {}) == (Stray("n1", "gone"),)
    live = claim(uid="gone", phase=Phase.DRAINING, held=[HeldNode("n1", "node-n1")])
    assert strays(orphan, {"gone": live}) == ()
    scene = Simulation().add(orphan)
    scene.run(2)
    assert noted(scene) == {}


def test_the_shield_goes_with_the_taint_when_the_claim_is_bound() -> None:
    bound = claim(uid="c-1", phase=Phase.BOUND, held=[HeldNode("n1", "node-n1")])
    held = node("n1", taints=(taint("c-1"),))
    held = replace(held, metadata=replace(held.metadata, annotations=put_up(None, "c-1")))
    assert strays(held, {"c-1": bound}) == (Stray("n1", "c-1"),)
