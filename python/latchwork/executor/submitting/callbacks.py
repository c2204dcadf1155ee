"""Calls the done-callbacks of futures, in a thread that no future waits for.

A callback may block, and may raise anything. The threads that store tasks and bring results never call one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from latchwork.clock import Clock
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.store.steps import Pause, Signal
from latchwork.user_code import call_user, name_of

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)

#: A callback that takes longer than so many seconds is named in a warning, and holds up no other from then on.
LONG_S = 1.0


class _Call(NamedTuple):
    """One callback and its future."""

    fn: Callable[[Any], object]
    future: Future[Any]

    @property
    def name(self) -> str:
        return f"done-callback {name_of(self.fn)} of task {getattr(self.future, 'id', '')}".rstrip()


class Callbacks:
    """The done-callbacks of one executor: called one at a time, in the order of their futures' ends. Thread-safe.

    One thread calls them, and a second one watches it. The watcher gives the turn to a new thread when a callback takes
    longer than ``LONG_S``; the old thread ends with its callback. Both threads end when there is nothing to call.

    Args:
        clock: the store's.
        name: of the executor, for the names of threads.
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = Bell()
        self._queue: deque[_Call] = deque()
        self._turn: object | None = None
        self._call: _Call | None = None
        self._began = 0.0
        self._is_watched = False
        self._running: dict[object, int] = {}

    def call(self, fn: Callable[[Any], object], future: Future[Any]) -> None:
        """Call ``fn(future)`` soon, after all that was given before."""
        with self._changed.mutex:
            self._queue.append(_Call(fn, future))
            self._changed.ring()
            if self._turn is None:
                self._give_turn()
            if not self._is_watched:
                self._is_watched = True
                Background(self._watch, f"latchwork-callbacks-watch-{self._name}")

    async def settle(self) -> None:
        """Wait until all have returned; in one of them, return at once."""
        while True:
            with self._changed.mutex:
                is_inside = threading.get_ident() in self._running.values()
                if is_inside or not (self._queue or self._running):
                    return
                rings = self._changed.rings
            await self._changed.rung(rings, self._clock, None)

    def _give_turn(self) -> None:
        """Start a thread that calls what is in the queue. The mutex is held."""
        self._turn = turn = object()
        self._call = None
        Background(partial(self._run, turn), f"latchwork-callbacks-{self._name}")

    async def _run(self, turn: object) -> None:
        while (call := await self._next(turn)) is not None:
            try:
                call_user(call.fn, call.future)
            except Exception:
                _log.exception("%s raised", call.name)
            del call
            with self._changed.mutex:
                self._running.pop(turn, None)
                self._changed.ring()

    async def _next(self, turn: object) -> _Call | None:
        """Return the next callback; None when another thread has the turn, or none has come for a while."""
        is_last_look = False
        while True:
            with self._changed.mutex:
                if self._turn is not turn:
                    return None
                self._call = self._queue.popleft() if self._queue else None
                if self._call is not None:
                    self._began = self._clock.now()
                    self._running[turn] = threading.get_ident()
                    return self._call
                if is_last_look:
                    self._turn = None
                    return None
                rings = self._changed.rings
            is_last_look = not await self._changed.rung(rings, self._clock, LONG_S)

    async def _watch(self) -> None:
        while True:
            with self._changed.mutex:
                if self._turn is None:
                    self._is_watched = False
                    return
                call = self._call
                left_s = LONG_S if call is None else self._began + LONG_S - self._clock.now()
                is_long = left_s <= 0.0
                if is_long:
                    self._give_turn()
            if is_long and call is not None:
                _log.warning(
                    "%s takes longer than %g s; the callbacks behind it are called in another thread", call.name, LONG_S
                )
            del call
            await Pause(self._clock, Signal(), max(left_s, 0.0) or LONG_S)
