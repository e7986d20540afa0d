"""Small blocking requests to a cluster's processes: health checks and the token request."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

TIMEOUT_SECONDS = 5.0
OK = 200
MULTIPLE = 300


def healthy(port: int, path: str, context: ssl.SSLContext | None) -> bool:
    """Tell whether GET `path` on 127.0.0.1:`port` answers 200; over TLS if a context is given."""
    status, _ = request("GET", port, path, context, None)
    return status == OK


def request(method: str, port: int, path: str, context: ssl.SSLContext | None, body: Any) -> tuple[int | None, str]:
    """Send one request and return (status, text); status None if there was no answer."""
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context)
    try:
        payload = None if body is None else json.dumps(body).encode()
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return None, str(error)
    finally:
        connection.close()


def unverified() -> ssl.SSLContext:
    """Return a context for a component that made its own certificate; only its health is asked for."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
