"""Leader election by a coordination.k8s.io/v1 Lease, judged by a clock that never jumps.

What counts is when *this process* saw the record change, as in client-go: nobody's wall clock is trusted. The holder
gives up earlier (`renew_deadline_seconds`) than others may take over (`lease_seconds`), so a holder that was frozen
notices before it writes: ask `is_valid` before every write.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from cluster.client import Api
from cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    LeaseLost,
    NamespaceTerminating,
    NotFound,
)
from cluster.pacing import between
from fleet.times import format_time

_TOO_LATE_SECONDS: Final = 0.05
"""With less than this left, a lease can be neither used nor renewed: no answer would come in time."""
_LOG: Final = logging.getLogger("wholenode.lease")


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_DECODER = msgspec.json.Decoder(_Lease)


def steady_clock() -> float:
    """Seconds that go on while the process, or the whole machine, is asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaseElector:
    """One candidate for one Lease. `identity` must be unique to this process (a pod name alone is not: it restarts).

    `lease_seconds` others wait for before they take over; `renew_seconds` between renewals; `renew_deadline_seconds`
    (default two thirds of the lease) after which a lease that could not be renewed is not ours any more.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        lease_seconds: int = 15,
        renew_seconds: float = 2.0,
        renew_deadline_seconds: float | None = None,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self._deadline = lease_seconds * 2 / 3 if renew_deadline_seconds is None else renew_deadline_seconds
        if not 0 < renew_seconds < self._deadline < lease_seconds:
            raise ValueError(
                "a lease needs renew_seconds < renew_deadline_seconds < lease_seconds, "
                f"not {renew_seconds}, {self._deadline} and {lease_seconds}"
            )
        self.identity = identity
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._metadata = {"name": name, "namespace": namespace}
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        self._version = ""
        self._spec = _Spec()
        self._sent: tuple[str, float] | None = None
        self._renewed_at: float | None = None

    def is_valid(self) -> bool:
        """Whether this process may write now. A memory look-up: use it right before every write."""
        return self._renewed_at is not None and self._left() > _TOO_LATE_SECONDS

    async def acquire(self) -> None:
        """Wait until the lease is ours. Raises Forbidden, Invalid or NamespaceTerminating; waits out other trouble."""
        while True:
            try:
                # A request that hangs must not keep a candidate waiting for longer than a dead leader would.
                async with asyncio.timeout(self._deadline):
                    if await self._try_acquire():
                        return
            except (Forbidden, Invalid, NamespaceTerminating):
                raise
            except (ClusterError, TimeoutError) as error:
                _LOG.debug("the lease could not be tried", extra={"path": self._path, "reason": str(error)})
            await asyncio.sleep(between(self._renew_seconds / 2, self._renew_seconds))

    async def hold(self) -> None:
        """Keep renewing until cancelled. Raises LeaseLost as soon as the lease is not ours any more, or was not
        renewed in time."""
        while True:
            await asyncio.sleep(min(self._renew_seconds, self._left()))
            await self._renew_once()
            if not self.is_valid():
                self._renewed_at = None
                raise LeaseLost(
                    f"lease {self._path} of {self.identity} could not be renewed within {self._deadline:g} s"
                )

    async def release(self) -> None:
        """Let another take over at once. Call it after the last write; trouble is ignored, the lease ends anyway."""
        if not self.is_valid():
            return
        self._renewed_at = None
        with contextlib.suppress(ClusterError):
            try:
                await self._put(self._given_up())
            except Conflict:
                # A renewal was under way when we were told to stop, and has arrived after all.
                lease = _DECODER.decode(await self._api.get(self._path))
                if lease.spec.holder_identity == self.identity:
                    self._version, self._spec = lease.metadata.resource_version, lease.spec
                    await self._put(self._given_up())

    def _given_up(self) -> _Spec:
        now = format_time(datetime.now(UTC))
        return msgspec.structs.replace(self._spec, holder_identity="", lease_duration_seconds=1, renew_time=now)

    def _left(self) -> float:
        ends = (self._renewed_at or 0.0) + self._deadline
        return max(0.0, ends - self._clock())

    async def _renew_once(self) -> None:
        started = self._clock()
        try:
            async with asyncio.timeout(self._left()):
                spec = msgspec.structs.replace(self._spec, renew_time=self._stamp(started))
                await self._put(spec)
            self._renewed_at = started
        except Conflict:
            await self._read_back()
        except NotFound as error:
            self._renewed_at = None
            raise LeaseLost(f"lease {self._path} was deleted") from error
        except (ClusterError, TimeoutError) as error:
            _LOG.warning("the lease could not be renewed", extra={"path": self._path, "reason": str(error)})

    async def _read_back(self) -> None:
        """After a conflict: somebody changed the record, or an earlier renewal of ours had arrived after all."""
        try:
            async with asyncio.timeout(self._left()):
                lease = _DECODER.decode(await self._api.get(self._path))
        except (ClusterError, TimeoutError):
            return
        if lease.spec.holder_identity != self.identity:
            self._renewed_at = None
            raise LeaseLost(f"lease {self._path} was taken over by {lease.spec.holder_identity or 'nobody'}")
        self._version, self._spec = lease.metadata.resource_version, lease.spec

    async def _try_acquire(self) -> bool:
        try:
            lease = _DECODER.decode(await self._api.get(self._path))
        except NotFound:
            return await self._create(self._clock())
        self._version = lease.metadata.resource_version
        if self._seen is None or self._seen[0] != self._version:
            self._seen = (self._version, self._clock())
        if self._is_taken(lease.spec):
            return False
        again = lease.spec.holder_identity == self.identity
        transitions = (lease.spec.lease_transitions or 0) + (0 if again else 1)
        started = self._clock()
        try:
            await self._put(self._fresh_spec(started, transitions))
        except Conflict:
            return False
        self._renewed_at = started
        return True

    def _is_taken(self, spec: _Spec) -> bool:
        if not spec.holder_identity:
            return False
        if spec.holder_identity == self.identity and self._sent is not None and spec.renew_time == self._sent[0]:
            return False  # a write of ours whose answer was lost
        seen_at = self._seen[1] if self._seen else self._clock()
        return self._clock() < seen_at + (spec.lease_duration_seconds or self._lease_seconds)

    async def _create(self, started: float) -> bool:
        spec = self._fresh_spec(started, 0)
        try:
            self._take_over(await self._api.create(self._collection, self._body(spec, None), urgent=True))
        except AlreadyExists:
            return False
        self._renewed_at = started
        return True

    def _fresh_spec(self, started: float, transitions: int) -> _Spec:
        stamp = self._stamp(started)
        return _Spec(self.identity, self._lease_seconds, stamp, stamp, transitions)

    def _stamp(self, started: float) -> str:
        stamp = format_time(datetime.now(UTC))
        self._sent = (stamp, started)
        return stamp

    async def _put(self, spec: _Spec) -> None:
        self._take_over(await self._api.replace(self._path, self._body(spec, self._version), urgent=True))

    def _take_over(self, answer: bytes) -> None:
        lease = _DECODER.decode(answer)
        self._version, self._spec = lease.metadata.resource_version, lease.spec

    def _body(self, spec: _Spec, version: str | None) -> bytes:
        metadata = self._metadata if version is None else {**self._metadata, "resourceVersion": version}
        return msgspec.json.encode(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        )
