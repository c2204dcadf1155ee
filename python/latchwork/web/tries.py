"""How often somebody may guess a password. Kept in memory: it slows down, it locks nobody out for good."""

from __future__ import annotations

import time
from collections import OrderedDict

from latchwork.interrupts import mutex

_FREE = 5
_PER_TRY_S = 10.0
_MOST_NAMES = 10_000


class Tries:
    """Wrong tries by name; after five a name waits 10 s for each further one, until one is right."""

    def __init__(self) -> None:
        self._mutex = mutex()
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, name: str) -> float:
        """Seconds until this name may try again; 0: now."""
        with self._mutex:
            count, last = self._failed.get(name, (0, 0.0))
        if count < _FREE:
            return 0.0
        return max(0.0, last + min(count - _FREE + 1, 30) * _PER_TRY_S - time.monotonic())

    def failed(self, name: str) -> None:
        """A wrong try. The names that have not tried for longest are forgotten."""
        with self._mutex:
            count, _ = self._failed.pop(name, (0, 0.0))
            self._failed[name] = (count + 1, time.monotonic())
            if len(self._failed) > _MOST_NAMES:
                self._failed.popitem(last=False)

    def right(self, name: str) -> None:
        """A right one."""
        with self._mutex:
            self._failed.pop(name, None)
