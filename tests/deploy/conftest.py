"""Fixtures of the deployment tests: the real helm and kubectl, the custom resources, the chart installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kwok import helm as tools
from kwok.controlplane import ControlPlane

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
NAMESPACE = "wholenode-system"

Run = subprocess.CompletedProcess[str]


class Kubectl:
    """Runs the real kubectl against one API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def try_(self, *arguments: str, given: Any = None) -> Run:
        """Run it; `given` (an object, a list of objects, or text) is its standard input."""
        if isinstance(given, dict):
            given = json.dumps(given)
        elif isinstance(given, list):
            given = yaml.safe_dump_all(given)
        command = [str(tools.kubectl()), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False)

    def __call__(self, *arguments: str, given: Any = None) -> str:
        """Run it and return what it printed; it must succeed."""
        run = self.try_(*arguments, given=given)
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.fixture(scope="session")
def helm() -> Callable[..., Run]:
    """Runs the real helm: `helm("lint", ...)`."""

    def run(*arguments: str) -> Run:
        return subprocess.run([str(tools.helm()), *arguments], capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def template(helm: Callable[..., Run]) -> Callable[..., Run]:
    """Runs `helm template` on our chart with `key=value` settings; `key=` values are JSON."""

    def run(*settings: str, kube_version: str = "v1.37.2", crds: bool = False) -> Run:
        flags = [flag for setting in settings for flag in ("--set-json", setting)]
        flags += ["--include-crds"] if crds else []
        return helm(
            "template", "wholenode", str(CHART), "--namespace", NAMESPACE, "--kube-version", kube_version, *flags
        )

    return run


@pytest.fixture(scope="session")
def rendered(template: Callable[..., Run]) -> Callable[..., list[dict[str, Any]]]:
    """The objects of the rendered chart; it must render."""

    def objects(*settings: str) -> list[dict[str, Any]]:
        run = template(*settings)
        assert run.returncode == 0, run.stderr
        return [each for each in yaml.safe_load_all(run.stdout) if each]

    return objects


@pytest.fixture(scope="session")
def kubectl_for() -> Callable[[Path], Kubectl]:
    """kubectl for another kubeconfig."""
    return Kubectl


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """kubectl with every right, on an API server that knows our custom resources."""
    run = Kubectl(control_plane.kubeconfig)
    run("apply", "--server-side", "--validate=strict", "-f", str(CHART / "crds"))
    run("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CHART / "crds"))
    return run


@pytest.fixture(scope="module")
def installed(kubectl: Kubectl, template: Callable[..., Run]) -> Iterator[str]:
    """The chart installed with its default values; yields its namespace. It leaves with the module, CRDs stay."""
    text = template().stdout
    kubectl("create", "namespace", NAMESPACE)
    try:
        applied = kubectl.try_(
            "apply", "--server-side", "--validate=strict", "--field-manager=helm", "-f", "-", given=text
        )
        assert applied.returncode == 0, applied.stderr
        assert "arning" not in applied.stderr
        yield NAMESPACE
    finally:
        kubectl.try_("delete", "--wait=false", "-f", "-", given=text)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        # No new pod comes now; those there may sit on nodes that left with their test, and nobody would end them.
        kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--force", "--grace-period=0")
        kubectl("wait", "--for=delete", f"namespace/{NAMESPACE}", "--timeout=60s")


@pytest.fixture
def user(control_plane: ControlPlane) -> Callable[..., Kubectl]:
    """kubectl as somebody else: `user(name, groups)`."""

    def make(name: str, groups: tuple[str, ...] = ()) -> Kubectl:
        return Kubectl(control_plane.kubeconfig_for_user(name, groups))

    return make


@pytest.fixture
def service_account(control_plane: ControlPlane) -> Callable[[str, str], Kubectl]:
    """kubectl with the token of a service account: `service_account(namespace, name)`."""

    def make(namespace: str, name: str) -> Kubectl:
        return Kubectl(control_plane.kubeconfig_for_service_account(namespace, name))

    return make
