"""Elections in terms: a campaign waits to be elected, leads with a public value, and resigns.

Keys:   <name>/t-<nonce>  one ticket per campaign, bound to its session: node ID as label, value, host and PID as JSON
Leader: the oldest ticket. Each other campaign watches the ticket directly before its own.

A ``LeaderLatch`` stays a candidate and calls listeners. Here a thread asks for each term, holds it and ends it.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from latchwork._base.decoding import encode, read_object
from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.validation import check_store
from latchwork.errors import Conflict, NotLeader, OwnershipLost
from latchwork.primitives.fair.holding import SessionLock
from latchwork.primitives.fair.latch import Leader, Observer
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue, wait_for_turn
from latchwork.primitives.waiting.common import Deadline, check_bytes, check_name, check_node_id
from latchwork.primitives.waiting.waits import Waiter, WaiterRegistry
from latchwork.primitives.waiting.work import GuardsWork, Ownership, Work, check_function, run_guarded
from latchwork.store.session import Session
from latchwork.store.steps import ask, driven, shielded, steps_of
from latchwork.store.store import Store
from latchwork.types import Fence, Put

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Election:
    """Leadership for a term: ``with election.campaign(b"10.0.0.7:80") as term:``.

    Construction does no I/O. Thread-safe: each campaign queues separately. A paused process may write late, so pass
    ``term.fence`` to every write that matters.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the tickets.
        node_id: The name of this candidate for others: any non-empty text.
        session: The session of the tickets, which the caller closes. None uses the store's primary session.
    """

    def __init__(self, store: Store, name: str, *, node_id: str, session: Session | None = None) -> None:
        check_store(store, "an election")
        self.name = check_name(name, "election")
        self.node_id = check_node_id(node_id, "election")
        self._store = store
        self._session = session
        self._what = f"election {name!r}"
        self._waits = WaiterRegistry(store, self._what, session)
        self._queue = TicketQueue(store, name, self._what, node_id)
        self._lock = mutex()
        self._seats: set[_Seat] = set()

    def __repr__(self) -> str:
        return f"<Election {self.name!r} {self.node_id!r}>"

    @driven
    async def campaign(self, value: bytes = b"", *, timeout_s: float | None = None) -> Term:
        """Join the queue of candidates and wait to be elected.

        Args:
            value: The public value during the term; see ``Term.proclaim``.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
        Returns:
            The term. Use it in a ``with``, or resign at the end.
        Raises:
            WaitTimeout: Another candidate still leads. Our ticket has been removed.
            SessionLost: Our session ended while waiting.
            Closed: The election, its session or its store was closed.
            LatchworkError: The call is inside a callback, which must not wait.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Nothing is left behind.
        """
        self._waits.check()
        check_bytes(value, f"the value of {self._what}")
        seat = _Seat(self._store, self._what, self._queue, session=self._session, value=value, on_over=self._forget)
        with self._lock:
            self._waits.check()
            self._seats.add(seat)
        try:
            await steps_of(seat.acquire)(timeout_s)
        except BaseException:
            await seat.give_up()
            raise
        return Term(self, seat)

    @driven
    async def run(
        self,
        fn: Callable[[Term, Work], T],
        value: bytes = b"",
        *,
        timeout_s: float | None = None,
        margin_s: float | None = None,
    ) -> T:
        """Campaign, run ``fn(term, work)`` in this thread, and resign.

        ``work`` stops it before the term can end. When it has returned after a stop, the campaign starts again. It may
        run several times on several nodes, but never on two at a time as long as it stops in time.

        Args:
            fn: Checks ``work`` regularly, and writes with ``work.fence``.
            value: The public value at the beginning of each term.
            timeout_s: Seconds to wait for each election. None waits forever.
            margin_s: Seconds between the stop and the end of a term. None uses a tenth of the session's TTL.
        Returns:
            The result of ``fn`` when it returned without a stop.
        Raises:
            WaitTimeout, SessionLost, Closed: As for ``campaign``.
            TypeError: ``fn`` cannot be called as ``fn(term, work)``, or is async or a generator.
            Exception: ``fn`` raised it.
        """
        check_function(fn, self._what, ("term", "work"))
        while True:
            term = await steps_of(self.campaign)(value, timeout_s=timeout_s)
            try:
                try:
                    work = term.guard_work(margin_s)
                except NotLeader:
                    continue
                for result in await run_guarded(work, partial(fn, term)):
                    return result
            finally:
                await steps_of(term.close)()

    @driven
    async def leader(self) -> Leader | None:
        """Read the current leader from the store. Return None if there is none. No campaign is needed."""
        return next(iter(await steps_of(self.candidates)()), None)

    @driven
    async def candidates(self) -> list[Leader]:
        """Return all candidates in the order in which they will lead, the leader first. No campaign is needed."""
        return [Leader.from_ticket(ticket) for ticket in await self._queue.tickets()]

    def observe(self) -> Observer:
        """Return an iterator over the leaders and their values.

        Close it after use: it continues after ``close`` of this object.

        Raises:
            Closed: The election was closed.
        """
        self._waits.check()
        return Observer(self._store, self.name)

    @shielded
    async def close(self) -> None:
        """Resign from all terms of this object, and end its campaigns. Thread-safe and idempotent."""
        if self._waits.home.is_foreign:
            return
        self._waits.close()  # first: new campaigns are refused from now on
        with self._lock:
            seats = list(self._seats)
        try:
            for seat in seats:
                await seat.give_up()
        except BaseException:
            for seat in seats:
                seat.abandon()
            raise

    def _forget(self, seat: _Seat) -> None:
        if self._waits.home.is_foreign:
            return
        with self._lock:
            self._seats.discard(seat)


class Term(GuardsWork):
    """A term of leadership, from an election until it is resigned or lost. ``Election.campaign`` returns it.

    Thread-safe. ``with`` resigns at the end.
    """

    def __init__(self, election: Election, seat: _Seat) -> None:
        self._election = election
        self._seat = seat

    def __repr__(self) -> str:
        return f"<Term {self._election.name!r} {self._election.node_id!r} {self.remaining_s():.2f}s>"

    def __enter__(self) -> Self:
        return self

    @shielded
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            await steps_of(self.resign)()
        except OwnershipLost as error:
            if exc_type is None:
                raise
            _log.warning("%s, while its work failed", error)

    @property
    def fence(self) -> Fence:
        """The check to add to every write that only the leader may make.

        Raises:
            NotLeader: The term has ended.
        """
        return self._seat.fence

    @property
    def is_leader(self) -> bool:
        """Whether this process certainly leads. Performs no I/O.

        It becomes False by the local clock before another candidate can lead.
        """
        return self._seat.is_held

    @property
    def lost(self) -> Signal:
        """A signal that is set when the term is lost, but not when it is resigned."""
        return self._seat.lost

    def remaining_s(self) -> float:
        """Return for how many seconds this process certainly leads without a further renewal. Performs no I/O.

        The result is 0 after the end of the term.
        """
        return self._seat.remaining_s()

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` when the term is lost, but not when it is resigned.

        Return a function that removes the listener.
        """
        return self._seat.on_lost(fn)

    @driven
    async def proclaim(self, value: bytes) -> None:
        """Replace the leader's public value without another election.

        Raises:
            NotLeader: The term has ended. Nothing was published.
            Unavailable, OutcomeUnknown: As for any write. Publishing again is safe.
        """
        await self._seat.proclaim(value)

    @shielded
    async def resign(self) -> None:
        """End the term, so that the next candidate is elected. Idempotent.

        Raises:
            NotLeader: It had been lost, even if only the store knew.
        """
        if not self._seat.has_ended:
            await self._seat.resign()

    @shielded
    async def close(self) -> None:
        """End the term. Raises no error if it was already lost."""
        await self._seat.give_up()

    def _owned(self) -> Ownership:
        return self._seat.owned()


