"""Asking `wholenode doctor` about a cluster of the lab, as its administrator would."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from kwok.admin import Admin, Object
from kwok.controlplane import ControlPlane
from kwok.errors import LabError

Finding = dict[str, Any]
NAMESPACE = "hami-system"


async def consult(plane: ControlPlane, check: str, files: Mapping[str, str] | None = None) -> list[Finding]:
    """What one check finds now. `files`: options that name a file (`scheduler-config`, `kueue-config`) -> its text.

    Raises LabError if the doctor could not look.
    """
    arguments = [f"--only={check}", f"--kubeconfig={plane.kubeconfig}", "--json"]
    for option, text in (files or {}).items():
        path = plane.root / f"doctor-{option}.yaml"
        path.write_text(text, encoding="utf-8")
        arguments.append(f"--{option}={path}")
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from cli.main import main; main()", "doctor", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, complained = await program.communicate()
    if program.returncode not in {0, 1}:
        raise LabError(f"wholenode doctor --only={check}: {(complained or said).decode().strip()[-500:]}")
    found: list[Finding] = json.loads(said)["findings"]
    return found


def shown(findings: Iterable[Finding]) -> list[Finding]:
    """Of each finding what belongs into a record of figures."""
    return [{key: one[key] for key in ("check", "code", "verdict", "summary", "fix")} for one in findings]


def codes(findings: Iterable[Finding]) -> set[str]:
    """The codes of all that is not fine."""
    return {one["code"] for one in findings if one["verdict"] in {"problem", "warning"}}


async def show_deployment(admin: Admin, flags: Iterable[str]) -> None:
    """Have the cluster show HAMi's Deployment as its chart makes it, with these flags; it has no pods of its own here.

    The lab runs HAMi as a process; the doctor reads its flags where it would find them elsewhere.
    """
    await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    container = {"name": "vgpu-scheduler-extender", "image": "hami:lab", "command": ["scheduler"], "args": [*flags]}
    labels = {"app": "hami-scheduler"}
    spec: Object = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    metadata = {"name": "hami-scheduler", "namespace": NAMESPACE}
    await admin.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
