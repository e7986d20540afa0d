"""`wholenode plan`, `dump`, `ledger`, `claims` on a real control plane: they read only, and say what is so."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from kwok.admin import Admin
from kwok.controlplane import CONTROLLER_MANAGER, KWOK, SCHEDULER, ControlPlane
from kwok.landings import PodWatch
from kwok.product import CONTROLLER, EXTENDER, Product
from kwok.race import prepare
from kwok.scene import BENEFICIARY, Scene
from kwok.workloads import make_job
from tests.e2e.test_main_job import OWN_CLAIMS, in_phase, start

SCENE = Scene(nodes=6, small_nodes=1, busy_cards=33, grace_seconds=1)
OURS = "/apis/wholenode.io/v1alpha1"
LISTS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/events",
    "/apis/batch/v1/jobs",
    "/apis/policy/v1/poddisruptionbudgets",
    *(f"{OURS}/{plural}" for plural in ("gpupools", "drainagreements", "wholenodeclaims", "drainrecords")),
)
READER = "reader"
KUEUE = ["workloads", "resourceflavors", "admissionchecks"]


async def ask(kubeconfig: Path, *arguments: str, given: bytes | None = None) -> str:
    """What the command prints; it must succeed and say nothing else."""
    options = () if given is not None else ("--kubeconfig", str(kubeconfig))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from cli.main import main; main()",
        *arguments,
        *options,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=dict(os.environ),
    )
    out, errors = await process.communicate(given)
    assert (process.returncode, errors.decode()) == (0, "")
    return out.decode()


async def versions(admin: Admin) -> dict[str, str]:
    """The resource version of every object that anything could have written to."""
    return {
        f"{path} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for path in LISTS
        for one in await admin.list(path)
    }


async def reader(admin: Admin, plane: ControlPlane) -> Path:
    """Somebody who may list what plans look at, and nothing else."""
    lists = {"": ["nodes", "pods"], "batch": ["jobs"], "policy": ["poddisruptionbudgets"]}
    lists |= {"resource.k8s.io": ["resourceclaims"], "scheduling.k8s.io": ["podgroups"]}
    lists |= {"scheduling.x-k8s.io": ["podgroups"], "kueue.x-k8s.io": KUEUE}
    lists |= {"wholenode.io": ["gpupools", "drainagreements", "wholenodeclaims", "drainrecords"]}
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["list"]} for group, names in lists.items()]
    rbac, name = "rbac.authorization.k8s.io", {"name": READER}
    await admin.create({"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": name, "rules": rules})
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": name,
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": READER},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": READER}],
    }
    await admin.create(binding)
    return plane.kubeconfig_for_user(READER)


def waiting(claims: Any) -> bool:
    return in_phase("Pending")(claims) and all(one["status"].get("plan") for one in claims.values())


async def test_d20_a_plan_is_the_same_live_and_from_a_dump_and_nothing_is_written(
    admin: Admin, watch: PodWatch, plane: ControlPlane, product: Product
) -> None:
    """O09: asked again, it is the same text. Whoever asks needs no right but to list."""
    await prepare(admin, watch, SCENE)
    await start(admin, product, SCENE)
    await admin.create(make_job("train", BENEFICIARY, pods=2, cards=8))
    claims = await admin.wait_for_all(OWN_CLAIMS, waiting)
    for name in (CONTROLLER, EXTENDER):  # from now on nobody else writes
        product.kill(name)
    for name in (SCHEDULER, CONTROLLER_MANAGER, KWOK):
        await asyncio.to_thread(plane.stop_component, name)
    kubeconfig = await reader(admin, plane)
    (pod, *_) = await admin.list(f"/api/v1/namespaces/{BENEFICIARY}/pods")
    before = await versions(admin)

    dump = (await ask(kubeconfig, "dump")).encode()
    live = json.loads(await ask(kubeconfig, "plan", f"{BENEFICIARY}/{pod['metadata']['name']}", "-o", "json"))
    gang = ("plan", "-n", BENEFICIARY, "--nodes", "2", "--pool", "big", "--policy", "WaitThenEvict")
    made_up = json.loads(await ask(kubeconfig, *gang, "-o", "json"))
    await ask(kubeconfig, "ledger")
    await ask(kubeconfig, "claims")

    assert await versions(admin) == before
    named = ("plan", f"{BENEFICIARY}/{pod['metadata']['name']}")
    for command, answer in ((named, live), (gang, made_up)):
        saved = await ask(kubeconfig, *command, "--from", "-", "--at", answer["at"], "-o", "json", given=dump)
        assert json.loads(saved) == answer
    texts = [await ask(kubeconfig, *gang, "--from", "-", "--all", given=dump) for _ in range(2)]
    assert texts[0] == texts[1]
    (claim,) = claims.values()
    assert live["claim"]["exists"]
    assert live["now"]["reason"] == claim["status"]["reason"] == "WaitingForNaturalEnd"
    assert live["now"]["nodes"] == claim["status"]["plan"]["nodes"]
    assert made_up["now"]["takes"]
    names = [*made_up["now"]["nodes"], *(one["node"] for one in made_up["now"]["others"])]
    assert sorted(names) == sorted(node["metadata"]["name"] for node in await admin.list("/api/v1/nodes"))
    assert b'"env"' not in dump


async def test_the_ledger_has_what_the_claim_says_and_still_has_it_when_the_claim_is_gone(
    admin: Admin, watch: PodWatch, plane: ControlPlane, product: Product
) -> None:
    await prepare(admin, watch, SCENE)
    await start(admin, product, SCENE)
    await admin.create(SCENE.whole_node_job("big"))
    (claim,) = (await admin.wait_for_all(OWN_CLAIMS, in_phase("Bound"))).values()
    records = await admin.wait_for_all(
        f"{OURS}/drainrecords",
        lambda found: bool(found) and all(one.get("status", {}).get("outcome") == "Stopped" for one in found.values()),
    )
    kubeconfig = await reader(admin, plane)

    first = json.loads(await ask(kubeconfig, "ledger", "--since", "1h", "-o", "json"))

    assert first["total"]["evictions"] == len(claim["status"]["victims"]) == len(records)
    assert abs(first["total"]["lostGpuSeconds"] - claim["status"]["lostGpuSeconds"]) < 0.01
    assert {row["beneficiary"] for row in first["rows"]} == {BENEFICIARY}
    assert {row["victim"] for row in first["rows"]} == {one["namespace"] for one in claim["status"]["victims"]}
    (waits,) = first["waits"]
    assert (waits["beneficiary"], waits["claims"], waits["bound"]) == (BENEFICIARY, 1, 1)
    (listed,) = json.loads(await ask(kubeconfig, "claims", "-n", BENEFICIARY, "-o", "json"))
    assert (listed["phase"], listed["victims"]) == ("Bound", len(records))

    await admin.delete(f"{OWN_CLAIMS}/{claim['metadata']['name']}")
    await admin.wait_for_all(OWN_CLAIMS, lambda found: not found)

    then = json.loads(await ask(kubeconfig, "ledger", "--since", "1h", "-o", "json"))
    assert (then["rows"], then["total"]) == (first["rows"], first["total"])
