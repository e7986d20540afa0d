"""The four custom resources of wholenode.io/v1alpha1, typed once: the CRD schemas are generated from these structs.

`Annotated[..., Meta(...)]` becomes the OpenAPI schema, `rules` the CEL validation, `columns` the printer columns.
A field stands here only once the code that honours it exists.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from fleet.names import LABEL_KEY_LENGTH, LABEL_KEY_PATTERN
from fleet.objects import LabelSelector, Metadata
from fleet.times import DURATION_PATTERN

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Duration = Annotated[
    str, Meta(pattern=DURATION_PATTERN, max_length=32, description="Go-style duration: 90s, 10m, 1h30m.")
]
Text = Annotated[str, Meta(max_length=4096)]


class Rule(NamedTuple):
    """One CEL validation rule of a schema node."""

    rule: str
    message: str
    field_path: str | None = None


class Column(NamedTuple):
    """One column of `kubectl get`; priority 1 shows with `-o wide` only."""

    name: str
    type: str
    json_path: str
    priority: int = 0


class Kind(NamedTuple):
    """How a custom resource is called in the API."""

    kind: str
    plural: str
    singular: str
    short: str
    namespaced: bool


def _written(value: Any) -> Any:
    """A default that is written out all the same: absent would look like unknown to kubectl and to people."""
    return msgspec.field(default_factory=lambda: value)


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    rules: ClassVar[tuple[Rule, ...]] = ()


class ResourceCondition(_Part, frozen=True):
    """A standard Kubernetes condition."""

    type: Name
    status: Annotated[str, Meta(pattern="^(True|False|Unknown)$")]
    reason: Name
    message: Text
    last_transition_time: datetime
    observed_generation: int = 0


class Accepts(StrEnum):
    SMALL = "Small"
    WHOLE_NODE = "WholeNode"


class Overflow(StrEnum):
    NEVER = "Never"
    RECLAIMABLE = "Reclaimable"


class Drain(StrEnum):
    DISABLED = "Disabled"
    AGREED = "Agreed"


class PoolSelector(_Part, frozen=True):
    """Labels that every node of the pool carries; an empty selector is refused, it must never mean all nodes."""

    match_labels: Annotated[dict[str, str], Meta(min_length=1, max_length=16)]


class PoolSpec(_Part, frozen=True):
    node_selector: Annotated[PoolSelector, Meta(description="Which nodes belong to the pool.")]
    accepts: Annotated[Accepts, Meta(description="Which class of GPU pods the pool serves.")]
    cards_per_node: Annotated[
        int, Meta(ge=1, le=64, description="Physical cards of one node; a whole node has them all.")
    ]
    resource_name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            max_length=253,
            description="Extended resource that counts the cards.",
        ),
    ] = "nvidia.com/gpu"
    overflow: Annotated[
        Overflow,
        Meta(description="Whether small pods whose namespace has an agreement may use idle nodes of a WholeNode pool."),
    ] = Overflow.NEVER
    drain: Annotated[
        Drain, Meta(description="Whether nodes of the pool may be vacated under the victims' agreements.")
    ] = Drain.DISABLED
    device_classes: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=16,
            description="Device classes (ResourceClaims) that hand out cards of these nodes. A pod with such devices "
            "counts as a holder of cards; it never counts as a whole-node pod.",
        ),
    ] = ("gpu.nvidia.com",)

    rules: ClassVar = (
        Rule(
            "self.overflow == 'Never' || self.accepts == 'WholeNode'",
            "overflow is for pools that accept WholeNode: small pods are at home in a Small pool",
            ".overflow",
        ),
        Rule(
            "self.drain == 'Disabled' || self.accepts == 'WholeNode'",
            "drain is for pools that accept WholeNode: only those are vacated",
            ".drain",
        ),
    )


class PoolStatus(_Part, frozen=True):
    nodes: int = _written(0)
    cards_free: int = _written(0)
    whole_nodes_free: int = _written(0)
    largest_gang: Annotated[int, Meta(description="The most nodes one gang could get right now.")] = _written(0)
    conditions: tuple[ResourceCondition, ...] = ()


class GPUPool(_Part, frozen=True):
    """A set of nodes that serves one request class."""

    metadata: Metadata
    spec: PoolSpec
    status: PoolStatus = PoolStatus()

    definition: ClassVar = Kind("GPUPool", "gpupools", "gpupool", "gp", namespaced=False)
    columns: ClassVar = (
        Column("Accepts", "string", ".spec.accepts"),
        Column("Nodes", "integer", ".status.nodes"),
        Column("Cards-Free", "integer", ".status.cardsFree"),
        Column("Whole-Free", "integer", ".status.wholeNodesFree"),
        Column("Drain", "string", ".spec.drain"),
        Column("Overflow", "string", ".spec.overflow", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )


class Beneficiary(_Part, frozen=True):
    namespace: Name
    local_queues: Annotated[
        Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)] | None,
        Meta(description="Only gangs of these Kueue LocalQueues of the namespace; left out, all its gangs."),
    ] = None


class Victims(_Part, frozen=True):
    """Which pods of the agreement's own namespace may be stopped."""

    max_priority: Annotated[int, Meta(description="Highest pod priority that may be stopped; higher is protected.")] = 0
    pod_selector: Annotated[
        LabelSelector | None,
        Meta(description="Pods it is about; left out means every pod of the namespace. An empty selector is refused."),
    ] = None

    rules: ClassVar = (
        Rule(
            "!has(self.podSelector) || (has(self.podSelector.matchLabels) && size(self.podSelector.matchLabels) > 0)"
            " || (has(self.podSelector.matchExpressions) && size(self.podSelector.matchExpressions) > 0)",
            "podSelector must not be empty: leave it out to mean every pod of the namespace",
            ".podSelector",
        ),
    )


