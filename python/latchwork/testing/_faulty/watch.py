"""A watch under a ``FaultyStore``: it can fall silent, break off and be late. See ``faults``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from latchwork.backends.base import BackendWatch, Sink, WatchEvent
from latchwork.testing._faulty.plan import Fault

_CLOSE_TIMEOUT_S = 10.0


class Opener(Protocol):
    """What a watch asks of the backend that opened it; ``FaultyBackend`` documents each."""

    def open_watch(self, prefix: str, sink: Sink, **how: bool) -> BackendWatch | None: ...
    def forget(self, watch: FaultyWatch) -> None: ...
    def event(self, prefix: str) -> Fault | None: ...
    def later(self, delay_s: float, call: Callable[[], None]) -> None: ...


class FaultyWatch:
    """A watch that can fall silent, break off and be late; tells in order, one event at a time."""

    def __init__(self, backend: Opener, prefix: str, sink: Sink, **how: bool) -> None:
        self._backend = backend
        self._prefix = prefix
        self._sink = sink
        self._how = how
        self._state = threading.Condition()
        self._inner: BackendWatch | None = None
        self._life = 0  # events of an earlier one are dropped
        self._queue: deque[WatchEvent] = deque()
        self._held = False
        self._teller: int | None = None
        self._closed = False

    def open(self) -> None:
        """Begin, or begin anew: the first event is the whole state."""
        self.silence()
        with self._state:
            if self._closed:
                return
            life = self._life
        inner = self._backend.open_watch(self._prefix, lambda event: self._receive(life, event), **self._how)
        with self._state:
            current = self._life == life and not self._closed
            if current:
                self._inner = inner
        if not current and inner is not None:
            inner.close()

    def silence(self) -> None:
        """Nothing more comes until it is opened again."""
        with self._state:
            self._life += 1
            self._queue.clear()
            self._held = False
            inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    def break_off(self, silent_s: float) -> None:
        """Fall silent, and begin anew later."""
        self.silence()
        self._backend.later(silent_s, self.open)

    def close(self) -> None:
        """See ``BackendWatch.close``."""
        with self._state:
            self._closed = True
        self.silence()
        self._backend.forget(self)
        with self._state:
            self._state.wait_for(lambda: self._teller in {None, threading.get_ident()}, _CLOSE_TIMEOUT_S)

    def _receive(self, life: int, event: WatchEvent) -> None:
        with self._state:
            if life != self._life or self._closed:
                return
            self._queue.append(event)
        fault = self._backend.event(self._prefix)
        if fault is not None and fault.kind == "cut_watch":
            self._backend.later(0.0, lambda: self._cut(life, fault.delay_s))
            with self._state:
                self._held = True
        elif fault is not None:
            with self._state:
                self._held = True
            self._backend.later(fault.delay_s, lambda: self._release(life))
        self._pump()

    def _cut(self, life: int, silent_s: float) -> None:
        with self._state:
            if life != self._life:
                return
        self.break_off(silent_s)

    def _release(self, life: int) -> None:
        with self._state:
            if life != self._life:
                return
            self._held = False
        self._pump()

    def _pump(self) -> None:
        """Tell what waits, unless somebody is at it."""
        while True:
            with self._state:
                if self._teller is not None or self._held or self._closed or not self._queue:
                    return
                self._teller = threading.get_ident()
                event = self._queue.popleft()
            try:
                self._sink(event)
            finally:
                with self._state:
                    self._teller = None
                    self._state.notify_all()
