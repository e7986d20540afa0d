"""HAMi's mutating webhook as the API server is told of it: for pods of one namespace of the lab."""

from __future__ import annotations

import base64
from pathlib import Path

from kwok.admin import Object

NAME = "vgpu.hami.io"


def configuration(port: int, ca_file: Path, namespace: str) -> Object:
    """A MutatingWebhookConfiguration as in HAMi's chart, by address instead of by Service."""
    authority = base64.b64encode(ca_file.read_bytes()).decode("ascii")
    hook = {
        "name": NAME,
        "admissionReviewVersions": ["v1beta1"],
        "clientConfig": {"url": f"https://127.0.0.1:{port}/webhook", "caBundle": authority},
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {
            "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}],
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": f"hami-webhook-{namespace}"},
        "webhooks": [hook],
    }
