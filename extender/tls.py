"""The server's side of TLS, with files that may be replaced while it serves.

Certificates are renewed by swapping files, often a symbolic link under all three at once. Each handshake uses the
context of the latest files that were right; connections that are open go on with what they began with.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509

from cluster.program import StartError
from extender.metrics import Metrics

LOOK_EVERY_SECONDS: Final = 2.0
_LOG: Final = logging.getLogger("wholenode.extender")


@dataclass(frozen=True)
class Files:
    """Paths of PEM files; with `client_ca` only clients with a certificate of that authority are spoken to."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def read(self) -> tuple[bytes, ...]:
        """All contents. Raises OSError."""
        return tuple(path.read_bytes() for path in (self.certificate, self.key, self.client_ca) if path is not None)

    def load(self) -> "Loaded":
        """A context made of the files. Raises OSError, ValueError or the certificate reader's own errors."""
        contents = self.read()
        certificate = x509.load_pem_x509_certificate(contents[0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key, password=_no_password)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=contents[2].decode("ascii"))
        if self.read() != contents:
            raise ValueError("the files changed while they were read")
        return Loaded(context, contents, certificate.not_valid_after_utc.timestamp())


def _no_password() -> str:
    raise ValueError("the key is protected by a password")


@dataclass(frozen=True)
class Loaded:
    """Files that were right together, and the Unix time at which the certificate ends."""

    context: ssl.SSLContext
    contents: tuple[bytes, ...]
    ends_at: float


class RotatingContext(ssl.SSLContext):
    """A context for the listening socket that makes each connection with the latest files.

    A context of its own per change, not a change of a live one: a certificate without its key would already be in use
    when the mistake shows, and the old client authority could not be taken out.
    """

    _files: Files
    _loaded: Loaded
    _metrics: Metrics
    _trouble: str | None

    @classmethod
    def of(cls, files: Files, metrics: Metrics) -> Self:
        """Raises StartError when the files are not right."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        try:
            context._loaded = files.load()
        except Exception as error:
            raise StartError(f"the TLS files cannot be used: {error}") from error
        context._files = files
        context._metrics = metrics
        context._trouble = None
        metrics.certificate(context._loaded.ends_at)
        return context

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        """What the event loop calls once per connection."""
        return self._loaded.context.wrap_bio(*args, **more)

    async def follow(self, look_every_seconds: float = LOOK_EVERY_SECONDS) -> None:
        """Take over changed files until cancelled; files that are not right change nothing and are tried again."""
        while True:
            await asyncio.sleep(look_every_seconds)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Take over the files if they have changed and are right; blocks for as long as reading them takes."""
        try:
            if self._files.read() == self._loaded.contents:
                self._trouble = None
                return
            self._loaded = self._files.load()
        except Exception as error:  # whatever is wrong with the files, it must not end the service
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._metrics.certificate(None)
                _LOG.error("the new TLS files cannot be used, the old ones stay", extra={"reason": str(error)})
        else:
            self._trouble = None
            self._metrics.certificate(self._loaded.ends_at)
            _LOG.info("new TLS files are in use", extra={"ends_at_seconds": self._loaded.ends_at})
