"""What the command line and explanations read from the API server: one pod and what is told of it; all of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from cluster.claims import collection_path
from cluster.client import Api
from cluster.errors import ClusterError, Forbidden, NotFound
from cluster.listing import Described, ObjectDecoder, list_all
from fleet.devices import CLAIMS_PATH
from fleet.gangs import candidate_refs
from fleet.kueue.expected import with_expected
from fleet.kueue.objects import API_VERSION as KUEUE_VERSION
from fleet.kueue.objects import GROUP as KUEUE_GROUP
from fleet.kueue.objects import JOB_UID, WORKLOAD, AdmissionCheck, CheckState, ResourceFlavor
from fleet.kueue.objects import Workload as KueueWorkload
from fleet.names import COSCHEDULING_API, GANG, IN_TREE_API, JOBSET_UID, KUEUE_POD_GROUP
from fleet.objects import (
    Condition,
    CoschedulingGroup,
    DisruptionBudget,
    Job,
    Metadata,
    Node,
    Pod,
    PodGroup,
    ResourceClaim,
)
from fleet.resources import DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim
from fleet.view import View
from fleet.why.explanations import ContainerState, Event, Told, Workload

_ASIDE_SECONDS: Final = 3.0
"""Facts that take longer than this are left out, and said to be."""
_KUEUE: Final = f"{KUEUE_GROUP}/"
_KUEUE_API: Final = f"/apis/{KUEUE_VERSION}"
_KUEUE_VERSIONS: Final = ("v1beta2", "v1beta1")
_IN_TREE_VERSIONS: Final = ("v1beta1", "v1alpha2")

Groups = tuple[PodGroup | CoschedulingGroup, ...]
T = TypeVar("T")
D = TypeVar("D", bound=Described)


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Waiting(_Part, frozen=True):
    reason: str = ""
    message: str = ""


class _State(_Part, frozen=True):
    waiting: _Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class _Container(_Part, frozen=True):
    name: str = ""
    state: _State = _State()
    last_state: _State = _State()

    def told(self) -> ContainerState:
        waiting = self.state.waiting or _Waiting()
        ran = bool(self.state.running or self.state.terminated or self.last_state.terminated)
        return ContainerState(self.name, waiting.reason, waiting.message, ran)


class _ContainerStatuses(_Part, frozen=True):
    init_container_statuses: tuple[_Container, ...] | None = None
    container_statuses: tuple[_Container, ...] | None = None


class _PodContainers(_Part, frozen=True):
    status: _ContainerStatuses = _ContainerStatuses()


class _Source(_Part, frozen=True):
    component: str = ""


class _Series(_Part, frozen=True):
    count: int = 0
    last_observed_time: datetime | None = None


class _Event(_Part, frozen=True):
    """A core/v1 Event: of the old sort (count, lastTimestamp) or the new one (eventTime, series)."""

    metadata: Metadata
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: _Series | None = None
    source: _Source | None = None
    reporting_component: str = ""

    def told(self) -> Event:
        series = self.series or _Series()
        last = series.last_observed_time or self.last_timestamp or self.event_time or self.metadata.creation_timestamp
        return Event(self.reason, self.message, max(1, series.count, self.count or 0), last)

    @property
    def by(self) -> str:
        return self.reporting_component or (self.source.component if self.source else "")


class _WorkloadStatus(_Part, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    admission_checks: tuple[CheckState, ...] | None = None


class _Workload(_Part, frozen=True):
    metadata: Metadata
    status: _WorkloadStatus = _WorkloadStatus()

    def told(self) -> Workload:
        return Workload(self.metadata.name, self.status.conditions or (), self.status.admission_checks or ())

    def is_of(self, uids: set[str]) -> bool:
        owners = {one.uid for one in self.metadata.owner_references or ()}
        return bool(uids & owners) or self.metadata.label(JOB_UID) in uids


_POD: Final = msgspec.json.Decoder(Pod)
_CONTAINERS: Final = msgspec.json.Decoder(_PodContainers)
_EVENTS: Final = ObjectDecoder(_Event)
_WORKLOADS: Final = ObjectDecoder(_Workload)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod now, what others told about it, and the objects that say how large its gang is."""

    pod: Pod
    told: Told
    jobs: tuple[Job, ...] = ()
    groups: Groups = ()


