"""How a pod, and a namespace, is named on the command line."""

from __future__ import annotations

import re
from typing import Final

import click

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_FORMS: Final = ("pod", "pods", "po")


def which(pod: str, namespace: str | None) -> tuple[str, str]:
    """The namespace and name meant. Raises click.UsageError."""
    parts = pod.split("/")
    if len(parts) == 2 and parts[0] in _FORMS and namespace is not None:  # noqa: PLR2004
        parts = parts[1:]
    if len(parts) == 1 and namespace is not None:
        parts = [namespace, *parts]
    if len(parts) != 2 or not all(parts) or (namespace is not None and parts[0] != namespace):  # noqa: PLR2004
        raise click.UsageError(f"{pod!r}: name the pod as NAMESPACE/POD, or as POD or pod/POD with -n NAMESPACE")
    return checked(parts[0]), checked(parts[1])


def checked(name: str) -> str:
    """The name, if it can be one of a namespace or pod. Raises click.UsageError."""
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} is no name of a namespace or pod: small letters, digits, '-' and '.'")
    return name
