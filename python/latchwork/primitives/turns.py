"""Waiting for one's turn in a queue of tickets: each waiter watches exactly one ticket ahead of it.

A hand-over costs the next in the queue one watch event, and one request to see that it is first: none when only one
ticket was ahead, because nothing can appear ahead later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from latchwork.errors import Closed, OutcomeUnknown, SessionLost, Unavailable, WaitTimeout
from latchwork.primitives.common import Backoff
from latchwork.primitives.tickets import Ticket

if TYPE_CHECKING:
    from latchwork.primitives.common import Patience
    from latchwork.primitives.tickets import Place, TicketQueue
    from latchwork.store.session import Session
    from latchwork.store.store import Store
    from latchwork.store.watch import Batch, Watch

T = TypeVar("T")
#: Which tickets ahead have to be waited for.
Blocks = Callable[[Ticket], bool]


def everyone(_ticket: Ticket) -> bool:
    """Every ticket ahead has to go first."""
    return True


class Waiter:
    """Waits in the thread that asks, for one thing at a time; can be called off for good, from any thread.

    It is called off when its session ends, lost or closed. The watch of the last wait stays open until the next wait or
    ``close``: who has just got a lock has better things to do.
    """

    def __init__(self, store: Store, session: Session) -> None:
        self.session = session
        self._store = store
        self._lock = threading.Lock()
        self._off = threading.Event()
        self._watch: Watch | None = None
        self._cancel = session.on_end(self.call_off)

    def close(self) -> None:
        """Let go of the session and of the last watch. Twice is fine."""
        self._cancel()
        self._replace(None)

    @property
    def is_off(self) -> bool:
        """True once called off."""
        return self._off.is_set()

    def call_off(self) -> None:
        """Wait no more: whoever waits returns at once. Does not block."""
        self._off.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()

    def pause(self, seconds: float | None) -> bool:
        """Pause so long; False when called off."""
        return not self._store.clock.wait(self._off, seconds)

    def follow(self, prefix: str, is_done: Callable[[Batch], bool], patience: Patience) -> bool:
        """Wait until a batch of changes at or below a prefix satisfies; False when time is over or called off."""
        watch = self._store.watch(prefix)
        self._replace(watch)
        try:
            while not self.is_off:
                if is_done(watch.next(patience.left_s())):
                    return True
        except WaitTimeout:
            return False
        except Closed:
            if not self.is_off:
                raise
        return False

    def _replace(self, watch: Watch | None) -> None:
        with self._lock:
            before, self._watch = self._watch, watch
        if before is not None:
            before.close()

    def until_over(self, ticket: Ticket, blocks: Blocks, patience: Patience) -> bool:
        """Wait until a ticket is gone or blocks no more; False when time is over or called off."""

        def is_over(batch: Batch) -> bool:
            entry = batch[-1].entry if batch else None
            return entry is None or not blocks(Ticket.of(entry))

        return self.follow(ticket.key, is_over, patience)

    def keep_trying(self, step: Callable[[], T], patience: Patience) -> T:
        """Do something with the server, again and again while it cannot be reached and there is time.

        Raises:
            SessionLost: the session ended meanwhile.
            Unavailable, OutcomeUnknown: the last one, when the time is over.
        """
        backoff = Backoff()
        while True:
            try:
                return step()
            except (Unavailable, OutcomeUnknown) as error:
                if self.session.remaining_s() <= 0.0:
                    raise SessionLost(f"session {self.session.id} ended: {error}") from error
                pause_s = patience.left_s(backoff.next_s())
                if patience.is_over or not self.pause(pause_s):
                    raise


def take_turn(
    queue: TicketQueue,
    waiter: Waiter,
    patience: Patience,
    *,
    blocks: Blocks = everyone,
    body: Mapping[str, object] | None = None,
) -> Place | None:
    """Queue, and wait until nothing that blocks is ahead; None when time is over or the waiter was called off.

    Whatever ends it without a place leaves no ticket behind.

    Raises:
        SessionLost: the session ended while waiting.
        LockLost: somebody deleted our ticket while we waited.
        Unavailable, OutcomeUnknown: the server could not be reached before the time was over.
    """
    place = waiter.keep_trying(lambda: queue.join(waiter.session, body), patience)
    has_turn = False
    try:
        has_turn = waiter.keep_trying(lambda: await_turn(queue, place, waiter, patience, blocks), patience)
    finally:
        if not has_turn:
            queue.leave(place)
    return place if has_turn else None


def await_turn(queue: TicketQueue, place: Place, waiter: Waiter, patience: Patience, blocks: Blocks = everyone) -> bool:
    """Wait until nothing that blocks is ahead of a place; False when time is over or called off."""
    while True:
        ahead = [ticket for ticket in queue.ahead(place) if blocks(ticket)]
        if not ahead:
            return True
        if patience.is_over or not waiter.until_over(ahead[-1], blocks, patience):
            queue.refuse_lost(place)
            return False
        if len(ahead) == 1 or queue.are_gone(place, ahead[:-1]):
            return True
