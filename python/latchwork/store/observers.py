"""Calls observers and listeners, so that their errors cannot disturb the component that calls them.

An observer is called in the thread where the event happens, so it must not block. An exception that it raises is
logged, once for each of its methods. ``listen`` and ``call_each`` do the same for plain functions. See ``user_code``
for the exceptions this covers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import methodcaller
from typing import Any, Generic, TypeVar

from latchwork._base.user_code import call_user
from latchwork._base.validation import check_listener

__all__ = ["Observers", "call_each", "check_listener", "listen", "register"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = TypeVar("Listener", bound=Callable[..., None])


def listen(to: dict[object, Listener], fn: Listener) -> Callable[[], None]:
    """Register a listener after checking that it is callable. Return a function that removes it again.

    Raises:
        TypeError: See ``check_listener``.
    """
    return register(to, check_listener(fn))


def register(to: dict[object, Listener], fn: Listener) -> Callable[[], None]:
    """Register a listener that was already checked. Return a function that removes it again at any time."""
    number = object()
    to[number] = fn

    def cancel() -> None:
        to.pop(number, None)

    return cancel


def call_each(calls: Iterable[Callable[[], None]], log: logging.Logger, problem: str, *about: object) -> None:
    """Call each function in the current thread. An error in one is logged and does not stop the others.

    An interrupt of the main thread, such as ``KeyboardInterrupt``, is raised after all were called.
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
    """Calls all observers of one component. Thread-safe.

    Args:
        observers: Called in this order.
        kind: Their class; None does not check it.
        error: Raised for an object of another class.
    """

    def __init__(
        self, observers: Iterable[T] = (), *, kind: type[T] | None = None, error: type[Exception] = TypeError
    ) -> None:
        self._observers = tuple(observers)
        for each in self._observers:
            if kind is not None and not isinstance(each, kind):
                raise error(f"observer {each!r} is none; give objects of subclasses of {kind.__name__}")
        self._failed: set[tuple[int, str]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there are no observers."""
        return not self._observers

    def notify(self, method: str, *args: Any) -> None:
        """Call the method with this name on each observer, in order. Errors of observers are handled, not raised."""
        for each in self._observers:
            self._guarded(each, method, methodcaller(method, *args), each)

    @contextmanager
    def surround(self, method: str, *args: Any) -> Iterator[None]:
        """Wrap the body of a ``with`` statement in the context managers that a method of each observer returns.

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
                _log.exception("observer %r raised in %s; further ones are not logged", observer, method)
            return None
