"""How long tests wait: in time that this machine had, not in time that somebody else's machine was given instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: However starved the machine is, a wait lasts at most so many times its length.
MOST = 5.0
_JIFFY_S = 0.01


def stolen_s() -> float:
    """Seconds for which the host kept a processor of this machine waiting, since the boot; of the one that waited most.

    0 where the system does not tell.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    shares = (line.split() for line in lines if line.startswith("cpu") and line[3].isdigit())
    return max((int(columns[8]) * _JIFFY_S for columns in shares if len(columns) > 8), default=0.0)


class Deadline:
    """A moment so many seconds of this machine's time away."""

    def __init__(self, timeout_s: float) -> None:
        self._began, self._stolen = time.monotonic(), stolen_s()
        self._timeout_s = timeout_s

    @property
    def has_passed(self) -> bool:
        """True once the time is over; what was stolen meanwhile does not count."""
        took = time.monotonic() - self._began
        return took > self._timeout_s and (took - self.stolen_s > self._timeout_s or took > MOST * self._timeout_s)

    @property
    def stolen_s(self) -> float:
        """Seconds stolen since it was set."""
        return stolen_s() - self._stolen


def came_true(condition: Callable[[], object], timeout_s: float = 20.0, *, every_s: float = 0.02) -> object:
    """Ask until it is true, or the time is over; what it gave last."""
    deadline = Deadline(timeout_s)
    while not (value := condition()) and not deadline.has_passed:
        time.sleep(every_s)
    return value


def eventually(
    condition: Callable[[], object], timeout_s: float = 10.0, what: str = "the condition", *, every_s: float = 0.02
) -> object:
    """Wait until it is true, and return what it gave; what it gave last is in the failure."""
    value = came_true(condition, timeout_s, every_s=every_s)
    assert value, f"{what} did not come true within {timeout_s} s; last: {value!r}"
    return value
