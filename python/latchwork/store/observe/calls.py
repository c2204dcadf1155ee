"""Observers of a store: notified of each call when it ends, and of each session when it is opened.

Pass them as ``connect(url, observers=[...])``. Performs no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from latchwork.backends.base import CALLS, Backend
from latchwork.store.observers import Observers
from latchwork.store.session import Session


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A call that has ended.

    Attributes:
        call: One of ``backends.base.CALLS``; a put, a create and a delete are commits.
        seconds: Its duration.
        error: Its error, if any, including ``Conflict``.
    """

    call: str
    seconds: float
    error: BaseException | None = None


class StoreObserver:
    """Base class of observers. Methods are called in several threads concurrently, and must not block."""

    def called(self, info: CallInfo) -> None:
        """Called when a call has ended, with its name, duration and error."""

    def opened(self, session: Session) -> None:
        """Called when a session was opened.

        Register a listener with ``session.on_state`` to observe the session further.
        """


NOBODY = Observers[StoreObserver]()


class ObservedBackend:
    """Wraps a backend to notify observers of its calls."""

    def __init__(self, backend: Backend, observers: Observers[StoreObserver]) -> None:
        self._backend = backend
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return partial(self._told, name, found) if name in CALLS else found

    @property
    def waiting(self) -> Backend:
        """The observed form of the backend's ``waiting``, for callers that wait for each answer immediately."""
        return observed(self._backend.waiting, self._observers)

    @property
    def for_event_loop(self) -> Backend:
        """The observed form of the backend's ``for_event_loop``, for callers that must not block."""
        return observed(self._backend.for_event_loop, self._observers)

    def within(self, limit_s: float) -> Backend:
        """Return the observed form of the backend with a shorter call timeout."""
        return observed(self._backend.within(limit_s), self._observers)

    def _told(self, name: str, call: Callable[..., Future[Any]], *args: Any, **options: Any) -> Future[Any]:
        began = time.perf_counter()
        future = call(*args, **options)

        def tell(done: Future[Any]) -> None:
            try:
                error = done.exception()
            except CancelledError as cancelled:
                error = cancelled
            self._observers.notify("called", CallInfo(name, time.perf_counter() - began, error))

        future.add_done_callback(tell)
        return future


def observed(backend: Backend, observers: Observers[StoreObserver]) -> Backend:
    """Wrap a backend so that the observers are called for each of its calls."""
    return cast("Backend", ObservedBackend(backend, observers))
