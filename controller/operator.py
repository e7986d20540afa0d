"""The kopf operator on our own three resources, in a thread with its own event loop.

Its handlers are triggers only: they keep nothing on the objects (no finalizer, no annotation), so nothing of ours is
left behind when we are gone. In a loop of its own kopf cannot cancel our tasks when it stops (see decision 0003).
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import kopf

from fleet.names import GROUP, VERSION
from fleet.resources import KINDS

_LOG = logging.getLogger("wholenode.controller")
_STOP_SECONDS = 8.0


def registry(on_change: Callable[[str], None]) -> kopf.OperatorRegistry:
    """Handlers for our kinds: `on_change` gets the plural of the kind that changed, in kopf's thread."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.startup(registry=handlers)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.persistence.finalizer = f"{GROUP}/not-used"
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP, v1=False)
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.watching.server_timeout = 270
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        settings.execution.max_workers = 2
        settings.process.ultimate_exiting_timeout = _STOP_SECONDS

    @kopf.on.login(registry=handlers)
    def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)

    for kind in KINDS:
        plural = kind.definition.plural

        @kopf.on.event(GROUP, VERSION, plural, registry=handlers, id=f"trigger-{plural}")
        async def changed(plural: str = plural, **_: Any) -> None:
            on_change(plural)

    return handlers


class OperatorThread:
    """Runs kopf until stopped. `died` is set (in `loop`) if kopf ends without being asked to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[str], None]) -> None:
        self.died = asyncio.Event()
        self._loop = loop
        self._stop = threading.Event()
        self._on_change = on_change
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self, kubeconfig: str | None) -> None:
        if kubeconfig is not None:
            os.environ["KUBECONFIG"] = kubeconfig
        self._thread.start()

    def stop(self) -> None:
        """Ask kopf to end and wait for it, at most 8 s."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        def on_change(plural: str) -> None:
            self._loop.call_soon_threadsafe(self._on_change, plural)

        try:
            asyncio.run(
                kopf.operator(registry=registry(on_change), clusterwide=True, standalone=True, stop_flag=self._stop)
            )
        except Exception:
            _LOG.exception("kopf ended with an error")
        finally:
            if not self._stop.is_set():
                self._loop.call_soon_threadsafe(self.died.set)
