"""Randomized exponential backoff between attempts."""

from __future__ import annotations

import random

_DOUBLINGS = 30


class Backoff:
    """Increasing random pauses between retries. The maximum doubles with each consecutive failure. For one thread.

    Args:
        first_s: Maximum length of the first pause, in seconds.
        longest_s: Maximum length of any pause, in seconds.
        jitter: The part of a pause that is random: 0 for none, 1 for all of it.
    """

    def __init__(self, first_s: float = 0.02, longest_s: float = 1.0, *, jitter: float = 0.5) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._failures = 0

    def reset(self) -> None:
        """Record a success, so that the next pause is short again."""
        self._failures = 0

    def next_s(self) -> float:
        """Return the number of seconds to pause before the next attempt.

        Each call increases the maximum of the next result.
        """
        pause_s = min(self._longest_s, self._first_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, _DOUBLINGS)
        return pause_s * random.uniform(1.0 - self._jitter, 1.0)
