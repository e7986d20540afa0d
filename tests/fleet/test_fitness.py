"""Nodes that are out of the question for a gang, each for one countable reason; and our marks on them."""

import pytest

from fleet.fitness import Obstacle, lack_of_room, obstacle
from fleet.marks import Stray, holds, labelled_for, opened_for, steered, strays, taint, tainted_for
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE
from fleet.objects import Container, Node, Pod, Resources, Taint, Toleration
from fleet.resources import HeldNode, Phase
from tests.fleet.builders import claim, container, members, node, pod, pool

DEDICATED = Taint("dedicated", "NoSchedule", "gpu")
TOLERANT = (Toleration("dedicated", "Exists"),)


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (node("n"), None),
        (node("n", cordoned=True), Obstacle.CORDONED),
        (node("n", taints=(Taint("node.kubernetes.io/unschedulable", "NoSchedule"),)), Obstacle.CORDONED),
        (node("n", ready=False), Obstacle.NOT_READY),
        (node("n", taints=(taint("other"),)), Obstacle.HELD),
        (node("n", taints=(taint("mine"),)), None),
        (node("n", taints=(DEDICATED,)), Obstacle.TAINTED),
        (node("n", taints=(Taint("x", "NoExecute"),)), Obstacle.TAINTED),
        (node("n", taints=(Taint("x", "PreferNoSchedule"),)), None),
        (node("n", cards=7), Obstacle.MISSING_CARDS),
        (node("n", cards=16), Obstacle.MISSING_CARDS),
        (node("n", cards="garbage"), Obstacle.MISSING_CARDS),
    ],
)
def test_the_first_obstacle_of_a_node(one: Node, wanted: Obstacle | None) -> None:
    assert obstacle(one, pool(), members(2), "mine") is wanted


def test_a_node_without_conditions_is_not_ready() -> None:
    assert obstacle(Node(node("n").metadata), pool(), [], "mine") is Obstacle.NOT_READY


def test_a_foreign_taint_is_none_if_every_member_tolerates_it() -> None:
    tainted = node("n", taints=(DEDICATED,))
    one, two = members(2, tolerations=TOLERANT)
    assert obstacle(tainted, pool(), [one, two], "mine") is None
    assert obstacle(tainted, pool(), [one, members(2)[1]], "mine") is Obstacle.TAINTED


def test_the_members_own_selectors_count() -> None:
    choosy = members(1, selector={"zone": "a"})
    assert obstacle(node("n"), pool(), choosy, "mine") is Obstacle.NOT_WANTED
    assert obstacle(node("n", labels={"zone": "a"}), pool(), choosy, "mine") is None


def test_p10_a_cpu_pod_may_leave_too_little() -> None:
    member = pod("m", containers=(container(8, cpu="64"),))
    staying = [pod("web", 0, cpu="100", on="n")]
    assert lack_of_room(node("n"), staying, [member], DEFAULT_RESOURCE) is Obstacle.NO_CPU
    assert lack_of_room(node("n"), [pod("web", 0, cpu="64", on="n")], [member], DEFAULT_RESOURCE) is None


def test_memory_and_other_resources_count_too() -> None:
    def asking(**what: str) -> Pod:
        return pod("m", containers=(Container("c", Resources(requests=dict(what))),))

    assert lack_of_room(node("n"), [], [asking(memory="513Gi")], DEFAULT_RESOURCE) is Obstacle.NO_MEMORY
    network = pod("m", containers=(Container("c", Resources(requests={"example.com/ib": "1"})),))
    assert lack_of_room(node("n"), [], [network], DEFAULT_RESOURCE) is Obstacle.NO_RESOURCE
    assert lack_of_room(node("n", extra={"example.com/ib": "1"}), [], [network], DEFAULT_RESOURCE) is None


def test_p11_the_limit_of_pods() -> None:
    staying = [pod(f"p{index}", 0, on="n") for index in range(3)]
    assert lack_of_room(node("n", pods="3"), staying, members(1), DEFAULT_RESOURCE) is Obstacle.NO_PODS
    assert lack_of_room(node("n", pods="4"), staying, members(1), DEFAULT_RESOURCE) is None


def test_a_mark_stays_only_with_a_live_claim_that_holds_this_very_node() -> None:
    holding = claim(phase=Phase.DRAINING, held=[HeldNode("n1", "node-n1")])
    uid = holding.metadata.uid
    held = node("n1", taints=(taint(uid),))
    assert strays(held, {uid: holding}) == ()
    stray = (Stray("n1", uid),)
    assert strays(held, {}) == stray, "no such claim"
    assert strays(node("n1", uid="second", taints=(taint(uid),)), {uid: holding}) == stray, "another node of that name"
    assert strays(node("n2", taints=(taint(uid),)), {uid: holding}) == (Stray("n2", uid),), "a node it does not hold"


