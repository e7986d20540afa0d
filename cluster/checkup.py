"""Reads everything the doctor looks at: LISTs and GETs only, side by side; what cannot be read is named, not raised."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from cluster.claims import collection_path
from cluster.client import Api
from cluster.configs import kueue_config, scheduler_configs
from cluster.errors import ClusterError, Forbidden, NotFound
from cluster.listing import Described, ObjectDecoder, list_all
from cluster.sightings import Config, CrdSeen, DeploymentSeen, EventSeen, Lease, LocalQueueSeen, Named, NodeFields
from fleet.devices import CLAIMS_PATH
from fleet.doctor.checkup import Answering, Checkup, ClusterQueue, Cohort, KueueConfiguration, Program
from fleet.doctor.schedulers import Configuration
from fleet.kueue.objects import API_VERSION, AdmissionCheck, ResourceFlavor, Workload
from fleet.objects import Job, Node, Pod, ResourceClaim
from fleet.resources import DrainAgreement, GPUPool, WholeNodeClaim
from fleet.view import View

_PART_SECONDS: Final = 20.0
"""A part that takes longer is left out, and said to be."""
_OURS: Final = "app.kubernetes.io/part-of=wholenode"
_LEASE: Final = "wholenode-controller"
_EVENTS: Final = ("FailedScheduling", "BindingFailed", "FilteringFailed")
_KUEUE: Final = f"/apis/{API_VERSION}"
_SYSTEM: Final = ("kube-system", "kueue-system", "hami-system")
"""Where kube-scheduler's, Kueue's and HAMi's configuration lies if nothing else is known."""
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SAME_CLOCK: Final = timedelta(seconds=2)
"""The server tells its time in whole seconds, and an answer takes a moment."""
_NO_TIME: Final = timedelta()
T = TypeVar("T")
D = TypeVar("D", bound=Described)


@dataclass
class _Reader:
    """Reads parts; keeps what could not be read, and which kinds are not served."""

    api: Api
    missing: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    async def part(self, name: str, read: Callable[[], Awaitable[T]], otherwise: T) -> T:
        try:
            async with asyncio.timeout(_PART_SECONDS):
                return await read()
        except TimeoutError:
            self.missing[name] = f"no answer in {_PART_SECONDS:.0f} s"
        except NotFound:
            self.absent.add(name)
        except (ClusterError, msgspec.DecodeError) as error:
            self.missing[name] = " ".join(str(error).split())
        return otherwise

    async def list(self, name: str, path: str, type_: type[D], query: Mapping[str, str] | None = None) -> tuple[D, ...]:
        nothing: tuple[D, ...] = ()

        async def read() -> tuple[D, ...]:
            found, _ = await list_all(self.api, path, ObjectDecoder(type_), query)
            return tuple(found)

        return await self.part(name, read, nothing)


async def reachable(api: Api) -> None:
    """Raises the client's error if there is no answer at all; being refused is an answer."""
    try:
        await api.get("/version")
    except (NotFound, Forbidden):
        return


async def ahead(api: Api) -> timedelta:
    """How far the server's clock is ahead of ours: ages are told by its clock, not by that of who asks."""
    theirs = await api.clock()
    apart = _NO_TIME if theirs is None else theirs - datetime.now(UTC)
    return apart if abs(apart) > _SAME_CLOCK else _NO_TIME


async def glance(api: Api, apart: timedelta = _NO_TIME) -> Checkup:
    """Nodes, pods and pools only: the earlier picture of a watch."""
    reader = _Reader(api)
    at = datetime.now(UTC) + apart
    nodes, pods, pools = await asyncio.gather(
        reader.list("nodes", "/api/v1/nodes", Node),
        reader.list("pods", "/api/v1/pods", Pod),
        reader.list("gpupools", collection_path(GPUPool), GPUPool),
    )
    view = View(_by_name(nodes), _by_uid(pods), {}, pools, (), {})
    return Checkup(view, at, missing=reader.missing, absent=frozenset(reader.absent))


