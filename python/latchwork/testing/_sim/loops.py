"""Event loops of a simulation: they wait in virtual time, and are woken by its threads alone. See ``simulation``."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from latchwork.testing._sim.tasks import hide

hide(__file__)

#: However short a wait, time goes on: who has a rounding error of its lease left would wait for it again and again.
#: More than the resolution of a loop's clock, within which a timer is due.
_LEAST_DELAY_S = 2e-9


class SimSelector:
    """What a loop waits by: nothing comes from outside, only wake-ups."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait until somebody wakes the loop, or the time is over."""
        if timeout is None or timeout > 0.0:
            self._woken.wait(timeout)
        self._woken.clear()
        return []

    def wake(self) -> None:
        """From any thread."""
        self._woken.set()


class SimLoop(asyncio.BaseEventLoop):
    """An event loop for tasks, timers and futures; it has neither sockets nor processes nor signals."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = SimSelector()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Have it called at a moment of virtual time, which is later than now."""
        return super().call_at(max(when, self.time() + _LEAST_DELAY_S), callback, *args, context=context)

    def _process_events(self, _events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._selector.wake()
