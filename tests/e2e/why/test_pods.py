"""`wholenode why` on a real control plane: right for each reason to wait, with the very text that docs/why.md shows."""

from __future__ import annotations

import asyncio

from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.nodes import make_nodes
from kwok.product import CONTROLLER, EXTENDER, NAMESPACE, Product
from kwok.stages import TERM_DELAY
from kwok.workloads import make_pod
from tests.e2e.waits import (
    CARDS,
    EVICT,
    Scene,
    agreement,
    other_than,
    stand_in_for_the_charts_deployment,
    why,
)

# Not admitted, or not whole


async def test_another_gate(scene: Scene) -> None:
    await scene.nodes(small=1)
    await scene.waits("later", 1, gates=["example.com/quota"])
    await scene.told("team-b/later", "NotAttempted", "Admission", "WaitingForOtherGate")


async def test_a_gang_that_is_not_whole(scene: Scene) -> None:
    await scene.nodes(big=2)
    await scene.waits("train-0", gang=("train", 2))
    await scene.told("team-b/train-0", "NotAttempted", "Gang", "GangIncomplete")


# Too few cards, or not together


async def test_too_few_cards(scene: Scene) -> None:
    await scene.nodes(small=1)
    await scene.running("small-000", 3)
    await scene.waits("three", 3)
    answer = await scene.told("team-b/three", "NoPlace", "Capacity", "NotEnoughCards")
    assert answer.scheduler is not None
    assert "Insufficient nvidia.com/gpu" in answer.scheduler.message


async def test_enough_cards_and_no_whole_node(scene: Scene) -> None:
    await scene.nodes(big=2)
    for name in ("big-000", "big-001"):
        await scene.running(name, annotations={"wholenode.io/expected-run": "2h"})
    await scene.waits("train")
    answer = await scene.told("team-b/train", "NotAttempted", "Topology", "Fragmented")
    assert answer.ends is not None
    assert answer.ends.at is not None
    assert answer.best_node is not None
    assert (answer.best_node.free, answer.best_node.blockers[0].pod) == (3, f"job-big-{scene.mark}-000")


async def test_a_request_that_can_never_fit(scene: Scene) -> None:
    await scene.nodes(small=1, big=2)
    await scene.waits("huge", 9)
    await scene.told("team-b/huge", "NoPlace", "Capacity", "NeverFits")
    for index in range(3):
        await scene.waits(f"train-{index}", gang=("train", 3))
    await scene.told("team-b/train-1", "NotAttempted", "Capacity", "MoreNodesThanPoolHas")


async def test_nodes_that_cannot_be_used(scene: Scene, admin: Admin) -> None:
    await scene.nodes(small=1, big=1)
    for name in ("small", "big"):
        await admin.patch(f"/api/v1/nodes/{name}-{scene.mark}-000", {"spec": {"unschedulable": True}})
    await scene.waits("one", 1)
    await scene.told("team-b/one", "NoPlace", "Capacity", "NodesNotUsable")
    await scene.waits("train")
    answer = await scene.told("team-b/train", "NotAttempted", "Capacity", "NodesNotUsable")
    assert answer.claim is not None
    assert answer.claim.reason == "NoUsableNode"


async def test_a_member_that_no_node_can_have(scene: Scene) -> None:
    await scene.nodes(big=2)
    await scene.waits("train-0", gang=("train", 2))
    await scene.waits("train-1", 9, gang=("train", 2))
    await scene.told("team-b/train-0", "NotAttempted", "Capacity", "NoPoolFits")


async def test_more_cards_than_any_pools_node_has_on_a_node_of_no_pool(scene: Scene, admin: Admin) -> None:
    [node] = make_nodes(1, 16, f"loose-{scene.mark}")
    await admin.create(node)
    await scene.waits("twelve", resources={"nvidia.com/gpu": "12", "cpu": "1000"})
    await scene.told("team-b/twelve", "NoPlace", "Scheduler", "OtherConstraint")


# Held, kept, draining


