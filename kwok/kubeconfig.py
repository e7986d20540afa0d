"""Kubeconfig files that stand alone: certificates, keys and tokens are inside."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kwok.pki import Pair


@dataclass(frozen=True)
class Access:
    """How to reach one API server: its address and its authority's certificate file."""

    url: str
    ca_file: Path


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def for_certificate(pair: Pair) -> dict[str, str]:
    """Return a user entry with a client certificate."""
    return {
        "client-certificate-data": _embedded(pair.certificate),
        "client-key-data": _embedded(pair.key),
    }


def write(path: Path, access: Access, user: dict[str, str], name: str, namespace: str = "default") -> Path:
    """Write a kubeconfig with one cluster, one user and one context, readable by its owner only; return `path`."""
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "lab",
                "cluster": {"server": access.url, "certificate-authority-data": _embedded(access.ca_file)},
            }
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name, "namespace": namespace}}],
        "current-context": "lab",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def leading_to(url: str, original: Path, copy: Path) -> Path:
    """Write a copy of a kubeconfig with another address, without its authority (for plain HTTP); return `copy`."""
    config = yaml.safe_load(original.read_text(encoding="utf-8"))
    config["clusters"][0]["cluster"] = {"server": url}
    copy.touch(mode=0o600)
    copy.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return copy
