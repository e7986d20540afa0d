"""What a check of the doctor says: a verdict, a code that stays the same, figures, and the exact fix."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Verdict(StrEnum):
    """How bad it is. A warning may cost something later; a problem costs something now, or will for sure."""

    OK = "ok"
    WARNING = "warning"
    UNKNOWN = "unknown"
    PROBLEM = "problem"


class Code(StrEnum):
    """What was found, in one word for programs; docs/doctor.md has a row for each."""

    FINE = "Fine"
    NOT_USED = "NotUsed"
    """The cluster has none of what the check is about."""
    NOT_READ = "NotRead"
    """Something without which nothing can be said could not be read."""

    CLIENT_RATE_LIMIT = "ClientRateLimit"
    LOW_CLIENT_LIMIT = "LowClientLimit"
    NOBODY_SCHEDULES = "NobodySchedules"
    NO_WHOLE_NODE = "NoWholeNode"
    NODES_SPREAD = "NodesSpread"
    CARDS_SPREAD = "CardsSpread"
    SPREADING_POLICY = "SpreadingPolicy"
    QUOTA_IN_MEMORY = "QuotaInMemory"
    QUOTA_IN_SLOTS = "QuotaInSlots"
    QUOTA_ABOVE_CARDS = "QuotaAboveCards"
    UNCOVERED_RESOURCE = "UncoveredResource"
    RECLAIM_WITHOUT_TOPOLOGY = "ReclaimWithoutTopology"
    RECLAIMED_IN_VAIN = "ReclaimedInVain"
    NOT_FOUND = "NotFound"
    UNREADABLE = "Unreadable"
    EXTENDER_MISSING = "ExtenderMissing"
    EXTENDER_ORDER = "ExtenderOrder"
    EXTENDER_IGNORABLE = "ExtenderIgnorable"
    NODES_IN_BODY = "NodesInBody"
    MANAGED_TWICE = "ManagedTwice"
    BIND_TWICE = "BindTwice"
    SLOW_TIMEOUT = "SlowTimeout"
    SHORT_TIMEOUT = "ShortTimeout"
    UNVERIFIED_TLS = "UnverifiedTLS"
    TLS_NOT_ENABLED = "TLSNotEnabled"
    NO_WEIGHT = "NoWeight"
    LONG_BACKOFF = "LongBackoff"
    NODES_UNSEEN = "NodesUnseen"
    EXTENDER_SILENT = "ExtenderSilent"
    NOT_OUR_PROFILE = "NotOurProfile"
    TAINT_REMOVED = "TaintRemoved"
    SEVERAL_TAINT_WRITERS = "SeveralTaintWriters"
    BYPASSES_HAMI = "BypassesHAMi"
    OTHER_SCHEDULER = "OtherScheduler"
    CARDS_OF_DAEMONSET = "CardsOfDaemonSet"
    LOCK_OF_ENDED_POD = "LockOfEndedPod"
    LOCK_OF_GONE_POD = "LockOfGonePod"
    OLD_LOCK = "OldLock"
    LOCK_CONTENTION = "LockContention"
    NO_AGREEMENT = "NoAgreement"
    VOID_AGREEMENT = "VoidAgreement"
    DRAIN_DISABLED = "DrainDisabled"
    NOT_INSTALLED = "NotInstalled"
    POOLS_OVERLAP = "PoolsOverlap"
    POOL_EMPTY = "PoolEmpty"
    POOL_UNFIT = "PoolUnfit"
    LEASE_STALE = "LeaseStale"
    NOT_READY = "NotReady"
    OLD_CRD = "OldCRD"
    NO_GATE = "NoGate"
    OLD_KUEUE = "OldKueue"
    CHECK_INACTIVE = "CheckInactive"
    QUEUE_INACTIVE = "QueueInactive"


_RANK: Final = {Verdict.OK: 0, Verdict.WARNING: 1, Verdict.UNKNOWN: 2, Verdict.PROBLEM: 3}
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found. `evidence`: figures and names by camelCase key; `fix`: what to run, set or apply."""

    code: Code
    verdict: Verdict
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""


def fine(summary: str, **evidence: Any) -> Finding:
    """Nothing is wrong; the figures say how that is known."""
    return Finding(Code.FINE, Verdict.OK, summary, evidence)


def not_used(summary: str, **evidence: Any) -> Finding:
    """There is nothing here that could be wrong."""
    return Finding(Code.NOT_USED, Verdict.OK, summary, evidence)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The most serious of them; OK if there is none. What could not be looked at is worse than a warning."""
    return max(verdicts, key=_RANK.__getitem__, default=Verdict.OK)


def shown(names: Iterable[str]) -> str:
    """The first few names, sorted, and how many more there are."""
    every = sorted(set(names))
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
