"""wholenode itself beside a control plane: the chart's objects, and both processes under the chart's own roles."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from kwok import ports
from kwok.admin import Admin, APIError, path_of
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.helm import helm
from kwok.kubeconfig import leading_to
from kwok.process import start_ticks
from kwok.served import apply_kinds
from kwok.workloads import make_pod

NAMESPACE = "wholenode-system"
CONTROLLER, EXTENDER = "controller", "extender"
CHART = Path(__file__).resolve().parent.parent / "deploy" / "chart"
_RUN_BY_HAND = frozenset({"Deployment", "Service", "PodDisruptionBudget"})
_READY_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.05
_GATE_SECONDS = 30.0


class Product:
    """Extender and controller as processes of a control plane, with ServiceAccount tokens of the chart."""

    def __init__(
        self,
        plane: ControlPlane,
        settings: Mapping[str, str] | None = None,
        chart_values: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings`: more environment variables for both processes, e.g. WHOLENODE_LEASE_SECONDS.

        `chart_values`: values of the chart by their path, e.g. `{"scheduler.nextToHAMi": True}`.
        """
        self._plane = plane
        self._settings = dict(settings or {})
        self._chart_values = dict(chart_values or {})
        taken: set[int] = set()
        self.ports = {EXTENDER: ports.pick(taken), CONTROLLER: ports.pick(taken)}
        self.scheduler_config = ""
        self.through: dict[str, str] = {}
        """Address (plain HTTP) by which a process reaches the API server, by its name; others go straight to it."""
        self._pids: dict[str, int] = {}

    async def install(self, admin: Admin) -> None:
        """Apply the chart, without what would run its images; waits until its kinds are served."""
        objects = await asyncio.to_thread(self._render)
        crds = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
        await apply_kinds(admin, crds)
        await _ignore_conflict(admin, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for one in objects:
            if one["kind"] in _RUN_BY_HAND or one in crds:
                continue
            await admin.apply(one)
            if one["kind"] == "ConfigMap" and "scheduler-config.yaml" in one.get("data", {}):
                self.scheduler_config = one["data"]["scheduler-config.yaml"]

    async def start(self) -> None:
        """Start both processes, wait until they are ready, and let kube-scheduler ask the extender."""
        self.launch(EXTENDER)
        self.launch(CONTROLLER)
        await self.ready(EXTENDER)
        await asyncio.to_thread(self._plane.restart_scheduler, self.scheduler_config)
        await self.ready(CONTROLLER)

    def launch(self, name: str, program: str | None = None) -> None:
        """Start one of the processes, without waiting. `program`: which of the two, if it runs under another name."""
        program = program or name
        kubeconfig = self.kubeconfig(program)
        if name in self.through:
            kubeconfig = leading_to(self.through[name], kubeconfig, self._plane.root / f"through-{name}.kubeconfig")
        if name not in self.ports:
            self.ports[name] = ports.pick(set(self.ports.values()))
        env = {
            **os.environ,
            "WHOLENODE_KUBECONFIG": str(kubeconfig),
            "WHOLENODE_NAMESPACE": NAMESPACE,
            "WHOLENODE_HOST": "127.0.0.1",
            "WHOLENODE_PORT": str(self.ports[name]),
            "WHOLENODE_LEAVE_SECONDS": "0",
            **self._settings,
        }
        self._pids[name] = self._plane.start_process(name, [sys.executable, "-m", program], env)

    def kubeconfig(self, program: str) -> Path:
        """Write a kubeconfig of the program's ServiceAccount, with a fresh token; return its path."""
        return self._plane.kubeconfig_for_service_account(NAMESPACE, f"wholenode-{program}")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one of the processes, without waiting."""
        os.kill(self._pids[name], number)

    def running(self, name: str) -> bool:
        """Whether the process has been started and has not ended."""
        return name in self._pids and start_ticks(self._pids[name]) is not None

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(name, signal.SIGKILL)
        self._plane.stop_component(name)

    async def ready(self, name: str) -> None:
        """Wait until the process says it is ready. Raises LabError."""
        url = f"http://127.0.0.1:{self.ports[name]}/readyz"
        last = "no answer"
        async with aiohttp.ClientSession() as session:
            for _ in range(int(_READY_SECONDS / _LOOK_EVERY_SECONDS)):
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:  # noqa: PLR2004
                            return
                        last = await answer.text()
                except aiohttp.ClientError as error:
                    last = str(error)
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
        raise LabError(f"{name} was not ready after {_READY_SECONDS:.0f} s: {last} (logs: {self._plane.logs})")

    async def gate_active(self, admin: Admin, cards: int, namespace: str) -> None:
        """Wait until the API server applies the admission policy: it takes a moment to see pools and policies."""
        probe = make_pod("gate-probe", namespace, cards=cards)
        for _ in range(int(_GATE_SECONDS / _LOOK_EVERY_SECONDS)):
            made = await admin.request("POST", path_of(probe, collection=True), probe, params={"dryRun": "All"})
            if made["spec"].get("schedulingGates"):
                return
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        raise LabError(f"the admission policy does not gate a pod of {cards} cards after {_GATE_SECONDS:.0f} s")

    def stop(self) -> None:
        """End both processes."""
        for name in sorted(self._pids, key=lambda one: one == EXTENDER):
            self._plane.stop_component(name, 10.0)
        self._pids.clear()

    def _render(self) -> list[dict[str, Any]]:
        command = [
            str(helm()), "template", "wholenode", str(CHART), "--namespace", NAMESPACE, "--include-crds",
            "--set", f"scheduler.urlPrefix=http://127.0.0.1:{self.ports[EXTENDER]}",
        ]  # fmt: skip
        for key, value in self._chart_values.items():
            command += ["--set-json", f"{key}={json.dumps(value)}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise LabError(f"helm cannot render the chart: {run.stderr.strip()}")
        return [one for one in yaml.safe_load_all(run.stdout) if one]


async def _ignore_conflict(admin: Admin, manifest: dict[str, Any]) -> None:
    try:
        await admin.create(manifest)
    except APIError as error:
        if error.reason != "AlreadyExists":
            raise
