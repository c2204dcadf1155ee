"""Interrupted calls, and calls that a signal handler makes inside another call.

A thread inside one of our calls may hold a lock that another call waits for. ``entrance`` marks the calls of users and
refuses a signal handler or finalizer inside a marked call. ``call_outside`` removes the mark while a user function
runs.
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
    """What a thread remembers about the calls that it is in.

    Attributes:
        is_inside: Whether the thread is inside a marked call.
    """

    is_inside = False


here = _ThreadState()


def mutex() -> threading.Lock:
    """Return a new mutex for one object. Tests that simulate threads replace it."""
    return Mutex()


def condition(of: threading.Lock | None = None) -> threading.Condition:
    """Return a condition variable that uses the given mutex, or a new mutex."""
    return threading.Condition(of or mutex())


def refuse_inside() -> None:
    """Raise ``ReentrantCall``, because the current thread is already inside another call.

    This happens when a signal handler or a finalizer makes a call. The refused call had no effect.
    """
    raise ReentrantCall(
        "this thread is inside a call of latchwork already: a signal handler or a finalizer may not make another one; "
        "put into a queue.SimpleQueue or set a flag there, and call when the thread has returned"
    )


def entrance(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function so that a signal handler cannot call it inside another decorated function.

    A nested call raises ``ReentrantCall``. The interpreter checks for signals neither between the mark and the ``try``
    nor in the ``finally``.
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
    """Call a user function, which may call decorated functions again, although the thread is inside one."""
    before, here.is_inside = here.is_inside, False
    try:
        return call(*args, **options)
    finally:
        here.is_inside = before


def call_after_finalizer(call: Callable[[], object], name: str) -> None:
    """Make a call on behalf of a finalizer, in a separate thread. The call is skipped when the process is ending.

    The garbage collector runs finalizers in any thread and inside any mutex, including those of ``threading``. A
    finalizer must therefore not wait, and must not start a thread in the usual way, which waits.
    """
    with suppress(RuntimeError):  # the process is ending
        _start_natively(threading.Thread(target=call, name=name, daemon=True))


def _start_natively(thread: threading.Thread) -> None:
    """Start a thread from another thread, without waiting for it. Tests that simulate threads replace this function."""
    start_new_thread(thread.start, ())
