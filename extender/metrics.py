"""The extender's metrics. Labels are bounded: no pod, node or claim names."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet.placement import Placement

if TYPE_CHECKING:
    from extender.state import State

_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.03, 0.1, 0.3, 1)


class _Fleet(Collector):
    """Gauges read from the caches when Prometheus asks, so that keeping them costs nothing in between."""

    def __init__(self, state: "State") -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        cards = GaugeMetricFamily("wholenode_extender_cards_free", "Free cards on open nodes.", labels=["pool"])
        wholes = GaugeMetricFamily("wholenode_extender_whole_nodes_free", "Untouched open nodes.", labels=["pool"])
        for pool, (free, untouched) in sorted(self._state.free().items()):
            cards.add_metric([pool], free)
            wholes.add_metric([pool], untouched)
        waiting = GaugeMetricFamily("wholenode_waiting_pods", "GPU pods without a node.", labels=["request_class"])
        for name, number in sorted(self._state.waiting().items()):
            waiting.add_metric([name], number)
        ready = GaugeMetricFamily("wholenode_extender_ready", "1 while the caches are filled and fresh.")
        ready.add_metric([], 0 if self._state.not_ready() else 1)
        yield from (cards, wholes, waiting, ready)


class Metrics:
    """All metrics of one extender, in a registry of their own."""

    def __init__(self, state: "State") -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Fleet(state))
        self._decisions = Counter(
            "wholenode_filter_decisions", "Nodes let through or refused.", ["result", "reason"], registry=self.registry
        )
        self._bad = Counter("wholenode_bad_requests", "Questions that made no sense.", ["verb"], registry=self.registry)
        seconds = Histogram(
            "wholenode_request_seconds", "Time to answer.", ["verb"], buckets=_BUCKETS, registry=self.registry
        )
        self.filter_seconds = seconds.labels(verb="filter")
        self.prioritize_seconds = seconds.labels(verb="prioritize")
        self._passed = self._decisions.labels(result="passed", reason="")

    def decided(self, placement: Placement) -> None:
        if placement.passed:
            self._passed.inc(len(placement.passed))
        counted: dict[str, int] = {}
        for reasons in (placement.refused, placement.for_now):
            for reason in reasons.values():
                counted[reason.name] = counted.get(reason.name, 0) + 1
        for name, number in counted.items():
            self._decisions.labels(result="refused", reason=name).inc(number)

    def bad(self, verb: str) -> None:
        self._bad.labels(verb=verb).inc()