class _Seat(SessionLock):
    """A candidate's campaign and the term of leadership that follows it."""

    error = NotLeader

    def __init__(
        self,
        store: Store,
        what: str,
        queue: TicketQueue,
        *,
        session: Session | None,
        value: bytes,
        on_over: Callable[[_Seat], None],
    ) -> None:
        super().__init__(store, what, queue, session=session)
        self._value = value
        self._on_over = on_over
        self.has_ended = False

    def owned(self) -> Ownership:
        return self._owned()

    async def proclaim(self, value: bytes) -> None:
        check_bytes(value, f"the value of {self.what}")
        position = self._require_hold().position
        body = {**read_object(position.ticket.value), **_encode_value(value)}
        try:
            await ask(self._store.commit, [position.fence], [Put(position.ticket.key, encode(body))])
        except Conflict as error:
            raise NotLeader(f"{self.what} is not led by us any more, nothing was announced; stop leading") from error

    async def resign(self) -> None:
        self._home.check()
        self.has_ended = True
        try:
            await steps_of(self.release)()
        finally:
            self._on_over(self)

    def abandon(self) -> None:
        self.has_ended = True
        super().abandon()
        self._on_over(self)

    async def give_up(self) -> None:
        self.has_ended = True
        try:
            await steps_of(self.close)()
        finally:
            self._on_over(self)

    async def _take(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        return await wait_for_turn(self._queue, waiter, deadline, body=_encode_value(self._value))


def _encode_value(value: bytes) -> dict[str, object]:
    """Return the fields to store for a leader's value.

    A value that is text is stored as text, so that people can read it.
    """
    try:
        return {"value": value.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}
