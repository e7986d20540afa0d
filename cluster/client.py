"""One authenticated HTTP client for the Kubernetes API: plain paths in, bytes out, typed errors.

Writes pass a token bucket and are never repeated here: after `Unavailable` their outcome is unknown and only the
caller can find out. Reads are repeated a few times. Proxy variables of the environment are not used (`proxy-url` of
the kubeconfig is).
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import aiohttp
import msgspec
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.kube_config import refresh_token

from cluster.credentials import CredentialsError, load
from cluster.errors import LeaseLost, Throttled, Unavailable, from_answer
from cluster.pacing import TokenBucket, backoff

DEFAULT_QPS: Final = 50.0
DEFAULT_BURST: Final = 100
INACTIVITY_SECONDS: Final = 70.0
"""A watch without a line for so long is dead: the reflector asks the server to end it earlier than that."""

_READ_ATTEMPTS: Final = 4
_READ_BUFFER_BYTES: Final = 2 * 1024 * 1024
_MAX_READ_PAUSE_SECONDS: Final = 10.0
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, connect=10)
_STREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=10, sock_read=INACTIVITY_SECONDS)
_PATCH_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
_LOG: Final = logging.getLogger("wholenode.client")

Query = Mapping[str, str]
Body = Mapping[str, Any] | list[dict[str, Any]] | bytes


_FENCE: ContextVar[Callable[[], bool] | None] = ContextVar("fence", default=None)


class _Request(aiohttp.ClientRequest):
    """A request that asks the fence when its connection stands, right before its first byte goes out."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """As aiohttp does it. Raises LeaseLost."""
        may_write = _FENCE.get() if self.method != "GET" else None
        if may_write is not None and not may_write():
            raise _not_leading(f"{self.method} {self.url.path}")
        return await super().send(conn)


def _not_leading(what: str) -> LeaseLost:
    return LeaseLost(f"{what} was not sent: this process does not lead any more")


class Api:
    """The Kubernetes API of one cluster; made by `connect`.

    Every method raises the errors of `cluster.errors`. `urgent` writes do not wait in the token bucket: for the lease,
    which must not be lost because much else is being written, and for writes whose `turn` has come.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        configuration: Configuration,
        bucket: TokenBucket,
        may_write: Callable[[], bool] | None = None,
    ) -> None:
        self._session = session
        self._configuration = configuration
        self._bucket = bucket
        self._may_write = may_write
        self._base_url = str(configuration.host).rstrip("/")

    @property
    def server(self) -> str:
        """The API server's address, for messages."""
        return self._base_url

    def fenced(self, may_write: Callable[[], bool]) -> "Api":
        """The same connection for everybody but the lease: each write asks `may_write` right before it is sent.

        It raises LeaseLost, and nothing goes out, if the answer is no: a process that was frozen between a decision and
        its write may have been replaced meanwhile.
        """
        return Api(self._session, self._configuration, self._bucket, may_write)

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """GET, repeated up to 3 times with pauses when the server is unavailable or asks to slow down."""
        for attempt in range(1, _READ_ATTEMPTS):
            try:
                return await self._send("GET", path, query=query)
            except Throttled as error:
                pause = max(error.retry_after_seconds, backoff(attempt, base_seconds=0.2, cap_seconds=5))
                await asyncio.sleep(min(pause, _MAX_READ_PAUSE_SECONDS))
            except Unavailable:
                await asyncio.sleep(backoff(attempt, base_seconds=0.2, cap_seconds=5))
        return await self._send("GET", path, query=query)

    async def clock(self) -> datetime | None:
        """What time it is by the server's clock, to the second; None if its answer to GET /version does not say."""
        try:
            async with self._session.get(
                f"{self._base_url}/version", timeout=_TIMEOUT, **await self._common("GET /version")
            ) as response:
                return parsedate_to_datetime(response.headers.get("Date", "")).astimezone(UTC)
        except ValueError:
            return None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"GET /version: {_why(error)}") from error

    async def create(self, path: str, body: Body, *, urgent: bool = False) -> bytes:
        return await self._write("POST", path, body, urgent=urgent)

    async def replace(self, path: str, body: Body, *, urgent: bool = False) -> bytes:
        return await self._write("PUT", path, body, urgent=urgent)

    async def patch(
        self, path: str, body: Body, kind: Literal["merge", "strategic", "json"], *, urgent: bool = False
    ) -> bytes:
        return await self._write("PATCH", path, body, content_type=_PATCH_TYPES[kind], urgent=urgent)

    async def delete(self, path: str, *, uid: str | None = None) -> bytes:
        """DELETE; with `uid` only that very object, not a namesake made since (else Conflict)."""
        body = None if uid is None else {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        return await self._write("DELETE", path, body)

    async def turn(self) -> None:
        """Wait for a write's turn, for a caller that looks once more before it writes; then it writes `urgent`."""
        await self._bucket.take()

    async def stream(self, path: str, query: Query) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, without their line ends; a last line that was cut off is dropped.

        Ends when the server ends the answer. Raises Unavailable on a cut connection and after 70 s of silence.
        Close it (`contextlib.aclosing`) when leaving early.
        """
        what = f"watch {path}"
        try:
            async with self._session.get(
                self._base_url + path, params=query, timeout=_STREAM_TIMEOUT, **await self._common(what)
            ) as response:
                if response.status != 200:  # noqa: PLR2004
                    retry_after = response.headers.get("Retry-After")
                    raise from_answer(response.status, await response.read(), what=what, retry_after=retry_after)
                pending = b""
                async for chunk in response.content.iter_any():
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield line
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{what}: {_why(error)}") from error

    async def _write(
        self,
        method: str,
        path: str,
        body: Body | None,
        *,
        content_type: str = "application/json",
        urgent: bool = False,
    ) -> bytes:
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        if not urgent:
            await self._bucket.take()
        return await self._send(method, path, data=data, content_type=content_type)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        data: bytes | None = None,
        content_type: str | None = None,
    ) -> bytes:
        what = f"{method} {path}"
        common = await self._common(what)
        if data is not None and content_type is not None:
            common["headers"]["Content-Type"] = content_type
        if method != "GET" and self._may_write is not None and not self._may_write():
            raise _not_leading(what)
        _FENCE.set(self._may_write)
        try:
            async with self._session.request(
                method, self._base_url + path, params=query, data=data, timeout=_TIMEOUT, **common
            ) as response:
                answer = await response.read()
                if response.status < 300:  # noqa: PLR2004
                    return answer
                retry_after = response.headers.get("Retry-After")
                raise from_answer(response.status, answer, what=what, retry_after=retry_after)
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{what}: {_why(error)}") from error

    async def _common(self, what: str) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        # Asked for each time: this is where the client re-reads a rotated service account token.
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except (OSError, ConfigException) as error:
            raise Unavailable(f"{what}: the service account's token cannot be read: {_why(error)}") from error
        if token:
            headers["Authorization"] = token if " " in token else f"Bearer {token}"
        options: dict[str, Any] = {"headers": headers, "allow_redirects": False}
        if self._configuration.proxy:
            options["proxy"] = self._configuration.proxy
        if self._configuration.tls_server_name:
            options["server_hostname"] = self._configuration.tls_server_name
        return options


@contextlib.asynccontextmanager
async def connect(
    kubeconfig: str | None = None, qps: float = DEFAULT_QPS, burst: int = DEFAULT_BURST
) -> AsyncIterator[Api]:
    """A client for the cluster of the kubeconfig, else of the pod's service account, else of the default kubeconfig.

    `qps` and `burst` limit writes only. No request is made yet. Raises CredentialsError.
    """
    configuration, loader = await load(kubeconfig)
    connector = aiohttp.TCPConnector(limit=0, ssl=_tls(configuration))
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                read_bufsize=_READ_BUFFER_BYTES,
                headers={"User-Agent": "wholenode"},
                request_class=_Request,
            )
        )
        # Else PUT and DELETE are sent again when a connection ends before their answer, and nobody is told.
        session._retry_connection = False  # noqa: SLF001 - there is no other switch
        if loader is not None:
            stack.push_async_callback(_stop, asyncio.create_task(_keep_token_fresh(loader, configuration)))
        yield Api(session, configuration, TokenBucket(qps, burst))


def _tls(configuration: Configuration) -> ssl.SSLContext | bool:
    if not str(configuration.host).startswith("https"):
        return True
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    except OSError as error:
        raise CredentialsError(f"the certificates to reach {configuration.host} cannot be used: {error}") from error
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _keep_token_fresh(loader: Any, configuration: Configuration) -> None:
    """Renews tokens of exec and cloud credential plugins; returns at once for other credentials."""
    while True:
        try:
            await refresh_token(loader, client_configuration=configuration)  # type: ignore[no-untyped-call]
        except Exception:  # a plugin may fail in any way, and the old token may still be good
            _LOG.exception("the credential plugin of the kubeconfig failed, it is run again in a minute")
            await asyncio.sleep(60)
        else:
            return


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__
