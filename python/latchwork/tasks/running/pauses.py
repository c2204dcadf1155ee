"""What is to be done later, one after the other, in one thread: pauses of retries, ends that have to be tried again."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from itertools import count

from latchwork.clock import Clock
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.user_code import call_user

_log = logging.getLogger(__name__)


class Pauses:
    """Calls functions at their moments. Safe to share between threads. A thread begins with the first.

    Args:
        clock: whose moments.
        label: for the name of the thread.
    """

    def __init__(self, clock: Clock, label: str) -> None:
        self._clock = clock
        self._label = label
        self._bell = Bell()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._thread: Background | None = None
        self._ends = False

    def later(self, after_s: float, call: Callable[[], object]) -> Callable[[], None]:
        """Have this called after so many seconds; it may ask the store. Dropped once this was closed.

        Returns:
            What ends this pause now; nothing once it is over.
        """
        with self._bell.mutex:
            number = next(self._numbers)
            if not self._ends:
                heapq.heappush(self._heap, (self._clock.now() + after_s, number, call))
                self._bell.ring()
                if self._thread is None:
                    self._thread = Background(self._run, f"latchwork-pauses-{self._label}")
        return partial(self._hurry, lambda each: each == number)

    def hurry(self) -> None:
        """End all pauses that there are: the node closes."""
        self._hurry(lambda _: True)

    def _hurry(self, is_meant: Callable[[int], bool]) -> None:
        with self._bell.mutex:
            now = self._clock.now()
            self._heap = [
                (min(due, now) if is_meant(number) else due, number, call) for due, number, call in self._heap
            ]
            heapq.heapify(self._heap)
            self._bell.ring()

    def close(self) -> None:
        """Drop what is left, and wait for what is being called. Twice is fine."""
        with self._bell.mutex:
            self._ends = True
            self._heap.clear()
            self._bell.ring()
            thread = self._thread
        if thread is not None and not thread.is_mine:
            thread.block()

    async def _run(self) -> None:
        while True:
            with self._bell.mutex:
                if self._ends:
                    return
                rings, now = self._bell.rings, self._clock.now()
                wait_s = self._heap[0][0] - now if self._heap else None
                call = heapq.heappop(self._heap)[2] if wait_s is not None and wait_s <= 0.0 else None
            if call is None:
                await self._bell.rung(rings, self._clock, wait_s)
            else:
                _make(call)


def _make(call: Callable[[], object]) -> None:
    try:
        call_user(call)
    except Exception:
        _log.exception("what was to be done after a pause failed: %r", call)
