"""The client library of Prometheus, and one set of metrics for each of its registries.

Needs ``prometheus-client``: ``pip install "latchwork[metrics]"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from latchwork._base.interrupts import mutex
from latchwork.errors import BackendNotInstalled

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise BackendNotInstalled(
        'metrics need the package prometheus-client; run: pip install "latchwork[metrics]"'
    ) from missing

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["CollectorRegistry", "Counter", "GaugeCollector", "GaugeMetricFamily", "Histogram", "get_or_create_metrics"]

T = TypeVar("T")

_known: WeakKeyDictionary[CollectorRegistry, dict[Any, Any]] = WeakKeyDictionary()
_known_lock = mutex()


def get_or_create_metrics(factory: Callable[[CollectorRegistry], T], registry: CollectorRegistry | None) -> T:
    """Return the metrics that a factory has created for a registry. The first call creates them.

    Args:
        factory: Creates and registers the metrics. Also identifies them.
        registry: The registry. None for the default registry of the Prometheus library.
    """
    chosen = REGISTRY if registry is None else registry
    with _known_lock:
        known = _known.setdefault(chosen, {})
        if factory not in known:
            known[factory] = factory(chosen)
        metrics: T = known[factory]
        return metrics


class GaugeCollector(Collector):
    """The base class of gauges whose values are read at each scrape."""

    def describe(self) -> list[Metric]:
        """Return an empty list, because the metrics are not declared in advance."""
        return []