async def pod_facts(api: Api, namespace: str, name: str) -> PodFacts:
    """Read everything about one pod. Raises NotFound, Forbidden and the others of the client for the pod itself.

    What cannot be read beside it (no rights, no such API, no answer in 3 s) is named in `told.unread`.
    """
    body = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    pod = _POD.decode(body)
    unread: list[str] = []
    no_events: tuple[_Event, ...] = ()
    no_jobs: tuple[Job, ...] = ()
    no_groups: Groups = ()
    events, workload, jobs, groups = await asyncio.gather(
        _aside("events", lambda: _events(api, pod), no_events, unread),
        _aside("the Kueue Workload", lambda: _workload(api, pod), None, unread),
        _aside("its Job", lambda: _jobs(api, pod), no_jobs, unread),
        _aside("its PodGroup", lambda: _groups(api, pod), no_groups, unread),
    )
    return PodFacts(pod, _told(body, events, workload, tuple(unread)), jobs, groups)


def _told(body: bytes, events: Iterable[_Event], workload: _Workload | None, unread: tuple[str, ...]) -> Told:
    status = _CONTAINERS.decode(body).status
    containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return Told(
        failed_scheduling=_last(one for one in events if one.reason == "FailedScheduling"),
        kubelet=_last(one for one in events if one.by == "kubelet" and one.type == "Warning"),
        containers=tuple(one.told() for one in containers),
        workload=workload.told() if workload else None,
        unread=unread,
    )


def _last(events: Iterable[_Event]) -> Event | None:
    found = sorted((one.told() for one in events), key=lambda one: one.last or datetime.min.replace(tzinfo=UTC))
    return found[-1] if found else None


async def _aside(what: str, read: Callable[[], Awaitable[T]], otherwise: T, unread: list[str]) -> T:
    try:
        async with asyncio.timeout(_ASIDE_SECONDS):
            return await read()
    except TimeoutError:
        unread.append(f"{what}: no answer in {_ASIDE_SECONDS:.0f} s")
    except (ClusterError, msgspec.DecodeError) as error:
        unread.append(f"{what}: {error}")
    return otherwise


async def _events(api: Api, pod: Pod) -> tuple[_Event, ...]:
    query = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid}"}
    found, _ = await list_all(api, f"/api/v1/namespaces/{pod.metadata.namespace}/events", _EVENTS, query)
    return tuple(found)


async def _workload(api: Api, pod: Pod) -> _Workload | None:
    """By annotation, by pod group (the Workload has its name), else by owner. None where Kueue has nothing to do."""
    if not _under_kueue(pod):
        return None
    meta = pod.metadata
    name = meta.annotation(WORKLOAD) or meta.label(KUEUE_POD_GROUP) or meta.annotation(KUEUE_POD_GROUP)
    uids = {meta.uid, *(one.uid for one in meta.owner_references or ())}
    if (of_set := meta.label(JOBSET_UID)) is not None:
        uids.add(of_set)
    for version in _KUEUE_VERSIONS:
        path = f"/apis/kueue.x-k8s.io/{version}/namespaces/{meta.namespace}/workloads"
        try:
            if name is not None:
                return msgspec.json.decode(await api.get(f"{path}/{name}"), type=_Workload)
            every, _ = await list_all(api, path, _WORKLOADS)
        except NotFound:
            continue
        return next((one for one in every if one.is_of(uids)), None)
    return None


def _under_kueue(pod: Pod) -> bool:
    meta = pod.metadata
    gates = (gate.name for gate in pod.spec.scheduling_gates or ())
    return any(key.startswith(_KUEUE) for key in (*gates, *(meta.labels or ()), *(meta.annotations or ())))


async def _jobs(api: Api, pod: Pod) -> tuple[Job, ...]:
    """The pod's Job; of a JobSet all its Jobs, for only together they say how large the gang is."""
    meta, owner = pod.metadata, pod.metadata.controller()
    path = f"/apis/batch/v1/namespaces/{meta.namespace}/jobs"
    of_set = meta.label(JOBSET_UID)
    if of_set is not None and meta.annotation(GANG) is None:
        return await _list(api, path, Job, {"labelSelector": f"{JOBSET_UID}={of_set}"})
    if owner is None or owner.kind != "Job":
        return ()
    try:
        return (msgspec.json.decode(await api.get(f"{path}/{owner.name}"), type=Job),)
    except NotFound:
        return ()


