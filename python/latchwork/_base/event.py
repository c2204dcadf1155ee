"""A signal that threads and event loops can wait for. An interrupt of a caller cannot block later calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from latchwork._base.interrupts import mutex


class Signal:
    """A flag that threads and event loops can wait for. Thread-safe.

    ``threading.Event`` takes its internal lock in Python code. If an interrupt ends a call there, the lock stays
    locked, and every later call waits forever. Here each waiter has its own lock, which ``set`` releases.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._gates: dict[threading.Lock, None] = {}
        self._calls: dict[object, Callable[[], object]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'set' if self._is_set else 'not set'}>"

    def is_set(self) -> bool:
        """Return whether the signal is set."""
        return self._is_set

    def set(self) -> None:
        """Set the signal, wake all waiting threads, and call the registered functions.

        Idempotent. If an interrupt ends the call, call it again.
        """
        self._is_set = True
        for gate in tuple(self._gates):
            if gate.locked():
                with suppress(RuntimeError):  # another thread has released it
                    gate.release()
        while self._calls:
            try:
                _, call = self._calls.popitem()
            except KeyError:  # another thread also sets it
                return
            call()

    def clear(self) -> None:
        """Reset the signal, so that later waits block again."""
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the signal is set. Return False after the timeout.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        """
        if self._is_set:
            return True
        gate = mutex()
        gate.acquire()
        self._gates[gate] = None
        try:
            if self.is_set():
                return True
            limit_s = -1 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
            return gate.acquire(timeout=limit_s) or self._is_set
        finally:
            self._gates.pop(gate, None)

    def call_when_set(self, call: Callable[[], object]) -> Callable[[], object]:
        """Call a function once when the signal is set, in the thread that sets it. If it is already set, call it now.

        Args:
            call: The function, which must be fast.
        Returns:
            A function that removes the registration.
        """
        number = object()
        self._calls[number] = call
        if self._is_set and self._calls.pop(number, None) is not None:
            call()
        return partial(self._calls.pop, number, None)
