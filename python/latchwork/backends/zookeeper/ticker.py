"""One thread for everything that happens later: deadlines, backoff, sweeps, the watches' heartbeat.

Nothing here touches the network. Functions given to it must not block.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from latchwork.backends.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from latchwork.clock import Clock

_log = logging.getLogger(__name__)


class Ticker:
    """Calls functions later, in its own thread. Safe to share."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call the function once, after the delay; never when closed before."""
        with self._changed:
            heapq.heappush(self._due, (self._clock.now() + delay_s, next(self._numbers), call))
            self._changed.notify()

    def pause(self, delay_s: float) -> Future[None]:
        """A future that ends after the delay."""
        future: Future[None] = Future()
        self.later(delay_s, lambda: _end(future))
        return future

    def close(self) -> None:
        """Stop and join; what is due later is dropped. Twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                _log.exception("a timed task of the ZooKeeper store failed; please report this")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                wait_s = self._due[0][0] - self._clock.now() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._clock.wait_condition(self._changed, wait_s)
            return None


def _end(future: Future[None]) -> None:
    resolve(future, None)
