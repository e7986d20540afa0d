"""One Kubernetes control plane with KWOK, as plain processes: start, restart parts of it, stop."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kwok import binaries as binaries_module
from kwok import flags, kubeconfig, ports, probe, stages, tokens, workspace
from kwok.catalogue import CONTROL_PLANE
from kwok.errors import LabError, last_lines
from kwok.kubeconfig import Access
from kwok.pki import Authority
from kwok.process import Supervisor
from kwok.progress import Progress

START_SECONDS = 120.0
LOOK_EVERY_SECONDS = 0.05
START_ATTEMPTS = 3
PORT_TAKEN = ("address already in use", "bind: address")
CONTROLLER_MANAGER, SCHEDULER, KWOK, APISERVER, ETCD = (
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "kube-apiserver",
    "etcd",
)


class PortLostError(LabError):
    """Another program took a port between our look and the component's start; a new attempt takes other ports."""


class ControlPlane:
    """A control plane of its own: ports, keys, data; any number of them side by side.

    Blocking (`start`, `stop`, `with`) or, in a coroutine, `async with`. Everything ends with this process, however it
    ends, unless `detach` was called. Methods raise LabError with one clear line.
    """

    def __init__(
        self,
        *,
        components: Sequence[str] = CONTROL_PLANE,
        scheduler_config: str | None = None,
        apiserver_port: int | None = None,
        extra_flags: Mapping[str, Sequence[str]] | None = None,
        keep_logs: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Describe a cluster.

        components: which of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok to run.
        scheduler_config: KubeSchedulerConfiguration (YAML), None = stock. extra_flags: more flags by component.
        """
        self.components = tuple(
            name for name in (ETCD, APISERVER, CONTROLLER_MANAGER, KWOK, SCHEDULER) if name in components
        )
        self.keep_logs = keep_logs
        self._scheduler_config = scheduler_config
        self._wanted_port = apiserver_port
        self._extra_flags = dict(extra_flags or {})
        self._progress = progress
        self._binaries: binaries_module.Binaries = {}
        self._supervisor: Supervisor | None = None

    def start(self) -> None:
        """Build what is missing, start every component and wait until each is ready."""
        if self._supervisor is not None:
            raise LabError("this control plane is already running")
        if self._wanted_port is not None and not ports.is_free(self._wanted_port):
            raise LabError(f"port {self._wanted_port} on 127.0.0.1 is in use; choose another with --port")
        self._binaries = binaries_module.ensure(self.components, self._progress)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_once()
            except PortLostError:
                self.stop()
                if attempt == START_ATTEMPTS:
                    raise
            except BaseException as error:
                self.stop(failed=isinstance(error, LabError))
                raise
            else:
                return

    def _start_once(self) -> None:
        taken: set[int] = set()
        space = workspace.create()
        self.root, self.data, self.logs = space.root, space.data, space.logs
        try:
            self._supervisor = Supervisor(space.root, space.data, space.locks)
        except BaseException:
            space.remove()
            raise
        finally:
            space.release()
        apiserver = self._wanted_port or ports.pick(taken)
        taken.add(apiserver)
        self._taken = taken
        self.ports = flags.Ports(ports.pick(taken), ports.pick(taken), apiserver)
        self.health_ports: dict[str, int] = {}
        self._make_keys()
        (self.root / "kwok.yaml").write_text(stages.configuration(), encoding="utf-8")
        for name in self.components:
            self.start_component(name, wait=name in {ETCD, APISERVER})
        for name in self.components:
            self.wait_ready(name)

    def _make_keys(self) -> None:
        self._authority = Authority.create(self.root / "pki")
        self.ca_file = self._authority.ca_file
        self._keys = flags.Keys(
            ca_file=self.ca_file,
            server=self._authority.issue("apiserver", "kube-apiserver"),
            front_proxy=self._authority.issue("front-proxy", "front-proxy-client"),
            service_accounts=self._authority.service_account_key(),
        )
        self.url = f"https://127.0.0.1:{self.ports.apiserver}"
        admin = self._authority.issue("admin", "admin", ("system:masters",))
        self.kubeconfig = kubeconfig.write(
            self.root / "admin.kubeconfig", self._access, kubeconfig.for_certificate(admin), "admin"
        )
        self._admin_context = ssl.create_default_context(cafile=str(self.ca_file))
        self._admin_context.load_cert_chain(admin.certificate, admin.key)

    @property
    def _access(self) -> Access:
        return Access(self.url, self.ca_file)

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise LabError("this control plane is not running")
        return self._supervisor

    def stop(self, *, failed: bool = False) -> None:
        """Stop everything in order and remove its files; logs stay if `failed` or `keep_logs`. May be called twice."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.shutdown(keep_logs=failed or self.keep_logs)

    def detach(self) -> int:
        """Leave the cluster running on its own; return its supervisor's process id (SIGTERM stops and tidies it)."""
        supervisor = self._running
        supervisor.detach()
        self._supervisor = None
        return supervisor.pid

    def pids(self) -> dict[str, int]:
        """Return the process ids of the components that run, and of their `supervisor`."""
        running = {name: s.pid for name, s in self._running.states().items() if s.returncode is None}
        return {"supervisor": self._running.pid, **running}

    def start_component(self, name: str, *, wait: bool = True) -> None:
        """Start a component that is not running (with its old ports, but for a new health port)."""
        argv = [*self._argv(name), *self._extra_flags.get(name, ())]
        self._running.start(name, argv, self.logs / f"{name}.log", {**os.environ, "GOGC": "200"})
        if wait:
            self.wait_ready(name)

    def stop_component(self, name: str, grace_seconds: float = 5.0) -> None:
        """Stop one component (SIGTERM, SIGKILL after `grace_seconds`) and wait for its end; it may be gone already."""
        self._running.stop(name, grace_seconds)

    def restart_scheduler(self, config: str | None) -> None:
        """Run kube-scheduler with another KubeSchedulerConfiguration (YAML; None = stock, no extender)."""
        flags.scheduler_config(config, self.kubeconfig)
        self.stop_component(SCHEDULER)
        self._scheduler_config = config
        self.start_component(SCHEDULER)

    def restart_apiserver(self) -> None:
        """Stop the API server and start it again on the same port; everything else stays."""
        self.stop_component(APISERVER)
        self.start_component(APISERVER)

    def start_process(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Run one more program beside the cluster (kueue, an extender), logged and stopped like its parts.

        Returns its process id. `env` is the whole environment, None = this process's. `stop_component(name)` ends it.
        """
        return self._running.start(name, argv, self.logs / f"{name}.log", os.environ if env is None else env, cwd)

    def kubeconfig_for_user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig of a user with a client certificate and return its path."""
        file_name = f"user-{name.replace(':', '-').replace('/', '-')}"
        pair = self._authority.issue(file_name, name, tuple(groups))
        path = self.root / f"{file_name}.kubeconfig"
        return kubeconfig.write(path, self._access, kubeconfig.for_certificate(pair), name)

    def kubeconfig_for_service_account(self, namespace: str, name: str, expires_seconds: int = 86_400) -> Path:
        """Write a kubeconfig with a fresh token of an existing ServiceAccount and return its path."""
        token = tokens.request(self.ports.apiserver, self._admin_context, namespace, name, expires_seconds)
        path = self.root / f"sa-{namespace}-{name}.kubeconfig"
        return kubeconfig.write(path, self._access, {"token": token}, name, namespace)

    def wait_ready(self, name: str) -> None:
        """Wait until a component is ready; raise LabError with its last words if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        log = self.logs / f"{name}.log"
        while True:
            ready = self._is_ready(name)
            # Looked at after the answer: on a lost port it may be another cluster's part that says it is ready.
            state = self._running.states().get(name)
            if state is None or state.returncode is not None:
                said = last_lines(log)
                code = "not started" if state is None else f"exit code {state.returncode}"
                kind = PortLostError if any(text in said for text in PORT_TAKEN) else LabError
                raise kind(f"{name} ended at its start ({code}): {said or 'it said nothing'} (logs: {self.logs})")
            if ready:
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"{name} was not ready after {START_SECONDS:.0f} s: {last_lines(log)} (logs: {self.logs})"
                )
            time.sleep(LOOK_EVERY_SECONDS)

    def _is_ready(self, name: str) -> bool:
        if name == ETCD:
            return probe.healthy(self.ports.etcd, "/health", None)
        if name == APISERVER:
            return probe.healthy(self.ports.apiserver, "/readyz", self._admin_context)
        if name == KWOK:
            return probe.healthy(self.health_ports[name], "/healthz", None)
        return probe.healthy(self.health_ports[name], "/healthz", probe.unverified())

    def _argv(self, name: str) -> list[str]:
        binary = self._binaries[name]
        if name == ETCD:
            return flags.etcd(binary, self.data, self.ports)
        if name == APISERVER:
            return flags.apiserver(binary, self._keys, self.ports)
        port = self.health_ports[name] = ports.pick(self._taken)
        if name == CONTROLLER_MANAGER:
            return flags.controller_manager(binary, self.kubeconfig, self._keys, port)
        if name == KWOK:
            return flags.kwok(binary, self.root / "kwok.yaml", self.kubeconfig, port)
        config = self.root / "scheduler.yaml"
        config.write_text(flags.scheduler_config(self._scheduler_config, self.kubeconfig), encoding="utf-8")
        return flags.scheduler(binary, config, port)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.stop(failed=kind is not None and issubclass(kind, LabError))

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread goes on: wait for it, or what it started would be left
            await asyncio.wait([starting])
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop, failed=kind is not None and issubclass(kind, LabError))
