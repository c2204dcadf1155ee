"""Which process an object belongs to: a child of a fork must not use what its parent made.

Nothing here touches the network.
"""

from __future__ import annotations

import os

from latchwork.errors import ForkedProcess
from latchwork.store.steps import Signal

#: Forks between the first process and this one: to ask the system each time for the process takes longer.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - of the process, as is what it counts
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def lost_by_fork() -> Signal:
    """The event that a child of a fork sees for an ownership of its parent: set, because the child holds nothing."""
    lost = Signal()
    lost.set()
    return lost


class ForkGuard:
    """The process that made an object; a child of it must not use the object. Safe to share, also with children.

    Args:
        what: the object, as the error's message begins.
        made: the verb for it.
        remedy: what to do in the child.
    """

    def __init__(
        self, what: str, *, made: str = "made", remedy: str = "connect again in the child, make another"
    ) -> None:
        self._what = f"{what} was {made}"
        self._remedy = remedy
        self._pid = os.getpid()
        self._forks = _forks

    @property
    def is_foreign(self) -> bool:
        """True in a child."""
        return self._forks != _forks

    def check(self) -> None:
        """Let a call pass.

        Raises:
            ForkedProcess: this process is a child of the one that made the object.
        """
        if self._forks != _forks:
            raise ForkedProcess(f"{self._what} by process {self._pid} before a fork; {self._remedy}")
