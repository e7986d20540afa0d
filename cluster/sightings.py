"""Objects that only the doctor reads, as frozen structs decoded from JSON, and what they mean to it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from fleet.doctor.checkup import Definition, LeaseSeen, Program, Seen, TaintWriter
from fleet.objects import Metadata

_PART_OF: Final = "app.kubernetes.io/part-of"
_COMPONENT: Final = "app.kubernetes.io/component"
_APPLY: Final = "Apply"
_DEFAULT_LEASE_SECONDS: Final = 15


class _Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _Port(_Part, frozen=True):
    name: str = ""


class _ServiceSpec(_Part, frozen=True):
    ports: tuple[_Port, ...] | None = None


class Named(_Part, frozen=True):
    """Any object of which the metadata matter; of a Service the names of its ports too."""

    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def component(self) -> str:
        return self.metadata.label(_COMPONENT) or ""

    @property
    def probe_port(self) -> str:
        """The port that answers without a client certificate."""
        ports = {one.name for one in msgspec.json.decode(self.spec, type=_ServiceSpec).ports or ()}
        return "health" if "health" in ports else "http"


class _Owned(_Part, frozen=True):
    manager: str = ""
    operation: str = ""
    fields: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class OwnedMetadata(Metadata, frozen=True):
    """Metadata, with who wrote which fields."""

    managed_fields: tuple[_Owned, ...] | None = None


class NodeFields(_Part, frozen=True):
    """A node, as far as it says who wrote what of it."""

    metadata: OwnedMetadata

    def taint_writers(self) -> Iterator[TaintWriter]:
        """Everybody who owns the list of taints."""
        for one in self.metadata.managed_fields or ():
            spec = (one.fields or {}).get("f:spec")
            if isinstance(spec, dict) and "f:taints" in spec:
                yield TaintWriter(self.metadata.name, one.manager, one.operation == _APPLY)


class _Container(_Part, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None


class _PodSpec(_Part, frozen=True):
    containers: tuple[_Container, ...] | None = None


class _Template(_Part, frozen=True):
    spec: _PodSpec = _PodSpec()


class _DeploymentSpec(_Part, frozen=True):
    replicas: int | None = None
    template: _Template = _Template()


class _DeploymentStatus(_Part, frozen=True):
    ready_replicas: int | None = None


class DeploymentSeen(_Part, frozen=True):
    metadata: Metadata
    spec: _DeploymentSpec = _DeploymentSpec()
    status: _DeploymentStatus = _DeploymentStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def component(self) -> str:
        return self.metadata.label(_COMPONENT) or ""

    @property
    def ours(self) -> bool:
        return self.metadata.label(_PART_OF) == "wholenode"

    def programs(self) -> Iterator[Program]:
        for one in self.spec.template.spec.containers or ():
            yield Program(
                self.key,
                one.name,
                one.image,
                (*(one.command or ()), *(one.args or ())),
                self.metadata.labels or {},
                1 if self.spec.replicas is None else self.spec.replicas,
                self.status.ready_replicas or 0,
            )


class _Schema(_Part, frozen=True):
    properties: dict[str, Any] | None = None

    def of(self, name: str) -> frozenset[str]:
        part = (self.properties or {}).get(name)
        inner = part.get("properties") if isinstance(part, dict) else None
        return frozenset(inner or ())


class _Validation(_Part, frozen=True):
    schema: _Schema = msgspec.field(default=_Schema(), name="openAPIV3Schema")


class _Version(_Part, frozen=True):
    name: str
    served: bool = False
    schema: _Validation = _Validation()


class _CrdSpec(_Part, frozen=True):
    versions: tuple[_Version, ...] | None = None


class CrdSeen(_Part, frozen=True):
    metadata: Metadata
    spec: _CrdSpec = _CrdSpec()

    def definition(self) -> Definition:
        served = [one for one in self.spec.versions or () if one.served]
        newest = served[0].schema.schema if served else _Schema()
        return Definition(
            self.metadata.name, frozenset(one.name for one in served), newest.of("spec"), newest.of("status")
        )


class Config(_Part, frozen=True):
    """A ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def texts(self) -> tuple[str, ...]:
        return tuple((self.data or {}).values())


class _LeaseSpec(_Part, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: datetime | None = None


class Lease(_Part, frozen=True):
    metadata: Metadata
    spec: _LeaseSpec = _LeaseSpec()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def seen(self) -> LeaseSeen:
        return LeaseSeen(
            self.key,
            self.spec.holder_identity or "",
            self.spec.renew_time,
            self.spec.lease_duration_seconds or _DEFAULT_LEASE_SECONDS,
        )


class _LocalQueueSpec(_Part, frozen=True):
    cluster_queue: str = ""


class LocalQueueSeen(_Part, frozen=True):
    metadata: Metadata
    spec: _LocalQueueSpec = _LocalQueueSpec()


class _About(_Part, frozen=True):
    namespace: str = ""
    name: str = ""


class _Series(_Part, frozen=True):
    count: int = 0
    last_observed_time: datetime | None = None


class EventSeen(_Part, frozen=True):
    """A core/v1 Event, of the old sort (count, lastTimestamp) or the new one (eventTime, series)."""

    metadata: Metadata
    reason: str = ""
    message: str = ""
    involved_object: _About = _About()
    count: int | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: _Series | None = None

    def seen(self) -> Seen:
        series = self.series or _Series()
        about = self.involved_object
        last = series.last_observed_time or self.last_timestamp or self.event_time or self.metadata.creation_timestamp
        count = max(1, series.count, self.count or 0)
        return Seen(self.reason, f"{about.namespace}/{about.name}", self.message, count, last)