async def test_nodes_that_are_being_vacated_and_who_waits_for_them(scene: Scene, admin: Admin) -> None:
    await scene.nodes(big=1)
    await scene.running("big-000", annotations={TERM_DELAY: "60s"}, grace_seconds=60)
    await admin.create(agreement())
    await scene.waits("first", annotations=EVICT)
    claim = await scene.claim_in("Draining", "first")
    assert claim["status"]["nodeNames"] == f"big-{scene.mark}-000"
    answer = await scene.told("team-b/first", "NotAttempted", "Reserved", "WaitingForVictimsToEnd")
    assert answer.ends is not None
    assert answer.ends.at is not None
    await scene.waits("second", annotations=EVICT)
    other = await scene.told("team-b/second", "NotAttempted", "Reserved", "HeldForAnotherClaim")
    assert [one.name for one in other.holders] == [claim["metadata"]["name"]]
    await scene.waits("tiny", 1, team="team-v")
    await scene.told("team-v/tiny", "NoPlace", "Reserved", "HeldForAnotherClaim")


async def test_an_older_claim_first(scene: Scene) -> None:
    await scene.nodes(big=1)
    await scene.running("big-000")
    await scene.waits("first", annotations=EVICT)
    await scene.claim_in("Pending", "first")
    await scene.waits("second", annotations=EVICT)
    answer = await scene.told("team-b/second", "NotAttempted", "Reserved", "OlderClaimFirst")
    assert answer.holders[0].name.startswith("first")


# Agreements


async def fragmented(scene: Scene) -> None:
    await scene.nodes(big=2)
    for name in ("big-000", "big-001"):
        await scene.running(name)


async def test_nobody_has_agreed(scene: Scene) -> None:
    await fragmented(scene)
    await scene.waits("train", annotations=EVICT)
    answer = await scene.told("team-b/train", "NotAttempted", "Agreement", "AgreementMissing")
    assert answer.claim is not None
    assert answer.claim.consent_missing == ("team-v",)


async def test_agreements_leave_these_pods_out(scene: Scene, admin: Admin) -> None:
    await fragmented(scene)
    await admin.create(agreement(victims={"maxPriority": -1}))
    await scene.waits("train", annotations=EVICT)
    await scene.told("team-b/train", "NotAttempted", "Agreement", "AgreementTermsNotMet")


async def test_agreements_apply_later(scene: Scene, admin: Admin) -> None:
    await fragmented(scene)
    await admin.create(agreement(patience="1h"))
    await scene.waits("train", annotations=EVICT)
    answer = await scene.told("team-b/train", "NotAttempted", "Topology", "Fragmented")
    assert answer.claim is not None
    assert answer.claim.reason == "AgreementNotYet"
    assert answer.ends is not None
    assert answer.ends.at is not None


async def test_idle_whole_nodes_are_lent_to_namespaces_that_agreed_only(scene: Scene) -> None:
    await scene.nodes(big=2)
    await scene.waits("one", 1, team="team-w")
    await scene.told("team-w/one", "NoPlace", "Agreement", "NotLentWithoutAgreement")


# The scheduler and the kubelet


async def test_what_only_the_scheduler_knows(scene: Scene) -> None:
    await scene.nodes(small=1)
    await scene.waits("wide", resources={"nvidia.com/gpu": "1", "cpu": "1000"})
    answer = await scene.told("team-b/wide", "NoPlace", "Scheduler", "OtherConstraint")
    assert "Insufficient cpu" in answer.text


async def test_its_turn_has_not_come(scene: Scene) -> None:
    await scene.nodes(small=1)
    await scene.waits("other", 1, scheduler_name="batch-scheduler")
    await scene.told("team-b/other", "NotAttempted", "Scheduler", "TurnNotCome")


async def test_the_extender_does_not_answer_the_scheduler(scene: Scene, product: Product) -> None:
    await scene.nodes(small=1)
    product.kill(EXTENDER)
    try:
        await scene.waits("one", 1)
        await scene.told("team-b/one", "NoPlace", "Scheduler", "SchedulerError", extender=False)
    finally:
        product.launch(EXTENDER)
        await product.ready(EXTENDER)


async def test_no_controller_acts(scene: Scene, product: Product) -> None:
    await scene.nodes(big=1)
    product.kill(CONTROLLER)
    try:
        await scene.waits("train")
        await scene.told("team-b/train", "NotAttempted", "Reserved", "NoClaimYet")
    finally:
        product.launch(CONTROLLER)
        await product.ready(CONTROLLER)


