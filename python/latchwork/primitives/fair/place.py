"""A part that consists of a place in a queue: how it is had, left and forgotten.

Nothing here knows what the first in the queue may do.
"""

from __future__ import annotations

import logging

from latchwork.errors import LatchworkError
from latchwork.primitives.fair.tickets import Place, TicketQueue
from latchwork.primitives.waiting.participant import Participant
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store

_log = logging.getLogger(__name__)


class HasPlace(Participant):
    """Takes part by a ticket in a queue. A place is forgotten once its ticket is gone, and not before."""

    def __init__(
        self, store: Store, what: str, who: str, session: Session | None, *, name: str, queue: TicketQueue
    ) -> None:
        super().__init__(store, what, who, session, name=name)
        self._queue = queue
        self._place: Place | None = None
        self._session: Session | None = None

    async def _hand_over(self) -> None:
        """Delete our ticket before our thread does, if no listener has to end first; our thread handles trouble."""
        place = self._place
        if place is None:
            return
        try:
            await ask(self._store.delete, place.ticket.key)
        except LatchworkError as error:
            _log.debug("%s: %s could not leave at once: %s", self._what, self._who, error)
        else:
            self._forget(place)

    def _lose_place(self) -> None:
        """Stop counting our ticket; if it is still there, it is removed rather than waited for."""
        place, self._place = self._place, None
        if place is not None:
            self._queue.disown(place.nonce)

    async def _leave(self) -> None:
        """Delete every ticket of ours, again and again until our session ends."""
        place = self._place
        if self._session is not None:
            await self._queue.clear(self._session, (place.ticket.key,) if place is not None else ())
        self._forget(place)

    def _forget(self, place: Place | None) -> None:
        with self._changed.mutex:
            if self._place is place:
                self._place = None
