"""Calls observers and listeners in such a way that their errors do not affect the component that calls them.

An observer is called in the thread in which the event happens, so it must not block. An exception that it raises is
logged, once for each of its methods. ``add_listener`` and ``call_each`` do the same for plain functions. ``user_code``
says which exceptions are included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import methodcaller
from typing import Any, Generic, TypeVar

from latchwork._base.user_code import call_user
from latchwork._base.validation import check_listener

__all__ = ["Observers", "add_checked_listener", "add_listener", "call_each", "check_listener"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = TypeVar("Listener", bound=Callable[..., None])


def add_listener(listeners: dict[object, Listener], fn: Listener) -> Callable[[], None]:
    """Register a listener after checking that it can be called. Return a function that removes it.

    Args:
        listeners: The registered listeners.
        fn: The listener.
    Raises:
        TypeError: ``fn`` is a coroutine function, or cannot be called.
    """
    return add_checked_listener(listeners, check_listener(fn))


def add_checked_listener(listeners: dict[object, Listener], fn: Listener) -> Callable[[], None]:
    """Register a listener that was already checked. Return a function that removes it.

    Args:
        listeners: The registered listeners.
        fn: The listener.
    """
    number = object()
    listeners[number] = fn

    def cancel() -> None:
        listeners.pop(number, None)

    return cancel


def call_each(calls: Iterable[Callable[[], None]], log: logging.Logger, problem: str, *about: object) -> None:
    """Call each function in the current thread. If one raises an error, log it and call the others.

    An interrupt of the main thread, such as ``KeyboardInterrupt``, is raised after all were called.

    Args:
        calls: The functions.
        log: The logger.
        problem: The message to log for an error.
        about: The arguments of the message.
    """
    interrupt: BaseException | None = None
    for call in calls:
        try:
            call_user(call)
        except Exception:
            log.exception(problem, *about)
        except BaseException as raised:
            interrupt = raised
    if interrupt is not None:
        raise interrupt


class Observers(Generic[T]):
    """The observers of one component. Thread-safe.

    Args:
        observers: The observers, in the order in which they are called.
        kind: The class that they must have. None accepts any.
        error: The error to raise for an object of another class.
    """

    def __init__(
        self, observers: Iterable[T] = (), *, kind: type[T] | None = None, error: type[Exception] = TypeError
    ) -> None:
        self._observers = tuple(observers)
        for each in self._observers:
            if kind is not None and not isinstance(each, kind):
                raise error(f"observer {each!r} is not an observer; give objects of subclasses of {kind.__name__}")
        self._failed: set[tuple[int, str]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there are no observers."""
        return not self._observers

    def notify(self, method: str, *args: Any) -> None:
        """Call the method with this name on each observer, in order. An error of an observer is logged and not
        raised.
        """
        for each in self._observers:
            self._guarded(each, method, methodcaller(method, *args), each)

    @contextmanager
    def surround(self, method: str, *args: Any) -> Iterator[None]:
        """Run a ``with`` block inside the context managers that a method of each observer returns.

        Args:
            method: Name of the method.
            args: Its arguments.
        """
        with ExitStack() as stack:
            for each in self._observers:
                context = self._guarded(each, method, methodcaller(method, *args), each)
                if context is not None:
                    self._guarded(each, method, self._enter, stack, each, method, context)
            yield

    def _enter(self, stack: ExitStack, observer: T, method: str, context: AbstractContextManager[Any]) -> None:
        context.__enter__()

        def leave(*error: Any) -> bool:
            self._guarded(observer, method, context.__exit__, *error)
            return False  # an observer must not suppress an error of the body

        stack.push(leave)

    def _guarded(self, observer: T, method: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call_user(call, *args)
        except Exception:
            if (id(observer), method) not in self._failed:
                self._failed.add((id(observer), method))
                _log.exception(
                    "observer %r raised an exception in %s; its further exceptions are not logged", observer, method
                )
            return None
