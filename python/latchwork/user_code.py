"""Calls into user code: callbacks, pickers, observers, hooks, listeners, alert channels, task types.

User code may raise anything: the ``SystemExit`` of a script, a ``BaseException`` of another library, an exception whose
message cannot be made. In a thread of ours each of these is a failure of that code: it neither ends the thread nor
loses an outcome. The main thread is the one exception. Python delivers Ctrl-C there, so an interrupt stays one.

The body of a task is not called by this: its outcome names what it raised, whatever that is. See ``tasks.running``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from latchwork.errors import UserCodeFailed
from latchwork.interrupts import here
from latchwork.words import has_message, reason

P = ParamSpec("P")
T = TypeVar("T")


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception interrupts the main thread, and must be raised there as it is."""
    return not isinstance(error, (Exception, SystemExit)) and threading.current_thread() is threading.main_thread()


def call_user(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of the user and return its value.

    Args:
        fn: the function.
        args: its arguments.
        kwargs: its named arguments.
    Raises:
        Exception: what the function raised, if that is an ``Exception`` whose message can be made.
        UserCodeFailed: it raised something else, which is the cause.
        BaseException: it was interrupted in the main thread.
    """
    before, here.is_inside = here.is_inside, False  # as ``call_outside``
    try:
        return fn(*args, **kwargs)
    except BaseException as error:
        if is_interrupt(error) or _is_plain(error):
            raise
        raise failure_of(fn, error) from error
    finally:
        here.is_inside = before


async def await_user(fn: Callable[..., object], body: Awaitable[T]) -> T:
    """Await what a function of the user returned, as ``call_user`` calls it. An event loop ends by what escapes.

    Raises:
        Exception, UserCodeFailed, BaseException: as ``call_user``.
        asyncio.CancelledError, GeneratorExit: the wait for it was ended.
    """
    try:
        return await body
    except BaseException as error:
        if is_interrupt(error) or is_ending(error) or _is_plain(error):
            raise
        raise failure_of(fn, error) from error


def failure_of(fn: Callable[..., object], error: BaseException) -> UserCodeFailed:
    """Return the exception for what a function of the user raised, which is its cause."""
    failed = UserCodeFailed(f"{name_of(fn)} raised {reason(error)}")
    failed.__cause__ = error
    return failed


def is_ending(error: BaseException) -> bool:
    """Return whether an exception ends a coroutine from outside."""
    return isinstance(error, (GeneratorExit, *cancellations()))


def _is_plain(error: BaseException) -> bool:
    return isinstance(error, Exception) and has_message(error)


def cancellations() -> tuple[type[BaseException], ...]:
    """Return what asyncio raises in a task that is cancelled; nothing while nobody has imported it."""
    loaded = sys.modules.get("asyncio.exceptions")
    return () if loaded is None else (loaded.CancelledError,)


def name_of(fn: object) -> str:
    """Return the name of a function, or of the class of a callable object, for messages."""
    fn = getattr(fn, "func", fn)  # of a partial
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else type(fn).__qualname__
