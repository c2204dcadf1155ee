"""Which keys the other stores of a root are notified of, and when: at most every few milliseconds.

A notification takes a lock of the whole server as its transaction commits. So it is a transaction of its own that is
not flushed, sent right behind the write. What is written too soon after it is notified with a later write, or by the
timer. It names the keys: a store that watches none of them does not look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from latchwork._base.interrupts import mutex
from latchwork.backends.timer import Timer
from latchwork.clock import Clock

_EVERY_S = 0.004
#: A notification holds 8,000 bytes; more keys than fit are "everything".
_MOST_CHARS = 4_000
_EVERYTHING = "*"


class Notices:
    """What one store owes the others. Safe to share between threads.

    Args:
        who: names the store.
        send: has a notification sent, without a write; must not block.
    """

    def __init__(self, who: str, clock: Clock, timer: Timer, send: Callable[[], None]) -> None:
        self._who = who
        self._clock = clock
        self._timer = timer
        self._send = send
        self._lock = mutex()
        self._keys: set[str] = set()
        self._size = 0
        self._sent_at = float("-inf")
        self._is_due = False

    def add(self, keys: Iterable[str] | None) -> None:
        """These keys are being written, or any; the others are notified behind the write or a moment later."""
        with self._lock:
            for key in (_EVERYTHING,) if keys is None else keys:
                if key not in self._keys:
                    self._keys.add(key)
                    self._size += len(key) + 1
            if self._size > _MOST_CHARS:
                self._keys, self._size = {_EVERYTHING}, 1
            if self._is_due:
                return
            self._is_due = True
        self._timer.call_later(_EVERY_S, self._tick)

    def take(self) -> bytes | None:
        """The notification that is sent now; None if there is nothing to tell, or it is too soon."""
        with self._lock:
            now = self._clock.now()
            if not self._keys or now < self._sent_at + _EVERY_S:
                return None
            self._sent_at = now
            keys, self._keys, self._size = self._keys, set(), 0
        told = _EVERYTHING if _EVERYTHING in keys else " ".join(keys)
        return f"{self._who} {told}".encode()

    def hurry(self) -> None:
        """Let the next one be sent at once: the store is being closed."""
        self._sent_at = float("-inf")

    def keys_of(self, notification: bytes) -> list[str] | None:
        """The keys that another store has written; None for any, and none for a notification of our own."""
        who, _, told = notification.decode(errors="replace").partition(" ")
        if who == self._who:
            return []
        return None if told == _EVERYTHING else told.split()

    def _tick(self) -> None:
        with self._lock:
            self._is_due = False
            is_owed = bool(self._keys)
        if is_owed:
            self._send()
