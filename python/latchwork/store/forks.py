"""Detects the use of objects in a forked child of the process that created them."""

from __future__ import annotations

import os
from weakref import WeakSet

from latchwork._base.event import Signal
from latchwork.errors import ForkedProcess

_guards: WeakSet[ForkGuard] = WeakSet()


def _mark_guards_inherited() -> None:
    """Mark every guard as inherited. Called in a forked child."""
    for guard in list(_guards):
        guard.is_foreign = True
    _guards.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_guards_inherited)


def make_lost_signal() -> Signal:
    """Return a signal that is already set, for a lock or session that a forked child inherited and must consider
    lost.
    """
    lost = Signal()
    lost.set()
    return lost


class ForkGuard:
    """Detects the use of an object in a forked child of the process that created it. Thread-safe and fork-safe.

    Attributes:
        is_foreign: True in a forked child. Cheap to read.

    Args:
        what: The object, as named in the error message.
        made: The verb in the message.
        remedy: What to do in the child, for the message.
    """

    __slots__ = ("__weakref__", "_pid", "_remedy", "_what", "is_foreign")

    def __init__(
        self, what: str, *, made: str = "made", remedy: str = "connect again in the child, create another"
    ) -> None:
        self._what = f"{what} was {made}"
        self._remedy = remedy
        self._pid = os.getpid()
        self.is_foreign = False
        _guards.add(self)

    def check(self) -> None:
        """Raise ``ForkedProcess`` if this process inherited the object through a fork."""
        if self.is_foreign:
            raise self.error()

    def error(self) -> ForkedProcess:
        """Return the ``ForkedProcess`` error that ``check`` raises."""
        return ForkedProcess(f"{self._what} by process {self._pid} before a fork; {self._remedy}")
