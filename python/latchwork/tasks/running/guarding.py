"""Tells the runs of a node to stop before the session of their claims can end, whatever the server says.

It wakes at the moments at which something is due, and not when a run begins or ends. Nothing here touches the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from latchwork.clock import Clock
from latchwork.store.driving.bell import Bell
from latchwork.store.steps import called
from latchwork.tasks.running.endings import SESSION_ENDS, Taken

if TYPE_CHECKING:
    from latchwork.store import Session


class Guard:
    """Watches the claims of one feeder. Safe to share between threads.

    Args:
        clock: the node's.
        held: the claims that there are.
        give_back: called with the moment; does what is due with what has not begun, and says when more is.
    """

    def __init__(self, clock: Clock, held: Callable[[], list[Taken]], give_back: Callable[[float], float]) -> None:
        self._clock = clock
        self._held = held
        self._give_back = give_back
        self._bell = Bell()
        self._looks_at = math.inf
        self._is_over = False
        self._session: Session | None = None
        self._unfollow: Callable[[], None] = lambda: None

    def look_at(self, moment: float) -> None:
        """Look at this moment, or before."""
        with self._bell.mutex:
            if moment < self._looks_at:
                self._looks_at = moment
                self._bell.ring()

    def follow(self, session: Session) -> None:
        """Have all runs told when the session of their claims is lost: one listener for all."""
        if self._session is session:
            return
        self._unfollow()
        self._session = session
        self._unfollow = session.on_lost(partial(self._lose, session), or_closed=True)

    def end(self) -> None:
        """Watch nothing more."""
        self._unfollow()
        with self._bell.mutex:
            self._is_over = True
            self._bell.ring()

    async def run(self) -> None:
        """Until the end."""
        while True:
            with self._bell.mutex:
                rings, is_over = self._bell.rings, self._is_over
                self._looks_at = math.inf  # until we wait, each moment rings
            if is_over:
                return
            now = self._clock.now()
            moments = [(now + task.claim.remaining_s() - task.margin_s, task) for task in self._held() if task.runs]
            for moment, task in moments:
                if moment <= now:
                    await called(task.cut_short, SESSION_ENDS)
            due: float = await called(self._give_back, now)
            soonest = min([due, *(moment for moment, _ in moments if moment > now)])
            with self._bell.mutex:
                self._looks_at = soonest
            await self._bell.rung(rings, self._clock, None if soonest == math.inf else soonest - now)

    def _lose(self, session: Session) -> None:
        for task in self._held():
            if task.claim.session is session:
                task.lose()
