"""The extender's metrics. Labels are bounded: no pod, node or claim names.

What is counted per question is counted in plain numbers and given its form only when Prometheus asks: the counters of
the client library cost more than the decision itself.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.explaining import WaitingPods
from fleet.placement import Placement

if TYPE_CHECKING:
    from extender.state import State

_BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.03, 0.1, 0.3, 1.0)
"""Upper bounds in seconds of the histogram's buckets; one more is without bound."""
_LABELS: Final = (*map(str, _BOUNDS), "+Inf")


class _Fleet(Collector):
    """Gauges read from the caches when Prometheus asks, so that keeping them costs nothing in between."""

    def __init__(self, state: "State") -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
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


class _Times:
    """How long answers took."""

    __slots__ = ("buckets", "total_seconds")

    def __init__(self) -> None:
        self.buckets = [0] * len(_LABELS)
        self.total_seconds = 0.0


class _Service(Collector):
    """What was asked and answered, and the certificate."""

    def __init__(self) -> None:
        self.times = {verb: _Times() for verb in ("filter", "prioritize", "preempt")}
        self.passed = 0
        self.refused: Counter[str] = Counter()
        self.fresh: list[Placement] = []
        """Answers that are not counted yet."""
        self.bad: Counter[str] = Counter()
        self.certificates: Counter[str] = Counter()
        self.certificate_ends_at: float | None = None

    def count(self) -> None:
        """Count the nodes of the answers given since the last time."""
        for placement in self.fresh:
            self.passed += len(placement.passed)
            for reasons in (placement.refused, placement.for_now):
                if reasons:
                    for reason, number in Counter(reasons.values()).items():
                        self.refused[reason.name] += number
        self.fresh.clear()

    def collect(self) -> Iterator[Metric]:
        self.count()
        decisions = CounterMetricFamily(
            "wholenode_filter_decisions", "Nodes let through or refused.", labels=["result", "reason"]
        )
        decisions.add_metric(["passed", ""], self.passed)
        for reason, number in sorted(self.refused.items()):
            decisions.add_metric(["refused", reason], number)
        bad = CounterMetricFamily("wholenode_bad_requests", "Questions that made no sense.", labels=["verb"])
        seconds = HistogramMetricFamily("wholenode_request_seconds", "Time to answer.", labels=["verb"])
        for verb, times in self.times.items():
            bad.add_metric([verb], self.bad[verb])
            counts = zip(_LABELS, accumulate(times.buckets), strict=True)
            seconds.add_metric([verb], list(counts), times.total_seconds)
        loads = CounterMetricFamily("wholenode_certificate_loads", "Looks that found new TLS files.", labels=["result"])
        for result in ("taken", "refused"):
            loads.add_metric([result], self.certificates[result])
        ends = GaugeMetricFamily("wholenode_certificate_ends_seconds", "End of the TLS certificate, Unix time.")
        if self.certificate_ends_at is not None:
            ends.add_metric([], self.certificate_ends_at)
        yield from (decisions, bad, seconds, loads, ends)


class Metrics:
    """All metrics of one extender, in a registry of their own."""

    def __init__(self, state: "State") -> None:
        self.registry = CollectorRegistry()
        self._service = _Service()
        self.registry.register(_Fleet(state))
        self.waiting = WaitingPods(state)
        self.registry.register(self.waiting)
        self.registry.register(self._service)

    def decided(self, placement: Placement) -> None:
        """Count the nodes of one answer: once it is sent, for counting 5,000 refusals takes its time."""
        service = self._service
        due = bool(service.fresh)
        service.count()  # if questions come faster than turns of the loop, no more than one answer is kept
        service.fresh.append(placement)
        if due:
            return
        try:
            asyncio.get_running_loop().call_soon(service.count)
        except RuntimeError:  # nobody is kept waiting
            service.count()

    def took(self, verb: str, seconds: float) -> None:
        """Count one answer and its time."""
        times = self._service.times[verb]
        times.buckets[bisect_left(_BOUNDS, seconds)] += 1
        times.total_seconds += seconds

    def bad(self, verb: str) -> None:
        """Count a question that made no sense."""
        self._service.bad[verb] += 1

    def certificate(self, ends_at: float | None) -> None:
        """Count new TLS files: taken, with the Unix time at which the certificate ends, or None if they are refused."""
        if ends_at is None:
            self._service.certificates["refused"] += 1
        else:
            self._service.certificates["taken"] += 1
            self._service.certificate_ends_at = ends_at
