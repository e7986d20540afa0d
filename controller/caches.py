"""Local copies of everything decisions go by, and the view of the cluster made from them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cluster.claims import collection_path
from cluster.client import Api
from cluster.reflector import Reflector
from fleet.devices import CLAIMS_PATH
from fleet.kueue.expected import with_expected
from fleet.kueue.objects import API_VERSION as KUEUE
from fleet.kueue.objects import AdmissionCheck, ResourceFlavor, Workload
from fleet.memory import Memory
from fleet.names import COSCHEDULING_API, IN_TREE_API
from fleet.objects import CoschedulingGroup, DisruptionBudget, Job, Node, Pod, PodGroup, ResourceClaim
from fleet.resources import ClaimStatus, DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim
from fleet.view import View


class Caches:
    """Reflectors of all that decisions go by. `on_change` is called after every change of any of it."""

    def __init__(self, api: Api, on_change: Callable[[], None]) -> None:
        self.pods = Reflector(api, "/api/v1/pods", Pod)
        self.nodes = Reflector(api, "/api/v1/nodes", Node)
        self.jobs = Reflector(api, "/apis/batch/v1/jobs", Job)
        self.budgets = Reflector(api, "/apis/policy/v1/poddisruptionbudgets", DisruptionBudget)
        # 1.36 serves v1alpha2, 1.37 v1beta1; neither by default, and the other API only where Coscheduling is used.
        in_tree = (f"/apis/{IN_TREE_API}/{version}/podgroups" for version in ("v1beta1", "v1alpha2"))
        self.pod_groups = tuple(Reflector(api, path, PodGroup, optional=True) for path in in_tree)
        coscheduling = f"/apis/{COSCHEDULING_API}/v1alpha1/podgroups"
        self.coscheduling_groups = Reflector(api, coscheduling, CoschedulingGroup, optional=True)
        self.device_claims = Reflector(api, CLAIMS_PATH, ResourceClaim, optional=True)
        self.pools = Reflector(api, collection_path(GPUPool), GPUPool)
        self.agreements = Reflector(api, collection_path(DrainAgreement), DrainAgreement)
        self.claims = Reflector(api, collection_path(WholeNodeClaim), WholeNodeClaim)
        # Never optional: without the records of the past, budgets would be spent twice.
        self.records = Reflector(api, collection_path(DrainRecord), DrainRecord)
        # Kueue may be installed later, or removed: while it is not there, these are empty.
        self.workloads = Reflector(api, f"/apis/{KUEUE}/workloads", Workload, optional=True)
        self.flavors = Reflector(api, f"/apis/{KUEUE}/resourceflavors", ResourceFlavor, optional=True)
        self.checks = Reflector(api, f"/apis/{KUEUE}/admissionchecks", AdmissionCheck, optional=True)
        self._all: tuple[Reflector[Any], ...] = (
            self.pods,
            self.nodes,
            self.jobs,
            self.budgets,
            *self.pod_groups,
            self.coscheduling_groups,
            self.device_claims,
            self.pools,
            self.agreements,
            self.claims,
            self.records,
            self.workloads,
            self.flavors,
            self.checks,
        )
        self.memory = Memory()
        """What passes leave to each other; its owner is who makes them."""
        self._on_change = on_change
        self._picture: View | None = None
        for reflector in self._all:
            reflector.listeners.append(self._changed)

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._all:
                group.create_task(reflector.run(), name=f"follow {reflector.path}")

    async def synced(self) -> None:
        """Return once every copy has been filled."""
        for reflector in self._all:
            await reflector.synced.wait()

    def is_synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self._all)

    def last_sign_of_life(self) -> float:
        """Monotonic time since when the most silent of the watches has said nothing."""
        return min(reflector.last_event_at for reflector in self._all)

    def _changed(self, _old: object, _new: object) -> None:
        self._picture = None
        self._on_change()

    def picture(self) -> View:
        """The cluster as it is cached, the same object until something changes: many writes may ask in a row."""
        if self._picture is None:
            self._picture = self.view({})
        return self._picture

    def view(self, being_written: Mapping[str, ClaimStatus]) -> View:
        """The cluster now; claims whose status is being written (by UID) are shown as they will be.

        Pods that Kueue will make once we let their Workload pass are among the pods.
        """
        claims = dict(self.claims.store)
        for uid, status in being_written.items():
            if uid in claims:
                claims[uid] = msgspec.structs.replace(claims[uid], status=status)
        seen = View(
            nodes={node.metadata.name: node for node in self.nodes.store.values()},
            pods=dict(self.pods.store),
            jobs=dict(self.jobs.store),
            pools=tuple(self.pools.store.values()),
            agreements=tuple(self.agreements.store.values()),
            claims=claims,
            records=dict(self.records.store),
            workloads=dict(self.workloads.store),
            flavors=tuple(self.flavors.store.values()),
            checks=tuple(self.checks.store.values()),
            budgets=tuple(self.budgets.store.values()),
            device_claims=tuple(self.device_claims.store.values()),
            pod_groups=(
                *(group for copy in self.pod_groups for group in copy.store.values()),
                *self.coscheduling_groups.store.values(),
            ),
            memory=self.memory,
        )
        return with_expected(seen)
