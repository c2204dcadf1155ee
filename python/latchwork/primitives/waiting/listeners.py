"""Calls of listeners, in order. No I/O."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from latchwork._base.execution_context import caller_identity
from latchwork.clock import Clock
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.notifier import Notifier
from latchwork.store.observers import call_each

_log = logging.getLogger(__name__)


def call_listeners(calls: Iterable[Callable[[], None]], what: str) -> None:
    """Call listeners in this thread. An error in one is logged and does not stop the others.

    Args:
        calls: The listeners, as functions without arguments.
        what: The object that has the listeners, for the log message.
    """
    call_each(calls, _log, "a listener of %s raised; the others are called all the same", what)


class ListenerQueue:
    """Calls listeners in callback threads, one at a time and in order. Thread-safe. Calls nothing with its mutex held.

    Args:
        dispatcher: The pool of callback threads.
        label: Name of the object that has the listeners, for messages.
    """

    def __init__(self, dispatcher: Dispatcher, label: str) -> None:
        self._label = label
        self._changed = Notifier()
        self._posts: deque[Callable[[], None]] = deque()
        self._runner: object = None
        self._is_closed = False
        self._serial_drain = dispatcher.create_serial_drain(self._drain, label)

    def post(self, *calls: Callable[[], None]) -> None:
        """Call these functions in a callback thread, in order, after all that were posted before."""
        self.enqueue(*calls)
        self.start_delivery()

    def enqueue(self, *calls: Callable[[], None]) -> None:
        """Append calls of listeners without delivering them. Safe while holding a mutex.

        The caller must call ``start_delivery`` after it has released the mutex.
        """
        with self._changed.mutex:
            if not self._is_closed:
                self._posts.extend(calls)

    def start_delivery(self) -> None:
        """Start a callback thread that runs the queued calls, if there are any. Idempotent."""
        if self._posts:
            self._serial_drain.signal()

    def close(self) -> None:
        """Discard all calls that have not started, without waiting."""
        with self._changed.mutex:
            self._is_closed = True
            self._posts.clear()
            self._changed.notify_all()

    @property
    def is_running_here(self) -> bool:
        """Whether the caller is itself a listener that this queue is calling now."""
        return self._runner == caller_identity()

    async def wait_until_delivered(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until all queued listeners have been called.

        Returns:
            False after the timeout, or if the caller is itself a listener that this queue is calling now.
        """
        if self.is_running_here:
            return False
        deadline = Deadline(clock, timeout_s)
        while True:
            with self._changed.mutex:
                if not self._posts and self._runner is None:
                    return True
                version = self._changed.version
            if deadline.has_passed:
                return False
            self.start_delivery()
            await self._changed.wait_for_change(version, clock, deadline.left_s())

    def _drain(self) -> None:
        while True:
            with self._changed.mutex:
                self._runner = caller_identity() if self._posts else None
                if self._runner is None:
                    self._changed.notify_all()
                    return
                call = self._posts.popleft()
            try:
                call_listeners([call], self._label)
            except BaseException:  # an interrupt, in a call; the calls behind it are made all the same
                self._serial_drain.signal()
                raise
