"""What holds when an interrupt comes at any bytecode: Ctrl-C, ``SystemExit``, an exception that a thread is sent.

``Mutex`` is entered and left in native code: an interrupt comes before or inside the block, and a thread that is
inside already is refused instead of waiting for itself. ``refuse_inside`` refuses what is called in there. ``Finally``
runs what ends a block, and once more if an interrupt cut it short: its function must be one that can be begun again
from the start. ``surely`` makes a method like that. ``Itself`` is the ``__enter__`` of what was there before its
``with``. An ``Attempt`` has what undoes a call;
``store.steps`` says how a protocol uses it.
"""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from latchwork._core import Attempt, Driven, Finally, Itself, Mutex, OncePerThread, Surely, refuse_inside
from latchwork.errors import ReentrantCall

__all__ = [
    "Attempt",
    "Driven",
    "Event",
    "Finally",
    "Itself",
    "Mutex",
    "OncePerThread",
    "call_after_finalizer",
    "condition",
    "mutex",
    "once_left",
    "refuse_inside",
    "start_thread",
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


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; an interrupt leaves it started.

    ``Thread.start`` waits for the new thread with a condition that an interrupt may leave held, or free: the one hangs
    the new thread, the other raises ``RuntimeError``. So it is called in a thread that is started natively.
    """
    if threading.get_ident() != threading.main_thread().ident:
        thread.start()
    else:
        _start_beside(thread)


def _start_beside(thread: threading.Thread) -> None:
    """By another thread; a simulation has its own way instead."""
    failed: list[BaseException] = []
    gate = allocate_lock()
    gate.acquire()
    start_new_thread(_begin, (thread, gate, failed))
    gate.acquire()
    if failed:
        raise failed[0]


def _begin(thread: threading.Thread, gate: LockType, failed: list[BaseException]) -> None:
    try:
        thread.start()
    except BaseException as error:
        failed.append(error)
    gate.release()


def once_left(call: Callable[[], object]) -> None:
    """Make a call once this thread has left what it is inside of: in a thread of its own, which waits for that."""
    start_thread(threading.Thread(target=call, name="latchwork-after-handler", daemon=True))


def call_after_finalizer(call: Callable[[], object], name: str) -> None:
    """Make a call for a finalizer, in a thread of this name. At the end of the process there is no call.

    The collector runs a finalizer in any thread and inside any mutex, also those of ``threading``: so it must not wait,
    and must not start a thread that waits for such a mutex.
    """
    with suppress(RuntimeError):  # the process is ending
        _start_natively(threading.Thread(target=call, name=name, daemon=True))


def _start_natively(thread: threading.Thread) -> None:
    """By another thread, without waiting for it; a simulation has its own way instead."""
    start_new_thread(thread.start, ())


class Event(threading.Event):
    """An event that a signal handler may set while its thread sets it, or waits for it.

    The mutex of its condition is entered natively: ``Condition.__exit__``, which may be cut short before it has begun,
    would leave it held.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mutex = mutex()
        self._cond = condition(self._mutex)
        self._flag = False

    def set(self) -> None:
        """Set it, and wake who waits; a moment later in such a handler."""
        try:
            self._set()
        except ReentrantCall:
            once_left(self._set)

    def _set(self) -> None:
        with self._mutex:
            self._flag = True
            self._cond.notify_all()

    def clear(self) -> None:
        """Make it unset again."""
        with self._mutex:
            self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if the time, in seconds, is over before."""
        with self._mutex:
            return self._flag or self._cond.wait(timeout)


def surely(method: Callable[P, T]) -> Callable[P, T]:
    """Begin the method again if an interrupt cut it short, then raise that: for one that ends something."""
    return cast("Callable[P, T]", wraps(method)(Surely(method)))
