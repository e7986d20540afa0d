"""docs/install.md: every value is in its table, and its clean-up commands do what they say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from fleet.shields import ANNOTATIONS
from kwok import helm as tools
from kwok.controlplane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
WHOLE = {"podSecurityContext", "securityContext", "extender.resources", "controller.resources"}


def leaves(value: Any, path: str = "") -> list[str]:
    if path in WHOLE or not isinstance(value, dict) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}" if path else key)]


def test_the_table_has_every_value_and_no_other() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text(encoding="utf-8"))
    rows = TEXT[TEXT.index("| value |") :].splitlines()
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert named == set(leaves(values))


def test_files_and_addresses_that_it_names_exist() -> None:
    for path in set(re.findall(r"deploy/[\w./]*\w", TEXT)):
        assert (ROOT / path).exists(), path


async def test_the_clean_up_takes_our_key_away_and_nothing_else(
    control_plane: ControlPlane, kubectl: Any, namespace: str, fleet: Any, tmp_path: Path
) -> None:
    held, free = await fleet.add(2)
    for taint in ("wholenode.io/claim=uid:NoSchedule", "example.com/mine=x:NoSchedule"):
        kubectl("taint", "node", held, taint)
    kubectl("label", "node", held, "wholenode.io/claim=uid")
    ours, theirs = ANNOTATIONS
    shield = f"wholenode.io/shield=uid:{ours}"
    kubectl("annotate", "node", held, shield, *(f"{key}=true" for key in ANNOTATIONS))
    kubectl("annotate", "node", free, "wholenode.io/shield=uid:")
    gates = [{"name": "example.com/wait"}, {"name": "wholenode.io/claim"}]
    for name in ("one", "two"):
        container = {"name": "c", "image": "work"}
        kubectl("-n", namespace, "create", "-f", "-", given={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [container], "schedulingGates": gates},
        })  # fmt: skip

    block = TEXT[TEXT.index("<!-- tested: cleanup -->") :].split("```")[1].removeprefix("sh\n")
    (tmp_path / "kubectl").symlink_to(tools.kubectl())
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBECONFIG": str(control_plane.kubeconfig)}
    command = ["bash", "-euo", "pipefail", "-c", block]
    for _ in range(2):  # again, when nothing is left to do, it does no harm
        run = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr

    node = json.loads(kubectl("get", "node", held, "-o", "json"))
    keys = {taint["key"] for taint in node["spec"].get("taints", [])}
    assert "wholenode.io/claim" not in keys
    assert "example.com/mine" in keys
    assert "wholenode.io/claim" not in node["metadata"]["labels"]
    assert {ours, "wholenode.io/shield"}.isdisjoint(node["metadata"]["annotations"])
    assert node["metadata"]["annotations"][theirs] == "true"
    untouched = json.loads(kubectl("get", "node", free, "-o", "json"))["metadata"]
    assert fleet.LABEL in untouched["labels"]
    assert "wholenode.io/shield" not in untouched["annotations"]
    for name in ("one", "two"):
        pod = json.loads(kubectl("-n", namespace, "get", "pod", name, "-o", "json"))
        assert pod["spec"]["schedulingGates"] == [{"name": "example.com/wait"}]
