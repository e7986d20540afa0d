"""What `wholenode why` says of a whole-node gang whose claim waits for each of its reasons, or has given up."""

from __future__ import annotations

from typing import Any

from kwok.admin import Admin
from kwok.stages import TERM_DELAY
from tests.e2e.waits import CARDS, EVICT, ZONE, Scene, agreement

SERVICE = {"app": "serving"}


async def two_busy(scene: Scene, **more: Any) -> None:
    """Two nodes with a pod of team-v each: enough cards, and no whole node."""
    await scene.nodes(big=2)
    for name in ("big-000", "big-001"):
        await scene.running(name, **more)


async def told_by_claim(scene: Scene, reason: str, kind: str = "Fragmented", stage: str = "Topology") -> None:
    answer = await scene.told("team-b/train", "NotAttempted", stage, kind)
    assert answer.claim is not None
    assert answer.claim.reason == reason


# Nodes


async def test_enough_whole_nodes_and_not_in_one_zone(scene: Scene) -> None:
    await scene.nodes("a", "b", big=2)
    for index in range(2):
        await scene.waits(f"train-{index}", gang=("train", 2), annotations={"wholenode.io/topology-key": ZONE})
    await scene.told("team-b/train-0", "NotAttempted", "Capacity", "MoreNodesThanPoolHas")


async def test_whole_nodes_are_free_in_several_zones_only(scene: Scene) -> None:
    await scene.nodes("a", "a", "b", "b", big=4)
    for name in ("big-000", "big-002"):
        await scene.running(name)
    for index in range(2):
        await scene.waits(f"train-{index}", gang=("train", 2), annotations={"wholenode.io/topology-key": ZONE})
    await scene.told("team-b/train-0", "NotAttempted", "Topology", "TopologyFragmented")


async def test_a_node_with_all_cards_and_too_little_of_something_else(scene: Scene) -> None:
    await scene.nodes(big=1)
    await scene.waits("train", resources={"nvidia.com/gpu": str(CARDS), "cpu": "1000"})
    await scene.told("team-b/train", "NotAttempted", "Topology", "NoUsableNode")


async def test_a_pod_that_selects_the_nodes_of_a_claim_that_is_gone(scene: Scene) -> None:
    await scene.nodes(big=1)
    await scene.waits("train", node_selector={"wholenode.io/claim": "5c0d3d0e-gone"})
    await scene.told("team-b/train", "NoPlace", "Gang", "PinnedToAnotherClaim")


# Pods in the way


async def test_a_service_keeps_its_ready_replicas(scene: Scene, admin: Admin) -> None:
    await scene.nodes(big=2)
    await admin.create(agreement(keepReady={"minReadyReplicas": 2}))
    await scene.replicated("ReplicaSet", replicas=2)
    await scene.waits("train", annotations=EVICT)
    await scene.told("team-b/train", "NotAttempted", "Agreement", "TooFewReadyReplicas")


async def test_a_disruption_budget_lets_nobody_go(scene: Scene, admin: Admin) -> None:
    await two_busy(scene, labels=SERVICE)
    budget = {"selector": {"matchLabels": SERVICE}, "minAvailable": 2}
    meta = {"name": "serving", "namespace": "team-v"}
    await admin.request(
        "POST",
        "/apis/policy/v1/namespaces/team-v/poddisruptionbudgets",
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget},
    )
    await admin.wait_for(
        "/apis/policy/v1/namespaces/team-v/poddisruptionbudgets/serving",
        lambda found: (found or {}).get("status", {}).get("currentHealthy") == 2,
    )
    await admin.create(agreement())
    await scene.waits("train", annotations=EVICT)
    await scene.told("team-b/train", "NotAttempted", "Agreement", "PodDisruptionBudget")


async def test_a_pool_where_nobody_is_stopped(scene: Scene, admin: Admin) -> None:
    await scene.nodes(still=2)
    for name in ("still-000", "still-001"):
        await scene.running(name)
    await admin.create(agreement())
    await scene.waits("train", annotations=EVICT)
    await scene.told("team-b/train", "NotAttempted", "Agreement", "DrainDisabled")


async def test_a_pod_that_takes_longer_to_end_than_a_drain(scene: Scene, admin: Admin) -> None:
    await two_busy(scene, grace_seconds=3600)
    await admin.create(agreement())
    await scene.waits("train", annotations=EVICT)
    await scene.told("team-b/train", "NotAttempted", "Agreement", "GraceLongerThanDrain")


async def test_a_daemons_pod_comes_straight_back(scene: Scene, admin: Admin) -> None:
    await scene.nodes(big=2)
    await admin.create(agreement())
    await scene.replicated("DaemonSet")
    await scene.waits("train", annotations=EVICT)
    await scene.told("team-b/train", "NotAttempted", "Agreement", "UnevictablePod")


async def test_cards_that_hami_has_booked(scene: Scene) -> None:
    await scene.nodes(big=1)
    notes = {"hami.io/vgpu-node": scene.name("big-000")}
    await scene.waits("booked", 1, team="team-v", annotations=notes, gates=["example.com/hold"])
    await scene.waits("train", annotations=EVICT)
    await told_by_claim(scene, "BookedByHAMi", "NotEnoughCards", "Capacity")


# Time


async def test_its_own_patience(scene: Scene, admin: Admin) -> None:
    await two_busy(scene)
    await admin.create(agreement())
    await scene.waits("train", annotations={**EVICT, "wholenode.io/patience": "1h"})
    await told_by_claim(scene, "PatienceNotOver")


async def test_a_gang_that_stops_nobody(scene: Scene, admin: Admin) -> None:
    await two_busy(scene)
    await admin.create(agreement())
    await scene.waits("train")
    await told_by_claim(scene, "WaitingForNaturalEnd")


async def test_a_gang_whose_deadline_has_passed(scene: Scene) -> None:
    await two_busy(scene)
    await scene.waits("train", annotations={**EVICT, "wholenode.io/deadline": "1s"})
    await scene.told("team-b/train", "NotAttempted", "Reserved", "DeadlineExceeded")


# Given back


async def draining(scene: Scene, admin: Admin) -> None:
    """The node held for the gang has a pod that takes a minute to end; on the other one nobody has agreed."""
    await scene.nodes(big=2)
    await scene.running("big-000", annotations={TERM_DELAY: "60s"}, grace_seconds=60)
    await scene.running("big-001", team="team-w")
    await admin.create(agreement())
    await scene.waits("train", annotations=EVICT)
    await scene.claim_in("Draining", "train")


async def test_a_pod_that_nobody_may_stop_was_put_on_its_node(scene: Scene, admin: Admin) -> None:
    await draining(scene, admin)
    await scene.running("big-000", team="team-w")
    await scene.told("team-b/train", "NotAttempted", "Reserved", "ProtectedPodOnNode")


async def test_its_node_was_cordoned_meanwhile(scene: Scene, admin: Admin) -> None:
    await draining(scene, admin)
    await admin.patch(f"/api/v1/nodes/{scene.name('big-000')}", {"spec": {"unschedulable": True}})
    await scene.told("team-b/train", "NotAttempted", "Reserved", "NodeUnfit")
