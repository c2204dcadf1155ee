"""Observers of a store, which are notified when a call has ended and when a session was opened.

Pass them as ``connect(url, observers=[...])``.
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
        call: The name of the backend's method, one of ``backends.base.CALLS``. A put, a create and a delete are
            commits.
        seconds: Its duration.
        error: Its error or None. ``Conflict`` is an error, too.
    """

    call: str
    seconds: float
    error: BaseException | None = None


class StoreObserver:
    """Base class of observers. Its methods are called in several threads at the same time, and must not block."""

    def called(self, info: CallInfo) -> None:
        """Called when a call has ended, with its name, duration and error."""

    def opened(self, session: Session) -> None:
        """Called when a session was opened.

        ``session.on_state`` can be used to observe the session further.
        """


NOBODY = Observers[StoreObserver]()


class ObservedBackend:
    """A wrapper of a backend that notifies observers of each call."""

    def __init__(self, backend: Backend, observers: Observers[StoreObserver]) -> None:
        self._backend = backend
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return partial(self._told, name, found) if name in CALLS else found

    @property
    def for_blocking_calls(self) -> Backend:
        """The variant of this backend for callers that block until each answer arrives, also observed."""
        return observed(self._backend.for_blocking_calls, self._observers)

    @property
    def for_event_loop(self) -> Backend:
        """The variant of this backend for callers that must not block, also observed."""
        return observed(self._backend.for_event_loop, self._observers)

    def within(self, limit_s: float) -> Backend:
        """Return a variant of this backend with a shorter call timeout, also observed."""
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
    """Return a wrapper of a backend that notifies observers of each call."""
    return cast("Backend", ObservedBackend(backend, observers))
