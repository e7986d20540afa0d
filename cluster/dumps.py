"""A saved picture of the cluster: one JSON List of everything decisions look at, written and read."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from cluster.errors import ClusterError
from fleet.errors import FleetError
from fleet.kueue.expected import is_expected, with_expected
from fleet.kueue.objects import API_VERSION as KUEUE
from fleet.kueue.objects import AdmissionCheck, ResourceFlavor, TemplateMetadata, Workload
from fleet.names import COSCHEDULING_API, GROUP, IN_TREE_API, VERSION
from fleet.objects import (
    CoschedulingGroup,
    DisruptionBudget,
    Job,
    Metadata,
    Node,
    Pod,
    PodGroup,
    PodSpec,
    ResourceClaim,
)
from fleet.quantities import amount
from fleet.resources import DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim
from fleet.times import format_time, parse_time
from fleet.view import View

_KINDS: Final[dict[tuple[str, str], type[Any]]] = {
    ("v1", "Node"): Node,
    ("v1", "Pod"): Pod,
    ("batch/v1", "Job"): Job,
    ("policy/v1", "PodDisruptionBudget"): DisruptionBudget,
    (f"{IN_TREE_API}/v1beta1", "PodGroup"): PodGroup,
    (f"{COSCHEDULING_API}/v1alpha1", "PodGroup"): CoschedulingGroup,
    ("resource.k8s.io/v1", "ResourceClaim"): ResourceClaim,
    (f"{GROUP}/{VERSION}", "GPUPool"): GPUPool,
    (f"{GROUP}/{VERSION}", "DrainAgreement"): DrainAgreement,
    (f"{GROUP}/{VERSION}", "WholeNodeClaim"): WholeNodeClaim,
    (f"{GROUP}/{VERSION}", "DrainRecord"): DrainRecord,
    (KUEUE, "Workload"): Workload,
    (KUEUE, "ResourceFlavor"): ResourceFlavor,
    (KUEUE, "AdmissionCheck"): AdmissionCheck,
}
_TYPES: Final = {(api.rpartition("/")[0], kind): type_ for (api, kind), type_ in _KINDS.items()}
"""By API group: which version an object was written in makes no difference here."""
_HEADS: Final = {type_: head for head, type_ in _KINDS.items()}
_BY_UID: Final = frozenset({Pod, Job, WholeNodeClaim, DrainRecord, Workload})
_ANNOTATIONS: Final = (
    "wholenode.io/",
    "hami.io/",
    "kueue.x-k8s.io/",
    "scheduling.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "batch.kubernetes.io/",
    "kubernetes.io/config.mirror",
)
"""What annotations that are read begin with. Others may hold anything: kubectl keeps whole manifests in one."""
_YEARS: Final = range(1970, 2300)
_WHERE: Final = re.compile(r"(?s)(.*?) - at `\$\.?(.*)`")


class DumpError(ClusterError):
    """A file that is no picture of a cluster; the message names the object and the field."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A picture and when it was taken; None if the file does not say, as kubectl's lists do not."""

    view: View
    taken_at: datetime | None


class _Name(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: _Name = msgspec.field(default_factory=_Name)

    @property
    def text(self) -> str:
        """`Pod team-v/a`, for people."""
        where = f"{self.metadata.namespace}/" if self.metadata.namespace else ""
        return f"{self.kind} {where}{self.metadata.name}"


class _List(msgspec.Struct, rename="camel"):
    kind: str = ""
    items: list[msgspec.Raw] | None = None
    taken_at: str | None = None


M = TypeVar("M", Metadata, TemplateMetadata)

_LIST: Final = msgspec.json.Decoder(_List)
_HEAD: Final = msgspec.json.Decoder(_Head)


def write_dump(view: View, taken_at: datetime) -> bytes:
    """The picture as JSON, one object a line, in an order of its own. Only fields that are read are in it."""
    objects: list[Any] = [
        *view.nodes.values(),
        *(pod for pod in view.pods.values() if not is_expected(pod)),
        *view.jobs.values(),
        *view.budgets,
        *view.pod_groups,
        *view.device_claims,
        *view.pools,
        *view.agreements,
        *view.claims.values(),
        *view.records.values(),
        *view.workloads.values(),
        *view.flavors,
        *view.checks,
    ]
    lines = [line for _, line in sorted(map(_line, objects))]
    head = f'{{"apiVersion":"v1","kind":"List","takenAt":"{format_time(taken_at)}","items":['
    return head.encode() + b"\n" + b",\n".join(lines) + b"\n]}\n"


def _line(item: Any) -> tuple[tuple[str, str, str, str], bytes]:
    api_version, kind = _HEADS[type(item)]
    metadata: Metadata = item.metadata
    if metadata.annotations:
        item = msgspec.structs.replace(item, metadata=_kept(metadata))
    if isinstance(item, Workload) and item.spec.pod_sets:
        sets = tuple(
            msgspec.structs.replace(
                one, template=msgspec.structs.replace(one.template, metadata=_kept(one.template.metadata))
            )
            for one in item.spec.pod_sets
        )
        item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, pod_sets=sets))
    head = f'{{"apiVersion":"{api_version}","kind":"{kind}",'
    return (kind, api_version, metadata.namespace, metadata.name), head.encode() + msgspec.json.encode(item)[1:]


