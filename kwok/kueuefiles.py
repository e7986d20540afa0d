"""Kueue's own manifests (CRDs, webhooks), from the sources of its binary; none is kept in this project."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from kwok.binaries import module_dir
from kwok.catalogue import cache_dir, module_of
from kwok.errors import LabError

KUEUE, JOBSET = "sigs.k8s.io/kueue", "sigs.k8s.io/jobset"
_CRDS, _WEBHOOKS = "config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"

Manifest = dict[str, Any]


def crds(source: str = KUEUE) -> list[Manifest]:
    """Return the CustomResourceDefinitions of Kueue, or of JobSet in the version that this Kueue was made for."""
    return [one for one in _manifests(source) if one["kind"] == "CustomResourceDefinition"]


def webhooks() -> list[Manifest]:
    """Return Kueue's MutatingWebhookConfiguration and ValidatingWebhookConfiguration, as deployed in a cluster."""
    return [one for one in _manifests(KUEUE) if one["kind"].endswith("WebhookConfiguration")]


def keep() -> None:
    """Copy all manifests into the cache, so that nothing but the cache is needed from now on."""
    for source in (KUEUE, JOBSET):
        _manifests(source)


def _manifests(source: str) -> list[Manifest]:
    """The copy in the cache; made from the module's sources, which are downloaded if they are not there."""
    copy = cache_dir() / "manifests" / f"{source.rpartition('/')[2]}-for-kueue-{module_of('kueue').version}.json"
    try:
        found: list[Manifest] = json.loads(copy.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = _of_module(module_dir("kueue", source))
        _write(copy, found)
    except (OSError, ValueError) as error:
        raise LabError(f"{copy} cannot be read ({error}); remove it, it will be made anew") from error
    return found


def _of_module(directory: Path) -> list[Manifest]:
    found: list[Manifest] = []
    for path in (*sorted(directory.glob(_CRDS)), directory / _WEBHOOKS):
        if path.exists():
            found += [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if "kind" in (one or {})]
    if not any(one["kind"] == "CustomResourceDefinition" for one in found):
        raise LabError(f"there are no kinds in {directory / _CRDS}: the Go module is not whole")
    return found


def _write(copy: Path, manifests: list[Manifest]) -> None:
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=copy.parent, encoding="utf-8", delete=False) as file:
            json.dump(manifests, file)
        Path(file.name).replace(copy)  # of two at a time either is right
    except OSError as error:
        raise LabError(
            f"the cache directory {copy.parent} cannot be written ({error.strerror}); "
            "set WHOLENODE_CACHE to one that can"
        ) from error
