"""What nodes of workflows tell on stderr, where a line that repeats itself stands once a minute; and when they end."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latchwork.spi import LOG_FORMAT, counted, debugging, on_end_signals

_EVERY_S = 60.0
_MOST = 1_000


def log_to_stderr() -> None:
    """Have a node tell what happens to it. With debugging on, the command line tells all of it already."""
    if debugging():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    handler.addFilter(Repeats())
    logging.getLogger().addHandler(handler)  # `basicConfig` does nothing beside the one that keeps commands quiet
    for distribution in ("latchwork", "latchwork_workflows"):
        logging.getLogger(distribution).setLevel(logging.INFO)


@contextmanager
def until_signal(hurry: Callable[[], object]) -> Iterator[threading.Event]:
    """Set an event at the first signal of SIGTERM and SIGINT, and call ``hurry`` at the second one.

    The third signal acts as before.
    """
    stop = threading.Event()
    with on_end_signals(stop.set, hurry):
        yield stop


class Repeats(logging.Filter):
    """Lets a line pass that was not told in the last minute: who tries again twice a second says so twice a second.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told; with how often it was not."""
        line, now = (record.name, record.getMessage()), self._now()
        at, missed = self._told.get(line, (float("-inf"), 0))
        if now - at < _EVERY_S:
            self._told[line] = at, missed + 1
            return False
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[line] = now, 0
        if missed:
            record.msg, record.args = f"{line[1]} (and {counted(missed, 'time')} more since then)", ()
        return True
