"""The deadline of a call, and the delay with which clients of lower priority act. No I/O."""

from __future__ import annotations

from latchwork.clock import Clock

#: If the client in charge does not act, the client of each further rank acts this many seconds later, ...
RANK_DELAY_S = 0.15
#: ... up to this rank.
MAX_RANK = 10


class Deadline:
    """The time at which the timeout of a call ends. Single-threaded.

    Args:
        clock: The clock.
        timeout_s: Seconds from now. None for no deadline. A Boolean is refused, because other libraries use it for
            "block or not".
    """

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        if isinstance(timeout_s, bool):
            raise TypeError(f"timeout_s is in seconds, not {timeout_s!r}; None waits for ever, 0 tries once")
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"timeout_s must be None or at least 0 seconds, not {timeout_s!r}")
        self._clock = clock
        self._until = None if timeout_s is None else clock.now() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """Return the seconds until the deadline, at least 0. None if there is no deadline.

        Args:
            at_most: Return at most this many seconds. None for no limit.
        """
        left = None if self._until is None else max(0.0, self._until - self._clock.now())
        if at_most is None:
            return left
        return at_most if left is None else min(left, at_most)

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock.now() >= self._until


def get_rank_delay_s(rank: int) -> float:
    """Return how long a client waits before it does work that any one client must do, such as reporting a lost worker.

    The client of rank 0 acts at once. Each further rank waits longer, so that it acts only if all clients before it
    have failed.

    Args:
        rank: Position of the client among those that may act, from 0.
    Returns:
        The delay in seconds.
    """
    return RANK_DELAY_S * min(rank, MAX_RANK)