def _kept(metadata: M) -> M:
    kept = {key: text for key, text in (metadata.annotations or {}).items() if key.startswith(_ANNOTATIONS)}
    return msgspec.structs.replace(metadata, annotations=kept or None)


def read_dump(data: bytes) -> Dump:
    """The picture in a file that `write_dump`, or `kubectl get ... -o json`, made. Raises DumpError.

    Objects of kinds that nothing is decided by are passed over.
    """
    try:
        top = _LIST.decode(data)
    except msgspec.ValidationError as error:
        raise DumpError(f"this is not a Kubernetes List in JSON: {_told(error)}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise DumpError(f"this is not JSON: {error}") from error
    if not top.kind.endswith("List") or top.items is None:
        raise DumpError("this is not a Kubernetes List: its kind must be List, and it must have items")
    try:
        taken_at = parse_time(top.taken_at) if top.taken_at is not None else None
        if taken_at is not None and taken_at.year not in _YEARS:
            raise DumpError(f"takenAt: {top.taken_at} is no time at which a picture can have been taken")
    except FleetError as error:
        raise DumpError(f"takenAt: {error}") from error
    found: dict[type[Any], list[Any]] = {type_: [] for type_ in _HEADS}
    for index, raw in enumerate(top.items):
        for item in _read(raw, index):
            found[type(item)].append(item)
    return Dump(_view(found), taken_at)


def _read(raw: msgspec.Raw, index: int) -> Iterator[Any]:
    try:
        head = _HEAD.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DumpError(f"items[{index}]: {_told(error)}") from error
    type_ = _TYPES.get((head.api_version.rpartition("/")[0], head.kind))
    if type_ is None:
        return
    if not head.metadata.name:
        raise DumpError(f"items[{index}], a {head.kind}: metadata.name is missing")
    try:
        item = msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DumpError(f"{head.text}: {_told(error)}") from error
    if type_ in _BY_UID and not item.metadata.uid:
        raise DumpError(f"{head.text}: metadata.uid is missing")
    for wrong in (*_wrong_times(item, ""), *_wrong_quantities(item)):
        raise DumpError(f"{head.text}: {wrong}")
    yield item


def _told(error: Exception) -> str:
    """msgspec's text with the field first: ``spec.nodeName: Expected `str`, got `int` ``."""
    match = _WHERE.fullmatch(str(error))
    text = f"{match[2]}: {match[1]}" if match and match[2] else match[1] if match else str(error)
    return " ".join(text.split())


def _wrong_times(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            yield f"{path}: the time has no zone: end it with Z or +08:00"
        elif value.year not in _YEARS:
            yield f"{path}: the year {value.year} is out of range"
    elif isinstance(value, msgspec.Struct):
        for name, encoded in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            yield from _wrong_times(getattr(value, name), f"{path}.{encoded}" if path else encoded)
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from _wrong_times(one, f"{path}[{index}]")


def _wrong_quantities(item: Any) -> Iterator[str]:
    for path, quantities in _quantities(item):
        for name, quantity in (quantities or {}).items():
            try:
                amount(quantity)
            except FleetError as error:
                yield f"{path}.{name}: {error}"


def _quantities(item: Any) -> Iterator[tuple[str, dict[str, str | int] | None]]:
    if isinstance(item, Node):
        yield "status.allocatable", item.status.allocatable
        yield "status.capacity", item.status.capacity
    elif isinstance(item, Pod):
        yield from _of_pod("spec", item.spec)
    elif isinstance(item, Workload):
        for index, pod_set in enumerate(item.spec.pod_sets or ()):
            yield from _of_pod(f"spec.podSets[{index}].template.spec", pod_set.template.spec)


def _of_pod(path: str, spec: PodSpec) -> Iterator[tuple[str, dict[str, str | int] | None]]:
    yield f"{path}.overhead", spec.overhead
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, one in enumerate(containers or ()):
            if one.resources is not None:
                yield f"{path}.{field}[{index}].resources.requests", one.resources.requests
                yield f"{path}.{field}[{index}].resources.limits", one.resources.limits


def _view(found: dict[type[Any], list[Any]]) -> View:
    view = View(
        nodes=_once(found[Node], lambda one: one.name),
        pods=_once(found[Pod], lambda one: one.uid),
        jobs=_once(found[Job], lambda one: one.uid),
        pools=tuple(_once(found[GPUPool], lambda one: one.name).values()),
        agreements=tuple(found[DrainAgreement]),
        claims=_once(found[WholeNodeClaim], lambda one: one.uid),
        budgets=tuple(found[DisruptionBudget]),
        pod_groups=(*found[PodGroup], *found[CoschedulingGroup]),
        device_claims=tuple(found[ResourceClaim]),
        records=_once(found[DrainRecord], lambda one: one.uid),
        workloads=_once(found[Workload], lambda one: one.uid),
        flavors=tuple(_once(found[ResourceFlavor], lambda one: one.name).values()),
        checks=tuple(_once(found[AdmissionCheck], lambda one: one.name).values()),
    )
    return with_expected(view)


def _once(items: Iterable[Any], key: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        name = key(item.metadata)
        if name in found:
            kind = _HEADS[type(item)][1]
            raise DumpError(f"{kind} {item.metadata.namespace}/{item.metadata.name}: it is in the list twice ({name})")
        found[name] = item
    return found
