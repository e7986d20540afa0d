"""How fast the extender answers, starts and takes changes in, and how much memory it needs, in a fleet of N nodes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwok import ports
from kwok.admin import Admin
from kwok.bench import eventcost
from kwok.bench.bigfleet import LEAN_APISERVER, BigFleet, cpu_pod, fill, small_pod, whole_node_pod
from kwok.bench.calls import Caller, filter_bodies, question
from kwok.bench.churn import SEEN
from kwok.bench.figures import Figures, latency, spread
from kwok.controlplane import APISERVER, ETCD, ControlPlane
from kwok.errors import LabError
from kwok.product import EXTENDER, NAMESPACE, Product
from kwok.scene import TEAMS

_ECHO, _CHURN = "echo", "churn"
_BODIES = 24
_WARM_UP_CALLS = 100
_LISTEN_SECONDS, _LOOK_SECONDS = 10.0, 0.02
_HEARTBEAT_EVERY_SECONDS = 300.0
"""What a kubelet reports when nothing changes; placement does not go by it."""
_LABELS_PER_SECOND, _PODS_PER_SECOND = 5.0, 80.0
_KIB_PER_MB = 1000 * 1000 / 1024


@dataclass(frozen=True)
class Size:
    """How much is measured: `calls` of each pod in all, dealt out to `rounds`; `lives` of recorded pods (0: none)."""

    nodes: int
    calls: int
    rounds: int
    starts: int
    lives: int


SMALL = Size(nodes=500, calls=2000, rounds=5, starts=1, lives=0)
LARGE = Size(nodes=5000, calls=1000, rounds=5, starts=3, lives=2000)


async def measure(size: Size, seed: int) -> Figures:
    """All figures of one fleet, on etcd and an API server alone. Raises LabError, APIError."""
    flags = {APISERVER: LEAN_APISERVER}
    async with (
        ControlPlane(components=(ETCD, APISERVER), extra_flags=flags) as plane,
        Admin(plane.kubeconfig) as admin,
    ):
        fleet = BigFleet(size.nodes, seed)
        began = time.monotonic()
        await fill(admin, fleet.namespaces())
        pods = await _asked_for(admin)
        await fill(admin, fleet.node_objects())
        made = await fill(admin, fleet.pod_objects())
        filled = round(time.monotonic() - began, 1)
        product = Product(plane)
        await product.install(admin)
        for one in fleet.rules():
            await admin.create(one)
        found = await _extender(plane, product, fleet, pods, size)
        found["details"] |= {"nodes": size.nodes, "pods": made, "fill_s": filled}
        if size.lives:
            lines = await eventcost.record(admin, fleet.node_names(), size.lives)
            kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, f"wholenode-{EXTENDER}")
            found["events"] = await eventcost.cost(kubeconfig, lines, size.rounds)
        return found


async def _asked_for(admin: Admin) -> dict[str, dict[str, Any]]:
    """The pods that are asked about, as the API server completes them; made before any policy could gate them."""
    wanted = {
        "small": small_pod("small", TEAMS[0]),
        "small_without_agreement": small_pod("small", TEAMS[-1]),
        "whole_node": whole_node_pod("whole", TEAMS[0]),
        "cpu": cpu_pod("cpu", TEAMS[0]),
    }
    return {kind: await admin.create(pod) for kind, pod in wanted.items()}


async def _extender(
    plane: ControlPlane, product: Product, fleet: BigFleet, pods: Mapping[str, dict[str, Any]], size: Size
) -> Figures:
    ready = []
    for _ in range(size.starts):
        plane.stop_component(EXTENDER, 0.0)
        began = time.monotonic()
        product.launch(EXTENDER)
        await product.ready(EXTENDER)
        ready.append(time.monotonic() - began)
    after_ready = _memory_mb(plane)
    names, port = fleet.node_names(), product.ports[EXTENDER]
    echo = ports.pick({port})
    plane.start_process(_ECHO, [sys.executable, "-m", "kwok.bench.echo", str(echo)])
    bodies = {kind: filter_bodies(pod, names, _BODIES, fleet.seed) for kind, pod in pods.items()}
    quiet = await asyncio.to_thread(_filter, port, echo, bodies, size)
    after_calls = _memory_mb(plane)
    rates = (fleet.nodes / _HEARTBEAT_EVERY_SECONDS, _LABELS_PER_SECOND, _PODS_PER_SECOND)
    program = [sys.executable, "-m", "kwok.bench.churn", str(plane.kubeconfig)]
    plane.start_process(_CHURN, [*program, *map(str, rates)])
    await _disturbed(plane)
    busy = await asyncio.to_thread(_filter, port, None, {"small": bodies["small"]}, size)
    plane.stop_component(EXTENDER, 0.0)
    for name in (_CHURN, _ECHO):
        plane.stop_component(name)
    details = {
        "ready_s": spread(ready, 2),
        "rss_mb": {"after_ready": after_ready, "after_filter_calls": after_calls},
        "filter_while_changing": {
            "changes_per_s": dict(zip(("node_heartbeats", "node_labels", "pod_annotations"), rates, strict=True)),
            **busy["by_pod"]["small"],
        },
    }
    return {"filter": quiet, "details": details}


def _filter(port: int, echo: int | None, bodies: Mapping[str, Sequence[bytes]], size: Size) -> Figures:
    """Rounds of all kinds of pods in turn; beside them the same bytes to and from a server that does nothing."""
    with ExitStack() as stack:
        asked = stack.enter_context(Caller(port))
        requests = {kind: [question(port, "/filter", body) for body in some] for kind, some in bodies.items()}
        lengths: dict[str, tuple[int, int]] = {}
        for kind, some in requests.items():
            answer = asked.call(some[0])[1]
            lengths[kind] = (len(bodies[kind][0]), len(answer))
            asked.time(some, _WARM_UP_CALLS)
        idle = stack.enter_context(_listening(echo)) if echo is not None else None
        took: dict[str, list[list[float]]] = {kind: [] for kind in requests}
        client: dict[str, list[list[float]]] = {kind: [] for kind in requests}
        for _ in range(size.rounds):
            for kind, some in requests.items():
                took[kind].append(asked.time(some, size.calls // size.rounds))
                if echo is not None and idle is not None:
                    same = [question(echo, f"/{lengths[kind][1]}", body) for body in bodies[kind]]
                    client[kind].append(idle.time(same, size.calls // size.rounds // 2))
    by_pod = {}
    for kind, rounds in took.items():
        asked_bytes, answered_bytes = lengths[kind]
        by_pod[kind] = {**latency(rounds), "question_bytes": asked_bytes, "answer_bytes": answered_bytes}
        if client[kind]:
            alone = latency(client[kind])
            by_pod[kind] |= {"client_alone_p50_ms": alone["p50_ms"], "client_alone_p99_ms": alone["p99_ms"]}
    # The worst kind of pod stands for all, so that what is promised holds for each.
    worst = {name: max(one[name] for one in by_pod.values()) for name in ("p50_ms", "p99_ms")}
    return {**worst, "by_pod": by_pod}


def _listening(port: int) -> Caller:
    for _ in range(int(_LISTEN_SECONDS / _LOOK_SECONDS)):
        try:
            return Caller(port)
        except ConnectionRefusedError:
            time.sleep(_LOOK_SECONDS)
    raise LabError(f"nobody listens on port {port} after {_LISTEN_SECONDS:.0f} s")


async def _disturbed(plane: ControlPlane) -> None:
    """Wait until the process that disturbs does so."""
    async with Admin(plane.kubeconfig) as admin:
        await admin.wait_for_all("/api/v1/nodes", bool, labelSelector=SEEN)


def _memory_mb(plane: ControlPlane) -> float:
    """Resident memory of the extender, in megabytes."""
    pid = plane.pids()[EXTENDER]
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / _KIB_PER_MB, 1)
    raise LabError(f"the kernel does not tell the memory of process {pid}")
