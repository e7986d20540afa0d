"""Pods bound a second by the real kube-scheduler: without an extender, with ours, and with one that does nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kwok import ports
from kwok.admin import Admin, path_of
from kwok.bench.bigfleet import CARDS, LEAN_APISERVER, cpu_pod, fill, rules, small_pod
from kwok.bench.figures import Figures, paired_ratios, spread
from kwok.binaries import ensure
from kwok.controlplane import APISERVER, ETCD, SCHEDULER, ControlPlane
from kwok.errors import LabError
from kwok.flags import scheduler, scheduler_config
from kwok.nodes import make_nodes
from kwok.product import EXTENDER, Product
from kwok.workloads import Manifest

NONE, OURS = "no_extender", "wholenode"
NOOP_FILTER, NOOP_BOTH = "noop_filter", "noop_filter_prioritize"
FILTER, PRIORITIZE, PREEMPT = "filter", "prioritize", "preempt"

_NAMESPACE = "load"
_PODS_PATH = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_NOOP = "noop"
_BOUND_SECONDS = 90.0
_EMPTY_SECONDS = 60.0


@dataclass(frozen=True)
class Load:
    """How many nodes there are, how many pods a run binds, and how often each arm runs."""

    small_nodes: int = 140
    big_nodes: int = 20
    gpu_pods: int = 1000
    gpu_rounds: int = 4
    cpu_pods: int = 1500
    cpu_rounds: int = 6


FULL = Load()


def with_verbs(config: str, verbs: Iterable[str], url: str | None = None) -> str:
    """The scheduler configuration with these verbs of its extender and no other; at another address if given."""
    loaded: dict[str, Any] = yaml.safe_load(config)
    (extender,) = loaded["extenders"]
    wanted = set(verbs)
    for verb in (FILTER, PRIORITIZE, PREEMPT):
        extender.pop(f"{verb}Verb", None)
        if verb in wanted:
            extender[f"{verb}Verb"] = verb
    extender.pop("weight", None)
    if PRIORITIZE in wanted:
        extender["weight"] = 1
    if url is not None:
        extender["urlPrefix"] = url
    return yaml.safe_dump(loaded, sort_keys=False)


def verbs_of(config: str) -> frozenset[str]:
    """The verbs that a scheduler configuration has kube-scheduler ask its extender."""
    (extender,) = yaml.safe_load(config)["extenders"]
    return frozenset(verb for verb in (FILTER, PRIORITIZE, PREEMPT) if extender.get(f"{verb}Verb"))


@dataclass(frozen=True)
class Packing:
    """One of the two ways in which small pods are packed: by what filter lets through, or by prioritize's scores."""

    arm: str
    setting: str
    verbs: tuple[str, ...]


BY_FILTER = Packing(f"{OURS}_filter", "filter", (FILTER, PREEMPT))
BY_SCORES = Packing(f"{OURS}_filter_prioritize", "scores", (FILTER, PRIORITIZE, PREEMPT))


def other_packing(shipped: str) -> Packing:
    """The way that the shipped configuration does not go."""
    return BY_FILTER if PRIORITIZE in verbs_of(shipped) else BY_SCORES


def arms(shipped: str, other_url: str, noop_url: str) -> dict[str, str | None]:
    """Scheduler configurations by arm: the shipped one, one for the other packing, and the one that does nothing."""
    other = other_packing(shipped)
    return {
        NONE: None,
        OURS: shipped,
        other.arm: with_verbs(shipped, other.verbs, other_url),
        NOOP_FILTER: with_verbs(shipped, (FILTER,), noop_url),
        NOOP_BOTH: with_verbs(shipped, (FILTER, PRIORITIZE), noop_url),
    }


async def measure(load: Load, say: Callable[[str], None]) -> Figures:
    """Pods a second of every arm, the arms in turn, and ratios to the neighbouring run without an extender.

    Scheduler, API server, etcd and the extender share the machine; nothing else runs on it, no kubelets either.
    `say` is told each run's figure. Raises LabError.
    """
    binary = ensure((SCHEDULER,))[SCHEDULER]
    flags = {APISERVER: LEAN_APISERVER}
    async with (
        ControlPlane(components=(ETCD, APISERVER), extra_flags=flags) as plane,
        Admin(plane.kubeconfig) as admin,
    ):
        product = Product(plane)
        await product.install(admin)
        await _set_the_scene(admin, load)
        packing = other_packing(product.scheduler_config)
        other = Product(plane, {"WHOLENODE_PACKING": packing.setting})
        noop = ports.pick({*product.ports.values(), *other.ports.values()})
        plane.start_process(_NOOP, [sys.executable, "-m", "kwok.bench.noop", str(noop)])
        bench = _Bench(binary, plane, admin, {OURS: product, packing.arm: other}, say)
        every = arms(product.scheduler_config, _local(other.ports[EXTENDER]), _local(noop))
        gpu = await bench.rounds(every, load.gpu_rounds, small_pod, load.gpu_pods)
        first = {name: every[name] for name in (NONE, OURS)}
        cpu = await bench.rounds(first, load.cpu_rounds, cpu_pod, load.cpu_pods)
    return {"gpu": _summary(gpu), "cpu": _summary(cpu)}


