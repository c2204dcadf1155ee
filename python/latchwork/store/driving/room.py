"""Room for so many calls of one event loop at once; further ones wait for their turn, in their order.

``asyncio.Semaphore`` does that too, for more: two coroutines around each call, and with each end a look through all
whose turn has come and who have not gone on yet.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """A number of places, for tasks of one loop. Who finds one free has it without a switch of tasks.

    A place that is given up goes to the one who has waited longest; nobody overtakes. Call ``take``, and if there was
    no place await ``turn``; then ``leave``, once for each place had.
    """

    __slots__ = ("_free", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, places: int) -> None:
        self._loop = loop
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place; False if none is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def turn(self) -> None:
        """Wait for a place. A cancellation leaves none taken."""
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if not waiter.done():  # the task is thrown away, not cancelled
                self._waiting.remove(waiter)
            elif not waiter.cancelled():  # the place came, and then the cancellation
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place to who waits longest, or back."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done() and not self._loop.is_closed():
                waiter.set_result(None)
                return
        self._free += 1
