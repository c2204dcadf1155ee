"""Prometheus metrics of primitives: which ones are held, and for how long.

``PrimitiveMetrics().watch("orders", Lock(store, "orders"))``. All names begin with ``latchwork_primitive_``, and all
samples have the labels ``primitive`` and ``kind``. Needs ``prometheus-client``: ``pip install "latchwork[metrics]"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from latchwork._base.interrupts import mutex
from latchwork._base.prometheus import (
    CollectorRegistry,
    Counter,
    GaugeCollector,
    GaugeMetricFamily,
    get_or_create_metrics,
)
from latchwork.errors import LatchworkError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LABELS = ["primitive", "kind"]


class _PrimitiveCollector(GaugeCollector):
    """The metrics of one Prometheus registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lost = Counter("latchwork_primitive_lost", "Times it was lost while held.", _LABELS, registry=registry)
        self._mutex = mutex()
        self._watched: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
        registry.register(self)

    def watch(self, name: str, kind: str, primitive: Any) -> None:
        """Include a primitive in the metrics from now on. Only a weak reference to it is kept.

        Args:
            name: Value of the label ``primitive``.
            kind: Value of the label ``kind``.
            primitive: An object with the method ``remaining_s``.
        """
        with self._mutex:
            self._watched[name, kind] = primitive

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the current state of all watched primitives."""
        held = GaugeMetricFamily("latchwork_primitive_held", "1 while it is held, or leads.", labels=_LABELS)
        left = GaugeMetricFamily(
            "latchwork_primitive_remaining_seconds",
            "Time for which it is surely held; 0 while it is not.",
            labels=_LABELS,
        )
        with self._mutex:
            watched = dict(self._watched)
        for labels, primitive in sorted(watched.items(), key=lambda pair: pair[0]):
            try:
                remaining_s = primitive.remaining_s()
            except LatchworkError:  # closed, or of another process
                continue
            held.add_metric(list(labels), remaining_s > 0)
            left.add_metric(list(labels), remaining_s)
        yield from (held, left)


class PrimitiveMetrics:
    """Prometheus metrics of locks, semaphores, latches and other objects with ``remaining_s``.

    Args:
        registry: Where the metrics are registered. None uses the default registry of the client library.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        self._families = get_or_create_metrics(_PrimitiveCollector, registry)

    def watch(self, name: str, primitive: Any) -> None:
        """Include a primitive in the metrics from now on. It replaces one with the same name and kind. Performs no I/O.

        Args:
            name: Value of the label ``primitive``.
            primitive: A lock, semaphore, persistent lock or latch. Only a weak reference to it is kept.
        Raises:
            TypeError: The object has no method ``remaining_s``.
        """
        if not callable(getattr(primitive, "remaining_s", None)):
            raise TypeError(f"{primitive!r} is never held; pass a lock, a semaphore, a latch or a similar primitive")
        kind = type(primitive).__name__
        lost = self._families.lost.labels(name, kind)
        listen: Callable[[Callable[[], None]], object] | None = getattr(primitive, "on_lost", None) or getattr(
            primitive, "on_revoked", None
        )
        if listen is not None:
            listen(lost.inc)
        self._families.watch(name, kind, primitive)
