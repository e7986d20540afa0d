"""A control plane's own life: several at once, restarts, access for users, and nothing left however its user ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from kwok import ports, workspace
from kwok.admin import Admin, APIError
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.process import start_ticks
from kwok.testing import Fleet
from kwok.workloads import make_pod

SMALL = ("etcd", "kube-apiserver")
USER_OF_A_CLUSTER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started without it
from kwok.controlplane import ControlPlane
with ControlPlane(components=("etcd", "kube-apiserver")) as plane:
    print(*plane.pids().values(), flush=True)
    print(plane.root, plane.data, flush=True)
    while True:
        signal.pause()
"""


class Alive:
    """Holds on to processes by pidfd, so that their end can be awaited and no id is mistaken for another."""

    def __init__(self, pids: list[int]) -> None:
        self.handles = [os.pidfd_open(pid) for pid in pids]

    def wait_gone(self) -> None:
        """Wait until every process has ended."""
        for handle in self.handles:
            assert select.select([handle], [], [], 60)[0], "a component outlived its user"

    def close(self) -> None:
        """Let go."""
        for handle in self.handles:
            os.close(handle)


@pytest.fixture
def user(built: Mapping[str, Path]) -> Iterator[subprocess.Popen[str]]:
    """Another Python process that has started a small control plane and printed its process ids and directories."""
    assert built
    process = subprocess.Popen(
        [sys.executable, "-c", USER_OF_A_CLUSTER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_user_ends(user: subprocess.Popen[str], number: signal.Signals) -> None:
    assert user.stdout is not None
    pids = [int(text) for text in user.stdout.readline().split()]
    directories = [Path(text) for text in user.stdout.readline().split()]
    assert len(pids) == 3
    assert all(path.is_dir() for path in directories)
    alive = Alive(pids)
    os.killpg(user.pid, number)  # as a terminal does for Ctrl-C: the whole group
    user.wait()
    alive.wait_gone()
    alive.close()
    assert not any(path.exists() for path in directories)


def test_when_the_supervisor_is_killed_the_rest_dies_and_the_next_cluster_tidies_up(
    user: subprocess.Popen[str],
) -> None:
    assert user.stdout is not None
    supervisor, *components = [int(text) for text in user.stdout.readline().split()]
    directories = [Path(text) for text in user.stdout.readline().split()]
    alive = Alive(components)
    os.kill(supervisor, signal.SIGKILL)
    alive.wait_gone()
    alive.close()
    assert all(path.is_dir() for path in directories)
    with_lock = workspace.create()
    assert not any(path.exists() for path in directories)
    assert with_lock.root.is_dir()
    workspace.sweep(with_lock.root.parent)
    assert with_lock.root.is_dir(), "a sweep must not touch a cluster in use"
    with_lock.release()
    with_lock.remove()


async def test_two_clusters_side_by_side(admin: Admin, control_plane: ControlPlane) -> None:
    await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "only-here"}})
    async with ControlPlane(components=SMALL) as other, Admin(other.kubeconfig) as second:
        first_ports = {control_plane.ports.etcd, control_plane.ports.etcd_peer, control_plane.ports.apiserver}
        assert first_ports.isdisjoint({other.ports.etcd, other.ports.etcd_peer, other.ports.apiserver})
        assert control_plane.root != other.root
        with pytest.raises(APIError, match="not found"):
            await second.get("/api/v1/namespaces/only-here")
        root = other.root
    assert not root.exists()
    await admin.delete("/api/v1/namespaces/only-here")


