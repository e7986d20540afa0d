"""Short builders of cluster objects for tests: every one readable in a line, all times from one start `T0`."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fleet.kueue.objects import Workload
from fleet.names import DEFAULT_RESOURCE, GANG, GANG_SIZE
from fleet.objects import (
    Condition,
    Container,
    CoschedulingGroup,
    CoschedulingSpec,
    DisruptionBudget,
    GangPolicy,
    Job,
    JobSpec,
    JobStatus,
    LabelSelector,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    OwnerReference,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PodStatus,
    Resources,
    SchedulingGate,
    SchedulingGroup,
    SchedulingPolicy,
    Taint,
    Toleration,
)
from fleet.records import record_name
from fleet.resources import (
    Accepts,
    AgreementSpec,
    Beneficiary,
    Budget,
    Checkpoint,
    ClaimSpec,
    ClaimStatus,
    Drain,
    DrainAgreement,
    DrainRecord,
    GangRef,
    GPUPool,
    HeldNode,
    KeepReady,
    Outcome,
    Overflow,
    Phase,
    Policy,
    PoolSelector,
    PoolSpec,
    RecordSpec,
    RecordStatus,
    Victims,
    WholeNodeClaim,
    Window,
)
from fleet.view import View

T0 = datetime(2027, 1, 4, 12, 0, tzinfo=UTC)
"""A Monday noon: when everything starts."""


def at(seconds: float) -> datetime:
    """`seconds` after T0."""
    return T0 + timedelta(seconds=seconds)


def container(cards: int | str = 0, *, cpu: str = "", restart: str | None = None) -> Container:
    """One container that asks for cards (and CPU)."""
    asked: dict[str, str | int] = {}
    if cards not in {0, ""}:
        asked[DEFAULT_RESOURCE] = str(cards)
    if cpu:
        asked["cpu"] = cpu
    return Container("c", Resources(requests=asked, limits=asked), restart)


def owned(kind: str, name: str, uid: str | None = None) -> OwnerReference:
    return OwnerReference(kind, name, uid or f"{kind.lower()}-{name}", controller=True)


def pod(
    name: str,
    cards: int = 1,
    *,
    ns: str = "team-v",
    on: str | None = None,
    uid: str | None = None,
    cpu: str = "",
    started: float | None = None,
    phase: str | None = None,
    owner: OwnerReference | None = None,
    gang: str | None = None,
    size: int | None = None,
    notes: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    gates: Iterable[str] = (),
    group: str | None = None,
    priority: int | None = None,
    going: float | None = None,
    grace: int = 5,
    finalizers: tuple[str, ...] = (),
    tolerations: tuple[Toleration, ...] = (),
    selector: Mapping[str, str] | None = None,
    created: float = 0,
    containers: tuple[Container, ...] | None = None,
    inits: tuple[Container, ...] | None = None,
    ready: bool | None = None,
) -> Pod:
    """A pod; bound if `on` names a node, running since `started` (default: T0 once bound), terminating at `going`.

    `ready` is its condition of that name; None leaves it out.
    """
    annotations = dict(notes or {})
    if gang is not None:
        annotations[GANG] = gang
    if size is not None:
        annotations[GANG_SIZE] = str(size)
    running = on is not None
    return Pod(
        Metadata(
            name,
            ns,
            uid=uid or f"{ns}.{name}",
            labels=dict(labels or {}),
            annotations=annotations,
            owner_references=(owner,) if owner else None,
            finalizers=finalizers or None,
            creation_timestamp=at(created),
            deletion_timestamp=at(going) if going is not None else None,
        ),
        PodSpec(
            containers=containers or (container(cards, cpu=cpu),),
            init_containers=inits,
            node_name=on,
            node_selector=dict(selector) if selector else None,
            tolerations=tolerations or None,
            scheduling_gates=tuple(SchedulingGate(one) for one in gates) or None,
            scheduling_group=SchedulingGroup(group) if group else None,
            priority=priority,
            termination_grace_period_seconds=grace,
        ),
        PodStatus(
            phase=phase or ("Running" if running else "Pending"),
            start_time=at(started or 0) if running else None,
            conditions=None if ready is None else (Condition("Ready", "True" if ready else "False"),),
        ),
    )


def node(
    name: str,
    pool: str = "big",
    *,
    cards: int | str = 8,
    cpu: str = "128",
    memory: str = "512Gi",
    pods: str = "110",
    ready: bool = True,
    cordoned: bool = False,
    taints: tuple[Taint, ...] = (),
    labels: Mapping[str, str] | None = None,
    uid: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> Node:
    """A node of a pool (label `pool`); the pool may be empty for a node of none."""
    allocatable: dict[str, str | int] = {DEFAULT_RESOURCE: str(cards), "cpu": cpu, "memory": memory, "pods": pods}
    allocatable.update(extra or {})
    return Node(
        Metadata(name, uid=uid or f"node-{name}", labels={**({"pool": pool} if pool else {}), **(labels or {})}),
        NodeSpec(unschedulable=cordoned or None, taints=taints or None),
        NodeStatus(allocatable, allocatable, (Condition("Ready", "True" if ready else "False"),)),
    )


def pool(
    name: str = "big",
    *,
    accepts: Accepts = Accepts.WHOLE_NODE,
    cards: int = 8,
    drain: Drain = Drain.AGREED,
    overflow: Overflow = Overflow.RECLAIMABLE,
    labels: Mapping[str, str] | None = None,
    resource: str = DEFAULT_RESOURCE,
) -> GPUPool:
    """A pool of the nodes labelled `pool: <name>`; by default one of whole nodes that may be vacated."""
    small = accepts is Accepts.SMALL
    spec = PoolSpec(
        PoolSelector(dict(labels if labels is not None else {"pool": name})),
        accepts,
        cards,
        resource,
        Overflow.NEVER if small else overflow,
        Drain.DISABLED if small else drain,
    )
    return GPUPool(Metadata(name, uid=f"pool-{name}"), spec)


def agreement(
    name: str = "yes",
    *,
    ns: str = "team-v",
    to: Iterable[str] = ("team-b",),
    max_priority: int = 0,
    select: LabelSelector | None = None,
    patience: str = "0s",
    min_runtime: str = "0s",
    expires: float | None = None,
    windows: Iterable[Window] | None = None,
    keep_ready: int | None = None,
    budget: Budget | None = None,
    checkpoint: Checkpoint | None = None,
    queues: Iterable[str] | None = None,
) -> DrainAgreement:
    """The consent of namespace `ns` that gangs of the namespaces `to` (of the LocalQueues only) may stop its pods."""
    of_queues = tuple(queues) if queues is not None else None
    spec = AgreementSpec(
        tuple(Beneficiary(one, of_queues) for one in to),
        Victims(max_priority, select),
        patience,
        min_runtime,
        tuple(windows) if windows is not None else None,
        KeepReady(keep_ready) if keep_ready is not None else None,
        budget,
        checkpoint,
        at(expires) if expires is not None else None,
    )
    return DrainAgreement(Metadata(name, ns, uid=f"agreement-{ns}-{name}"), spec)


def record(
    of: str = "p",
    *,
    ns: str = "team-v",
    stopped: float = 0,
    lost: float = 0,
    job: str | None = None,
    under: str = "yes",
    claim: str = "uid-team-b-c",
    by: str = "team-b/Gang/train/",
    on: str = "n1",
    outcome: Outcome = Outcome.STOPPED,
    pod_uid: str | None = None,
) -> DrainRecord:
    """What stands written about pod `of`, stopped `stopped` seconds after T0 for a claim (its UID) of team-b."""
    uid = pod_uid or f"{ns}.{of}"
    spec = RecordSpec(
        pod=of,
        pod_uid=uid,
        node=on,
        cards=1,
        at=at(stopped),
        claim="team-b/c",
        claim_uid=claim,
        beneficiary="team-b",
        beneficiary_gang=by,
        agreement=under,
        job=job if job is not None else f"Pod/{ns}/{of}",
        lost_gpu_seconds=lost,
    )
    name = record_name(uid, claim, spec.at)
    return DrainRecord(Metadata(name, ns, uid=f"record-{name}"), spec, RecordStatus(outcome))


def ref(name: str = "train", kind: str = "Gang", uid: str = "") -> GangRef:
    return GangRef(kind, name, uid)


def claim(
    name: str = "c",
    *,
    nodes: int = 1,
    ns: str = "team-b",
    gang: GangRef | None = None,
    policy: Policy = Policy.WAIT_THEN_EVICT,
    patience: str = "0s",
    deadline: str | None = None,
    in_pool: str | None = None,
    topology: str | None = None,
    run: str | None = None,
    created: float = 0,
    uid: str | None = None,
    phase: Phase = Phase.PENDING,
    held: Iterable[HeldNode] = (),
    **status: Any,
) -> WholeNodeClaim:
    """A claim for the gang `train` (or `gang`) in namespace team-b."""
    return WholeNodeClaim(
        Metadata(name, ns, uid=uid or f"uid-{ns}-{name}", creation_timestamp=at(created)),
        ClaimSpec(nodes, gang or ref(), in_pool, policy, patience, deadline, topology, run),
        ClaimStatus(phase=phase, nodes=tuple(held), **status),
    )


def members(count: int = 1, *, gang: str = "train", ns: str = "team-b", **more: Any) -> list[Pod]:
    """The whole-node pods of a named gang, none bound: train-0, train-1, …"""
    return [pod(f"{gang}-{index}", 8, ns=ns, gang=gang, **{"size": count, **more}) for index in range(count)]


def job(
    name: str,
    *,
    ns: str = "team-b",
    parallelism: int | None = None,
    completions: int | None = None,
    indexed: bool = True,
    suspend: bool = False,
    ended: str | None = None,
    succeeded: int | None = None,
    uid: str | None = None,
    owner: OwnerReference | None = None,
    going: float | None = None,
) -> Job:
    return Job(
        Metadata(
            name,
            ns,
            uid=uid or f"job-{name}",
            owner_references=(owner,) if owner else None,
            deletion_timestamp=at(going) if going is not None else None,
        ),
        JobSpec(parallelism, completions, "Indexed" if indexed else "NonIndexed", suspend),
        JobStatus(succeeded, (Condition(ended, "True"),) if ended else None),
    )


def pod_group(name: str, count: int | None, *, ns: str = "team-b") -> PodGroup:
    """The in-tree kind; without a count its policy is Basic."""
    policy = SchedulingPolicy(GangPolicy(count) if count is not None else None)
    return PodGroup(Metadata(name, ns, uid=f"pg-{ns}-{name}"), PodGroupSpec(policy))


def coscheduling_group(name: str, count: int, *, ns: str = "team-b") -> CoschedulingGroup:
    return CoschedulingGroup(Metadata(name, ns, uid=f"cg-{ns}-{name}"), CoschedulingSpec(count))


def flat(objects: Iterable[Any]) -> list[Any]:
    """Objects and lists of them, nested as they may be, as one list."""
    return [leaf for one in objects for leaf in ([one] if isinstance(one, msgspec.Struct) else flat(one))]


def view(
    *objects: Node
    | Pod
    | Job
    | GPUPool
    | DrainAgreement
    | WholeNodeClaim
    | DrainRecord
    | PodGroup
    | CoschedulingGroup
    | Workload
    | DisruptionBudget
    | Iterable[Any],
) -> View:
    """A view of all the objects given, lists of them included; with the pool `big` if no pool is given."""
    given = flat(objects)
    return View(
        nodes={one.metadata.name: one for one in given if isinstance(one, Node)},
        pods={one.metadata.uid: one for one in given if isinstance(one, Pod)},
        jobs={one.metadata.uid: one for one in given if isinstance(one, Job)},
        pools=tuple(one for one in given if isinstance(one, GPUPool)) or (pool(),),
        agreements=tuple(one for one in given if isinstance(one, DrainAgreement)),
        claims={one.metadata.uid: one for one in given if isinstance(one, WholeNodeClaim)},
        pod_groups=tuple(one for one in given if isinstance(one, PodGroup | CoschedulingGroup)),
        records={one.metadata.uid: one for one in given if isinstance(one, DrainRecord)},
        workloads={one.metadata.uid: one for one in given if isinstance(one, Workload)},
        budgets=tuple(one for one in given if isinstance(one, DisruptionBudget)),
    )
