"""`python -m controller` as a process: what is wrong with its surroundings is one line, never a traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kwok.controlplane import ControlPlane


def run(**settings: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WHOLENODE_", "KUBE"))}
    return subprocess.run(
        [sys.executable, "-m", "controller"],
        env={**env, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_one_line(found: subprocess.CompletedProcess[str], *words: str) -> None:
    assert found.returncode == 1
    lines = [line for line in found.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, found.stderr
    assert all(word in lines[0] for word in ("controller:", *words))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WHOLENODE_LEASE_SECONDS", "1"),
        ("WHOLENODE_PORT", "seventy"),
        ("WHOLENODE_LOG_LEVEL", "LOUD"),
        ("WHOLENODE_DRAIN_TIMEOUT_SECONDS", "0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    assert_one_line(run(**{name: value}), name)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    assert_one_line(run(WHOLENODE_KUBECONFIG=str(tmp_path / "none")), "none")


def test_a_used_port_is_named(control_plane: ControlPlane) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = run(WHOLENODE_KUBECONFIG=str(control_plane.kubeconfig), WHOLENODE_PORT=port)
    assert_one_line(found, port, "WHOLENODE_PORT")


def test_a_user_without_rights_is_told_which_call_was_refused(control_plane: ControlPlane) -> None:
    kubeconfig = control_plane.kubeconfig_for_user("nobody")
    assert_one_line(run(WHOLENODE_KUBECONFIG=str(kubeconfig), WHOLENODE_PORT="0"), "leases", "nobody")
