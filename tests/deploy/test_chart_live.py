"""The chart on the real API server: it applies and starts, and each program may do what it needs and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwok import ports, probe
from kwok.controlplane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
MINIMAL_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "victim"},
    "spec": {"containers": [{"name": "c", "image": "work"}], "schedulerName": "nobody"},
}
GATE_CLAIM = {
    "apiVersion": "wholenode.io/v1alpha1",
    "kind": "WholeNodeClaim",
    "metadata": {"name": "x"},
    "spec": {"nodes": 1, "policy": "Preview"},
}
AGREEMENT = {
    "apiVersion": "wholenode.io/v1alpha1",
    "kind": "DrainAgreement",
    "metadata": {"name": "ours"},
    "spec": {"beneficiaries": [{"namespace": "team-b"}]},
}


async def test_both_programs_become_available_without_our_extender(kubectl: Any, installed: str, fleet: Any) -> None:
    await fleet.add(2)
    for name in ("extender", "controller"):
        kubectl("-n", installed, "rollout", "status", f"deployment/wholenode-{name}", "--timeout=60s")


def test_applying_again_changes_nothing(kubectl: Any, installed: str, template: Callable[..., Any]) -> None:
    before = kubectl(
        "-n", installed, "get", "deployment", "wholenode-extender", "-o", "jsonpath={.metadata.generation}"
    )
    kubectl("apply", "--server-side", "--field-manager=helm", "-f", "-", given=template().stdout)
    again = kubectl("-n", installed, "get", "deployment", "wholenode-extender", "-o", "jsonpath={.metadata.generation}")
    assert before == again


@pytest.mark.parametrize(
    "settings",
    [
        ("serviceMonitor.enabled=false", 'extender.tls.secretName="t"', 'scheduler.tls.caFile="/ca"'),
        ('extender.tolerations=[{"operator": "Exists"}]', 'controller.nodeSelector={"a": "b"}', "rbac.aggregate=false"),
        ('admission={"enabled": true, "failurePolicy": "Fail", "excludedNamespaces": []}',),
        ('extender.podDisruptionBudget.minAvailable="50%"', 'image.pullSecrets=[{"name": "pull"}]'),
    ],
)
def test_other_values_apply_too(
    kubectl: Any, installed: str, template: Callable[..., Any], settings: tuple[str, ...]
) -> None:
    text = template(*settings).stdout
    run = kubectl.try_(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--field-manager=helm", "-f", "-", given=text
    )
    assert run.returncode == 0, run.stderr
    assert "arning" not in run.stderr
    assert installed in text


@pytest.fixture
def extender(service_account: Callable[[str, str], Any], installed: str) -> Any:
    """kubectl as the extender's service account."""
    return service_account(installed, "wholenode-extender")


@pytest.fixture
def controller(service_account: Callable[[str, str], Any], installed: str) -> Any:
    """kubectl as the controller's service account."""
    return service_account(installed, "wholenode-controller")


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def refused(run: Any) -> bool:
    return run.returncode != 0 and "forbidden" in run.stderr.lower()


async def test_the_extender_reads_and_nothing_else(kubectl: Any, extender: Any, namespace: str, fleet: Any) -> None:
    [node] = await fleet.add(1)
    kubectl("-n", namespace, "create", "-f", "-", given=[MINIMAL_POD, GATE_CLAIM])
    for resource in ("pods", "nodes", "gpupools", "drainagreements", "wholenodeclaims"):
        extender("get", resource, "-A")
    label = json.dumps({"metadata": {"labels": {"a": "b"}}})
    assert refused(extender.try_("patch", "node", node, "-p", label))
    assert refused(extender.try_("-n", namespace, "patch", "pod", "victim", "-p", label))
    assert refused(extender.try_("-n", namespace, "delete", "pod", "victim"))
    status = json.dumps({"status": {"phase": "Ready"}})
    assert refused(
        extender.try_("-n", namespace, "patch", "wnc", "x", "--subresource=status", "--type=merge", "-p", status)
    )
    assert refused(extender.try_("get", "secrets", "-A"))


