"""Prometheus metrics of nodes. All names begin with ``latchwork_``, and all metrics have the label ``node``.

Needs ``prometheus-client``: ``pip install "latchwork[metrics]"``. All nodes of a process share one set of metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from latchwork._base.interrupts import mutex
from latchwork._base.prometheus import (
    CollectorRegistry,
    Counter,
    GaugeCollector,
    GaugeMetricFamily,
    Histogram,
    get_or_create_metrics,
)
from latchwork.jobs.observer import ObservedNode, Observer, PoolInfo, RebalanceInfo, RunInfo

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from latchwork.jobs.observer import JobStats

_LONG = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
_SHORT = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: The gauges of each job: the name, the description, and the value.
_JOB_GAUGES: dict[str, tuple[str, Callable[[JobStats], float | None]]] = {
    "active_runs": ("Runs going on.", lambda stats: stats.active),
    "run_threads": ("Threads that run, or wait for their time.", lambda stats: stats.threads),
    "items_assigned": ("Items in the current runs.", lambda stats: stats.items),
    "failing_items": ("Items whose last run failed.", lambda stats: stats.failing_items),
    "consecutive_failures": (
        "Runs of one item that failed one after the other, of the item with most.",
        lambda stats: stats.consecutive_failures,
    ),
    "last_start_timestamp_seconds": ("When a run last began.", lambda stats: stats.last_start_s),
    "last_success_timestamp_seconds": ("When a run last ended well.", lambda stats: stats.last_success_s),
    "last_failure_timestamp_seconds": ("When a run last failed.", lambda stats: stats.last_failure_s),
    "next_start_timestamp_seconds": (
        "When the next run begins; absent while that is not known.",
        lambda stats: stats.next_start_s,
    ),
}


class _MetricSet:
    """The metrics of one Prometheus registry, created once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"latchwork_{name}", what, ["node", *labels], registry=registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"latchwork_{name}", what, ["node", *labels], buckets=buckets, registry=registry)

        self.init = histogram("init_seconds", "Time to join the cluster.", _SHORT)
        self.close = histogram("close_seconds", "Time to leave the cluster.", _SHORT)
        self.runs = counter("runs", "Runs begun.", "job")
        self.failures = counter("run_failures", "Runs that raised.", "job")
        self.run_seconds = histogram("run_seconds", "Duration of runs.", _LONG, "job")
        self.lag = histogram("schedule_lag_seconds", "How much later than due runs start.", _SHORT, "job")
        self.rebalances = counter("rebalances", "Rebalances done as the manager.")
        self.rebalance_failures = counter("rebalance_failures", "Rebalances that had to be tried again.")
        self.rebalance_seconds = histogram("rebalance_seconds", "Duration of rebalances.", _SHORT)
        self.moves = counter("moves", "Items moved as the manager.")
        self.pool_failures = counter("pool_read_failures", "Reads of a work pool that failed.", "job")
        self.pool_seconds = histogram("pool_read_seconds", "Duration of reads of a work pool.", _SHORT, "job")
        self.now = _NodeGauges()
        registry.register(self.now)

    def prepare(self, node: str, jobs: Iterable[str]) -> None:
        """Create every metric of a node with the value 0, so that rates of events that have not happened yet exist.

        Args:
            node: ID of the node.
            jobs: IDs of its jobs.
        """
        own = (self.init, self.close, self.rebalances, self.rebalance_failures, self.rebalance_seconds, self.moves)
        for each in own:
            each.labels(node)
        for job in jobs:
            of_job = (self.runs, self.failures, self.run_seconds, self.lag, self.pool_failures, self.pool_seconds)
            for each in of_job:
                each.labels(node, job)


