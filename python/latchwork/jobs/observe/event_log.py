"""Events of a node as structured log records: the event and its figures are attributes of the record.

A formatter that writes JSON finds them in ``record.latchwork``: ``{"event": "run_failed", "node": "n1", ...}``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from latchwork.jobs.observe.observer import Observer, PoolInfo, RebalanceInfo, RunInfo

log = logging.getLogger("latchwork.events")


class EventLog(Observer):
    """Every node has one. Starts, ends and rebalances are at info, single runs at debug, failures at warning.

    A run that failed is an error, and told here only, with its traceback.
    """

    def started(self, node_id: str, seconds: float) -> None:
        """Event ``node_started``."""
        _say(logging.INFO, "node_started", node=node_id, seconds=seconds)

    def closed(self, node_id: str, seconds: float) -> None:
        """Event ``node_closed``."""
        _say(logging.INFO, "node_closed", node=node_id, seconds=seconds)

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Events ``run_started``, and ``run_ended`` or ``run_failed``."""
        about: dict[str, Any] = {
            "node": info.node,
            "job": info.job,
            "items": len(info.items),
            "fire_time_s": info.fire_time_s,
        }
        _say(logging.DEBUG, "run_started", **about, lag_s=info.lag_s)
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            took_s = time.perf_counter() - began
            _say(logging.ERROR, "run_failed", raised=error, **about, seconds=took_s, error=type(error).__name__)
            raise
        _say(logging.DEBUG, "run_ended", **about, seconds=time.perf_counter() - began)

    def rebalanced(self, info: RebalanceInfo) -> None:
        """Event ``rebalanced``, or ``rebalance_failed``; none when nothing had to be written."""
        about: dict[str, Any] = {"node": info.node, "seconds": info.seconds, "shares": info.shares, "moves": info.moves}
        if info.error is not None:
            _say(logging.WARNING, "rebalance_failed", **about, error=type(info.error).__name__)
        elif info.shares:
            _say(logging.INFO, "rebalanced", **about)

    def pool_read(self, info: PoolInfo) -> None:
        """Event ``pool_read``, or ``pool_read_failed``."""
        failed = info.items is None
        level, event = (logging.WARNING, "pool_read_failed") if failed else (logging.DEBUG, "pool_read")
        _say(level, event, node=info.node, job=info.job, seconds=info.seconds, items=info.items)


def _say(level: int, event: str, *, raised: BaseException | None = None, **figures: Any) -> None:
    if log.isEnabledFor(level):
        shown = {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}
        shown = {name: value for name, value in shown.items() if value is not None}
        text = " ".join(f"{name}={value}" for name, value in shown.items())
        log.log(level, "%s %s", event, text, exc_info=raised, extra={"latchwork": {"event": event, **shown}})
