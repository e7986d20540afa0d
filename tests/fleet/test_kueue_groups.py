"""Plain pods under Kueue, alone and in groups: they exist before their Workload is admitted, behind Kueue's gate."""

import pytest

from fleet.actions import Poke, Steer
from fleet.kueue.expected import is_expected
from fleet.kueue.objects import GATE
from fleet.names import CLAIM_KEY, DEADLINE
from fleet.objects import OwnerReference, Toleration
from fleet.reasons import Reason
from fleet.resources import Phase
from tests.fleet.admissions import Queued, entry_of, flavor, group, of_group, pod_set, replace, workload
from tests.fleet.builders import agreement, node, pod
from tests.fleet.scenes import EVICT, all_bound, in_phase, small
from tests.fleet.world import annotated


def scene(nodes: int = 2, each: int = 2, **more: object) -> Queued:
    made = Queued(**more)
    for number in range(1, nodes + 1):
        made.add(node(f"n{number}"), small(each, f"n{number}"))
    return made.add(agreement())


def test_a_group_is_vacated_for_while_kueue_s_gate_is_closed_and_starts_when_it_opens() -> None:
    play, pods = scene(), group()
    play.add(pods).queue(of_group(pods))
    assert not any(map(is_expected, play.view().pods.values())), "its pods are there"
    play.run(60, lambda: all_bound(play))

    (update,) = [one for one in play.answers_given if one.state == "Ready"][-1].updates
    assert update.annotations is None, "its gang is named by its label"
    assert update.node_selector == {CLAIM_KEY: play.the_claim().metadata.uid}
    assert play.where("train") == ["n1", "n2"]
    assert len(play.claims) == 1


def test_its_pods_are_not_written_to_as_long_as_kueue_s_gate_is_closed() -> None:
    play, pods = scene(slow=10), group()
    play.add(pods).queue(of_group(pods))
    play.run(60, lambda: "Ready" in play.states())
    play.go_on(8)
    assert not [one for one in play.done if isinstance(one, Steer | Poke)]
    play.go_on(30, lambda: all_bound(play))
    assert play.where("train") == ["n1", "n2"]


def test_without_quota_the_gate_is_another_s_and_nobody_is_stopped() -> None:
    play, pods = scene(), group()
    play.add(pods).queue(of_group(pods, reserved=None))
    play.run(30)
    assert play.the_claim().status.reason == Reason.FOREIGN_GATE
    assert play.evicted() == []


def test_k03_a_group_that_loses_its_quota_gives_its_nodes_back() -> None:
    play, pods = scene(requeue=None), group()
    play.add(pods).queue(of_group(pods))
    play.run(60, lambda: in_phase(play, Phase.DRAINING))
    play.evict("wl-train")
    play.go_on(3)
    assert (play.the_claim().status.phase, play.the_claim().status.reason) == (Phase.BLOCKED, Reason.FOREIGN_GATE)
    assert play.marked() == []
    assert set(play.states()) <= {"Pending"}
    stopped = len(play.evictions)
    play.go_on(30)
    assert play.the_claim().status.reason == Reason.FOREIGN_GATE
    assert len(play.evictions) == stopped


def test_k06_a_group_is_given_up_after_three_claims_too() -> None:
    play = scene()
    play.agreements.clear()
    pods = [annotated(one, DEADLINE, "5s") for one in group()]
    play.add(pods).queue(of_group(pods))
    play.run(120)
    assert play.states().count("Retry") == 2
    assert len(play.claims) == 3
    assert entry_of(play.the_workload()).message.startswith("GivenUp: ")


def test_k13_a_flavor_with_our_key_stops_nobody_for_a_group() -> None:
    play, pods = scene(flavors=[flavor(tolerations=(Toleration(CLAIM_KEY, "Exists"),))]), group()
    play.add(pods).queue(of_group(pods))
    play.run(30)
    assert play.the_claim().status.reason == Reason.KEY_TAKEN
    assert play.evicted() == []
    assert play.states() == ["Pending"]


def test_a_single_plain_pod_is_its_own_workload() -> None:
    play = scene(1)
    alone = pod("solo", 8, ns="team-b", notes=EVICT, gates=(GATE, CLAIM_KEY))
    one = workload("pod-solo-1")
    owner = OwnerReference("Pod", "solo", alone.metadata.uid, controller=True)
    play.add(alone).queue(replace(one, metadata=replace(one.metadata, owner_references=(owner,))))
    play.run(60, lambda: all_bound(play))
    assert play.where("solo") == ["n1"]


@pytest.mark.parametrize("cards", [1, 0])
def test_k05_a_group_of_small_pods_passes_at_once(cards: int) -> None:
    play, pods = scene(1), group("tiny", 2, cards=cards)
    one = of_group(pods, "tiny")
    small_set = pod_set(count=2, cards=cards)
    play.add(pods).queue(replace(one, spec=replace(one.spec, pod_sets=(small_set,))))
    play.run(3)
    assert [(each.state, each.updates) for each in play.answers_given] == [("Ready", ())]
    assert not play.claims
