"""Limit how often the password of an account may be guessed. In memory: each server process counts for itself."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from latchwork.errors import LatchworkError
from latchwork.spi import mutex

_FREE = 5
_PER_TRY_S = 10.0
_MOST_NAMES = 10_000


class TooManyTries(LatchworkError):
    """The password of this account was guessed too often.

    Attributes:
        wait_s: seconds until the next try is looked at.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong passwords; try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class Tries:
    """Wrong passwords by account: after five, each further try waits 10 s longer than the one before, up to 300 s.

    The address of the client does not count: an attacker has many. A try counts as wrong from its start until it is
    right, so tries at the same time get no more guesses than tries in a row.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._mutex = mutex()
        self._now = now
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def begin(self, name: str) -> None:
        """Count a try of this account.

        Raises:
            TooManyTries: it has to wait, and was not counted.
        """
        key, now = name.casefold(), self._now()
        with self._mutex:
            count, last = self._failed.get(key, (0, 0.0))
            wait_s = last + min(count - _FREE + 1, 30) * _PER_TRY_S - now
            if count >= _FREE and wait_s > 0:
                raise TooManyTries(wait_s)
            self._failed[key] = (count + 1, now)
            self._failed.move_to_end(key)
            if len(self._failed) > _MOST_NAMES:
                self._failed.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the tries of this account: the password was right."""
        with self._mutex:
            self._failed.pop(name.casefold(), None)
