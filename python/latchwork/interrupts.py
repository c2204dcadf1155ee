"""Calls that are interrupted, and calls that a signal handler makes in the middle of another one.

A thread that is inside one of our calls may hold what the next one waits for. ``entrance`` marks the outermost calls of
users, and refuses a signal handler or a finalizer that comes in the middle of one. ``call_outside`` takes the mark away
while a function of the user runs.
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
    """The state of one thread.

    Attributes:
        is_inside: it is inside one of our calls.
    """

    is_inside = False


here = _Here()


def mutex() -> threading.Lock:
    """Return a new mutex, for one object; in a simulation, a simulated one."""
    return Mutex()


def condition(of: threading.Lock | None = None) -> threading.Condition:
    """Return a condition of a mutex: of the given one, or of a new one."""
    return threading.Condition(of or mutex())


def refuse_inside() -> None:
    """Raise ``ReentrantCall``: a thread made a call inside of another one. It has had no effect."""
    raise ReentrantCall(
        "this thread is inside a call of latchwork already: a signal handler or a finalizer may not make another one; "
        "put into a queue.SimpleQueue or set a flag there, and call when the thread has returned"
    )


def entrance(call: Callable[P, T]) -> Callable[P, T]:
    """Mark a call of users: it raises ``ReentrantCall`` while its thread is inside a marked call.

    No bytecode at which the interpreter looks for signals is between the mark and the ``try``, or in the ``finally``.
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
    """Call a function that may make marked calls: a user's function, or a marked call itself."""
    before, here.is_inside = here.is_inside, False
    try:
        return call(*args, **options)
    finally:
        here.is_inside = before


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
