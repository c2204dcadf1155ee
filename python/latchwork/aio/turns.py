"""A loop of ours over many things that need no wait lets others have the event loop now and then."""

from __future__ import annotations

import asyncio
import time

#: Seconds after which it is the others' turn.
TURN_S = 0.002


class Turn:
    """``await turn.over()`` after each step: it goes on at once until the turn is over."""

    def __init__(self) -> None:
        self._ends = time.perf_counter() + TURN_S

    async def over(self) -> None:
        """Let others have the loop if it is their turn."""
        if time.perf_counter() > self._ends:
            await asyncio.sleep(0)
            self._ends = time.perf_counter() + TURN_S
