"""Moments of children moved on, as long as an ownership lasts. Nothing here touches the network."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Self

from latchwork.checks import is_number
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed
from latchwork.interrupts import mutex
from latchwork.tasks.children.child import Child


class Leash:
    """Lets children run as long as an ownership surely lasts, and no longer. Safe to share between threads.

    One thread moves the moments of all its children on. When it cannot, because this process is frozen or killed, the
    children end at the moment that they had.

    Args:
        remaining_s: for how long the ownership surely lasts, in seconds: ``session.remaining_s``. Does no I/O.
        margin_s: children end so long before that: the time that it may take to end one.
        every_s: how often moments are moved on.
    """

    def __init__(self, remaining_s: Callable[[], float], *, margin_s: float = 0.5, every_s: float = 0.5) -> None:
        for name, value in (("margin_s", margin_s), ("every_s", every_s)):
            if not is_number(value, 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {value!r}")
        self._remaining_s = remaining_s
        self._margin_s = margin_s
        self._every_s = max(0.01, every_s)
        self._mutex = mutex()
        self._held: dict[Child, float] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def until(self) -> float:
        """The moment until which a child may run as things are; on the boot clock."""
        return SYSTEM_CLOCK.now() + self._remaining_s() - self._margin_s

    def add(self, child: Child, deadline: float = math.inf) -> None:
        """Hold a child from now on; it may not run beyond its own deadline either."""
        with self._mutex:
            if self._closed.is_set():
                raise Closed("this leash was closed; make another one")
            self._held[child] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="latchwork-leash", daemon=True)
                self._thread.start()
        child.allow(min(self.until, deadline))

    def remove(self, child: Child, *, deadline: float = math.inf) -> None:
        """Hold it no longer: it may run until that moment, as if there were no ownership."""
        with self._mutex:
            there = self._held.pop(child, None)
        if there is not None:
            child.allow(deadline)

    def close(self) -> None:
        """Move nothing on any more: what is still held ends at its moment. Twice is fine."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _keep(self) -> None:
        while not SYSTEM_CLOCK.wait(self._closed, self._every_s):
            with self._mutex:
                held = list(self._held.items())
            until = self.until
            for child, deadline in held:
                with self._mutex:  # one that was let go meanwhile has another moment
                    if child in self._held:
                        child.allow(min(until, deadline))
