"""Legal figures that nobody expects, in objects that anybody may write: they hold up only what they are about."""

from datetime import timedelta

import pytest

from fleet import relocation
from fleet.actions import CreateClaim, Timing
from fleet.lifecycle import decide
from fleet.names import CLAIM_KEY, EXPECTED_RUN, GANG_MIN_SIZE, GANG_SIZE, POKE, RESTART_COST
from fleet.objects import (
    Affinity,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Requirement,
    Toleration,
)
from fleet.planning import choose
from fleet.resources import Phase, PhaseTime, WholeNodeClaim
from fleet.selectors import node_wanted
from fleet.view import View
from tests.fleet.builders import agreement, at, claim, members, node, pod, pool, view
from tests.fleet.scenes import all_bound, busy, gang
from tests.fleet.simulation import Simulation, replace


@pytest.mark.parametrize("key", [GANG_SIZE, GANG_MIN_SIZE])
def test_a_number_of_thousands_of_digits_in_a_strangers_annotation(key: str) -> None:
    """Python refuses to read one; it was read for the gangs of the whole cluster."""
    odd = pod("odd", ns="stranger", gang="x", notes={key: "9" * 5000}, on="s")
    scene = busy(["n1"], each=1).add(gang(1), node("s"), odd)
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)


@pytest.mark.parametrize("seconds", [10**12, 10**14, 2**63 - 1])
def test_a_grace_of_ages_rules_out_its_own_node_only(seconds: int) -> None:
    odd = pod("odd", ns="stranger", on="n1", grace=seconds)
    scene = Simulation().add(node("n1"), node("n2"), odd, gang(1))
    scene.run(60, until=lambda: all_bound(scene))
    assert scene.where("train") == ["n2"]


def test_a_lodger_with_a_grace_of_ages_stops_no_drain() -> None:
    scene = Simulation().add(node("n1"), pod("v", on="n1", grace=30), agreement(), gang(1))
    scene.run(60, until=lambda: scene.evictions)
    odd = pod("odd", grace=10**12, notes={EXPECTED_RUN: "1s"}, tolerations=(Toleration(CLAIM_KEY, "Exists"),))
    scene.bind(odd, "n1")
    scene.go_on(20)


@pytest.mark.parametrize("cards", [1, 8])
def test_a_restart_of_a_hundred_years_on_a_large_gang_is_weighed(cards: int) -> None:
    nodes = [node(f"n{index:03}", cards=cards) for index in range(90)]
    notes = {RESTART_COST: "876000h"}
    large = [pod(f"v-{index}", cards, on=f"n{index:03}", gang="v", size=90, notes=notes) for index in range(90)]
    waits = pod("train-0", cards, ns="team-b", gang="train")
    seen = view(pool(cards=cards), nodes, large, agreement(), waits, claim())
    found = choose(seen, claim(), {}, at(1100), timedelta(minutes=10))
    assert found.plan.lost_gpu_seconds > 0


def hosts(*names: str) -> PodSpec:
    terms = tuple(NodeSelectorTerm((Requirement("kubernetes.io/hostname", "In", (name,)),)) for name in names)
    return PodSpec(affinity=Affinity(NodeAffinity(NodeSelector(terms))))


def test_a_node_affinity_of_ages_is_not_read_to_its_end() -> None:
    """It is looked at for every node in every pass, in the loop that renews the lease."""
    here, others = node("here", labels={"kubernetes.io/hostname": "here"}), [f"x{number}" for number in range(20_000)]
    assert node_wanted(hosts(*others[:400], "here"), here, CLAIM_KEY)
    assert not node_wanted(hosts(*others, "here"), here, CLAIM_KEY)
    many = Requirement("kubernetes.io/hostname", "In", (*others, "here"))
    long = PodSpec(affinity=Affinity(NodeAffinity(NodeSelector((NodeSelectorTerm((many,)),)))))
    assert node_wanted(long, here, CLAIM_KEY), "one list of names may be long: fleets are"


def test_pods_that_name_their_hosts_have_each_node_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    free = relocation._free

    def counting(view: View, one: Node, resource: str, *, whole: bool) -> int:
        looked.append(one.metadata.name)
        return free(view, one, resource, whole=whole)

    monkeypatch.setattr(relocation, "_free", counting)
    label = "kubernetes.io/hostname"
    nodes = [node(f"n{number}", labels={label: f"n{number}"}) for number in range(30)]
    pods = [pod(f"v{number}", on=f"n{number}", selector={label: f"n{number}"}) for number in range(30)]
    choose(view(nodes, pods, agreement(), members(1)), claim(), {}, at(100))
    assert 0 < len(looked) <= 30


def test_a_poke_at_the_end_of_time_stops_no_landing() -> None:
    scene = Simulation().add(node("n1"), node("n2"))
    first, second = gang(2)
    notes = {**(first.metadata.annotations or {}), POKE: "9999-12-31T23:59:59.999999Z"}
    scene.add(replace(first, metadata=replace(first.metadata, annotations=notes)), second)
    scene.run(60, until=lambda: all_bound(scene))
    assert all_bound(scene)


def test_pods_made_in_the_second_in_which_the_claim_failed_get_another() -> None:
    """The API server cuts their time to whole seconds: 100.7 is 100, and the failure was at 100.2."""
    failed = claim(phase=Phase.FAILED, deadline="90s", phases=(PhaseTime(Phase.FAILED, at(100.2)),))

    def made(pods: list[Pod], before: WholeNodeClaim) -> bool:
        found = decide(view(node("n1"), node("n2"), pods, before), {}, {}, at(110), Timing())
        return any(isinstance(one, CreateClaim) for one in found.actions)

    assert made(members(2, created=100), failed)
    assert not made(members(2, created=99), failed)
    at_once = claim(created=100, phase=Phase.FAILED, deadline="10ms", phases=(PhaseTime(Phase.FAILED, at(100.2)),))
    assert not made(members(2, created=100), at_once), "they were there when it was made"