def _local(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _summary(found: Mapping[str, list[float]]) -> Figures:
    return {
        name: {
            "pods_per_s": spread(rates, 1),
            "rounds": [round(one, 1) for one in rates],
            "ratio": paired_ratios(rates, found[NONE]),
        }
        for name, rates in found.items()
    }


async def _set_the_scene(admin: Admin, load: Load) -> None:
    namespace: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
    await admin.create(namespace)
    await fill(admin, make_nodes(load.small_nodes, CARDS, "small", {"pool": "small"}))
    await fill(admin, make_nodes(load.big_nodes, CARDS, "big", {"pool": "big"}))
    for one in rules(()):
        await admin.create(one)


@dataclass(frozen=True)
class _Bench:
    binary: Path
    """kube-scheduler."""
    plane: ControlPlane
    admin: Admin
    extenders: Mapping[str, Product]
    """Ours, by the arms that have it."""
    say: Callable[[str], None]

    async def rounds(
        self, every: Mapping[str, str | None], rounds: int, make: Callable[[str, str], Manifest], pods: int
    ) -> dict[str, list[float]]:
        """Each arm once a round; every other round backwards, so that no arm is always the first."""
        found: dict[str, list[float]] = {name: [] for name in every}
        for number in range(rounds):
            order = list(every) if number % 2 == 0 else list(every)[::-1]
            for name in order:
                manifests = [make(f"{name.replace('_', '-')}-{index:05d}", _NAMESPACE) for index in range(pods)]
                async with self._extender(self.extenders.get(name)):
                    found[name].append(await self._run(every[name], manifests))
                self.say(f"bench: {pods} pods, {name}: {found[name][-1]:.0f} a second")
        return found

    @contextlib.asynccontextmanager
    async def _extender(self, product: Product | None) -> AsyncIterator[None]:
        """Ours follows every pod, which costs something even where it is not asked: it runs in its own arms only."""
        if product is None:
            yield
            return
        product.launch(EXTENDER)
        try:
            await product.ready(EXTENDER)
            yield
        finally:
            self.plane.stop_component(EXTENDER, 0.0)

    async def _run(self, config: str | None, manifests: list[Manifest]) -> float:
        """Make the pods, start the scheduler, and return how many it bound a second, from the first to the last."""
        await fill(self.admin, manifests)
        listed = await self.admin.request("GET", _PODS_PATH, params={"limit": "1"})
        self._start_scheduler(config)
        times: list[float] = []
        try:
            async with asyncio.timeout(_BOUND_SECONDS):
                await self._bindings(listed["metadata"]["resourceVersion"], len(manifests), times)
        except TimeoutError as error:
            raise LabError(f"{len(times)} of {len(manifests)} pods were bound in {_BOUND_SECONDS:.0f} s") from error
        finally:
            self.plane.stop_component(SCHEDULER)
        await self._clear()
        return (len(times) - 1) / (times[-1] - times[0])

    def _start_scheduler(self, config: str | None) -> None:
        """Not waited for: looking whether it is ready would take processor time from what is measured."""
        path = self.plane.root / "load-scheduler.yaml"
        path.write_text(scheduler_config(config, self.plane.kubeconfig), encoding="utf-8")
        argv = scheduler(self.binary, path, ports.pick(set()))
        self.plane.start_process(SCHEDULER, argv, {**os.environ, "GOGC": "200"})

    async def _bindings(self, version: str, pods: int, times: list[float]) -> None:
        """Note when each binding is seen. Lines are not decoded: the machine has better things to do meanwhile.

        The API server ends the watch of one who reads too slowly; it is taken up again where it ended.
        """
        while len(times) < pods:
            query = {"watch": "1", "resourceVersion": version, "fieldSelector": "spec.nodeName!="}
            pending, last = b"", b""
            async with self.admin.session.get(_PODS_PATH, params=query) as response:
                async for chunk in response.content.iter_any():
                    *lines, pending = (pending + chunk).split(b"\n")
                    times += [time.monotonic()] * sum(line.startswith(b'{"type":"ADDED"') for line in lines)
                    if len(times) >= pods:
                        return
                    last = lines[-1] if lines else last
            if last:
                version = json.loads(last)["object"]["metadata"]["resourceVersion"]

    async def _clear(self) -> None:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        await self.admin.request("DELETE", _PODS_PATH, options)
        await self.admin.wait_for_all(_PODS_PATH, lambda pods: not pods, _EMPTY_SECONDS)
        events = path_of({"apiVersion": "v1", "kind": "Event", "metadata": {"namespace": _NAMESPACE}}, collection=True)
        await self.admin.request("DELETE", events, options)
