"""So many at a time, of those that would all ask the server at once. In the order in which they came."""

from __future__ import annotations

from collections import deque

from latchwork.clock import Clock
from latchwork.interrupts import mutex
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.steps import Pause, Signal


class Gate:
    """Lets so many in at a time, of one process. Safe to share between threads."""

    def __init__(self, limit: int) -> None:
        self._lock = mutex()
        self._free = limit
        self._turns: deque[Signal] = deque()

    async def enter(self, waiter: Waiter, clock: Clock) -> bool:
        """Wait for a place; False when the waiter was called off. Who is let in calls ``leave``."""
        turn = Signal()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            self._turns.append(turn)
        take_back = waiter.off.call_when_set(turn.set)
        try:
            await Pause(clock, turn, None)
        except BaseException:
            if not self._give_up(turn):
                self.leave()
            raise
        finally:
            take_back()
        return not self._give_up(turn)

    def _give_up(self, turn: Signal) -> bool:
        """Wait no more; False if it was our turn already."""
        with self._lock:
            waits = turn in self._turns
            if waits:
                self._turns.remove(turn)
            return waits

    def leave(self) -> None:
        """Let the next one in."""
        with self._lock:
            if self._turns:
                self._turns.popleft().set()
            else:
                self._free += 1

    def close(self) -> None:
        """Nothing to end: whoever waits is called off."""
