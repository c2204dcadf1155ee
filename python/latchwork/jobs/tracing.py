"""OpenTelemetry spans for each run and each rebalance. Without an OpenTelemetry SDK the overhead is negligible.

Needs ``opentelemetry-api``: ``pip install "latchwork[tracing]"``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from latchwork.errors import BackendNotInstalled
from latchwork.jobs.observer import Observer, RebalanceInfo, RunInfo

try:
    from opentelemetry import trace
    from opentelemetry.trace import Status, StatusCode
except ImportError as error:
    raise BackendNotInstalled(
        'tracing needs the package opentelemetry-api; run: pip install "latchwork[tracing]"'
    ) from error

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_MAX_SHOWN = 20


class Tracing(Observer):
    """An observer that creates spans: ``JobManager(observers=[Tracing()])``.

    The span of a run is the current span while the job's ``run`` is called.

    Args:
        provider: Tracer provider; None uses the global one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("latchwork", tracer_provider=provider)

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Return a context manager that creates a span ``latchwork.run`` for a run, and records an exception in it."""
        attributes: dict[str, Any] = {
            "latchwork.node": info.node,
            "latchwork.job": info.job,
            "latchwork.items.count": len(info.items),
            "latchwork.items.first": list(info.items[:_MAX_SHOWN]),
            "latchwork.lag_s": info.lag_s,
        }
        if info.fire_time_s is not None:
            attributes["latchwork.fire_time_s"] = info.fire_time_s
        with self._tracer.start_as_current_span("latchwork.run", attributes=attributes):
            yield

    def rebalanced(self, info: RebalanceInfo) -> None:
        """Create a span ``latchwork.rebalance`` for a rebalance that has just ended."""
        ended = time.time_ns()
        span = self._tracer.start_span(
            "latchwork.rebalance",
            start_time=ended - int(info.seconds * 1e9),
            attributes={
                "latchwork.node": info.node,
                "latchwork.assignments": info.assignments,
                "latchwork.moves": info.moves,
            },
        )
        if info.error is not None:
            span.record_exception(info.error)
            span.set_status(Status(StatusCode.ERROR, str(info.error)))
        span.end(ended)
