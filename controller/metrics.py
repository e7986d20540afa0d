"""The controller's metrics. Labels are bounded: no pod, node or claim names."""

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fleet.marks import ENDED
from fleet.resources import DrainRecord, Outcome, Phase, PoolStatus, WholeNodeClaim

_WAIT_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


class Metrics:
    """All metrics of one controller, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._claims = Gauge("wholenode_claims", "Claims by phase.", ["phase"], registry=registry)
        self._waiting = Gauge(
            "wholenode_claims_waiting", "Claims not bound yet, by reason.", ["reason"], registry=registry
        )
        self._decisions = Counter(
            "wholenode_claim_decisions",
            "Phases entered by claims, with the reason.",
            ["phase", "reason"],
            registry=registry,
        )
        self._waited = Histogram(
            "wholenode_claim_wait_seconds",
            "From making the claim to all pods bound, by whose they are.",
            ["beneficiary_namespace"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._evictions = Counter("wholenode_evictions", "Answers to evictions.", ["result"], registry=registry)
        self._lost = Counter(
            "wholenode_lost_gpu_seconds",
            "GPU-seconds of work thrown away, by who lost it, for whom and under which agreement.",
            ["victim_namespace", "beneficiary_namespace", "agreement"],
            registry=registry,
        )
        self._stopped = Counter(
            "wholenode_pods_stopped",
            "Pods that were stopped, by whose they were, for whom and under which agreement.",
            ["victim_namespace", "beneficiary_namespace", "agreement"],
            registry=registry,
        )
        self._spared = Counter(
            "wholenode_pods_spared",
            "Pods that were to be stopped and were not.",
            ["victim_namespace", "beneficiary_namespace", "agreement"],
            registry=registry,
        )
        self._open = Gauge(
            "wholenode_records_open", "Drain records whose pod is neither stopped nor spared yet.", registry=registry
        )
        self._cards_free = Gauge("wholenode_cards_free", "Free cards on open nodes.", ["pool"], registry=registry)
        self._wholes_free = Gauge("wholenode_whole_nodes_free", "Untouched open nodes.", ["pool"], registry=registry)
        self._errors = Counter(
            "wholenode_write_errors", "Writes that failed, by kind of error.", ["error"], registry=registry
        )
        self._passes = Histogram(
            "wholenode_decision_seconds",
            "Time one pass over all claims takes.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1),
            registry=registry,
        )
        self.leader = Gauge("wholenode_leader", "1 while this replica holds the lease.", registry=registry)

    def claims(self, claims: list[WholeNodeClaim]) -> None:
        phases = Count(claim.status.phase for claim in claims)
        for phase in Phase:
            self._claims.labels(phase=str(phase)).set(phases[phase])
        self._waiting.clear()
        waiting = Count(claim.status.reason or "New" for claim in claims if claim.status.phase not in ENDED)
        for reason, number in waiting.items():
            self._waiting.labels(reason=reason).set(number)

    def entered(self, phase: Phase, reason: str) -> None:
        self._decisions.labels(phase=str(phase), reason=reason).inc()

    def bound(self, namespace: str, waited_seconds: float) -> None:
        self._waited.labels(beneficiary_namespace=namespace).observe(waited_seconds)

    def eviction(self, result: str) -> None:
        self._evictions.labels(result=result).inc()

    def resolved(self, record: DrainRecord) -> None:
        """Count what became of one pod; to be called once for each record."""
        spec, stopped = record.spec, record.status.outcome is Outcome.STOPPED
        parties = (record.metadata.namespace, spec.beneficiary, spec.agreement)
        if stopped:
            self._lost.labels(*parties).inc(spec.lost_gpu_seconds)
        (self._stopped if stopped else self._spared).labels(*parties).inc()

    def records(self, records: Iterable[DrainRecord]) -> None:
        self._open.set(sum(record.status.outcome is Outcome.PENDING for record in records))

    def pool(self, name: str, status: PoolStatus) -> None:
        self._cards_free.labels(pool=name).set(status.cards_free)
        self._wholes_free.labels(pool=name).set(status.whole_nodes_free)

    def forget_pools(self, present: set[str]) -> None:
        """Drop the series of pools that are gone."""
        for gauge in (self._cards_free, self._wholes_free):
            for sample in list(next(iter(gauge.collect())).samples):
                if sample.labels["pool"] not in present:
                    gauge.remove(sample.labels["pool"])

    def error(self, kind: str) -> None:
        self._errors.labels(error=kind).inc()

    def decided(self, seconds: float) -> None:
        self._passes.observe(seconds)