class Window(_Part, frozen=True):
    """A span of time that comes again and again."""

    schedule: Annotated[
        str,
        Meta(
            pattern=r"^[-0-9A-Za-z*,/]+( +[-0-9A-Za-z*,/]+){4}$",
            max_length=100,
            description="When it begins, as in cron: minute, hour, day of month, month, day of week (7 is Sunday).",
        ),
    ]
    duration: Duration
    time_zone: Annotated[
        str,
        Meta(
            pattern="^[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$",
            max_length=64,
            description="IANA name of the time zone the schedule is read in, such as Asia/Shanghai.",
        ),
    ] = "UTC"

    rules: ClassVar = (
        Rule("duration(self.duration) > duration('0s')", "duration must be longer than 0s", ".duration"),
    )


class KeepReady(_Part, frozen=True):
    """How many replicas a service keeps, whoever is stopped."""

    min_ready_replicas: Annotated[
        int,
        Meta(
            ge=1, le=100000, description="So many pods of the same controller stay ready, counted when one is stopped."
        ),
    ]


class Budget(_Part, frozen=True):
    """How much may be stopped under the agreement. A day is the last 24 hours, an hour the last 60 minutes."""

    gpu_seconds_per_day: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Work that may be lost in any 24 hours, in GPU-seconds."),
    ] = None
    evictions_per_hour: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Pods that may be stopped in any hour.")
    ] = None
    evictions_per_job_per_day: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="How often one job may be hit in any 24 hours, whatever its pods are called."),
    ] = None


class Checkpoint(_Part, frozen=True):
    """What is asked of a victim's checkpoint (annotation wholenode.io/last-checkpoint) before it is stopped."""

    required: Annotated[
        bool, Meta(description="Stop no pod without a checkpoint; with `request`, without one made since it was asked.")
    ] = False
    request: Annotated[
        bool, Meta(description="Ask for one first, by the annotation wholenode.io/checkpoint-requested, and wait.")
    ] = False
    timeout: Annotated[Duration, Meta(description="How long to wait for a checkpoint that was asked for.")] = "2m"

    rules: ClassVar = (
        Rule(
            "!has(self.timeout) || duration(self.timeout) > duration('0s')",
            "timeout must be longer than 0s",
            ".timeout",
        ),
    )


class AgreementSpec(_Part, frozen=True):
    beneficiaries: Annotated[
        tuple[Beneficiary, ...],
        Meta(min_length=1, max_length=64, description="Namespaces whose gangs a node may be vacated for."),
    ]
    victims: Annotated[Victims, Meta(description="Which pods may be stopped.")] = Victims()
    patience: Annotated[Duration, Meta(description="How long a claim must have waited first.")] = "0s"
    min_runtime: Annotated[Duration, Meta(description="A pod is protected until it has run this long.")] = "0s"
    windows: Annotated[
        Annotated[tuple[Window, ...], Meta(min_length=1, max_length=16)] | None,
        Meta(description="The agreement can be used within these only; left out, always."),
    ] = None
    keep_ready: Annotated[
        KeepReady | None, Meta(description="Stop no pod whose service would be left with too few ready ones.")
    ] = None
    budget: Annotated[Budget | None, Meta(description="How much may be stopped; left out, without limit.")] = None
    checkpoint: Annotated[Checkpoint | None, Meta(description="What must be saved before a pod is stopped.")] = None
    expires: Annotated[datetime | None, Meta(description="From this time on the agreement is void.")] = None


