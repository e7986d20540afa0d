"""HAMi beside a control plane: the stand-in, or a real scheduler extender that WHOLENODE_HAMI_SCHEDULER names."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from kwok import ports, probe
from kwok.admin import Object
from kwok.controlplane import ControlPlane
from kwok.errors import LabError, last_lines
from kwok.hami.devices import CORES, GPU, MEMORY, PERCENTAGE, PRIORITY, RESOURCES
from kwok.hami.hook import configuration
from kwok.hami.rules import BINPACK
from kwok.pki import Authority
from kwok.process import start_ticks

REAL = "WHOLENODE_HAMI_SCHEDULER"
EXTENDER, PLUGIN = "hami", "hami-device-plugin"
SCHEDULER_NAME = "hami-scheduler"
READY_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.05
ANY_QUESTION = {"Pod": {"metadata": {"name": "nobody", "namespace": "default"}, "spec": {}}, "NodeNames": []}
"""A real HAMi answers no question, not even one about a pod without cards, before it has read nodes and pods."""
OK = 200
_BOOKED = re.compile(r"^hami_vgpu_memory_allocated_bytes\{(?P<labels>[^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Hami:
    """HAMi's two halves as processes of a control plane.

    Its settings are HAMi's flags; where they differ from HAMi's own defaults (policies spread for cards, 5 calls a
    second) it is because a test is not about them. Methods raise LabError with one clear line.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        node_policy: str = BINPACK,
        gpu_policy: str = BINPACK,
        kube_qps: float = 1000.0,
        kube_burst: int = 2000,
        node_lock_timeout: str = "5m",
    ) -> None:
        """Describe a HAMi; `node_lock_timeout` is a Go duration."""
        taken: set[int] = set()
        self.port = ports.pick(taken)
        self.webhook_port = ports.pick(taken)
        self._metrics_port = ports.pick(taken)
        self._plane = plane
        self._flags = {
            "node-policy": node_policy,
            "gpu-policy": gpu_policy,
            "node-lock-timeout": node_lock_timeout,
            **_limit(kube_qps, kube_burst),
        }
        self._pids: dict[str, int] = {}

    @property
    def real(self) -> Path | None:
        """The real scheduler extender to run instead of the stand-in."""
        named = os.environ.get(REAL)
        return Path(named) if named else None

    def entry(self) -> Object:
        """HAMi's entry in a scheduler configuration: it filters, binds, and counts cards instead of the scheduler."""
        secured = {"enableHTTPS": True, "tlsConfig": {"insecure": True}}
        return {
            "urlPrefix": f"{'http' if self.real is None else 'https'}://127.0.0.1:{self.port}",
            **({} if self.real is None else secured),
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "weight": 1,
            "httpTimeout": "30s",
            "managedResources": [{"name": name, "ignoredByScheduler": True} for name in RESOURCES],
        }

    def chart_values(self) -> dict[str, Any]:
        """Values of our chart with which it renders the configuration for both extenders, ours first."""
        return {"scheduler.nextToHAMi": True, "scheduler.otherExtenders": [self.entry()]}

    def alone(self) -> str:
        """A scheduler configuration without us, for comparison."""
        return yaml.safe_dump(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "profiles": [{"schedulerName": "default-scheduler"}],
                "extenders": [self.entry()],
            }
        )

    def flags(self, names: Iterable[str]) -> list[str]:
        """Flags of this HAMi as its Deployment would show them; those not named are left to their defaults."""
        shown = {"node-policy": "node-scheduler-policy", "gpu-policy": "gpu-scheduler-policy"}
        chosen = [f"--{shown.get(name, name)}={self._flags[name]}" for name in names]
        return [f"--scheduler-name={SCHEDULER_NAME}", "--device-config-file=/device-config.yaml", *chosen]

    async def start(self) -> None:
        """Start both halves and wait until filter would be answered."""
        self.start_plugin()
        self.launch()
        await self.ready()

    def launch(self) -> None:
        """Start the extender, without waiting."""
        kubeconfig = self._plane.kubeconfig_for_user("hami", ("system:masters",))
        env = {**os.environ, "KUBECONFIG": str(kubeconfig), "TZ": "UTC"}
        self._pids[EXTENDER] = self._plane.start_process(EXTENDER, self.command(), env)

    def command(self) -> list[str]:
        """The command line of the extender."""
        if self.real is not None:
            return self._real_command(self.real)
        flags = [f"--{key}={value}" for key, value in self._flags.items()]
        certificate, key = self._key_pair()
        webhook = [f"--webhook-port={self.webhook_port}", f"--cert-file={certificate}", f"--key-file={key}"]
        return [sys.executable, "-m", "kwok.hami", f"--port={self.port}", *flags, *webhook]

    def with_limit(self, kube_qps: float, kube_burst: int) -> Hami:
        """The same HAMi, whose extender must not be running, started with another limit of its client."""
        other = Hami(self._plane)
        vars(other).update(vars(self) | {"_flags": self._flags | _limit(kube_qps, kube_burst), "_pids": {}})
        other.launch()
        return other

    def start_plugin(self) -> None:
        """Start the half that serves pods on their nodes."""
        kubeconfig = self._plane.kubeconfig_for_user("hami-device-plugin", ("system:masters",))
        argv = [sys.executable, "-m", "kwok.hami.plugin", f"--kubeconfig={kubeconfig}"]
        self._pids[PLUGIN] = self._plane.start_process(PLUGIN, argv)

    async def ready(self) -> None:
        """Wait until the extender has read all nodes and pods. Raises LabError."""
        deadline = time.monotonic() + READY_SECONDS
        while not await asyncio.to_thread(self._is_ready):
            if not self.running():
                said = last_lines(self._plane.logs / f"{EXTENDER}.log")
                raise LabError(f"{EXTENDER} ended at its start: {said or 'it said nothing'}")
            if time.monotonic() > deadline:
                raise LabError(f"{EXTENDER} was not ready after {READY_SECONDS:.0f} s (logs: {self._plane.logs})")
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    def running(self) -> bool:
        """Whether the extender has been started and has not ended."""
        return EXTENDER in self._pids and start_ticks(self._pids[EXTENDER]) is not None

    def kill(self) -> None:
        """SIGKILL the extender, and wait for its end; the device plugins go on."""
        os.kill(self._pids[EXTENDER], signal.SIGKILL)
        self._plane.stop_component(EXTENDER)

    def stop_plugin(self) -> None:
        """End the device plugins: locks then stay."""
        if self._pids.pop(PLUGIN, None) is not None:
            self._plane.stop_component(PLUGIN)

    def stop(self) -> None:
        """End both halves; either may be gone already."""
        if self._pids.pop(EXTENDER, None) is not None:
            self._plane.stop_component(EXTENDER)
        self.stop_plugin()

    def webhook(self, namespace: str) -> Object:
        """What has the API server ask the webhook about pods of a namespace; a real one has one port for everything."""
        port = self.webhook_port if self.real is None else self.port
        return configuration(port, self._keys / "ca.crt", namespace)

    @property
    def _keys(self) -> Path:
        return self._plane.root / "hami"

    def _key_pair(self) -> tuple[Path, Path]:
        """Certificate and key of the webhook, of everything in a real one; the same from start to start."""
        if not self._keys.exists():
            Authority.create(self._keys).issue("webhook", "hami-webhook")
        return self._keys / "webhook.crt", self._keys / "webhook.key"

    def booked(self) -> dict[str, str]:
        """The node HAMi has cards booked on, by `namespace/name` of the pod. Raises LabError."""
        if self.real is None:
            found: dict[str, str] = json.loads(self._read(self.port, "/state"))["booked"]
            return found
        told = _BOOKED.finditer(self._read(self._metrics_port, "/metrics"))
        labels = (dict(_LABEL.findall(one["labels"])) for one in told)
        return {f"{one['namespace']}/{one['pod']}": one["node"] for one in labels}

    def _read(self, port: int, path: str) -> str:
        status, text = probe.request("GET", port, path, None, None)
        if status != OK:
            raise LabError(f"{EXTENDER} does not tell what it has booked: {text}")
        return text

    def _is_ready(self) -> bool:
        if self.real is None:
            return probe.healthy(self.port, "/readyz", None)
        status, _ = probe.request("POST", self.port, "/filter", probe.unverified(), ANY_QUESTION)
        return status == OK

    def _real_command(self, binary: Path) -> list[str]:
        config = self._plane.root / "hami-devices.yaml"
        config.write_text(yaml.safe_dump({"nvidia": _NVIDIA}), encoding="utf-8")
        certificate, key = self._key_pair()
        flags = self._flags
        return [
            str(binary),
            f"--http_bind=127.0.0.1:{self.port}",
            f"--cert_file={certificate}",
            f"--key_file={key}",
            f"--metrics-bind-address=127.0.0.1:{self._metrics_port}",
            f"--scheduler-name={SCHEDULER_NAME}",
            f"--device-config-file={config}",
            f"--node-scheduler-policy={flags['node-policy']}",
            f"--gpu-scheduler-policy={flags['gpu-policy']}",
            f"--kube-qps={flags['kube-qps']}",
            f"--kube-burst={flags['kube-burst']}",
            f"--node-lock-timeout={flags['node-lock-timeout']}",
            "-v=2",
        ]


def _limit(kube_qps: float, kube_burst: int) -> dict[str, str]:
    return {"kube-qps": f"{kube_qps:g}", "kube-burst": str(kube_burst)}


_NVIDIA = {
    "resourceCountName": GPU,
    "resourceMemoryName": MEMORY,
    "resourceMemoryPercentageName": PERCENTAGE,
    "resourceCoreName": CORES,
    "resourcePriorityName": PRIORITY,
    "defaultMemory": 0,
    "defaultCores": 0,
    "defaultGPUNum": 1,
    "memoryFactor": 1,
}