async def checkup(
    api: Api,
    configs: tuple[Configuration, ...] | None = None,
    kueue: KueueConfiguration | None = None,
    apart: timedelta = _NO_TIME,
) -> Checkup:
    """Everything, as it is now. `configs` and `kueue`, if given, stand for what would be looked for in ConfigMaps.

    `apart`: how far the server's clock is ahead of ours.
    """
    reader = _Reader(api)
    async with asyncio.TaskGroup() as group:
        make = group.create_task
        nodes = make(reader.list("nodes", "/api/v1/nodes", Node))
        fields = make(reader.list("nodes", "/api/v1/nodes", NodeFields))
        pods = make(reader.list("pods", "/api/v1/pods", Pod))
        jobs = make(reader.list("jobs", "/apis/batch/v1/jobs", Job))
        pools = make(reader.list("gpupools", collection_path(GPUPool), GPUPool))
        agreements = make(reader.list("drainagreements", collection_path(DrainAgreement), DrainAgreement))
        claims = make(reader.list("wholenodeclaims", collection_path(WholeNodeClaim), WholeNodeClaim))
        devices = make(reader.list("resourceclaims", CLAIMS_PATH, ResourceClaim))
        workloads = make(reader.list("workloads", f"{_KUEUE}/workloads", Workload))
        flavors = make(reader.list("resourceflavors", f"{_KUEUE}/resourceflavors", ResourceFlavor))
        checks = make(reader.list("admissionchecks", f"{_KUEUE}/admissionchecks", AdmissionCheck))
        queues = make(reader.list("clusterqueues", f"{_KUEUE}/clusterqueues", ClusterQueue))
        cohorts = make(reader.list("cohorts", f"{_KUEUE}/cohorts", Cohort))
        local = make(reader.list("localqueues", f"{_KUEUE}/localqueues", LocalQueueSeen))
        deployments = make(reader.list("deployments", "/apis/apps/v1/deployments", DeploymentSeen))
        crds = make(reader.list("customresourcedefinitions", _CRDS, CrdSeen))
        gates = make(reader.list("mutatingadmissionpolicies", _POLICIES, Named, {"labelSelector": _OURS}))
        services = make(reader.list("services", "/api/v1/services", Named, {"labelSelector": _OURS}))
        ours = make(reader.list("configmaps", "/api/v1/configmaps", Config, {"labelSelector": _OURS}))
        events = [
            make(reader.list("events", "/api/v1/events", EventSeen, {"fieldSelector": f"reason={one}"}))
            for one in _EVENTS
        ]
    programs = tuple(one for each in deployments.result() for one in each.programs())
    theirs = {one.metadata.namespace for one in ours.result()} | {one.metadata.namespace for one in services.result()}
    theirs |= {one.metadata.namespace for one in deployments.result() if one.ours}
    controllers = {one.key for one in deployments.result() if one.ours and one.component == "controller"}
    maps, leases, answering = await asyncio.gather(
        _maps(reader, programs), _leases(reader, theirs, controllers), _answering(reader, services.result())
    )
    texts = [(f"ConfigMap {one.key}", text) for one in _once((*ours.result(), *maps)) for text in one.texts()]
    found = configs if configs is not None else tuple(c for name, text in texts for c in scheduler_configs(name, text))
    kueue = kueue or next((one for _, text in texts if (one := kueue_config(text)) is not None), None)
    view = View(
        nodes=_by_name(nodes.result()),
        pods=_by_uid(pods.result()),
        jobs=_by_uid(jobs.result()),
        pools=pools.result(),
        agreements=agreements.result(),
        claims=_by_uid(claims.result()),
        device_claims=devices.result(),
        workloads=_by_uid(workloads.result()),
        flavors=flavors.result(),
        checks=checks.result(),
    )
    return Checkup(
        view,
        datetime.now(UTC) + apart,
        queues=queues.result(),
        cohorts=cohorts.result(),
        local_queues={(one.metadata.namespace, one.metadata.name): one.spec.cluster_queue for one in local.result()},
        kueue_config=kueue,
        scheduler_configs=found,
        programs=programs,
        taint_writers=tuple(one for each in fields.result() for one in each.taint_writers()),
        events=tuple(one.seen() for task in events for one in task.result()),
        leases=tuple(one.seen() for one in leases),
        definitions=tuple(one.definition() for one in crds.result()),
        gates=tuple(one.metadata.name for one in gates.result()),
        answering=answering,
        missing=reader.missing,
        absent=frozenset(reader.absent),
    )


async def watched(
    api: Api,
    seconds: float,
    configs: tuple[Configuration, ...] | None = None,
    kueue: KueueConfiguration | None = None,
) -> Checkup:
    """As `checkup`, after a first look `seconds` before; 0 does without that."""
    await reachable(api)
    apart = await ahead(api)
    if seconds <= 0:
        return await checkup(api, configs, kueue, apart)
    first = await glance(api, apart)
    await asyncio.sleep(seconds)
    return (await checkup(api, configs, kueue, apart)).after(first)


async def _maps(reader: _Reader, programs: Iterable[Program]) -> tuple[Config, ...]:
    """ConfigMaps where kube-scheduler, HAMi and Kueue run."""
    near = {
        one.deployment.partition("/")[0]
        for one in programs
        if one.hami_scheduler or "kueue" in f"{one.image} {one.deployment}"
    }
    read = (
        reader.list("configmaps", f"/api/v1/namespaces/{one}/configmaps", Config) for one in sorted({*_SYSTEM, *near})
    )
    return tuple(one for some in await asyncio.gather(*read) for one in some)


async def _leases(reader: _Reader, namespaces: Iterable[str], controllers: Collection[str]) -> tuple[Lease, ...]:
    """The chart names the lease as the controller's Deployment; a namespace may have leases of others too."""
    names = sorted(namespaces)
    if not names:
        reader.missing["leases"] = "the namespace that wholenode runs in was not found"
    path = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
    found = await asyncio.gather(*(reader.list("leases", path.format(one), Lease) for one in names))
    every = [one for some in found for one in some]
    ours = [one for one in every if one.key in controllers]
    ending = _LEASE.removeprefix("wholenode") if "deployments" in reader.missing else _LEASE
    return tuple(ours or (one for one in every if one.metadata.name.endswith(ending)))


async def _answering(reader: _Reader, services: Iterable[Named]) -> tuple[Answering, ...]:
    """Each extender's own word, through the API server."""
    found = await asyncio.gather(*(_asked(reader, one) for one in services if one.component == "extender"))
    return tuple(one for one in found if one is not None)


async def _asked(reader: _Reader, service: Named) -> Answering | None:
    meta = service.metadata
    name = f"{meta.namespace}/{meta.name}"
    path = f"/api/v1/namespaces/{meta.namespace}/services/{meta.name}:{service.probe_port}/proxy/readyz"

    async def read() -> Answering:
        try:
            await reader.api.get(path)
        except Forbidden:
            raise
        except ClusterError as error:
            return Answering(name, ready=False, detail=" ".join(str(error).split()))
        return Answering(name, ready=True)

    nothing: Answering | None = None
    return await reader.part("services", read, nothing)


def _once(maps: Iterable[Config]) -> Iterable[Config]:
    return {one.key: one for one in maps}.values()


def _by_name(some: Iterable[Any]) -> dict[str, Any]:
    return {one.metadata.name: one for one in some}


def _by_uid(some: Iterable[Any]) -> dict[str, Any]:
    return {one.metadata.uid: one for one in some}
