"""The plain manifests: up to date with the chart, complete, and in an order that applies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cli import manifests as module
from cli.manifests import manifests, render
from kwok.controlplane import ControlPlane

FILE = Path(__file__).resolve().parents[2] / "deploy" / "manifests" / "wholenode.yaml"


def test_the_checked_in_file_is_what_the_chart_renders() -> None:
    assert {FILE.name: FILE.read_text(encoding="utf-8")} == render()
    assert CliRunner().invoke(manifests, ["--check"]).exit_code == 0


def test_namespace_and_crds_come_before_what_needs_them() -> None:
    kinds = [each["kind"] for each in yaml.safe_load_all(FILE.read_text(encoding="utf-8")) if each]
    assert kinds[:5] == ["Namespace"] + ["CustomResourceDefinition"] * 4
    assert kinds.count("CustomResourceDefinition") == 4
    assert kinds.count("Deployment") == 2


def test_a_chart_that_does_not_render_is_told_without_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHART", tmp_path)
    told = CliRunner().invoke(manifests, ["--check"])
    assert told.exit_code == 1
    assert told.output.startswith(f"Error: helm cannot render {tmp_path}")
    assert "Traceback" not in told.output


def test_one_apply_on_an_empty_cluster_is_enough(kubectl_for: Callable[[Path], Any]) -> None:
    with ControlPlane(components=("etcd", "kube-apiserver")) as empty:
        kubectl = kubectl_for(empty.kubeconfig)
        kubectl("apply", "--server-side", "--validate=strict", "-f", str(FILE))
        kubectl("wait", "--for=condition=Established", "crd/gpupools.wholenode.io", "--timeout=30s")
        spec = {"nodeSelector": {"matchLabels": {"a": "b"}}, "accepts": "WholeNode", "cardsPerNode": 8}
        pool = {"apiVersion": "wholenode.io/v1alpha1", "kind": "GPUPool", "metadata": {"name": "big"}, "spec": spec}
        kubectl("create", "-f", "-", given=pool)
        container = {"name": "c", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        metadata = {"name": "p", "namespace": "default"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        deadline = time.monotonic() + 60
        gates: list[dict[str, str]] = []
        while not gates:
            assert time.monotonic() < deadline
            told = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", given=pod)
            gates = json.loads(told)["spec"].get("schedulingGates", [])
        assert gates == [{"name": "wholenode.io/claim"}]
