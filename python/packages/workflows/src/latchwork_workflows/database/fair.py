"""One writer at a time in a process, in the order of arrival: SQLite's own wait is not fair, and gives up."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

from latchwork.spi import mutex


class FairLock:
    """A lock that passes in the order in which it was asked for. Safe to share; not re-entrant."""

    def __init__(self) -> None:
        self._mutex = mutex()
        self._held = False
        self._line: deque[threading.Event] = deque()

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Wait for it; False if the time, in seconds, is over before."""
        turn = threading.Event()
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            self._line.append(turn)
        try:
            if turn.wait(timeout_s):
                return True
        except BaseException:
            self._leave(turn)
            raise
        return not self._leave(turn, keep=True)

    def _leave(self, turn: threading.Event, *, keep: bool = False) -> bool:
        """Out of the line; False if it was ours by then, and is kept if that is wanted."""
        with self._mutex:
            if turn in self._line:
                self._line.remove(turn)
                return True
        if not keep:
            self.release()
        return False

    def release(self) -> None:
        """Pass it to whoever has waited longest."""
        with self._mutex:
            if self._line:
                self._line.popleft().set()
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
