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


class _Here(threading.local):
    """The state of a thread.

    Attributes:
        is_inside: Whether the thread is inside a marked call.
    """

    is_inside = False


here = _Here()


def mutex() -> threading.Lock:
    """Return a new mutex for one object. A simulation returns a simulated one."""
    return Mutex()


def condition(of: threading.Lock | None = None) -> threading.Condition:
    """Return a condition of the given mutex, or of a new one."""
    return threading.Condition(of or mutex())


def refuse_inside() -> None:
    """Raise ``ReentrantCall``: the thread is inside a marked call. The refused call had no effect."""
    raise ReentrantCall(
        "this thread is inside a call of latchwork already: a signal handler or a finalizer may not make another one; "
        "put into a queue.SimpleQueue or set a flag there, and call when the thread has returned"
    )


def entrance(call: Callable[P, T]) -> Callable[P, T]:
    """Mark a call of users. It raises ``ReentrantCall`` while its thread is inside a marked call.

    The interpreter checks for signals neither between the mark and the ``try`` nor in the ``finally``.
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
    """Call a function that may make marked calls, such as a user function."""
    before, here.is_inside = here.is_inside, False
    try:
        return call(*args, **options)
    finally:
        here.is_inside = before


def call_after_finalizer(call: Callable[[], object], name: str) -> None:
    """Make a call for a finalizer, in a thread with this name. It is skipped when the process is ending.

    The garbage collector runs finalizers in any thread and inside any mutex, including those of ``threading``. A
    finalizer must therefore not wait, and must not start a thread in the usual way, which waits.
    """
    with suppress(RuntimeError):  # the process is ending
        _start_natively(threading.Thread(target=call, name=name, daemon=True))


def _start_natively(thread: threading.Thread) -> None:
    """Start a thread from another thread, without waiting. A simulation replaces this function."""
    start_new_thread(thread.start, ())
