"""The caller of a function: a thread, or one of the tasks that an event loop runs in one thread.

A lock that one task holds must exclude another task of the same thread. ``PerCaller`` therefore stores values for each
caller, such as the locks that it holds, and ``caller_identity`` compares callers. Code that runs on behalf of a task
states that with ``acting_for``. Otherwise the thread is the caller.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

#: "0" in this variable of the environment: no warning about calls that stop an event loop.
WARN_VARIABLE = "LATCHWORK_ASYNC_WARN"
#: Starts a coroutine in the background event loop, and returns the ``Caller`` that identifies it.
Spawn = Callable[[Callable[[], Coroutine[Any, Any, object]], str], "Caller"]

_here = threading.local()
_warned: set[str] = set()


class Caller:
    """A task of an event loop, as the owner of locks for example. Compared by identity.

    Attributes:
        spawn: Runs a coroutine in the background, for objects that this caller uses.
        acts_for: The thread that waits while this task runs a listener for it. None for all other tasks.
    """

    __slots__ = ("__weakref__", "_own", "acts_for", "spawn")

    def __init__(self, spawn: Spawn, *, acts_for: int | None = None) -> None:
        self.spawn = spawn
        self.acts_for = acts_for
        self._own: WeakKeyDictionary[PerCaller, dict[str, Any]] | None = None

    def get_values(self, key: PerCaller) -> dict[str, Any]:
        """Return the values that the given ``PerCaller`` stores for this task."""
        if self._own is None:
            self._own = WeakKeyDictionary()
        return self._own.setdefault(key, {})


class PerCaller:
    """Named values that each caller has separately, like ``threading.local``, but for threads and tasks. Thread-safe.

    The values are deleted with the caller.
    """

    def __init__(self) -> None:
        self._of_threads = threading.local()

    @property
    def values(self) -> dict[str, Any]:
        """The values of the current task or thread, as a dictionary that may be changed."""
        caller = current_task_caller()
        return self._of_threads.__dict__ if caller is None else caller.get_values(self)


def current_task_caller() -> Caller | None:
    """Return the event-loop task on whose behalf this thread is running code. None if it runs code of its own."""
    return getattr(_here, "caller", None)


def caller_identity() -> object:
    """Return an object that identifies the current task or thread, as the holder of a lock for example.

    Compare it with ``==``.

    A task that runs a listener on behalf of a waiting thread has the identity of that thread.
    """
    caller = current_task_caller()
    if caller is None:
        return threading.get_ident()
    return caller if caller.acts_for is None else caller.acts_for


class acting_for:  # noqa: N801 - used like a function
    """A context manager in which this thread runs code for a task. None makes the thread itself the caller."""

    __slots__ = ("_before", "_caller")

    def __init__(self, caller: Caller | None) -> None:
        self._caller = caller

    def __enter__(self) -> None:
        self._before = current_task_caller()
        _here.caller = self._caller

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        _here.caller = self._before


def in_loop() -> bool:
    """Return whether this thread runs an event loop, in which a blocking call would stop all tasks."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001 - documented for this purpose


def warn_in_loop(call: str) -> None:
    """Log a warning that a blocking call is made in the thread of a running event loop. Once per function.

    Args:
        call: The name of the call in ``latchwork.aio``, such as ``Lock.acquire``.
    """
    if not in_loop() or call in _warned or os.environ.get(WARN_VARIABLE) == "0":
        return
    _warned.add(call)
    noun, _, method = call.partition(".")
    twin = f"async with latchwork.aio.{noun}" if method in {"__enter__", "__exit__"} else f"await latchwork.aio.{call}"
    warnings.warn(
        f"{call} waits in the thread of a running event loop, and all its tasks with it: {twin} instead, or do it in "
        f"a thread ({WARN_VARIABLE}=0 turns this warning off)",
        RuntimeWarning,
        stacklevel=_count_own_frames(),
    )


def _count_own_frames() -> int:
    """Return the ``stacklevel`` for a warning that should show the first caller outside latchwork."""
    level, frame = 2, sys._getframe(2)  # noqa: SLF001 - as ``warnings`` does
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("latchwork."):
        level, frame = level + 1, frame.f_back
    return level
