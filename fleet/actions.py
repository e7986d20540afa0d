"""What a decision asks the shell to do: each action is idempotent, and safe to be the last one before a crash."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from fleet.kueue.objects import AdmissionCheck, PodSetUpdate, Workload
from fleet.objects import Node, Pod
from fleet.resources import ClaimSpec, ClaimStatus, DrainRecord, Outcome, Victim, WholeNodeClaim

if TYPE_CHECKING:
    from fleet.planning import Choice


@dataclass(frozen=True, slots=True)
class CreateClaim:
    namespace: str
    name: str
    spec: ClaimSpec


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """`urgent` writes record a step of the claim's life; the others only keep texts fresh and may be held back."""

    claim: WholeNodeClaim
    status: ClaimStatus
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class Hold:
    """Put the claim's taint on the node."""

    node: Node
    claim_uid: str


@dataclass(frozen=True, slots=True)
class Open:
    """Put the claim's label on the node: its gang may land."""

    node: Node
    claim_uid: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Take this claim's taint, shield and, unless it must stay, label off the node, and nothing else."""

    node: Node
    claim_uid: str
    label_stays: bool = False


@dataclass(frozen=True, slots=True)
class LookAt:
    """List the node's pods afresh from the API server."""

    node_name: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the node's own probe whether anything still uses its cards."""

    node: Node


@dataclass(frozen=True, slots=True)
class Evict:
    claim: WholeNodeClaim
    victim: Victim


@dataclass(frozen=True, slots=True)
class CreateRecord:
    """Write down that a pod is to be stopped; making it twice is one record."""

    claim: WholeNodeClaim
    record: DrainRecord


@dataclass(frozen=True, slots=True)
class ResolveRecord:
    """Write down what became of it."""

    record: DrainRecord
    outcome: Outcome
    at: datetime


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """Annotate the pod: its owner agreed to be asked for a checkpoint before the pod is stopped."""

    claim: WholeNodeClaim
    pod: Pod
    at: datetime


@dataclass(frozen=True, slots=True)
class Steer:
    """Give the pod the toleration (and, while it is gated, the node selector) of its claim, and lift our gate."""

    pod: Pod
    claim_uid: str


@dataclass(frozen=True, slots=True)
class Ungate:
    """Lift our gate from a pod that needs no whole node (any more): its pool was changed or deleted."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Poke:
    """Change the pod's poke annotation, so that kube-scheduler tries it again."""

    pod: Pod
    at: datetime


@dataclass(frozen=True, slots=True)
class SetCheck:
    """Write our entry of the Workload's admission checks, on the very version that was decided on."""

    workload: Workload
    check: str
    state: str
    message: str
    updates: tuple[PodSetUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class ActivateCheck:
    """Tell Kueue that somebody looks after the check: until then its queues admit nothing."""

    check: AdmissionCheck


@dataclass(frozen=True, slots=True)
class StopWorkload:
    """Have Kueue stop a whole job: inactive, and marked as ours to set active again, in one write.

    `victims` are all its running pods, wherever they are, as the claim has them written down.
    """

    claim: WholeNodeClaim
    workload: Workload
    victims: tuple[Victim, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumeWorkload:
    """Set a Workload that we stopped active again, and take our mark off, in one write; Kueue queues it anew."""

    workload: Workload


Action = (
    CreateClaim
    | WriteStatus
    | Hold
    | Open
    | Clear
    | LookAt
    | Probe
    | CreateRecord
    | ResolveRecord
    | AskCheckpoint
    | Evict
    | Steer
    | Ungate
    | Poke
    | SetCheck
    | ActivateCheck
    | StopWorkload
    | ResumeWorkload
)


@dataclass(frozen=True, slots=True)
class Look:
    """A fresh LIST of one node's pods; `at` is just before it was asked for, so everything up to then is in it.

    `revision`: of the cluster as the list shows it; 0 if that is not known.
    """

    at: datetime
    pods: tuple[Pod, ...]
    revision: int = 0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a node's probe said, or why it could not be asked; `at` is just before it was asked."""

    at: datetime
    empty: bool
    reason: str = ""


class EvictionAnswer(StrEnum):
    ACCEPTED = "accepted"
    BUDGET = "budget"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server last said to stopping one pod; a refusal by a budget may be tried again at `retry_at`."""

    kind: EvictionAnswer
    text: str = ""
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """The waits of a claim's life; the defaults are the design's."""

    settle_before_eviction: timedelta = timedelta(seconds=0.5)
    """How long the taint stands before the first eviction, for schedulers to see it."""
    settle_before_proof: timedelta = timedelta(seconds=2)
    """How long it stands before a look may prove the node empty: bindings already under way have landed by then."""
    look_every: timedelta = timedelta(seconds=1)
    probe_nodes: bool = False
    """Whether a node counts as empty only if its own probe says so, too."""
    drain_timeout: timedelta = timedelta(minutes=10)
    landing_timeout: timedelta = timedelta(minutes=5)
    landing_tries: int = 3
    poke_after: timedelta = timedelta(seconds=0.5)
    poke_at_most_every: timedelta = timedelta(seconds=5)
    retry_after: timedelta = timedelta(seconds=10)
    avoid_for: timedelta = timedelta(minutes=10)
    cool_down: timedelta = timedelta(minutes=30)
    """How long a job that was stopped is left alone."""
    cost_ceiling: float = 1.0
    """GPU-seconds that may be thrown away for each that the gang has declared to use; 0 for any number."""
    most_draining: int = 0
    """Nodes that may be drained at the same time, of all claims; 0 for any number."""


@dataclass(slots=True)
class Decision:
    """Everything to do now, in order, and when to decide again although nothing changes."""

    actions: list[Action] = field(default_factory=list)
    wake_at: datetime | None = None
    choices: "dict[str, Choice]" = field(default_factory=dict)
    """What was chosen, or not, for each claim that looked for nodes, by UID."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Claims, by UID, and steps that are for no claim in particular, by name, that could not be decided.

    An error of ours: nothing is done for them in this pass, and all others go on.
    """

    def wake(self, moment: datetime | None) -> None:
        if moment is not None and (self.wake_at is None or moment < self.wake_at):
            self.wake_at = moment
