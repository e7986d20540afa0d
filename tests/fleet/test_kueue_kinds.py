"""Jobs of other kinds at our check: groups scaled to none, pods that another object makes, pods one by one."""

from collections.abc import Iterable

import pytest

from fleet.kueue.objects import GATE, PodSet, PodSetUpdate, Workload
from fleet.names import CLAIM_KEY, DEADLINE, KUEUE_POD_GROUP, KUEUE_POD_GROUP_TOTAL
from fleet.objects import OwnerReference, Pod
from fleet.resources import Phase
from tests.fleet.admissions import Queued, entry_of, pod_set, replace, workload
from tests.fleet.builders import agreement, node, owned, pod
from tests.fleet.scenes import EVICT, all_bound, small


@pytest.mark.parametrize("kind", ["RayCluster", "JobSet"])
def test_a_group_of_whole_node_pods_that_is_scaled_to_none_takes_no_node(kind: str) -> None:
    play = Queued().add(node("n1"), small(3, "n1"), agreement())
    play.queue(workload("ray", pod_set("head", 1, 1), pod_set("workers", 0, 8), owner=owned(kind, "ray")))
    play.run(10)
    assert entry_of(play.the_workload()).state == "Ready"
    assert not play.claims


class OfAnother(Queued):
    """The Workload is a RayJob's; its pods are those of the RayCluster that it makes."""

    def made(self, one: Workload, pods: PodSet, updates: Iterable[PodSetUpdate], number: int) -> Pod:
        found = super().made(one, pods, updates, number)
        return replace(found, metadata=replace(found.metadata, owner_references=(owned("RayCluster", "ray-x7"),)))


def test_a_job_whose_pods_are_made_by_another_object_lands_on_the_node_vacated_for_it() -> None:
    play = OfAnother().add(node("n1"), small(3, "n1"), agreement())
    play.queue(workload("ray", pod_set("head", 1, 0), pod_set("workers", 1, 8), owner=owned("RayJob", "ray")))
    play.run(60, lambda: all_bound(play))
    assert play.the_claim().status.phase is Phase.BOUND
    assert "Retry" not in play.states()


def test_a_claim_that_fails_after_the_job_was_sent_back_for_another_reason_is_answered_too() -> None:
    """Kueue counts every retry, those too that no claim has failed for."""
    play = Queued(recreate=True).add(node("n1"), agreement())
    play.queue(workload("train", pod_set(notes={DEADLINE: "20s"})))
    play.run(30, lambda: all_bound(play))
    play.delete(next(one.metadata.uid for one in play.pods.values() if one.metadata.name.startswith("train")))
    play.go_on(6, lambda: "Retry" in play.states())
    assert play.states().count("Retry") == 1
    play.recreate = False
    play.agreements.clear()
    play.add(pod("stays", 1, on="n1"))
    play.go_on(40)
    assert sum(one.status.phase is Phase.FAILED for one in play.claims.values()) == 1
    assert play.states().count("Retry") == 2, "Kueue gives the quota to others"


def test_a_stateful_set_that_makes_its_pods_one_by_one_is_told_what_it_needs() -> None:
    notes = {**EVICT, KUEUE_POD_GROUP_TOTAL: "2"}
    labels, gates = {KUEUE_POD_GROUP: "web"}, (GATE, CLAIM_KEY)
    first = pod("web-0", 8, ns="team-b", owner=owned("StatefulSet", "web"), labels=labels, notes=notes, gates=gates)
    one = workload("web", pod_set(count=2, cards=8))
    owner = OwnerReference("StatefulSet", "web", "statefulset-web")
    play = Queued().add(node("n1"), node("n2"), first)
    play.queue(replace(one, metadata=replace(one.metadata, owner_references=(owner,))))
    play.run(10)
    message = entry_of(play.the_workload()).message
    assert message.startswith("GangIncomplete (claim web-")
    assert "podManagementPolicy is Parallel" in message
