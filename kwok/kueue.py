"""The real Kueue beside a control plane: its kinds, its process and its webhooks, started and stopped."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kwok import kueuefiles, ports, probe
from kwok.admin import Admin, APIError, Object, path_of
from kwok.binaries import ensure
from kwok.controlplane import ControlPlane
from kwok.errors import LabError, last_lines
from kwok.pki import Authority, Pair
from kwok.process import start_ticks
from kwok.served import apply_kinds
from kwok.workloads import QUEUE

NAMESPACE = "kueue-system"
NAME = "kueue"
BATCH_JOB, POD, JOBSET = "batch/job", "pod", "jobset.x-k8s.io/jobset"
METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
"""Where Kueue 0.17 reads a key pair for its metrics, unless it manages its certificates; no setting changes that."""

_READY_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.05
_UNCOUNTED = ("cpu", "memory", "ephemeral-storage")
_OWN_KINDS = ("workload", "clusterqueue", "cohort", "resourceflavor")
_CONCURRENCY = {"Job.batch": 5, "Pod": 5, "Workload.kueue.x-k8s.io": 5, "JobSet.jobset.x-k8s.io": 5}
"""As Kueue is deployed; by itself it would stop one job at a time."""
_WEBHOOKS_OF = {BATCH_JOB: ("job",), POD: ("pod",), JOBSET: ("jobset",)}


class Kueue:
    """Kueue's controller manager as a process of a control plane, with its webhooks.

    `install`, then `start`; `stop` takes the webhooks away first, so that the API server goes on without it, `kill`
    leaves them there, as a crash does. Methods raise LabError with one clear line.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        frameworks: Sequence[str] = (BATCH_JOB, POD),
        feature_gates: Mapping[str, bool] | None = None,
        transformations: Sequence[Mapping[str, Any]] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe a Kueue.

        frameworks: what it manages; for JOBSET `install` adds that kind. transformations: `resources.transformations`
        of its configuration (quota by another unit). overrides: more top-level fields of its Configuration.
        """
        self._plane = plane
        self.frameworks = tuple(frameworks)
        self._feature_gates = {"VisibilityOnDemand": False, "MultiKueue": False, **(feature_gates or {})}
        self._transformations = [dict(one) for one in transformations]
        self._overrides = dict(overrides or {})
        taken: set[int] = set()
        self._webhook_port, self._health_port = ports.pick(taken), ports.pick(taken)
        self._directory = plane.root / NAME
        self._pid: int | None = None
        self._pair: Pair | None = None

    async def install(self, admin: Admin) -> None:
        """Apply Kueue's kinds and wait until they are served: without them it ends at its start."""
        found = await asyncio.to_thread(kueuefiles.crds)
        if JOBSET in self.frameworks:
            found += await asyncio.to_thread(kueuefiles.crds, kueuefiles.JOBSET)
        await apply_kinds(admin, found)
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    async def start(self) -> None:
        """Start the process, wait until it is ready, and have the API server call its webhooks."""
        await asyncio.to_thread(self.launch)
        await self.ready()

    def launch(self) -> None:
        """Start the process without waiting; its ports and certificate stay the same from start to start."""
        if self.running:
            raise LabError("this Kueue is already running")
        pair = self._certificate()
        binary = ensure((NAME,))[NAME]
        config = self._directory / "config.yaml"
        config.write_text(yaml.safe_dump(self._configuration(pair)), encoding="utf-8")
        kubeconfig = self._plane.kubeconfig_for_user(NAME, ("system:masters",))
        argv = [str(binary), f"--config={config}", f"--kubeconfig={kubeconfig}", "--zap-log-level=3"]
        # A process that ended by itself keeps its name until it is stopped.
        self._plane.stop_component(NAME)
        self._pid = self._plane.start_process(NAME, argv, {**os.environ, "GOGC": "200"})

    async def ready(self) -> None:
        """Wait until the process is ready, and its webhooks with it. Raises LabError with its last words."""
        async with Admin(self._plane.kubeconfig) as admin:
            for _ in range(int(_READY_SECONDS / _LOOK_EVERY_SECONDS)):
                if await asyncio.to_thread(probe.healthy, self._health_port, "/readyz", None):
                    for configuration in self._webhooks():
                        await admin.apply(configuration)
                    await self._called(admin)
                    return
                if not self.running:
                    break
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
        said = last_lines(self._plane.logs / f"{NAME}.log") or "it said nothing"
        raise LabError(f"Kueue is not ready: {said} (logs: {self._plane.logs})")

    async def stop(self) -> None:
        """Take its webhooks away and end the process; its kinds and objects stay."""
        async with Admin(self._plane.kubeconfig) as admin:
            for configuration in self._webhooks():
                await admin.delete(path_of(configuration))
        await asyncio.to_thread(self._plane.stop_component, NAME, 10.0)
        self._pid = None

    def kill(self) -> None:
        """SIGKILL, and wait for the end; what its webhooks look at is refused by the API server from now on."""
        if self._pid is None or not self.running:
            raise LabError("this Kueue is not running")
        os.kill(self._pid, signal.SIGKILL)
        self._plane.stop_component(NAME)
        self._pid = None

    async def remove(self) -> None:
        """Stop it and delete its kinds with all their objects, as an administrator does who wants to be rid of it."""
        await self.stop()
        async with Admin(self._plane.kubeconfig) as admin:
            for crd in kueuefiles.crds():
                await _without_finalizers(admin, crd)
                await admin.delete(path_of(crd))
            for crd in kueuefiles.crds():
                await admin.wait_for(path_of(crd), lambda found: found is None)

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._pid is not None and start_ticks(self._pid) is not None

    def _certificate(self) -> Pair:
        if self._pair is None:
            pair = Authority.create(self._directory).issue("tls", "kueue-webhook-service")
            _metrics_certificates(pair)
            self._pair = pair
        return self._pair

    def _configuration(self, pair: Pair) -> dict[str, Any]:
        resources: dict[str, Any] = {"excludeResourcePrefixes": list(_UNCOUNTED)}
        if self._transformations:
            resources["transformations"] = self._transformations
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhook_port, "certDir": str(pair.certificate.parent)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "controller": {"groupKindConcurrency": _CONCURRENCY},
            "manageJobsWithoutQueueName": False,
            "integrations": {"frameworks": list(self.frameworks)},
            "resources": resources,
            "featureGates": self._feature_gates,
            **self._overrides,
        }

    def _webhooks(self) -> list[Object]:
        """Kueue's own two configurations, by address instead of by Service, and only for what it manages here."""
        kept = {kind for name in self.frameworks for kind in _WEBHOOKS_OF.get(name, ())} | set(_OWN_KINDS)
        authority = base64.b64encode((self._directory / "ca.crt").read_bytes()).decode("ascii")
        configurations = kueuefiles.webhooks()
        for configuration in configurations:
            configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
            configuration["webhooks"] = [one for one in configuration["webhooks"] if _subject(one) in kept]
            for one in configuration["webhooks"]:
                path = one["clientConfig"]["service"]["path"]
                one["clientConfig"] = {
                    "url": f"https://127.0.0.1:{self._webhook_port}{path}",
                    "caBundle": authority,
                }
                if _subject(one) not in _OWN_KINDS:
                    names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
                    elsewhere = {"matchExpressions": [{**names, "values": ["kube-system", NAMESPACE]}]}
                    one["namespaceSelector"] = elsewhere
        return configurations

    async def _called(self, admin: Admin) -> None:
        """Wait until the API server calls the webhooks: it takes a moment to see them."""
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "webhook-probe", "namespace": "default", "labels": {QUEUE: "x"}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}},
        }
        if BATCH_JOB not in self.frameworks:
            return
        for _ in range(int(_READY_SECONDS / _LOOK_EVERY_SECONDS)):
            made = await admin.request("POST", path_of(job, collection=True), job, params={"dryRun": "All"})
            if made["spec"].get("suspend"):
                return
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        raise LabError(f"the API server does not call Kueue's webhooks after {_READY_SECONDS:.0f} s")


