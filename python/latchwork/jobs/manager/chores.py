"""When the leader acts: rebalances after a burst of events, and chores now and then, which clean and sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from latchwork.errors import LatchworkError
from latchwork.jobs.manager.leadership import Leadership
from latchwork.jobs.manager.strategies import ManagerOptions

log = logging.getLogger(__name__)

_CHORE_RETRY_S = 30.0
#: The first time in a term comes no later: else leaders that change more often than a period would never do it.
_FIRST_S = 600.0


class QuietTime:
    """Tells when a burst of events has become quiet, or has lasted long enough. Pure; one thread at a time."""

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
        """A rebalance failed: it is due again after the delay, also without a new event."""
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


@dataclass(slots=True)
class _Chore:
    """A task that the leader repeats; a period of 0 is never."""

    name: str
    do: Callable[[Leadership], None]
    period_s: float
    since: float
    done: bool = False
    retry_at: float | None = None

    @property
    def next_at(self) -> float:
        if self.retry_at is not None:
            return self.retry_at
        return self.since + (self.period_s if self.done else min(self.period_s, _FIRST_S))


class Chores:
    """All chores of one term. One thread only."""

    def __init__(self, options: ManagerOptions, now: float) -> None:
        self._cleanup = _Chore("cleanup", lambda term: term.cleanup(), options.cleanup_period_s, now)
        self._sweep = _Chore("sweep", lambda term: term.sweep(self._outcome_keep_s), options.sweep_period_s, now)
        self._outcome_keep_s = options.outcome_keep_s

    def change(self, options: ManagerOptions) -> None:
        """Other periods hold from now on, counted from when each chore was last done."""
        self._cleanup.period_s = options.cleanup_period_s
        self._sweep.period_s = options.sweep_period_s
        self._outcome_keep_s = options.outcome_keep_s

    def due_in_s(self, now: float) -> float | None:
        """Seconds until the next one; None when there is none."""
        return min((max(0.0, chore.next_at - now) for chore in self._active()), default=None)

    def run_due(self, now: float, term: Leadership) -> None:
        """Do what is due; a failure is reported, and it is tried again soon."""
        for chore in self._active():
            if chore.next_at <= now:
                chore.since, chore.done, chore.retry_at = now, True, None
                try:
                    chore.do(term)
                except LatchworkError as error:
                    chore.retry_at = now + min(chore.period_s, _CHORE_RETRY_S)
                    log.warning("%s is tried again in %.3g s: %s", chore.name, chore.retry_at - now, error)

    def _active(self) -> list[_Chore]:
        return [chore for chore in (self._cleanup, self._sweep) if chore.period_s > 0]
