"""The wall clock for schedules, which follows a jump only once it has lasted for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from latchwork._base.interrupts import mutex
from latchwork.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger(__name__)

#: Change of the wall clock against the monotonic clock, in seconds, that counts as a jump.
JUMP_S = 2.0
#: Seconds that a jump has to last before it is followed.
CONFIRM_S = 30.0


class WallClock:
    """Seconds since the epoch, unaffected by a wall clock that is wrong for a short time. Thread-safe.

    The wall clock jumps when it changes against the monotonic clock. ``now`` then goes on as before, until a later
    reading shows that the jump has lasted for ``CONFIRM_S``. Not noticed: a clock that is wrong from the start.

    Args:
        clock: Monotonic clock, which runs through suspend.
        wall_s: Returns seconds since the epoch by the machine's clock.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, wall_s: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall_s = wall_s
        self._mutex = mutex()
        self._offset_s = wall_s() - clock.now()
        self._jumped: tuple[float, float] | None = None  # the new offset, and since when

    @property
    def jumped_s(self) -> float:
        """The seconds by which the wall clock has jumped, while ``now`` does not follow the jump yet; otherwise 0."""
        jumped = self._jumped
        return 0.0 if jumped is None else jumped[0] - self._offset_s

    def now(self) -> float:
        """Return the seconds since the epoch, without a jump of the wall clock that has not lasted yet."""
        with self._mutex:
            now = self._clock.now()
            offset_s = self._wall_s() - now
            if abs(offset_s - self._offset_s) < JUMP_S:
                if self._jumped is not None:
                    _log.warning("the wall clock is correct again; its jump started nothing")
                self._offset_s, self._jumped = offset_s, None
            elif self._jumped is None or abs(offset_s - self._jumped[0]) >= JUMP_S:
                self._jumped = offset_s, now
                _log.warning(
                    "the wall clock has jumped by %.0f s; schedules follow it if it stays there for %.0f s",
                    self.jumped_s,
                    CONFIRM_S,
                )
            elif now - self._jumped[1] >= CONFIRM_S:
                _log.warning("schedules follow the jump of the wall clock by %.0f s", self.jumped_s)
                self._offset_s, self._jumped = offset_s, None
            return now + self._offset_s