async def test_the_controller_evicts_but_never_deletes(
    kubectl: Any, controller: Any, namespace: str, fleet: Any
) -> None:
    [node] = await fleet.add(1)
    kubectl("-n", namespace, "create", "-f", "-", given=MINIMAL_POD)
    taint = json.dumps({"spec": {"taints": [{"key": "wholenode.io/claim", "value": "u", "effect": "NoSchedule"}]}})
    controller("patch", "node", node, "-p", taint)
    controller("-n", namespace, "patch", "pod", "victim", "-p", json.dumps({"metadata": {"labels": {"a": "b"}}}))
    assert refused(controller.try_("-n", namespace, "delete", "pod", "victim"))
    assert refused(controller.try_("delete", "node", node))
    assert refused(controller.try_("get", "secrets", "-A"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim", "namespace": namespace}}
    controller("create", "--raw", f"/api/v1/namespaces/{namespace}/pods/victim/eviction", "-f", "-", given=eviction)
    controller("get", "jobs", "-A")


def test_the_controller_owns_claims_and_only_the_status_of_the_rest(
    kubectl: Any, controller: Any, namespace: str
) -> None:
    controller("-n", namespace, "create", "-f", "-", given=GATE_CLAIM)
    status = json.dumps({"status": {"phase": "Planned"}})
    controller("-n", namespace, "patch", "wnc", "x", "--subresource=status", "--type=merge", "-p", status)
    controller("-n", namespace, "delete", "wnc", "x")
    assert refused(controller.try_("-n", namespace, "create", "-f", "-", given=AGREEMENT))
    kubectl("-n", namespace, "create", "-f", "-", given=AGREEMENT)
    longer = json.dumps({"spec": {"beneficiaries": [{"namespace": "anybody"}]}})
    assert refused(controller.try_("-n", namespace, "patch", "da", "ours", "--type=merge", "-p", longer))
    seen = json.dumps({"status": {"conditions": []}})
    controller("-n", namespace, "patch", "da", "ours", "--subresource=status", "--type=merge", "-p", seen)


def test_leases_and_events_of_the_controller(controller: Any, installed: str, namespace: str) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "wholenode-controller", "namespace": installed},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
    }
    controller("create", "-f", "-", given=lease)
    controller("replace", "-f", "-", given=lease)
    other = {**lease, "metadata": {"name": "kube-scheduler", "namespace": "kube-system"}}
    assert refused(controller.try_("create", "-f", "-", given=other))
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "wholenode",
        "reportingInstance": "a",
        "action": "Plan",
        "reason": "Planned",
        "type": "Normal",
        "regarding": {"kind": "Namespace", "name": namespace, "namespace": namespace, "apiVersion": "v1"},
    }
    controller("create", "-f", "-", given=event)


def test_tenants_consent_for_their_own_pods_only(kubectl: Any, user: Any, installed: str, namespace: str) -> None:
    assert installed
    kubectl("-n", namespace, "create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice")
    alice = user("alice")
    # Roles are aggregated by a controller.
    until(lambda: alice.try_("-n", namespace, "auth", "can-i", "create", "drainagreements").returncode == 0)
    alice("-n", namespace, "create", "-f", "-", given=[AGREEMENT, GATE_CLAIM])
    assert refused(alice.try_("-n", "default", "create", "-f", "-", given=AGREEMENT))
    forged = json.dumps({"status": {"phase": "Ready"}})
    assert refused(
        alice.try_("-n", namespace, "patch", "wnc", "x", "--subresource=status", "--type=merge", "-p", forged)
    )
    assert refused(alice.try_("delete", "gpupools", "--all"))


def test_records_are_written_by_the_controller_and_changed_by_nobody(
    kubectl: Any, controller: Any, user: Any, namespace: str
) -> None:
    kubectl("-n", namespace, "create", "rolebinding", "carol", "--clusterrole=admin", "--user=carol")
    carol = user("carol")
    until(lambda: carol.try_("-n", namespace, "auth", "can-i", "get", "drainrecords").returncode == 0)
    spec = {"pod": "v", "podUid": "1", "node": "n", "cards": 1, "at": "2027-01-04T12:00:00Z", "lostGpuSeconds": 5}
    spec |= {"claim": "team-b/x", "claimUid": "2", "beneficiary": "team-b"}
    record = {"apiVersion": "wholenode.io/v1alpha1", "kind": "DrainRecord", "metadata": {"name": "x"}, "spec": spec}
    assert refused(carol.try_("-n", namespace, "create", "-f", "-", given=record))
    controller("-n", namespace, "create", "-f", "-", given=record)
    stopped = json.dumps({"status": {"outcome": "Stopped"}})
    cheaper = json.dumps({"spec": {"lostGpuSeconds": 0}})
    for anybody in (controller, carol):
        assert refused(anybody.try_("-n", namespace, "patch", "dr", "x", "--type=merge", "-p", cheaper))
    patch = ("-n", namespace, "patch", "dr", "x", "--subresource=status", "--type=merge", "-p", stopped)
    assert refused(carol.try_(*patch))
    controller(*patch)
    assert "Stopped" in carol("-n", namespace, "get", "drainrecords")
    assert refused(carol.try_("-n", namespace, "delete", "dr", "x"))
    controller("-n", namespace, "delete", "dr", "x")


@pytest.mark.parametrize("program", ["controller", "extender"])
def test_the_real_programs_are_refused_nothing_with_their_roles(
    control_plane: ControlPlane, kubectl: Any, installed: str, program: str
) -> None:
    kubectl("-n", installed, "delete", "lease", "--all")
    port = ports.pick(set())
    env = {
        **os.environ,
        "WHOLENODE_KUBECONFIG": str(control_plane.kubeconfig_for_service_account(installed, f"wholenode-{program}")),
        "WHOLENODE_NAMESPACE": installed,
        "WHOLENODE_LEASE_NAME": "wholenode-controller",
        "WHOLENODE_PORT": str(port),
    }
    with subprocess.Popen(
        [sys.executable, "-m", program],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            if program == "controller":  # a controller without the Lease is ready too
                kubectl("-n", installed, "wait", "lease/wholenode-controller", "--for=create", "--timeout=30s")
            until(lambda: probe.healthy(port, "/readyz", None) or process.poll() is not None)
        finally:
            process.terminate()
            said, _ = process.communicate(timeout=30)
    assert process.returncode in {0, -signal.SIGTERM}, said
    assert "403" not in said
    assert "orbidden" not in said