class Use(_Part, frozen=True):
    """One claim that had pods stopped under the agreement."""

    claim: Annotated[str, Meta(description="Namespace and name of the claim.")]
    at: datetime
    pods: int
    lost_gpu_seconds: float


class AgreementStatus(_Part, frozen=True):
    conditions: tuple[ResourceCondition, ...] = ()
    lost_gpu_seconds_last_day: float = _written(0.0)
    evictions_last_hour: int = _written(0)
    last_uses: Annotated[tuple[Use, ...], Meta(description="The latest first; five at most.")] = ()


class DrainAgreement(_Part, frozen=True):
    """A tenant's written consent, in the tenant's own namespace, that its pods may be stopped."""

    metadata: Metadata
    spec: AgreementSpec
    status: AgreementStatus = AgreementStatus()

    definition: ClassVar = Kind("DrainAgreement", "drainagreements", "drainagreement", "da", namespaced=True)
    columns: ClassVar = (
        Column("For", "string", ".spec.beneficiaries[*].namespace"),
        Column("Max-Priority", "integer", ".spec.victims.maxPriority"),
        Column("Patience", "string", ".spec.patience"),
        Column("Valid", "string", ".status.conditions[?(@.type=='Valid')].status"),
        Column("Expires", "string", ".spec.expires", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )


class Policy(StrEnum):
    WAIT = "Wait"
    WAIT_THEN_EVICT = "WaitThenEvict"
    PREVIEW = "Preview"


class Phase(StrEnum):
    PENDING = "Pending"
    PLANNED = "Planned"
    CORDONING = "Cordoning"
    DRAINING = "Draining"
    PROVING_EMPTY = "ProvingEmpty"
    READY = "Ready"
    LANDING = "Landing"
    BOUND = "Bound"
    RELEASED = "Released"
    ROLLED_BACK = "RolledBack"
    BLOCKED = "Blocked"
    FAILED = "Failed"


class GangRef(_Part, frozen=True):
    """What the gang belongs to: the kind of object that makes or names it, or a Gang that only its pods name."""

    kind: Annotated[str, Meta(pattern="^(Job|Pod|Gang|PodGroup|LeaderWorkerSet|JobSet)$")]
    name: Name
    uid: Annotated[
        str,
        Meta(
            max_length=128,
            description="What tells it from namesakes. UID of the Job, Pod or JobSet; of a Gang its pods' owner's, if "
            "they have one; of a PodGroup its API group, of a LeaderWorkerSet the group's key.",
        ),
    ] = ""

    rules: ClassVar = (
        Rule(
            "self.kind == 'Gang' || (has(self.uid) && size(self.uid) > 0)",
            "whatever is no Gang is named by its uid too",
            ".uid",
        ),
    )


class ClaimSpec(_Part, frozen=True):
    nodes: Annotated[int, Meta(ge=1, le=1024, description="Whole nodes wanted, all or none.")]
    gang: Annotated[
        GangRef | None, Meta(description="The gang the nodes are for; needed unless the policy is Preview.")
    ] = None
    pool: Annotated[Name | None, Meta(description="Take nodes of this pool only; else of any that fits.")] = None
    policy: Annotated[
        Policy, Meta(description="Wait: stop nobody. WaitThenEvict: stop who agreed. Preview: only plan.")
    ] = Policy.WAIT
    patience: Annotated[Duration, Meta(description="How long to wait for natural ends before anyone is stopped.")] = (
        "0s"
    )
    deadline: Annotated[
        Duration | None, Meta(description="From creation; when it passes, nodes are given back and the claim fails.")
    ] = None
    topology_key: Annotated[
        Annotated[str, Meta(pattern=LABEL_KEY_PATTERN, max_length=LABEL_KEY_LENGTH)] | None,
        Meta(
            description="Key of a node label; all nodes of the gang have the same value of it (one rack, one switch)."
        ),
    ] = None
    expected_run: Annotated[
        Duration | None,
        Meta(
            description="How long the gang will run once it starts; lets it go ahead of an older claim it cannot delay."
        ),
    ] = None

    rules: ClassVar = (
        Rule(
            "!has(oldSelf.gang) || (has(self.gang) && self.gang == oldSelf.gang)",
            "the gang of a claim cannot change",
            ".gang",
        ),
        Rule(
            "self.policy == 'Preview' || has(self.gang)",
            "a claim that may take nodes must say for which gang (only Preview goes without)",
            ".gang",
        ),
        Rule(
            "!has(self.deadline) || duration(self.deadline) > duration(self.patience)",
            "deadline must be longer than patience, or the claim could never act",
            ".deadline",
        ),
    )


class HeldNode(_Part, frozen=True):
    """A node the claim has chosen, and how far it is."""

    name: Name
    uid: str = ""
    held_at: Annotated[datetime | None, Meta(description="When our taint was seen on the node.")] = None
    proved_empty_at: datetime | None = None


class Victim(_Part, frozen=True):
    """A pod that is, or would be, stopped."""

    namespace: str
    name: str
    uid: str
    node: str
    cards: int
    priority: int = 0
    gang: Annotated[str, Meta(description="The victim's gang; its loss is counted once.")] = ""
    agreement: Annotated[str, Meta(description="Name of the agreement in the victim's namespace.")] = ""
    lost_gpu_seconds: Annotated[
        float, Meta(description="Cards of the victim's gang x time since its checkpoint or start.")
    ] = 0.0
    evicted_at: Annotated[datetime | None, Meta(description="When stopping it was decided and recorded.")] = None
    job: Annotated[
        str, Meta(description="What budgets and cool-downs count by; stays the same when pods are made anew.")
    ] = ""
    saved_at: Annotated[
        datetime | None, Meta(description="The checkpoint its loss counts from; absent: from its start.")
    ] = None
    ends_gang: Annotated[
        bool, Meta(description="Whether its gang cannot go on without it and those stopped before it.")
    ] = False


class RunnerUp(_Part, frozen=True):
    node: str
    victims: int
    lost_gpu_seconds: float
    cost: Annotated[float, Meta(description="Of taking this node, as the plan's own cost is worked out.")] = 0.0


class Refusal(_Part, frozen=True):
    """Why nodes were not chosen, counted."""

    reason: str
    nodes: int
    example: Annotated[str, Meta(description="One of these nodes.")] = ""


class Course(StrEnum):
    """What is the cheapest thing to do about nodes that are not free yet."""

    EVICT = "Evict"
    WAIT = "Wait"
    SOFT_VACATE = "SoftVacate"
    AWAIT_CHECKPOINT = "AwaitCheckpoint"


class Weighing(_Part, frozen=True):
    """Stopping others now against waiting, in GPU-seconds: work thrown away there, cards missed here."""

    course: Course
    evict_cost: Annotated[float, Meta(description="What stopping others now throws away.")]
    wait_cost: Annotated[
        float | None, Meta(description="Cards wanted x time until natural ends free the nodes, if that is known.")
    ] = None
    wait_until: Annotated[datetime | None, Meta(description="When the chosen course is due.")] = None
    break_even_at: Annotated[
        datetime | None, Meta(description="Waiting is the cheaper course if the nodes are free before this.")
    ] = None
    cost: Annotated[float, Meta(description="What the chosen course costs in all.")] = 0.0
    note: Text = ""


class ClaimPlan(_Part, frozen=True):
    """What the claim would do, or is doing: chosen nodes are in `status.nodes`, once taken."""

    nodes: tuple[str, ...] = ()
    victims: Annotated[tuple[Victim, ...], Meta(description="Who would be stopped; the first 200.")] = ()
    victim_count: int = 0
    lost_gpu_seconds: float = 0.0
    runners_up: tuple[RunnerUp, ...] = ()
    refused: tuple[Refusal, ...] = ()
    consent_missing: Annotated[
        tuple[str, ...], Meta(description="Namespaces that would have to agree before a node can be vacated.")
    ] = ()
    expected_free_at: Annotated[
        datetime | None, Meta(description="When enough nodes are expected to free up by themselves.")
    ] = None
    cost: Annotated[
        float, Meta(description="What the nodes were compared by, in GPU-seconds: losses, restarts, idle cards.")
    ] = 0.0
    optimal: Annotated[bool, Meta(description="Whether no cheaper set of nodes exists, for certain.")] = True
    homeless: Annotated[
        int, Meta(description="Victims that are not expected to find another place at once, by cards that are free.")
    ] = 0
    weighing: Weighing | None = None


class Avoided(_Part, frozen=True):
    """A node the claim gave back and does not try again for a while."""

    node: str
    reason: str
    until: datetime


class PhaseTime(_Part, frozen=True):
    phase: Phase
    at: datetime


class ClaimStatus(_Part, frozen=True):
    phase: Phase = _written(Phase.PENDING)
    reason: Annotated[str, Meta(description="One word: why the claim is where it is.")] = ""
    message: Text = ""
    nodes: tuple[HeldNode, ...] = ()
    node_names: Annotated[str, Meta(description="Names of the nodes, for kubectl's table.")] = ""
    plan: ClaimPlan | None = None
    victims: Annotated[tuple[Victim, ...], Meta(description="Pods stopped for this claim, each once.")] = ()
    lost_gpu_seconds: float = _written(0.0)
    retry_at: Annotated[datetime | None, Meta(description="When a Blocked claim is tried again.")] = None
    avoid: tuple[Avoided, ...] = ()
    stop_nobody_until: Annotated[
        datetime | None,
        Meta(description="Nodes are held and their pods expected to end by then: nobody is stopped before."),
    ] = None
    drained_by: Annotated[
        datetime | None, Meta(description="When the last card holder is expected to be gone, while nodes are drained.")
    ] = None
    phases: Annotated[tuple[PhaseTime, ...], Meta(description="When each phase was entered, oldest first.")] = ()
    conditions: tuple[ResourceCondition, ...] = ()
    observed_generation: int = 0


class WholeNodeClaim(_Part, frozen=True):
    """One gang's standing request for N whole nodes, and the nodes held for it."""

    metadata: Metadata
    spec: ClaimSpec
    status: ClaimStatus = ClaimStatus()

    definition: ClassVar = Kind("WholeNodeClaim", "wholenodeclaims", "wholenodeclaim", "wnc", namespaced=True)
    columns: ClassVar = (
        Column("Phase", "string", ".status.phase"),
        Column("Nodes", "string", ".status.nodeNames"),
        Column("For", "string", ".spec.gang.name"),
        Column("Reason", "string", ".status.reason"),
        Column("Lost-GPU-s", "number", ".status.lostGpuSeconds", 1),
        Column("Message", "string", ".status.message", 1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    )


class Outcome(StrEnum):
    """What became of the intention to stop a pod."""

    PENDING = "Pending"
    STOPPED = "Stopped"
    SPARED = "Spared"


class RecordSpec(_Part, frozen=True):
    """Who is stopped, for whom, under which agreement, and what that costs: as it was when it was decided."""

    pod: Name
    pod_uid: Name
    node: Name
    cards: int
    at: Annotated[datetime, Meta(description="When it was decided.")]
    claim: Annotated[str, Meta(description="Namespace and name of the claim the node is vacated for.")]
    claim_uid: Name
    beneficiary: Annotated[str, Meta(description="Namespace of the gang that gets the node.")]
    beneficiary_gang: str = ""
    agreement: Annotated[str, Meta(description="Name of the agreement, in the record's namespace.")] = ""
    agreement_uid: str = ""
    job: Annotated[str, Meta(description="What budgets and cool-downs count by.")] = ""
    gang: str = ""
    priority: int = 0
    lost_gpu_seconds: Annotated[float, Meta(description="A gang's whole loss stands with one of its pods.")] = 0.0
    saved_at: datetime | None = None
    ends_gang: Annotated[
        bool, Meta(description="Whether its gang cannot go on without it and those stopped before it.")
    ] = False

    rules: ClassVar = (Rule("self == oldSelf", "a record is written once and never changed"),)


class RecordStatus(_Part, frozen=True):
    outcome: Outcome = _written(Outcome.PENDING)
    resolved_at: datetime | None = None


class DrainRecord(_Part, frozen=True):
    """One pod that was to be stopped under an agreement: written before it is, kept when the claim is gone.

    It stands in the victim's namespace; its name is made from the UIDs of pod and claim.
    """

    metadata: Metadata
    spec: RecordSpec
    status: RecordStatus = RecordStatus()

    definition: ClassVar = Kind("DrainRecord", "drainrecords", "drainrecord", "dr", namespaced=True)
    columns: ClassVar = (
        Column("Pod", "string", ".spec.pod"),
        Column("For", "string", ".spec.claim"),
        Column("Agreement", "string", ".spec.agreement"),
        Column("Lost-GPU-s", "number", ".spec.lostGpuSeconds"),
        Column("Outcome", "string", ".status.outcome"),
        Column("At", "date", ".spec.at"),
    )


KINDS: tuple[type[GPUPool] | type[DrainAgreement] | type[WholeNodeClaim] | type[DrainRecord], ...] = (
    GPUPool,
    DrainAgreement,
    WholeNodeClaim,
    DrainRecord,
)
