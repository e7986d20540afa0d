"""The answer to "why does this pod wait?": its shape, the words in it, and the facts that are told from elsewhere.

JSON is camelCase; fields are only ever added. Times are RFC 3339, cards are whole cards.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from fleet.kueue.objects import CheckState
from fleet.objects import Condition


class Kind(StrEnum):
    """What sort of wait it is; these are never mixed."""

    NOT_ATTEMPTED = "NotAttempted"
    """No scheduler has tried it: it is gated, or its turn has not come."""
    NO_PLACE = "NoPlace"
    """A scheduler tried and found no place."""
    START_FAILED = "StartFailed"
    """It has its place, and does not start there."""
    NOT_WAITING = "NotWaiting"
    NOT_OURS = "NotOurs"
    """It asks for no cards: nothing of wholenode is in its way."""

    @property
    def waits(self) -> bool:
        """Whether somebody waits for the pod to run."""
        return self not in {Kind.NOT_WAITING, Kind.NOT_OURS}


class Stage(StrEnum):
    """The questions, in the order they are asked; a wait stands at the first one whose answer is no."""

    ADMISSION = "Admission"
    GANG = "Gang"
    CAPACITY = "Capacity"
    TOPOLOGY = "Topology"
    RESERVED = "Reserved"
    AGREEMENT = "Agreement"
    SCHEDULER = "Scheduler"
    START = "Start"


class Wait(StrEnum):
    """`reason` where no claim's own reason (`fleet.reasons.Reason`) says it: few and constant, to be counted."""

    NO_CARDS = "AsksForNoCards"
    RUNNING = "Running"
    STARTING = "Starting"
    ENDING = "Ending"
    ENDED = "Ended"
    QUOTA = "WaitingForQuota"
    CHECKS = "WaitingForAdmissionChecks"
    KUEUE_EVICTED = "EvictedByKueue"
    NEVER = "NeverFits"
    NOT_ENOUGH = "NotEnoughCards"
    NODES_SHUT = "NodesNotUsable"
    FRAGMENTED = "Fragmented"
    HELD = "HeldForAnotherClaim"
    NOT_LENT = "NotLentWithoutAgreement"
    NO_CLAIM = "NoClaimYet"
    TURN = "TurnNotCome"
    OTHER = "OtherConstraint"
    SCHEDULER_ERROR = "SchedulerError"
    KUBELET = "RefusedByKubelet"
    CONTAINER = "ContainerNotStarted"


class Result(StrEnum):
    OK = "ok"
    NOT_OK = "not ok"
    UNKNOWN = "unknown"


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class Ends(_Part, frozen=True):
    """How the wait ends; `at` is when, if somebody declared it or a rule says it."""

    how: str
    at: datetime | None = None


class Check(_Part, frozen=True):
    """One question asked on the way to the answer."""

    stage: Stage
    result: Result
    text: str = ""


class Blocker(_Part, frozen=True):
    """A pod that holds cards where they are wanted.

    `ends_at` is its deletion's time, or declared (expected-run), or `learned` from earlier runs of its kind.
    """

    namespace: str
    pod: str
    node: str
    cards: int
    ends_at: datetime | None = None
    terminating: bool = False
    learned: bool = False


class BestNode(_Part, frozen=True):
    """The node that comes closest, by free cards. `free_at` is known only if every pod on it says when it ends."""

    name: str
    cards: int
    free: int
    free_at: datetime | None = None
    blockers: Annotated[tuple[Blocker, ...], Meta(description="The first 20.")] = ()


class Holder(_Part, frozen=True):
    """A claim that nodes are held or kept for; a mark without a claim has only its UID."""

    uid: str
    namespace: str = ""
    name: str = ""
    phase: str = ""
    nodes: tuple[str, ...] = ()


class ClaimFacts(_Part, frozen=True):
    """What the controller wrote into the gang's own claim."""

    namespace: str
    name: str
    phase: str
    reason: str = ""
    message: str = ""
    nodes: tuple[str, ...] = ()
    consent_missing: tuple[str, ...] = ()
    expected_free_at: datetime | None = None


class Event(_Part, frozen=True):
    """What a component last told about the pod, word for word; `count` is how often."""

    reason: str
    message: str
    count: int = 1
    last: datetime | None = None


class SchedulerSaid(_Part, frozen=True):
    """The pod's PodScheduled condition and the last FailedScheduling event, word for word."""

    name: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    since: datetime | None = None
    event: Event | None = None


class Explanation(_Part, frozen=True):
    """Why one pod waits. `stage` is null if it does not; `numbers` are named figures behind the text."""

    namespace: str
    pod: str
    kind: Kind
    reason: str
    text: str
    at: datetime
    stage: Stage | None = None
    ends: Ends | None = None
    since: datetime | None = None
    numbers: dict[str, int] = {}
    best_node: BestNode | None = None
    holders: tuple[Holder, ...] = ()
    claim: ClaimFacts | None = None
    scheduler: SchedulerSaid | None = None
    checked: tuple[Check, ...] = ()
    unread: Annotated[tuple[str, ...], Meta(description="What could not be read, and why.")] = ()


class ContainerState(_Part, frozen=True):
    """A container that does not run: `waiting` is its waiting reason; `ran` says that it has run before."""

    name: str
    waiting: str = ""
    message: str = ""
    ran: bool = False


class Workload(_Part, frozen=True):
    """Kueue's Workload of the pod."""

    name: str
    conditions: tuple[Condition, ...] = ()
    checks: tuple[CheckState, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.conditions if one.type == kind), None)


class Told(_Part, frozen=True):
    """Facts about one pod that the caches do not hold. None, or empty, means: not known."""

    failed_scheduling: Event | None = None
    kubelet: Event | None = None
    """The node's last warning about the pod."""
    containers: tuple[ContainerState, ...] = ()
    workload: Workload | None = None
    unread: tuple[str, ...] = ()
    """What could not be read, and why."""
