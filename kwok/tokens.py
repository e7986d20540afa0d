"""Tokens of service accounts, from the API server's TokenRequest."""

from __future__ import annotations

import json
import ssl

from kwok import probe
from kwok.errors import LabError


def request(port: int, context: ssl.SSLContext, namespace: str, name: str, expires_seconds: int) -> str:
    """Return a new token of an existing ServiceAccount. Raises LabError with the API server's answer if refused."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": expires_seconds},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    status, text = probe.request("POST", port, path, context, body)
    if status is None or status >= probe.MULTIPLE:
        raise LabError(f"no token for service account {namespace}/{name}: {_message(text)}")
    token: str = json.loads(text)["status"]["token"]
    return token


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