async def test_scheduler_with_another_configuration(
    control_plane: ControlPlane, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await fleet.add(1)
    profile = {"profiles": [{"schedulerName": "mine"}]}
    control_plane.restart_scheduler(yaml.safe_dump(profile))
    try:
        path = f"/api/v1/namespaces/{namespace}/pods"
        for name in ("mine", "default-scheduler"):
            await admin.create(make_pod(name, namespace, scheduler_name=name, node_selector=fleet.selector))
        await admin.wait_for(f"{path}/mine", lambda pod: pod is not None and pod["status"]["phase"] == "Running")
        assert "nodeName" not in (await admin.get(f"{path}/default-scheduler"))["spec"]
    finally:
        control_plane.restart_scheduler(None)
    await admin.wait_for(f"{path}/default-scheduler", lambda p: p is not None and p["status"]["phase"] == "Running")


async def test_a_restarted_kwok_serves_its_nodes_at_once(
    control_plane: ControlPlane, admin: Admin, fleet: Fleet, namespace: str
) -> None:
    await fleet.add(1)
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name in ("before", "after"):
        await admin.create(make_pod(name, namespace, node_selector=fleet.selector))
        await admin.wait_for(f"{path}/{name}", lambda pod: pod is not None and pod["status"]["phase"] == "Running")
        control_plane.stop_component("kwok")
        control_plane.start_component("kwok")


async def test_the_api_server_comes_back_with_its_data(control_plane: ControlPlane, admin: Admin) -> None:
    await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stays"}})
    control_plane.restart_apiserver()
    assert (await admin.get("/api/v1/namespaces/stays"))["status"]["phase"] == "Active"
    await admin.delete("/api/v1/namespaces/stays")


async def test_users_and_service_accounts_have_only_their_rights(
    control_plane: ControlPlane, admin: Admin, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": namespace}}
    await admin.create(account)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    await admin.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "viewers", "namespace": namespace},
            "roleRef": role,
            "subjects": [
                {"kind": "Group", "name": "team", "apiGroup": "rbac.authorization.k8s.io"},
                {"kind": "ServiceAccount", "name": "robot", "namespace": namespace},
            ],
        }
    )
    member = control_plane.kubeconfig_for_user("alice", ["team"])
    robot = control_plane.kubeconfig_for_service_account(namespace, "robot")
    stranger = control_plane.kubeconfig_for_user("mallory")
    for kubeconfig, allowed in ((member, True), (robot, True), (stranger, False)):
        async with Admin(kubeconfig) as client:
            if allowed:
                assert await client.list(f"/api/v1/namespaces/{namespace}/pods") == []
            with pytest.raises(APIError) as refused:
                await client.create(make_pod("p", namespace))
            assert refused.value.status == 403
    with pytest.raises(LabError, match=r'no token .*serviceaccounts "nobody" not found'):
        control_plane.kubeconfig_for_service_account(namespace, "nobody")


def test_a_component_that_ends_at_its_start_is_one_line_and_its_log_stays(built: Mapping[str, Path]) -> None:
    assert built
    plane = ControlPlane(components=("etcd",), extra_flags={"etcd": ["--no-such-flag"]})
    with pytest.raises(LabError, match=r"etcd ended at its start .*no-such-flag.*logs: ") as caught:
        plane.start()
    assert "\n" not in str(caught.value)
    assert str(plane.logs) in str(caught.value)
    assert "no-such-flag" in (plane.logs / "etcd.log").read_text(encoding="utf-8")
    assert [path.name for path in plane.root.iterdir()] == ["logs"]
    assert not plane.data.exists()
    workspace.sweep(plane.root.parent)
    assert plane.logs.is_dir(), "kept logs are not swept away"
    for path in plane.logs.iterdir():
        path.unlink()
    plane.logs.rmdir()
    plane.root.rmdir()


def test_a_port_lost_at_the_start_costs_one_attempt(built: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert built
    pick, asked = ports.pick, 0
    with socket.socket() as bound:  # bound, but silent: a connection is refused, and a server cannot listen
        bound.bind(("127.0.0.1", 0))

        def lose_the_first(taken: set[int]) -> int:
            nonlocal asked
            asked += 1
            return int(bound.getsockname()[1]) if asked == 2 else pick(taken)

        monkeypatch.setattr(ports, "pick", lose_the_first)
        with ControlPlane(components=("etcd",)) as plane:
            assert asked == 6  # three ports for each of two attempts
            assert plane.ports.etcd != bound.getsockname()[1]
            assert "etcd" in plane.pids()


def test_a_stopped_component_starts_again(built: Mapping[str, Path]) -> None:
    assert built
    with ControlPlane(components=("etcd",)) as plane:
        before = plane.pids()["etcd"]
        plane.stop_component("etcd")
        assert start_ticks(before) is None
        assert "etcd" not in plane.pids()
        plane.stop_component("etcd")
        plane.start_component("etcd")
        assert plane.pids()["etcd"] != before
        with pytest.raises(LabError, match="etcd is already running"):
            plane.start_component("etcd")
        extra = plane.start_process("extra", ["/bin/sleep", "1000"])
        assert start_ticks(extra) is not None
    assert start_ticks(extra) is None
    with pytest.raises(LabError, match="not running"):
        plane.pids()


@pytest.mark.parametrize(
    ("text", "says"), [("a: [", "not YAML"), ("kind: Pod", "not a KubeSchedulerConfiguration"), ("- a", "not a Kube")]
)
def test_a_scheduler_configuration_that_is_none_is_refused(control_plane: ControlPlane, text: str, says: str) -> None:
    before = control_plane.pids()["kube-scheduler"]
    with pytest.raises(LabError, match=says):
        control_plane.restart_scheduler(text)
    assert control_plane.pids()["kube-scheduler"] == before
