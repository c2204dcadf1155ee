"""The waits through one object: they are called off when the object is closed, or the session ends.

Nothing here decides what is waited for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from latchwork.errors import Closed, InvalidKey, OutcomeUnknown, SessionLost, Unavailable
from latchwork.interrupts import mutex
from latchwork.primitives.waiting.common import Patience, check_name, refuse_in_callback
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.forks import Home
from latchwork.store.session import Session
from latchwork.store.steps import Pause, Signal, ask
from latchwork.store.store import Store


def check_member(member_id: str, kind: str) -> str:
    """The id itself; ``InvalidKey`` if it cannot be one segment of a key."""
    check_name(member_id, kind)
    if "/" in member_id:
        raise InvalidKey(f"{kind} name {member_id!r} cannot be used: it must not contain '/'")
    return member_id


class Waits:
    """The waits through one object, ``what`` in messages: ``barrier 'start'``. Safe to share between threads.

    They end with the session that was given; None takes the store's primary session, opened at the first use.

    Attributes:
        home: the process that made the object.
    """

    def __init__(self, store: Store, what: str, session: Session | None) -> None:
        self._store = store
        self._what = what
        self._given = session
        self.home = Home(what)
        self._lock = mutex()
        self._waiters: set[Waiter] = set()
        self._closed = False
        self._closing = Signal()

    def check(self, cause: BaseException | None = None) -> None:
        """Raise ``Closed`` if the object was closed, ``ForkedProcess`` in a child of the process that made it."""
        self.home.check()
        if self._closed:
            raise Closed(f"{self._what} was closed; make another one") from cause

    @property
    def is_closed(self) -> bool:
        """True once closed."""
        return self._closed

    @asynccontextmanager
    async def begin(
        self, timeout_s: float | None, kept: Waiter | None = None
    ) -> AsyncIterator[tuple[Waiter, Patience]]:
        """Wait inside the ``with``: gives the waiter, and how long it may wait.

        Args:
            timeout_s: seconds to wait; None for ever.
            kept: the waiter of a wait before, which goes on.
        Raises:
            Closed, ForkedProcess, SessionLost: the object or the session cannot be used, or ended meanwhile.
            LatchworkError: this is a callback, and not a single try.
            Unavailable, OutcomeUnknown: the store's session could not be opened in that time.
        """
        self.check()
        refuse_in_callback(self._what, timeout_s)
        patience = Patience(self._store.clock, timeout_s)
        waiter = Waiter(self._store, await self._open_session(patience)) if kept is None else kept
        waiter.is_kept = False
        with self._waiting(waiter):
            try:
                yield waiter, patience
            except SessionLost as error:
                self.refuse_closed(waiter, error)
                raise

    async def _open_session(self, patience: Patience) -> Session:
        """The session that was given, or the store's: tried again while there is time."""
        backoff = Backoff()
        while True:
            try:
                session = self._given if self._given is not None else await ask(self._store.primary_session)
                session.ensure_usable()
            except (Unavailable, OutcomeUnknown) as error:
                if patience.is_over:
                    raise
                if await Pause(self._store.clock, self._closing, patience.left_s(backoff.next_s())):
                    self.check(error)
            else:
                return session

    @contextmanager
    def waiter(self, session: Session) -> Iterator[Waiter]:
        """Wait inside the ``with`` by another waiter: calling it off does not call off the others."""
        with self._waiting(Waiter(self._store, session)) as waiter:
            yield waiter

    @contextmanager
    def _waiting(self, waiter: Waiter) -> Iterator[Waiter]:
        try:
            with self._lock:
                if not self._closed:
                    self._waiters.add(waiter)
            self.check()
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)
            if not waiter.is_kept:
                waiter.close()

    def refuse_closed(self, waiter: Waiter, cause: BaseException | None = None) -> None:
        """Raise ``Closed`` if the object or the session of a wait was closed."""
        self.check(cause)
        if waiter.session.state == "closed":
            raise Closed(f"the session of {self._what} was closed; use another one") from cause

    def refuse_ended(self, waiter: Waiter, cause: BaseException | None = None) -> None:
        """Raise ``Closed`` or ``SessionLost`` if a wait ended for another reason than lack of time."""
        self.refuse_closed(waiter, cause)
        if waiter.session.remaining_s() <= 0.0:
            raise SessionLost(f"the session of a wait for {self._what} has ended; wait again") from cause

    def close(self) -> bool:
        """Call off every wait; False if it was closed before, or in a child of the process that made it."""
        if self.home.is_foreign:
            return False
        with self._lock:
            was_closed, self._closed = self._closed, True
            self._closing.set()
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.call_off()
        return not was_closed