def _subject(webhook: Mapping[str, Any]) -> str:
    """`job` of `mjob.kb.io`."""
    return str(webhook["name"]).partition(".")[0][1:]


def _metrics_certificates(pair: Pair) -> None:
    """Put a key pair where this Kueue insists on finding one, if there is none; any will do, metrics are off."""
    wanted = {METRICS_CERTIFICATES / "tls.crt": pair.certificate, METRICS_CERTIFICATES / "tls.key": pair.key}
    if all(path.exists() for path in wanted):
        return
    try:
        METRICS_CERTIFICATES.mkdir(parents=True, exist_ok=True)
        with (METRICS_CERTIFICATES / ".lock").open("w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not all(path.exists() for path in wanted):
                for path, source in wanted.items():
                    shutil.copyfile(source, path)
    except OSError as error:
        raise LabError(
            f"Kueue reads a key pair in {METRICS_CERTIFICATES} at its start, and it cannot be made here "
            f"({error.strerror}); make that directory yours, once: sudo install -d -o $USER {METRICS_CERTIFICATES}"
        ) from error


async def _without_finalizers(admin: Admin, crd: Mapping[str, Any]) -> None:
    """Nobody is left to take Kueue's finalizers off its objects."""
    spec = crd["spec"]
    stored = next(one["name"] for one in spec["versions"] if one["storage"])
    try:
        found = await admin.list(f"/apis/{spec['group']}/{stored}/{spec['names']['plural']}")
    except APIError as error:
        if error.reason != "NotFound":
            raise
        return
    for one in found:
        if one["metadata"].get("finalizers"):
            whole = {**one, "apiVersion": f"{spec['group']}/{stored}", "kind": spec["names"]["kind"]}
            await admin.patch(path_of(whole), {"metadata": {"finalizers": None}})
