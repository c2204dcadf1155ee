"""What holds when an interrupt comes at any bytecode: Ctrl-C, ``SystemExit``, an exception that a thread is sent.

``Mutex`` is entered and left in native code: an interrupt comes before or inside the block, and a thread that is
inside already is refused instead of waiting for itself. ``Finally`` runs what ends a block, and once more if an
interrupt cut it short: its function must be one that can be begun again from the start. ``surely`` makes a method
like that. ``Itself`` is the ``__enter__`` of what was there before its ``with``. An ``Attempt`` has what undoes a call;
``store.steps`` says how a protocol uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from latchwork._core import Attempt, Driven, Finally, Itself, Mutex, OncePerThread, Surely
from latchwork.errors import ReentrantCall

__all__ = [
    "Attempt",
    "Driven",
    "Event",
    "Finally",
    "Itself",
    "Mutex",
    "OncePerThread",
    "condition",
    "mutex",
    "once_left",
    "surely",
]

P = ParamSpec("P")
T = TypeVar("T")


def mutex() -> Mutex:
    """A new mutex, for one object; in a simulation, one of its own."""
    return Mutex()


def condition(of: Mutex | None = None) -> threading.Condition:
    """A condition of a mutex: one that there is, or a new one."""
    return threading.Condition(cast("Any", of or mutex()))


def once_left(call: Callable[[], object]) -> None:
    """Make a call once this thread has left what it is inside of: in a thread of its own, which waits for that."""
    threading.Thread(target=call, name="latchwork-after-handler", daemon=True).start()


class Event(threading.Event):
    """An event that a signal handler may set while its thread sets it, or waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = condition()

    def set(self) -> None:
        """Set it, and wake who waits; a moment later in such a handler."""
        try:
            super().set()
        except ReentrantCall:
            once_left(super().set)


def surely(method: Callable[P, T]) -> Callable[P, T]:
    """Begin the method again if an interrupt cut it short, then raise that: for one that ends something."""
    return cast("Callable[P, T]", wraps(method)(Surely(method)))
