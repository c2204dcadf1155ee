"""Calls of functions that users provide: callbacks, observers, hooks, listeners, alert channels, task types.

User code may raise anything, including ``SystemExit``, ``BaseException`` and exceptions whose message cannot be built.
In our threads, each of these is a failure of that code: it does not end the thread or lose a result. In the main
thread, an interrupt stays an interrupt, because Python delivers Ctrl-C there.

The functions of tasks are not called by this module, because their outcome contains whatever they raised. See
``tasks.running``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from latchwork._base.interrupts import here
from latchwork._base.text import has_message, reason
from latchwork.errors import UserCodeFailed

P = ParamSpec("P")
T = TypeVar("T")


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception interrupts the main thread, so that it must be raised there unchanged."""
    return not isinstance(error, (Exception, SystemExit)) and threading.current_thread() is threading.main_thread()


def call_user(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a user function and return its value.

    Errors that cannot be handled safely are wrapped in ``UserCodeFailed``.

    Args:
        fn: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    Raises:
        Exception: The function raised it, and its message can be built.
        UserCodeFailed: The function raised something else, which is the cause.
        BaseException: The function was interrupted in the main thread.
    """
    before, here.is_inside = here.is_inside, False  # as ``call_allowing_reentry``
    try:
        return fn(*args, **kwargs)
    except BaseException as error:
        if is_interrupt(error) or _is_plain(error):
            raise
        raise wrap_failure(fn, error) from error
    finally:
        here.is_inside = before


async def await_user(fn: Callable[..., object], body: Awaitable[T]) -> T:
    """Await the result of a user function, and handle its errors in the same way as ``call_user``.

    Raises:
        Exception, UserCodeFailed, BaseException: As ``call_user``.
        asyncio.CancelledError, GeneratorExit: The task was canceled or closed.
    """
    try:
        return await body
    except BaseException as error:
        if is_interrupt(error) or is_ending(error) or _is_plain(error):
            raise
        raise wrap_failure(fn, error) from error


def wrap_failure(fn: Callable[..., object], error: BaseException) -> UserCodeFailed:
    """Return a ``UserCodeFailed`` whose cause is the error that a user function raised."""
    failed = UserCodeFailed(f"{name_of(fn)} raised {reason(error)}")
    failed.__cause__ = error
    return failed


def is_ending(error: BaseException) -> bool:
    """Return whether an exception cancels a task or closes a coroutine."""
    return isinstance(error, (GeneratorExit, *cancellations()))


def _is_plain(error: BaseException) -> bool:
    return isinstance(error, Exception) and has_message(error)


def cancellations() -> tuple[type[BaseException], ...]:
    """Return asyncio's ``CancelledError`` in a tuple, for ``except``. Empty if asyncio has not been imported."""
    loaded = sys.modules.get("asyncio.exceptions")
    return () if loaded is None else (loaded.CancelledError,)


def name_of(fn: object) -> str:
    """Return the name of a function, or of the class of a callable object, for messages."""
    fn = getattr(fn, "func", fn)  # of a partial
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else type(fn).__qualname__
