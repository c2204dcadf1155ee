"""Protection against calls that a signal handler or a finalizer makes inside another call of the same thread.

A thread inside one of our calls may hold a lock for which another call waits. ``entrance`` marks the public functions,
and refuses calls of a signal handler or finalizer inside a marked function. ``call_outside`` removes the mark while a
user function runs.
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
    "call_outside",
    "condition",
    "entrance",
    "here",
    "mutex",
    "refuse_inside",
]

P = ParamSpec("P")
T = TypeVar("T")

#: Made by ``mutex``; a simulation puts its own here.
Mutex = threading.Lock


class _ThreadState(threading.local):
    """The state of a thread.

    Attributes:
        is_inside: Whether the thread is inside a marked function.
    """

    is_inside = False


here = _ThreadState()


def mutex() -> threading.Lock:
    """Return a new mutex. Tests that simulate threads replace this function."""
    return Mutex()


def condition(of: threading.Lock | None = None) -> threading.Condition:
    """Return a condition variable that uses the given mutex, or a new mutex."""
    return threading.Condition(of or mutex())


def refuse_inside() -> None:
    """Raise ``ReentrantCall``, because the current thread is already inside another call.

    This happens when a signal handler or a finalizer makes a call. The refused call has no effect.
    """
    raise ReentrantCall(
        "this thread is inside a call of latchwork already: a signal handler or a finalizer may not make another one; "
        "put into a queue.SimpleQueue or set a flag there, and call when the thread has returned"
    )


def entrance(call: Callable[P, T]) -> Callable[P, T]:
    """Decorator of a public function, which a signal handler then cannot call inside another decorated function.

    A nested call raises ``ReentrantCall``. The interpreter checks for signals neither between setting the mark and the
    ``try`` nor in the ``finally``.
    """

    @wraps(call)
    def enter(*args: P.args, **options: P.kwargs) -> T:
        before = here.is_inside
        if before:
            refuse_inside()
        here.is_inside = True
        try:
            return call(*args, **options)
        finally:
            here.is_inside = before

    return enter


def call_outside(call: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Call a user function without the mark of ``entrance``, so that the function may make calls itself."""
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
        _start_natively(threading.Thread(target=call, name=name, daemon=True))


def _start_natively(thread: threading.Thread) -> None:
    """Start a thread without waiting until it runs. Tests that simulate threads replace this function."""
    start_new_thread(thread.start, ())
