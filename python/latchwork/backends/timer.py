"""A thread that calls short functions at a later time, for retries, deadlines and heartbeats."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from latchwork._base.interrupts import condition, mutex
from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.clock import Clock
from latchwork.errors import Closed

_log = logging.getLogger(__name__)


class Timer:
    """A thread that calls functions at a later time. The functions must not block. Thread-safe."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._mutex = mutex()
        self._changed = condition(self._mutex)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._waiting: set[Future[None]] = set()
        self._numbers = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call a function after ``delay_s`` seconds. It is not called if the timer is closed first."""
        self.call_at(self._clock.now() + delay_s, call)

    def call_at(self, at: float, call: Callable[[], object]) -> None:
        """Call a function at a local clock time. It is not called if the timer is closed first."""
        with self._mutex:
            heapq.heappush(self._due, (at, next(self._numbers), call))
            self._changed.notify()

    def after(self, delay_s: float) -> Future[None]:
        """Return a future that completes after ``delay_s`` seconds. It fails with ``Closed`` if the timer is closed
        first.
        """
        future: Future[None] = LightFuture()
        with self._mutex:
            closed = self._closed
            if not closed:
                self._waiting.add(future)
        if closed:
            reject(future, Closed("the store was closed"))
        else:
            self.call_later(delay_s, lambda: self._end(future))
        return future

    def close(self, join_s: float | None = None) -> None:
        """Stop the timer, discard pending calls, and wait at most ``join_s`` seconds for the thread. Idempotent."""
        with self._mutex:
            self._closed = True
            waiting, self._waiting = self._waiting, set()
            self._changed.notify()
        for future in waiting:
            reject(future, Closed("the store was closed"))
        if threading.current_thread() is not self._thread:
            self._thread.join(join_s)

    def _end(self, future: Future[None]) -> None:
        with self._mutex:
            self._waiting.discard(future)
        resolve(future, None)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                _log.exception("a delayed step failed; please report this")

    def _next(self) -> Callable[[], object] | None:
        with self._mutex:
            while not self._closed:
                wait_s = self._due[0][0] - self._clock.now() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._clock.wait_condition(self._changed, wait_s)
            return None


class RepeatedCall:
    """A function that a timer calls repeatedly, each time at the time that the previous call has returned. Thread-safe.

    Args:
        timer: Its thread calls the function, which must not block.
        call: Returns the local clock time of the next call, or None for no further call.
    """

    def __init__(self, timer: Timer, call: Callable[[], float | None]) -> None:
        self._timer = timer
        self._call = call
        self._mutex = mutex()
        self._next_at = math.inf

    def wake(self) -> None:
        """Make the next call as soon as possible. This also makes the first call. Does not block."""
        with self._mutex:
            self._plan(-math.inf)

    def _plan(self, at: float) -> None:
        self._next_at = at
        self._timer.call_at(at, partial(self._run, at))

    def _run(self, at: float) -> None:
        with self._mutex:
            if at != self._next_at:  # another call is planned instead
                return
            self._next_at = math.inf
        next_at = self._call()
        with self._mutex:
            if next_at is not None and self._next_at == math.inf:  # it was not woken meanwhile
                self._plan(next_at)
