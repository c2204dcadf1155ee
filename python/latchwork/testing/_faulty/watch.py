"""A watch under a ``FaultyStore``: it can fall silent, break off and be late. See ``faults``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from latchwork.backends.base import BackendWatch, ProvesCurrent, Sink, WatchEvent
from latchwork.testing._faulty.plan import Fault

_CLOSE_TIMEOUT_S = 10.0


class Opener(Protocol):
    """What a watch asks of the backend that opened it; ``FaultyBackend`` documents each."""

    def open_watch(self, prefix: str, sink: Sink, **how: bool) -> BackendWatch | None: ...
    def forget(self, watch: FaultyWatch) -> None: ...
    def event(self, prefix: str) -> Fault | None: ...
    def later(self, delay_s: float, call: Callable[[], None]) -> None: ...


class FaultyWatch:
    """A watch that can fall silent, break off and be late; delivers events in order, one at a time."""

    def __init__(self, backend: Opener, prefix: str, sink: Sink, **how: bool) -> None:
        self._backend = backend
        self._prefix = prefix
        self._sink = sink
        self._how = how
        self._state = threading.Condition()
        self._inner: BackendWatch | None = None
        self._opening = 0  # how often it was opened anew; events from before that are dropped
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
            opening = self._opening
        inner = self._backend.open_watch(self._prefix, lambda event: self._receive(opening, event), **self._how)
        with self._state:
            current = self._opening == opening and not self._closed
            if current:
                self._inner = inner
        if not current and inner is not None:
            inner.close()

    def prove_current(self) -> None:
        """Ask the watch below, if it has to be asked."""
        inner: object = self._inner
        if isinstance(inner, ProvesCurrent):
            inner.prove_current()

    def silence(self) -> None:
        """Nothing more comes until it is opened again."""
        with self._state:
            self._opening += 1
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

    def _receive(self, opening: int, event: WatchEvent) -> None:
        with self._state:
            if opening != self._opening or self._closed:
                return
            self._queue.append(event)
        fault = self._backend.event(self._prefix)
        if fault is not None:
            with self._state:
                self._held = True
            if fault.kind == "cut_watch":
                self._backend.later(0.0, lambda: self._cut(opening, fault.delay_s))
            else:
                self._backend.later(fault.delay_s, lambda: self._release(opening))
        self._pump()

    def _cut(self, opening: int, silent_s: float) -> None:
        with self._state:
            if opening != self._opening:
                return
        self.break_off(silent_s)

    def _release(self, opening: int) -> None:
        with self._state:
            if opening != self._opening:
                return
            self._held = False
        self._pump()

    def _pump(self) -> None:
        """Deliver the queued events, unless another thread does."""
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
