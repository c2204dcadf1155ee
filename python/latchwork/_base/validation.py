"""Validation of arguments."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any, TypeGuard, TypeVar

Listener = TypeVar("Listener", bound=Callable[..., object])

_LATE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def is_number(value: object, least: float = -math.inf) -> TypeGuard[float]:
    """Return whether a value is a finite number of at least ``least``.

    An integer that is too large for a float counts as infinite.
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and -sys.float_info.max <= value <= sys.float_info.max and value >= least  # type: ignore[operator]


def is_plain_function(fn: object) -> bool:
    """Return True if an object is certainly an ordinary function, not an ``async`` function or a generator. Fast.

    False means that this is unknown.
    """
    code = getattr(fn, "__code__", None)
    return isinstance(code, CodeType) and not (code.co_flags & _LATE or hasattr(fn, "_is_coroutine_mark"))


def check_listener(fn: Listener, what: str = "a listener") -> Listener:
    """Return the function unchanged if it can be used as a listener.

    Args:
        fn: The function.
        what: Description of the argument for the message.
    Raises:
        TypeError: The object cannot be called, or is an ``async def`` function, which would never run.
    """
    if is_plain_function(fn):
        return fn
    if not callable(fn):
        raise TypeError(f"{what} must be a function, not {fn!r}; give a function, not what it returns")
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        raise TypeError(f"{what} must be a plain function, not the async {fn!r}: nothing here awaits what it returns")
    return fn


def deferred_kind(fn: object) -> str | None:
    """Return the kind of a function whose call only creates a coroutine or a generator, without running the body.

    Returns:
        ``an async function``, ``an async generator`` or ``a generator``, for an error message. None for an ordinary
        function or any other object.
    """
    while isinstance(fn, partial):
        fn = fn.func
    if is_plain_function(fn):
        return None
    kinds: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("an async function", inspect.iscoroutinefunction),
        ("an async generator", inspect.isasyncgenfunction),
        ("a generator", inspect.isgeneratorfunction),
    )
    own = getattr(type(fn), "__call__", None)  # noqa: B004 - of an object that is called like a function
    return next((name for name, is_kind in kinds if is_kind(fn) or is_kind(own)), None)


def deferred_result_kind(value: object) -> str | None:
    """Return what a result is if it must be awaited or iterated, such as ``a coroutine``. None for other values.

    A coroutine is closed, so that Python does not warn that it was never awaited.
    """
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine"
    if inspect.isawaitable(value):
        return "an awaitable"
    return "an async generator" if inspect.isasyncgen(value) else "a generator" if inspect.isgenerator(value) else None


def check_store(store: object, who: str) -> None:
    """Raise ``TypeError`` if a URL was passed instead of a store.

    The message does not show the URL, because it may contain a password.

    Args:
        store: The argument to check.
        who: The name of the caller's class, for the message.
    """
    if isinstance(store, (str, bytes)):
        raise TypeError(f"{who} needs a store, not a URL; open one first: latchwork.connect(url)")
