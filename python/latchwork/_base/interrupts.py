"""Protection against calls that a signal handler or a finalizer makes inside another call of the same thread.

A thread inside a call of this library may hold a mutex for which a nested call would wait forever. ``not_reentrant``
therefore refuses a call by a signal handler or finalizer while its thread is inside another public function. User
functions that the library calls may call it again: ``call_allowing_reentry`` permits that while they run.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from latchwork.errors import ReentrantCall

__all__ = [
    "call_after_finalizer",
    "call_allowing_reentry",
    "condition",
    "here",
    "mutex",
    "not_reentrant",
    "raise_reentrant_call",
]

P = ParamSpec("P")
T = TypeVar("T")

#: Made by ``mutex``; a simulation puts its own here.
Mutex = threading.Lock


class _ThreadState(threading.local):
    """The state of a thread.

    Attributes:
        is_inside: Whether the thread is inside a public function of the library, so that it may not enter another one.
    """

    is_inside = False


here = _ThreadState()


def mutex() -> threading.Lock:
    """Return a new mutex. Tests that simulate threads replace this function."""
    return Mutex()


def condition(of: threading.Lock | None = None) -> threading.Condition:
    """Return a condition variable that uses the given mutex, or a new mutex."""
    return threading.Condition(of or mutex())


def raise_reentrant_call() -> None:
    """Raise ``ReentrantCall``, because a signal handler or finalizer called the library inside another call of it.

    The refused call has no effect.
    """
    raise ReentrantCall(
        "this thread is inside a call of latchwork already: a signal handler or a finalizer may not make another one; "
        "put into a queue.SimpleQueue or set a flag there, and call when the thread has returned"
    )


def not_reentrant(call: Callable[P, T]) -> Callable[P, T]:
    """Decorator for a public function that must not be called while its thread is inside another such function.

    A nested call, by a signal handler for example, raises ``ReentrantCall``.
    """

    # The interpreter handles no signal between the assignment and the ``try``, nor in the ``finally``.
    @wraps(call)
    def enter(*args: P.args, **options: P.kwargs) -> T:
        before = here.is_inside
        if before:
            raise_reentrant_call()
        here.is_inside = True
        try:
            return call(*args, **options)
        finally:
            here.is_inside = before

    return enter


def call_allowing_reentry(call: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Call a user function, and let it call the library, which ``not_reentrant`` otherwise refuses at this point."""
    before, here.is_inside = here.is_inside, False
    try:
        return call(*args, **options)
    finally:
        here.is_inside = before


def call_after_finalizer(call: Callable[[], object], name: str) -> None:
    """Call a function on behalf of a finalizer, in a separate thread. It is not called when the process is ending.

    The garbage collector runs finalizers in any thread and inside any mutex, including those of ``threading``. A
    finalizer must therefore not wait, and must not start a thread in the usual way, which waits.

    Args:
        call: The function.
        name: Name of the thread.
    """
    with suppress(RuntimeError):  # the process is ending
        _start_without_waiting(threading.Thread(target=call, name=name, daemon=True))


def _start_without_waiting(thread: threading.Thread) -> None:
    """Start a thread and return at once. ``Thread.start`` would wait until it runs. Thread simulations replace this."""
    start_new_thread(thread.start, ())