async def _groups(api: Api, pod: Pod) -> Groups:
    ref = candidate_refs(pod)[0]
    if ref.kind != "PodGroup":
        return ()
    kinds: list[tuple[str, type[PodGroup] | type[CoschedulingGroup]]] = []
    if ref.uid == IN_TREE_API:
        kinds = [(f"{IN_TREE_API}/{version}", PodGroup) for version in _IN_TREE_VERSIONS]
    elif ref.uid == COSCHEDULING_API:
        kinds = [(f"{COSCHEDULING_API}/v1alpha1", CoschedulingGroup)]
    for api_version, type_ in kinds:
        path = f"/apis/{api_version}/namespaces/{pod.metadata.namespace}/podgroups/{ref.name}"
        try:
            return (msgspec.json.decode(await api.get(path), type=type_),)
        except NotFound:
            continue
    return ()


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole cluster, and what could not be read of it for want of rights, in words."""

    view: View
    unread: tuple[str, ...] = ()


async def whole_view(api: Api) -> View:
    """As `whole`, for a caller who does without what he may not read."""
    return (await whole(api)).view


async def whole(api: Api) -> Whole:
    """The cluster as LISTs show it, for a caller without caches. Raises Forbidden, NotFound without our kinds.

    Kinds that are not served everywhere may be missing; they, and the records, may be forbidden.
    """
    unread: list[str] = []
    async with asyncio.TaskGroup() as group:
        nodes = group.create_task(_list(api, "/api/v1/nodes", Node))
        pods = group.create_task(_list(api, "/api/v1/pods", Pod))
        jobs = group.create_task(_list(api, "/apis/batch/v1/jobs", Job))
        pools = group.create_task(_list(api, collection_path(GPUPool), GPUPool))
        agreements = group.create_task(_list(api, collection_path(DrainAgreement), DrainAgreement))
        claims = group.create_task(_list(api, collection_path(WholeNodeClaim), WholeNodeClaim))
        budgets = group.create_task(_list(api, "/apis/policy/v1/poddisruptionbudgets", DisruptionBudget))
        records = group.create_task(_if_served(api, collection_path(DrainRecord), DrainRecord, unread))
        devices = group.create_task(_if_served(api, CLAIMS_PATH, ResourceClaim, unread))
        in_tree = [
            group.create_task(_if_served(api, f"/apis/{IN_TREE_API}/{version}/podgroups", PodGroup, unread))
            for version in _IN_TREE_VERSIONS
        ]
        theirs = f"/apis/{COSCHEDULING_API}/v1alpha1/podgroups"
        coscheduling = group.create_task(_if_served(api, theirs, CoschedulingGroup, unread))
        workloads = group.create_task(_if_served(api, f"{_KUEUE_API}/workloads", KueueWorkload, unread))
        flavors = group.create_task(_if_served(api, f"{_KUEUE_API}/resourceflavors", ResourceFlavor, unread))
        checks = group.create_task(_if_served(api, f"{_KUEUE_API}/admissionchecks", AdmissionCheck, unread))
    in_tree_groups = {one.metadata.uid: one for task in in_tree for one in task.result()}
    view = View(
        nodes={one.metadata.name: one for one in nodes.result()},
        pods={one.metadata.uid: one for one in pods.result()},
        jobs={one.metadata.uid: one for one in jobs.result()},
        pools=pools.result(),
        agreements=agreements.result(),
        claims={one.metadata.uid: one for one in claims.result()},
        budgets=budgets.result(),
        device_claims=devices.result(),
        pod_groups=(*in_tree_groups.values(), *coscheduling.result()),
        records={one.metadata.uid: one for one in records.result()},
        workloads={one.metadata.uid: one for one in workloads.result()},
        flavors=flavors.result(),
        checks=checks.result(),
    )
    return Whole(with_expected(view), tuple(sorted(unread)))


async def drain_records(api: Api, namespace: str = "") -> tuple[DrainRecord, ...]:
    """All records, or those of one namespace."""
    return await _list(api, collection_path(DrainRecord, namespace), DrainRecord)


async def claims_of(api: Api, namespace: str = "") -> tuple[WholeNodeClaim, ...]:
    """All claims, or those of one namespace."""
    return await _list(api, collection_path(WholeNodeClaim, namespace), WholeNodeClaim)


async def _list(api: Api, path: str, type_: type[D], query: Mapping[str, str] | None = None) -> tuple[D, ...]:
    found, _ = await list_all(api, path, ObjectDecoder(type_), query)
    return tuple(found)


async def _if_served(api: Api, path: str, type_: type[D], unread: list[str]) -> tuple[D, ...]:
    try:
        return await _list(api, path, type_)
    except NotFound:
        return ()
    except Forbidden as error:
        unread.append(error.message)
        return ()
