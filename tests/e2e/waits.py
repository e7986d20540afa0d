"""What the tests of `wholenode why` put into the cluster, and how they ask."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import string
import time
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from cli.main import main
from cli.why_text import told
from fleet.why.explanations import Explanation
from kwok.admin import Admin, create_all
from kwok.nodes import is_ready, make_nodes
from kwok.product import EXTENDER, NAMESPACE, Product
from kwok.workloads import make_pod

CARDS = 4
ZONE = "topology.kubernetes.io/zone"
API = "wholenode.io/v1alpha1"
CLAIMS = "/apis/wholenode.io/v1alpha1/namespaces/team-b/wholenodeclaims"
TEAMS = ("team-b", "team-v", "team-w")
EVICT = {"wholenode.io/policy": "WaitThenEvict"}
POOLS = {
    "small": {"accepts": "Small"},
    "big": {"accepts": "WholeNode", "overflow": "Reclaimable", "drain": "Agreed"},
    "still": {"accepts": "WholeNode", "overflow": "Never", "drain": "Disabled"},
}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "why.md"
LOOK_EVERY_SECONDS = 0.1
SECONDS = 30.0


def gpu_pool(name: str, more: dict[str, Any]) -> dict[str, Any]:
    spec = {"nodeSelector": {"matchLabels": {"pool": name}}, "cardsPerNode": CARDS, **more}
    return {"apiVersion": API, "kind": "GPUPool", "metadata": {"name": name}, "spec": spec}


def agreement(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "DrainAgreement",
        "metadata": {"name": "whole-nodes", "namespace": "team-v"},
        "spec": {"beneficiaries": [{"namespace": "team-b"}], **spec},
    }


class Scene:
    """What one test puts into the cluster, and what it is told about it."""

    def __init__(self, admin: Admin, product: Product) -> None:
        self.admin = admin
        self.url = f"http://127.0.0.1:{product.ports[EXTENDER]}"
        # KWOK takes a node that is deleted and made anew under its name for the old one.
        self.mark = "".join(random.choices(string.ascii_lowercase, k=6))

    async def nodes(self, *zones: str, **counts: int) -> None:
        """Ready nodes of each pool: `small-<mark>-000`, ... and `big-<mark>-000`, ..., in turn in the zones."""
        made = [
            node
            for pool, count in counts.items()
            for node in make_nodes(count, CARDS, f"{pool}-{self.mark}", {"pool": pool})
        ]
        for node, zone in zip(made, zones, strict=False):
            node["metadata"]["labels"][ZONE] = zone
        await create_all(self.admin, made)
        await self.admin.wait_for_all("/api/v1/nodes", lambda found: all(is_ready(one) for one in found.values()))

    def name(self, node: str) -> str:
        """The node's name, with its mark: `big-000` is `big-<mark>-000`."""
        return node.replace("-", f"-{self.mark}-")

    async def running(self, node: str, cards: int = 1, team: str = "team-v", **more: Any) -> None:
        """A pod on the node of that name without its mark, placed by name."""
        node = self.name(node)
        pod = make_pod(f"job-{node}", team, cards=cards, **more)
        pod["spec"]["nodeName"] = node
        await self.admin.create(pod)
        await self.admin.wait_for(
            f"/api/v1/namespaces/{team}/pods/job-{node}",
            lambda found: (found or {}).get("status", {}).get("phase") == "Running",
        )

    async def replicated(self, kind: str, **spec: Any) -> None:
        """Two pods of team-v on two nodes of the pool `big`, made by a controller of that kind."""
        name = f"job-{kind.lower()}"
        labels = {"app": name}
        template = make_pod(name, resources={"nvidia.com/gpu": "1", "cpu": "40"})["spec"]
        template |= {"restartPolicy": "Always", "nodeSelector": {"pool": "big"}}
        meta = {"name": name, "namespace": "team-v"}
        pods = {"metadata": {"labels": labels}, "spec": template}
        spec |= {"selector": {"matchLabels": labels}, "template": pods}
        path = f"/apis/apps/v1/namespaces/team-v/{kind.lower()}s"
        made = {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}
        await self.admin.request("POST", path, made)
        await self.admin.wait_for_all(
            "/api/v1/namespaces/team-v/pods",
            lambda found: [one["status"]["phase"] for one in found.values()] == ["Running"] * 2,
        )

    async def waits(self, name: str, cards: int = CARDS, team: str = "team-b", **more: Any) -> dict[str, Any]:
        gates = more.pop("gates", ())
        pod = make_pod(name, team, cards=cards, **more)
        if gates:
            pod["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
        return await self.admin.create(pod)

    async def claim_in(self, phase: str, name: str = "") -> dict[str, Any]:
        """Wait until the claim of the gang of that name (or the only one) is in a phase."""

        def found(claims: Any) -> list[dict[str, Any]]:
            return [
                one
                for one in claims.values()
                if one.get("status", {}).get("phase") == phase and one["spec"]["gang"]["name"].startswith(name)
            ]

        return found(await self.admin.wait_for_all(CLAIMS, lambda claims: bool(found(claims))))[0]

    async def told(self, pod: str, kind: str, stage: str, reason: str, *, extender: bool = True) -> Explanation:
        """What both ways of asking say, once they say this in the very words of the docs; only one if no `extender`."""
        ways = [["--direct", "--kubeconfig", str(self.admin.kubeconfig)]]
        if extender:
            ways.append(["--url", self.url])
        deadline = time.monotonic() + SECONDS
        while True:
            done = [await why(pod, "-o", "json", *way) for way in ways]
            assert [code for code, _ in done] == [0] * len(ways), done
            answers = [msgspec.json.decode(output, type=Explanation) for _, output in done]
            words = [(one.kind, one.stage or "", one.reason) for one in answers]
            shown = [told(one, one.at) for one in answers]
            if words == [(kind, stage, reason)] * len(ways) and all(plain(text) in DOCUMENTED for text in shown):
                break
            # Else the caches are behind, or the controller has not written why.
            assert time.monotonic() < deadline, f"wanted {(kind, stage, reason)} as in docs/why.md, was told:\n" + (
                "\n".join(shown)
            )
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        assert [one.unread for one in answers] == [()] * len(ways)
        return answers[0]

    async def clear(self) -> None:
        """Remove everything but pools, teams and wholenode."""
        for team in TEAMS:
            for path in (
                f"/apis/apps/v1/namespaces/{team}/daemonsets",
                f"/apis/apps/v1/namespaces/{team}/replicasets",
                f"/api/v1/namespaces/{team}/pods",
                f"/apis/{API}/namespaces/{team}/drainagreements",
                f"/apis/policy/v1/namespaces/{team}/poddisruptionbudgets",
            ):
                for one in await self.admin.list(path):
                    await self.admin.delete(f"{path}/{one['metadata']['name']}", grace_seconds=0)
        for one in await self.admin.list(CLAIMS):
            await self.admin.delete(f"{CLAIMS}/{one['metadata']['name']}")
        for one in await self.admin.list("/api/v1/nodes"):
            await self.admin.delete(f"/api/v1/nodes/{one['metadata']['name']}")
        for team in TEAMS:
            await self.admin.wait_for_all(f"/api/v1/namespaces/{team}/pods", lambda found: not found)
        await self.admin.wait_for_all(CLAIMS, lambda found: not found)


async def why(*arguments: str) -> tuple[int, str]:
    """The command as users run it: exit code, and what it wrote."""
    done = await asyncio.to_thread(CliRunner().invoke, main, ["why", *arguments], catch_exceptions=False)
    return done.exit_code, done.output


async def other_than(code: int, *arguments: str) -> tuple[int, str]:
    """The command's end once it is another one: the API server takes a moment to see a binding, or a Service."""
    deadline = time.monotonic() + SECONDS
    while (done := await why(*arguments))[0] == code:
        assert time.monotonic() < deadline, done
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    return done


def plain(text: str) -> str:
    """The text without what differs from run to run: times, spans, node names' marks, the ends of claims' names."""
    text = re.sub(r"\b(big|small|still|loose)-[a-z]{6}-", r"\1-", " ".join(text.split()))
    text = re.sub(r"\b(job-(daemon|replica)set)-\S{5} ", r"\1-HASH ", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z", "TIME", text)
    text = re.sub(r"(in (\d+h)?(\d+m)?(\d+s)?|(\d+h)?(\d+m)?(\d+s)? ago) \(TIME\)", "SPAN (TIME)", text)
    return re.sub(r"(team-b/\S+)-[0-9a-f]{8}\b", r"\1-HASH", text)


DOCUMENTED = frozenset(
    plain(block) for block in re.findall(r"```text\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
)


def workload_kind() -> dict[str, Any]:
    """Kueue's Workload, as far as we read it."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"},
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "Workload", "plural": "workloads"},
            "versions": [{"name": "v1beta2", "served": True, "storage": True, "schema": schema}],
        },
    }


async def make_workload_kind(admin: Admin) -> None:
    await admin.apply(workload_kind())
    await admin.wait_for(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.kueue.x-k8s.io",
        lambda found: any(
            one["type"] == "Established" and one["status"] == "True"
            for one in (found or {}).get("status", {}).get("conditions") or []
        ),
    )


async def make_workload(admin: Admin, pod: dict[str, Any], conditions: list[tuple[str, str, str, str]]) -> None:
    """Kueue's Workload of the pod; conditions as (type, status, reason, message)."""
    name = pod["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
    keys = ("type", "status", "reason", "message")
    since = {"lastTransitionTime": "2027-01-04T12:00:00Z"}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": f"pod-{name}", "namespace": "team-b", "ownerReferences": [owner]},
        "status": {"conditions": [{**dict(zip(keys, one, strict=True)), **since} for one in conditions]},
    }
    await admin.request("POST", "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-b/workloads", workload)


async def stand_in_for_the_charts_deployment(admin: Admin, port: int) -> None:
    """The Service, and a pod with this machine's address behind it: the API server proxies to pods only."""
    meta = {"name": "wholenode-extender", "namespace": NAMESPACE}
    ports = [{"name": "http", "port": 8080, "targetPort": port, "protocol": "TCP"}]
    await admin.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}})
    pod = make_pod("wholenode-extender", NAMESPACE, cards=0)
    pod["spec"]["nodeName"] = "real-001"
    await admin.create(pod)
    address = own_address()
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    await admin.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/wholenode-extender/status", status)
    target = {"kind": "Pod", "namespace": NAMESPACE, "name": "wholenode-extender"}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": "wholenode-extender"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "targetRef": target}],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }
    await admin.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", slice_)


def own_address() -> str:
    """An address of this machine that is no loopback one: the API server proxies to no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # nothing is sent: it only says which address would be used
        return str(one.getsockname()[0])
