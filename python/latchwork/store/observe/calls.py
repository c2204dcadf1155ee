"""Observers of a store: told of each call when it has ended, and of each session when it is opened.

``connect(url, observers=[...])``. Nothing here touches the network.
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
    """One call that has ended.

    Attributes:
        call: one of ``backends.base.CALLS``; a put, a create and a delete are commits.
        seconds: how long it took.
        error: what it came to instead of an answer; a ``Conflict`` is one too.
    """

    call: str
    seconds: float
    error: BaseException | None = None


class StoreObserver:
    """Override what you want to know. Methods are called from several threads at a time, and must not block."""

    def called(self, info: CallInfo) -> None:
        """A call has ended."""

    def opened(self, session: Session) -> None:
        """A session was opened; its ``on_state`` tells what becomes of it."""


NOBODY = Observers[StoreObserver]()


class ObservedBackend:
    """A backend around another one, which tells observers of its calls."""

    def __init__(self, backend: Backend, observers: Observers[StoreObserver]) -> None:
        self._backend = backend
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return partial(self._told, name, found) if name in CALLS else found

    @property
    def waiting(self) -> Backend:
        """The same for those who wait at once."""
        return observed(self._backend.waiting, self._observers)

    @property
    def apart(self) -> Backend:
        """The same for those who must not block."""
        return observed(self._backend.apart, self._observers)

    def within(self, limit_s: float) -> Backend:
        """The same with a shorter timeout."""
        return observed(self._backend.within(limit_s), self._observers)

    def _told(self, name: str, call: Callable[..., Future[Any]], *args: Any, **options: Any) -> Future[Any]:
        began = time.perf_counter()
        future = call(*args, **options)

        def tell(done: Future[Any]) -> None:
            try:
                error = done.exception()
            except CancelledError as cancelled:
                error = cancelled
            self._observers.tell("called", CallInfo(name, time.perf_counter() - began, error))

        future.add_done_callback(tell)
        return future


def observed(backend: Backend, observers: Observers[StoreObserver]) -> Backend:
    """The backend, which tells these observers of its calls."""
    return cast("Backend", ObservedBackend(backend, observers))
