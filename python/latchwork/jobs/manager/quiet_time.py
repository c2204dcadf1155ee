"""Debouncing: when a burst of events has become quiet, or has lasted long enough. Pure."""

from __future__ import annotations


class QuietTime:
    """When a burst of events has become quiet, or has lasted long enough. Pure; one thread at a time."""

    def __init__(self, quiet_s: float, longest_s: float) -> None:
        self.change(quiet_s, longest_s)
        self._first: float | None = None
        self._last = 0.0
        self._not_before = 0.0

    def change(self, quiet_s: float, longest_s: float) -> None:
        """Wait so long from now on, also for what was noted already."""
        self._quiet_s = quiet_s
        self._longest_s = max(quiet_s, longest_s)

    def note(self, now: float) -> None:
        """Something changed."""
        self._first = now if self._first is None else self._first
        self._last = now

    def retry(self, now: float, delay_s: float) -> None:
        """What was due failed: it is due again after the delay, also without a new event."""
        self.note(now)
        self._not_before = now + delay_s

    def due_in_s(self, now: float) -> float | None:
        """Seconds until it is time to act; None when nothing changed."""
        if self._first is None:
            return None
        quiet = min(self._last + self._quiet_s, self._first + self._longest_s)
        return max(0.0, max(quiet, self._not_before) - now)

    def take(self) -> None:
        """Acting now on all that was noted."""
        self._first = None
        self._not_before = 0.0
