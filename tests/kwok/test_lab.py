"""`wholenode lab`: up, status and down, side by side with what a person may do wrong."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.lab import lab
from kwok.admin import Admin
from kwok.catalogue import NAMED_PATHS
from kwok.lab import find
from kwok.process import start_ticks


def run(*arguments: str) -> Result:
    return CliRunner().invoke(lab, arguments)


@pytest.fixture
def home(own_cache: Path) -> Path:
    """A cache without labs."""
    (own_cache / "labs").mkdir(parents=True)
    return own_cache / "labs"


@pytest.fixture
def runnable(built: Mapping[str, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without labs, and the programs to start one."""
    for program, path in built.items():
        monkeypatch.setenv(NAMED_PATHS[program], str(path))
    return home


async def names_of_nodes(kubeconfig: Path) -> list[str]:
    async with Admin(kubeconfig) as admin:
        return [node["metadata"]["name"] for node in await admin.list("/api/v1/nodes")]


def state_of(name: str, pid: int, ticks: int) -> str:
    mark = {"pid": pid, "ticks": ticks}
    rest = {"url": "https://127.0.0.1:1", "kubeconfig": "/nonexistent/k", "root": "/nonexistent/r"}
    return json.dumps({"name": name, **rest, "nodes": 1, "cards": 8, "supervisor": mark, "components": {"etcd": mark}})


def test_a_round_trip(runnable: Path) -> None:
    up = run("up", "--nodes", "3", "--cards", "4", "--name", "mine")
    try:
        assert up.exit_code == 0, up.output
        kubeconfig = runnable / "mine.kubeconfig"
        assert f"export KUBECONFIG={kubeconfig}" in up.output.splitlines()
        assert asyncio.run(names_of_nodes(kubeconfig)) == ["node-000", "node-001", "node-002"]
        again = run("up", "--name", "mine")
        assert (again.exit_code, "already up" in again.output) == (0, True)
        shown = run("status")
        assert (shown.exit_code, "mine: up, 3 nodes x 4 cards" in shown.output) == (0, True)
        found = find("mine")
        assert found is not None
    finally:
        down = run("down", "--name", "mine")
    assert (down.exit_code, down.output) == (0, "lab 'mine' is down\n")
    assert not any(mark.alive() for mark in [found.supervisor, *found.components.values()])
    assert not Path(found.root).exists()
    assert [path.name for path in runnable.iterdir()] == ["mine.lock"]


def test_a_used_port_is_one_clear_line(runnable: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run("up", "--port", str(port))
    assert result.exit_code == 1
    assert result.output == f"Error: port {port} on 127.0.0.1 is in use; choose another with --port\n"
    assert not list(runnable.glob("*.json"))


def test_a_stale_state_is_said_and_no_reused_id_is_killed(home: Path) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    (home / "old.json").write_text(state_of("old", os.getpid(), ticks - 1), encoding="utf-8")
    shown = run("status")
    assert (shown.exit_code, "old: not running any more; `wholenode lab down" in shown.output) == (1, True)
    assert run("down", "--name", "old").output == "no lab 'old' was running\n"
    assert not (home / "old.json").exists()
    assert run("status").output == "no lab is up; start one with `wholenode lab up`\n"


def test_a_damaged_state_file_is_one_clear_line(home: Path) -> None:
    for content in ("{", "[]", '{"name": "lab"}'):
        (home / "lab.json").write_text(content, encoding="utf-8")
        for command in ("status", "down", "up"):
            result = run(command)
            assert result.exit_code == 1
            assert result.output.startswith(f"Error: the state file {home / 'lab.json'} is damaged")
            assert result.output.count("\n") == 1


def test_names_are_checked(home: Path) -> None:
    assert home.is_dir()
    result = run("up", "--name", "../x")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "is no name for a lab" in result.output


def test_status_of_an_unknown_lab_fails(home: Path) -> None:
    assert home.is_dir()
    result = run("status", "--name", "nobody")
    assert (result.exit_code, result.output.startswith("Error: no lab 'nobody' is up")) == (1, True)


def test_build_says_where_the_programs_are(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not own_cache.exists()
    for name in ("etcd", "kwok", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    result = run("build")
    assert result.exit_code == 0
    assert f"etcd: {tmp_path / 'etcd'}\n" in result.output
