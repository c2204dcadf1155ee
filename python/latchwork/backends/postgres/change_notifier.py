"""Notifications of other stores with the same root about changed keys, at most one every few milliseconds.

A notification takes a lock of the whole server when its transaction commits. So it is a separate transaction, which is
sent directly after the write and not flushed to the disk. A write that follows too soon is notified with a later write
or by the timer. The notification contains the keys, so that a store that watches none of them does not read anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from latchwork._base.interrupts import mutex
from latchwork.backends.timer import Timer
from latchwork.clock import Clock

_MIN_INTERVAL_S = 0.004
#: A notification holds 8,000 bytes; more keys than fit are "everything".
_MAX_CHARS = 4_000
_EVERYTHING = "*"


class ChangeNotifier:
    """Collects the keys that a store has changed, and notifies the other stores of them. Thread-safe.

    Args:
        store_name: A unique name of the store.
        clock: The local clock.
        timer: Sends a notification that was not sent with a write.
        send: Sends a notification without a write. Must not block.
    """

    def __init__(self, store_name: str, clock: Clock, timer: Timer, send: Callable[[], None]) -> None:
        self._store_name = store_name
        self._clock = clock
        self._timer = timer
        self._send = send
        self._lock = mutex()
        self._keys: set[str] = set()
        self._size = 0
        self._sent_at = float("-inf")
        self._is_due = False

    def add(self, keys: Iterable[str] | None) -> None:
        """Add keys that are being written. None means that any key may have changed.

        A notification is sent with the write or shortly after.
        """
        with self._lock:
            for key in (_EVERYTHING,) if keys is None else keys:
                if key not in self._keys:
                    self._keys.add(key)
                    self._size += len(key) + 1
            if self._size > _MAX_CHARS:
                self._keys, self._size = {_EVERYTHING}, 1
            if self._is_due:
                return
            self._is_due = True
        self._timer.call_later(_MIN_INTERVAL_S, self._on_timer)

    def take_payload(self) -> bytes | None:
        """Return the payload of the notification that is to be sent now. Later changes are collected for the next one.

        Returns:
            The payload, or None if there are no changes or the last notification was sent too recently.
        """
        with self._lock:
            now = self._clock.now()
            if not self._keys or now < self._sent_at + _MIN_INTERVAL_S:
                return None
            self._sent_at = now
            keys, self._keys, self._size = self._keys, set(), 0
        keys_text = _EVERYTHING if _EVERYTHING in keys else " ".join(keys)
        return f"{self._store_name} {keys_text}".encode()

    def send_soon(self) -> None:
        """Allow the next notification to be sent without a pause, because the store is being closed."""
        self._sent_at = float("-inf")

    def parse_notification(self, notification: bytes) -> list[str] | None:
        """Return the keys in the notification of another store. None means that any key may have changed.

        The list is empty for a notification that this store has sent.
        """
        store_name, _, keys_text = notification.decode(errors="replace").partition(" ")
        if store_name == self._store_name:
            return []
        return None if keys_text == _EVERYTHING else keys_text.split()

    def _on_timer(self) -> None:
        with self._lock:
            self._is_due = False
            has_keys = bool(self._keys)
        if has_keys:
            self._send()
