"""How many runs of a worker are about to return: an end waits a moment for them, and is decided together with theirs.

Nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from latchwork.interrupts import mutex
from latchwork.primitives import QueueClaim

#: Calls that take longer are not waited for.
_SHORT_S = 0.02


class Company:
    """The runs of one worker that have not returned. Safe to share between threads.

    Args:
        typical_s: how long calls take.
    """

    def __init__(self, typical_s: Callable[[], float]) -> None:
        self._typical_s = typical_s
        self._mutex = mutex()
        self._runs: WeakSet[QueueClaim] = WeakSet()

    def begun(self, claim: QueueClaim) -> None:
        """It is to be run."""
        with self._mutex:
            self._runs.add(claim)

    def returned(self, claim: QueueClaim) -> None:
        """It has returned, or will not. Twice is fine."""
        with self._mutex:
            self._runs.discard(claim)

    def comes(self) -> bool:
        """Whether another end is to be expected in a moment."""
        with self._mutex:
            return bool(self._runs) and self._typical_s() < _SHORT_S
