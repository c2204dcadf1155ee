"""Who is told that locks were lost, or that a renewal failed. Nothing here talks to a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from latchwork.primitives.waiting.common import listen

if TYPE_CHECKING:
    from latchwork.primitives.waiting.common import Announcer

Lost = Callable[[tuple[str, ...]], None]
Failed = Callable[[BaseException, float], None]


class LockListeners:
    """The listeners of one keeper; called by its announcer, in order. Safe to share between threads."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._lock = threading.Lock()
        self._lost: dict[object, Lost] = {}
        self._failed: dict[object, Failed] = {}

    def on_lost(self, fn: Lost) -> Callable[[], None]:
        """Have ``fn(names)`` called from now on; returns what ends that."""
        return listen(self._lost, fn)

    def on_failed(self, fn: Failed) -> Callable[[], None]:
        """Have ``fn(error, remaining_s)`` called from now on; returns what ends that."""
        return listen(self._failed, fn)

    def tell_lost(self, names: tuple[str, ...]) -> None:
        """These locks were lost; without any nobody is told."""
        with self._lock:
            listeners = list(self._lost.values()) if names else []
        self._announcer.post(*(partial(listener, names) for listener in listeners))

    def tell_failed(self, error: BaseException, remaining_s: float) -> None:
        """A renewal failed, or was not answered."""
        with self._lock:
            listeners = list(self._failed.values())
        self._announcer.post(*(partial(listener, error, remaining_s) for listener in listeners))
