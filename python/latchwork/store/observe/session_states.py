"""Listeners of a session's state: told of each change, in order, on a thread for such calls."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from latchwork.interrupts import mutex
from latchwork.store.dispatch import as_callback
from latchwork.store.observers import call_each, listen

_log = logging.getLogger(__name__)

SessionState = Literal["active", "suspect", "lost", "closed"]
StateListener = Callable[[SessionState], None]


class SessionStates:
    """What the listeners of one session were told. Safe to share between threads.

    Args:
        session_id: for log lines.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._mutex = mutex()
        self._listeners: dict[object, StateListener] = {}
        self._last: SessionState = "active"
        self._owed: deque[tuple[SessionState, list[StateListener]]] = deque()
        self._calling = False

    def listen(self, fn: StateListener) -> Callable[[], None]:
        """Register a listener; returns a function that removes it, which may be called at any time."""
        with self._mutex:
            return listen(self._listeners, fn)

    def note(self, state: SessionState) -> None:
        """Have the listeners told if it is another one than last. Does not block."""
        with self._mutex:
            if self._last in {state, "closed"} or (self._last == "lost" and state != "closed"):
                return
            self._last = state
            if not self._listeners:
                return
            self._owed.append((state, list(self._listeners.values())))
            if self._calling:
                return
            self._calling = True
        name = f"latchwork-session-states-{self._session_id[:8]}"
        try:
            threading.Thread(target=self._tell, name=name, daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads, or the interpreter ends
            _log.warning("session %s: state listeners are told at the next change: %s", self._session_id, error)
            with self._mutex:
                self._calling = False

    def _tell(self) -> None:
        while True:
            with self._mutex:
                if not self._owed:
                    self._calling = False
                    return
                state, listeners = self._owed.popleft()
            calls = [partial(fn, state) for fn in listeners]
            with as_callback():
                call_each(calls, _log, "a state listener of session %s raised", self._session_id)
