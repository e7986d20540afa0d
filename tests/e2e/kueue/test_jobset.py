"""A JobSet before our check; what its own controller does (a Go program of its own) is done by hand."""

from __future__ import annotations

from typing import Any

from kwok.admin import Object, path_of
from kwok.readings import chosen_nodes, node_of, uid
from kwok.workloads import QUEUE, Manifest, make_pod
from tests.e2e.desk import CLAIM, Desk
from tests.e2e.ground import HELD_OPEN_SECONDS, VACATE

API_VERSION = "jobset.x-k8s.io/v1alpha2"
MARKS = "jobset.sigs.k8s.io/"


def job_set(name: str, namespace: str, queue: str, *, jobs: int, cards: int) -> Manifest:
    """A JobSet of so many Jobs of one pod."""
    pod = make_pod(name, namespace, cards=cards, annotations=VACATE)
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    job: Manifest = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template}
    made: Manifest = {
        "suspend": True,
        "replicatedJobs": [{"name": "workers", "replicas": jobs, "template": {"spec": job}}],
    }
    metadata = {"name": name, "namespace": namespace, "labels": {QUEUE: queue}}
    return {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": metadata, "spec": made}


def children(owner: Object) -> list[Manifest]:
    """The Jobs that JobSet's controller makes once Kueue has let it go on."""
    replicated = owner["spec"]["replicatedJobs"][0]
    made = []
    for index in range(replicated["replicas"]):
        marks = {
            f"{MARKS}jobset-name": owner["metadata"]["name"],
            f"{MARKS}jobset-uid": uid(owner),
            f"{MARKS}replicatedjob-name": replicated["name"],
            f"{MARKS}replicatedjob-replicas": str(replicated["replicas"]),
            f"{MARKS}global-replicas": str(replicated["replicas"]),
            f"{MARKS}job-index": str(index),
        }
        spec: dict[str, Any] = {**replicated["template"]["spec"], "suspend": False}
        meta = spec["template"].get("metadata", {})
        labels = {**(meta.get("labels") or {}), **marks}
        spec["template"] = {**spec["template"], "metadata": {**meta, "labels": labels}}
        reference = {"apiVersion": API_VERSION, "kind": "JobSet", "name": owner["metadata"]["name"], "uid": uid(owner)}
        metadata = {
            "name": f"{owner['metadata']['name']}-{replicated['name']}-{index}",
            "namespace": owner["metadata"]["namespace"],
            "labels": marks,
            "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
        }
        made.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    return made


async def test_a_jobset_gets_a_node_for_each_of_its_pods_and_one_claim(desk: Desk) -> None:
    ground = desk.ground
    await ground.pool(2)
    await desk.queue("big", 16, checked=True)
    made = await desk.admin.create(job_set("train", ground.namespace, "big", jobs=2, cards=8))
    ground.cleanup.append(path_of(made))
    let_go = await desk.admin.wait_for(
        path_of(made), lambda found: found is not None and not found["spec"].get("suspend"), HELD_OPEN_SECONDS
    )
    assert let_go is not None
    for job in children(let_go):
        await desk.admin.create(job)
    await ground.until(lambda: len(ground.bound("train-")) == 2)
    (claim,) = ground.claims().values()
    assert set(ground.bound("train-").values()) == {one["name"] for one in chosen_nodes(claim)}
    pods = ground.pods("train-").values()
    assert {pod["spec"]["nodeSelector"][CLAIM] for pod in pods} == {uid(claim)}
    assert len({node_of(pod) for pod in pods}) == 2
    assert not any(pod["spec"].get("schedulingGates") for pod in pods)
