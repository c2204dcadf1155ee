"""Prometheus metrics of a store's calls and sessions. Their names start with ``latchwork_``. All have the label
``store``.

Pass ``connect(url, observers=[StoreMetrics()])``. Needs ``prometheus-client``: ``pip install "latchwork[metrics]"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from latchwork._base.interrupts import mutex
from latchwork._base.prometheus import (
    CollectorRegistry,
    Counter,
    GaugeCollector,
    GaugeMetricFamily,
    Histogram,
    get_or_create_metrics,
)
from latchwork.backends.base import CALLS
from latchwork.errors import Conflict, KeyExists, OutcomeUnknown, Unavailable
from latchwork.store.observe.calls import CallInfo, StoreObserver
from latchwork.store.session import Session

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_OUTCOMES = ("ok", "conflict", "unavailable", "unknown", "failed")
_STATES = ("active", "suspect", "lost", "closed")


class _StoreCollector(GaugeCollector):
    """The metrics in one registry, which are created once for all stores."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter("latchwork_store_calls", "Calls ended.", ["store", "call", "outcome"], registry=registry)
        self.seconds = Histogram(
            "latchwork_store_call_seconds", "Duration of calls.", ["store", "call"], buckets=_BUCKETS, registry=registry
        )
        self.opened = Counter("latchwork_sessions_opened", "Sessions opened.", ["store"], registry=registry)
        self.changes = Counter(
            "latchwork_session_changes", "Changes of a session to this state.", ["store", "state"], registry=registry
        )
        self._mutex = mutex()
        self._sessions: dict[str, WeakSet[Session]] = {}
        registry.register(self)

    def prepare(self, store: str) -> None:
        """Create all metrics of a store, so that they exist with the value 0 before its first call."""
        for call in CALLS:
            self.seconds.labels(store, call)
            for outcome in _OUTCOMES:
                self.calls.labels(store, call, outcome)
        self.opened.labels(store)
        for state in _STATES:
            self.changes.labels(store, state)
        with self._mutex:
            self._sessions.setdefault(store, WeakSet())

    def add(self, store: str, session: Session) -> None:
        """Include a session in the metric of open sessions."""
        self.opened.labels(store).inc()
        session.on_state(lambda state: self.changes.labels(store, state).inc())
        with self._mutex:
            self._sessions[store].add(session)

    def collect(self) -> Iterator[Metric]:
        """Yield a metric with the number of open sessions in each state. Called by the client library."""
        states = GaugeMetricFamily("latchwork_sessions", "Sessions in this state.", labels=["store", "state"])
        left = GaugeMetricFamily(
            "latchwork_session_remaining_seconds",
            "Time for which all open sessions surely last; absent without any.",
            labels=["store"],
        )
        with self._mutex:
            found = {store: list(sessions) for store, sessions in self._sessions.items()}
        for store, sessions in found.items():
            now = [session.state for session in sessions]
            for state in ("active", "suspect"):
                states.add_metric([store, state], now.count(state))
            lasting = [
                session.remaining_s() for session, state in zip(sessions, now, strict=True) if state in _STATES[:2]
            ]
            if lasting:
                left.add_metric([store], min(lasting))
        yield from (states, left)


class StoreMetrics(StoreObserver):
    """An observer that counts the calls and sessions of one store in Prometheus metrics.

    Args:
        store: Value of the label ``store``.
        registry: Registry of the metrics. Defaults to the registry of the client library.
    """

    def __init__(self, store: str = "default", *, registry: CollectorRegistry | None = None) -> None:
        self._families = get_or_create_metrics(_StoreCollector, registry)
        self._store = store
        self._families.prepare(store)

    def called(self, info: CallInfo) -> None:
        """Count a call and record its duration."""
        self._families.calls.labels(self._store, info.call, _outcome(info.error)).inc()
        self._families.seconds.labels(self._store, info.call).observe(info.seconds)

    def opened(self, session: Session) -> None:
        """Count a new session, and record its state from now on."""
        self._families.add(self._store, session)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    kinds = ((Conflict, "conflict"), (KeyExists, "conflict"), (OutcomeUnknown, "unknown"), (Unavailable, "unavailable"))
    return next((name for kind, name in kinds if isinstance(error, kind)), "failed")