class _NodeGauges(GaugeCollector):
    """Reads the gauges of all nodes from the nodes at each scrape."""

    def __init__(self) -> None:
        self._lock = mutex()
        self._nodes: dict[str, ObservedNode] = {}
        self._pools: dict[tuple[str, str], int] = {}

    def add(self, node: ObservedNode) -> None:
        with self._lock:
            self._nodes[node.node_id] = node

    def remove(self, node: ObservedNode) -> None:
        with self._lock:
            if self._nodes.get(node.node_id) is node:
                del self._nodes[node.node_id]
                self._pools = {key: items for key, items in self._pools.items() if key[0] != node.node_id}

    def set_pool(self, node: str, job: str, items: int) -> None:
        with self._lock:
            self._pools[node, job] = items

    def collect(self) -> Iterator[Metric]:
        """Return the current gauges of all nodes."""
        with self._lock:
            nodes, pools = dict(self._nodes), dict(self._pools)
        families = {name: _create_gauge(name, text, "job") for name, (text, _) in _JOB_GAUGES.items()}
        manager = _create_gauge("is_manager", "1 on the node that manages the cluster.")
        healthy = _create_gauge("healthy", "1 while the node is healthy.")
        margin = _create_gauge("lock_margin_seconds", "Time for which the locks surely last; absent without locks.")
        for node_id, node in nodes.items():
            stats, health = node.stats(), node.health()
            manager.add_metric([node_id], stats.is_manager)
            healthy.add_metric([node_id], health.ok)
            if health.lock_margin_s is not None:
                margin.add_metric([node_id], health.lock_margin_s)
            for job, each in stats.jobs.items():
                for name, (_, value) in _JOB_GAUGES.items():
                    found = value(each)
                    if found is not None:
                        families[name].add_metric([node_id, job], found)
        sizes = _create_gauge("pool_items", "Items in the work pool as last read.", "job")
        for key, items in pools.items():
            sizes.add_metric(list(key), items)
        yield from (*families.values(), manager, healthy, margin, sizes)


def _create_gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"latchwork_{name}", what, labels=["node", *labels])


class PrometheusMetrics(Observer):
    """An observer that exports metrics: ``JobManager(observers=[PrometheusMetrics()])``.

    Args:
        registry: Registry for the metrics; None uses the default registry of the client library.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._families = get_or_create_metrics(_MetricSet, registry)

    def attached(self, node: ObservedNode) -> None:
        """Handle the start of a node: create all of its metrics, and include its gauges in future scrapes."""
        self._families.prepare(node.node_id, node.stats().jobs)
        self._families.now.add(node)

    def detached(self, node: ObservedNode) -> None:
        """Handle the end of a node: remove its gauges from future scrapes."""
        self._families.now.remove(node)

    def started(self, node_id: str, seconds: float) -> None:
        """Record how many seconds a node took to join the cluster."""
        self._families.init.labels(node_id).observe(seconds)

    def closed(self, node_id: str, seconds: float) -> None:
        """Record how many seconds a node took to leave the cluster."""
        self._families.close.labels(node_id).observe(seconds)

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Return a context manager that counts and times a run. The node enters it before the run."""
        families, labels = self._families, (info.node, info.job)
        families.runs.labels(*labels).inc()
        families.lag.labels(*labels).observe(max(0.0, info.lag_s))
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            families.failures.labels(*labels).inc()
            raise
        finally:
            families.run_seconds.labels(*labels).observe(time.perf_counter() - began)

    def rebalanced(self, info: RebalanceInfo) -> None:
        """Record the duration and the moves of a rebalance, or its failure."""
        families = self._families
        families.rebalance_seconds.labels(info.node).observe(info.seconds)
        (families.rebalances if info.error is None else families.rebalance_failures).labels(info.node).inc()
        families.moves.labels(info.node).inc(info.moves)

    def pool_read(self, info: PoolInfo) -> None:
        """Record the duration and the number of items of a work pool read, or its failure."""
        self._families.pool_seconds.labels(info.node, info.job).observe(info.seconds)
        if info.items is None:
            self._families.pool_failures.labels(info.node, info.job).inc()
        else:
            self._families.now.set_pool(info.node, info.job, info.items)