@pytest.mark.parametrize("phase", list(Phase))
def test_which_phases_stand_behind_which_mark(phase: Phase) -> None:
    one = claim(phase=phase, held=[HeldNode("n1", "node-n1")])
    uid = one.metadata.uid
    holding = {Phase.CORDONING, Phase.DRAINING, Phase.PROVING_EMPTY, Phase.READY, Phase.LANDING}
    assert (strays(node("n1", taints=(taint(uid),)), {uid: one}) == ()) is (phase in holding)
    opened = {Phase.READY, Phase.LANDING}
    assert (strays(node("n1", labels={CLAIM_KEY: uid}), {uid: one}) == ()) is (phase in opened)


def test_a_label_stays_as_long_as_a_pod_there_selects_it_whatever_became_of_the_claim() -> None:
    """A kubelet that restarts ends pods whose node selector no longer fits (kubernetes#124586)."""
    one = claim(uid="c-1", phase=Phase.BOUND, held=[HeldNode("n1", "node-n1")])
    open_, labelled = (
        node("n1", taints=(taint("c-1"),), labels={CLAIM_KEY: "c-1"}),
        node("n1", labels={CLAIM_KEY: "c-1"}),
    )
    (there,) = members(1, on="n1", selector={CLAIM_KEY: "c-1"})
    (other,) = members(1, on="n1", selector={CLAIM_KEY: "c-2"})
    (ended,) = members(1, on="n1", selector={CLAIM_KEY: "c-1"}, phase="Succeeded")
    (going,) = members(1, on="n1", selector={CLAIM_KEY: "c-1"}, going=30)
    for claims in ({"c-1": one}, {}):
        assert strays(open_, claims, [there]) == (Stray("n1", "c-1", label_stays=True),)
        assert strays(labelled, claims, [other, there]) == ()
        assert strays(labelled, claims, [going]) == ()
        for pods in ([], [other], [ended]):
            assert strays(labelled, claims, pods) == (Stray("n1", "c-1"),)


def test_both_marks_of_two_dead_claims_go() -> None:
    found = strays(node("n1", taints=(taint("b"),), labels={CLAIM_KEY: "a"}), {})
    assert found == (Stray("n1", "a"), Stray("n1", "b"))
    assert strays(node("n1", taints=(Taint("other", "NoSchedule", "b"),)), {}) == ()


def test_a_label_opens_a_node_only_beside_the_taint_of_the_same_claim() -> None:
    label = {CLAIM_KEY: "u"}
    assert opened_for(node("n", taints=(taint("u"),), labels=label)) == "u"
    assert opened_for(node("n", taints=(taint("other"),), labels=label)) is None
    assert opened_for(node("n", labels=label)) is None
    assert opened_for(node("n", taints=(taint("u"),))) is None


def test_marks_are_read_from_taint_and_label() -> None:
    assert tainted_for(node("n", taints=(DEDICATED, taint("u")))) == "u"
    assert tainted_for(node("n", taints=(Taint(CLAIM_KEY, "NoSchedule"),))) == ""
    assert tainted_for(node("n")) is None
    assert labelled_for(node("n", labels={CLAIM_KEY: "u"})) == "u"


def test_a_pod_is_steered_once_its_gate_is_off_and_it_tolerates_the_taint() -> None:
    tolerant = (Toleration(CLAIM_KEY, "Equal", "u", "NoSchedule"),)
    assert steered(pod("p", tolerations=tolerant), "u")
    assert not steered(pod("p", tolerations=tolerant), "other")
    assert not steered(pod("p", tolerations=tolerant, gates=(CLAIM_KEY,)), "u")
    assert not steered(pod("p"), "u")


def test_every_taint_of_our_key_is_looked_at_and_a_forged_one_never_shadows_the_claims_own() -> None:
    """A second taint put on by hand, before or after ours, of whatever effect, is swept; ours stays."""
    forged = Taint(CLAIM_KEY, "NoExecute", "nobody")
    for taints in ((forged, taint("c-1")), (taint("c-1"), forged)):
        on = node("n", taints=taints)
        made = claim(uid="c-1", phase=Phase.DRAINING, held=[HeldNode("n", on.metadata.uid)])
        assert strays(on, {"c-1": made}) == (Stray("n", "nobody"),)
        assert holds(on, "c-1")
        assert not holds(on, "nobody")