async def test_placed_and_not_started(scene: Scene, admin: Admin) -> None:
    """Pods of a node that no kubelet is on, told to us as a kubelet would tell them."""
    [node] = make_nodes(1, CARDS, "real", {"pool": "small"})
    node["metadata"]["annotations"] = {}
    await admin.create(node)
    for name in ("refused", "pulling"):
        pod = make_pod(name, "team-b", cards=1)
        pod["spec"]["nodeName"] = "real-000"
        await admin.create(pod)
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
    await admin.patch("/api/v1/namespaces/team-b/pods/refused/status", {"status": refused})
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "train:1"'}
    state = {
        "name": "main",
        "image": "",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    await admin.patch("/api/v1/namespaces/team-b/pods/pulling/status", {"status": {"containerStatuses": [state]}})
    await scene.told("team-b/refused", "StartFailed", "Start", "RefusedByKubelet")
    await scene.told("team-b/pulling", "StartFailed", "Start", "ContainerNotStarted")


async def test_pods_that_do_not_wait(scene: Scene) -> None:
    await scene.nodes(small=1)
    await scene.running("small-000")
    await scene.told(f"team-v/job-small-{scene.mark}-000", "NotWaiting", "", "Running")
    await scene.waits("web", 0, team="team-w")
    await scene.told("team-w/web", "NotOurs", "", "AsksForNoCards")


async def test_devices_that_no_pool_counts(scene: Scene, admin: Admin) -> None:
    request = {"name": "nic", "exactly": {"deviceClassName": "rdma.example.com"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "nic", "namespace": "team-w"},
        "spec": {"devices": {"requests": [request]}},
    }
    await admin.request("POST", "/apis/resource.k8s.io/v1/namespaces/team-w/resourceclaims", claim)
    pod = make_pod("net", "team-w", cards=0)
    pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    await admin.create(pod)
    await scene.told("team-w/net", "NotOurs", "", "AsksForNoCards")


# The ways to ask


async def test_asking_through_the_api_server(scene: Scene, admin: Admin, plane: ControlPlane, product: Product) -> None:
    """The default way: the API server's proxy to the chart's Service, with the role the chart has for it."""
    await scene.waits("huge", 9)
    kubeconfig = str(plane.kubeconfig_for_user("tenant"))
    code, output = await why("team-b/huge", "--kubeconfig", kubeconfig)
    role = f"Ask an administrator for the Role wholenode-explain (get services/proxy) in namespace {NAMESPACE}"
    assert (code, role in output) == (4, True), output
    code, output = await why("team-b/huge", "--direct", "--kubeconfig", kubeconfig)
    assert (code, "You may not read that pod" in output) == (4, True)
    await admin.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "tenant", "namespace": NAMESPACE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "wholenode-explain"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        }
    )
    code, output = await other_than(4, "team-b/huge", "--kubeconfig", kubeconfig)
    assert (code, "see that it is installed and ready, name it by --service" in output) == (5, True), output

    await admin.create({**make_nodes(1, 0, "real")[0], "metadata": {"name": "real-001"}})
    await stand_in_for_the_charts_deployment(admin, product.ports[EXTENDER])
    code, output = await other_than(5, "team-b/huge", "--kubeconfig", kubeconfig)
    assert (code, "NeverFits" in output) == (0, True), output
    code, output = await why("team-b/nobody", "--kubeconfig", kubeconfig)
    assert (code, output.strip()) == (3, "why: there is no pod team-b/nobody")


async def test_a_pod_that_does_not_exist_and_an_extender_that_does_not_answer(scene: Scene) -> None:
    for way in (["--url", scene.url], ["--direct", "--kubeconfig", str(scene.admin.kubeconfig)]):
        code, output = await why("team-b/nobody", *way)
        assert (code, "there is no pod team-b/nobody" in output, output.count("\n")) == (3, True, 1)
    code, output = await why("team-b/nobody", "--url", "http://127.0.0.1:9")
    assert (code, "cannot be asked" in output, output.count("\n")) == (5, True, 1)


async def test_the_gauge_counts_what_is_explained(scene: Scene, admin: Admin) -> None:
    await scene.nodes(big=2)
    await scene.waits("one", 1, team="team-w")
    await scene.told("team-w/one", "NoPlace", "Agreement", "NotLentWithoutAgreement")
    body = await asyncio.to_thread(_fetch, f"{scene.url}/metrics")
    assert 'wholenode_waiting_pods_by_reason{kind="NoPlace",reason="NotLentWithoutAgreement"} 1.0' in body


def _fetch(url: str) -> str:
    from urllib.request import urlopen

    with urlopen(url) as answer:  # noqa: S310 - our own extender
        return str(answer.read().decode())
