"""Elections in terms: whoever campaigns waits to be elected, leads with a value that all can see, and resigns.

Keys:   <name>/t-<nonce>  one ticket per campaign, dies with its session; node id as label, its value, host and
                          pid as JSON
Leader: the oldest ticket. Each other campaign watches exactly the ticket before its own.

A ``LeaderLatch`` stays a candidate and calls listeners; here a thread asks for each term, holds it and ends it.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from latchwork._base.decoding import encode, read_object
from latchwork.checks import check_store
from latchwork.errors import Conflict, NotLeader, OwnershipLost
from latchwork.interrupts import mutex
from latchwork.primitives.fair.holding import SessionLock
from latchwork.primitives.fair.latch import Leader, Observer
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue, take_turn
from latchwork.primitives.waiting.common import Patience, check_bytes, check_name, check_node_id
from latchwork.primitives.waiting.waits import Waiter, Waits
from latchwork.primitives.waiting.work import GuardsWork, Ownership, Work, check_function, run_guarded
from latchwork.store.session import Session
from latchwork.store.steps import Signal, ask, driven, ending, steps_of
from latchwork.store.store import Store
from latchwork.types import Fence, Put

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Election:
    """Who leads, for a term: ``with election.campaign(b"10.0.0.7:80") as term:``.

    Construction does no I/O. Safe to share between threads: each campaign queues for itself. A paused process may go on
    writing late: pass ``term.fence`` to every write that matters.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which the tickets are.
        node_id: who we are, for those who look: any text that is not empty.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
    """

    def __init__(self, store: Store, name: str, *, node_id: str, session: Session | None = None) -> None:
        check_store(store, "an election")
        self.name = check_name(name, "election")
        self.node_id = check_node_id(node_id, "election")
        self._store = store
        self._session = session
        self._what = f"election {name!r}"
        self._waits = Waits(store, self._what, session)
        self._queue = TicketQueue(store, name, self._what, node_id)
        self._lock = mutex()
        self._seats: set[_Seat] = set()

    def __repr__(self) -> str:
        return f"<Election {self.name!r} {self.node_id!r}>"

    @driven
    async def campaign(self, value: bytes = b"", *, timeout_s: float | None = None) -> Term:
        """Queue, and wait to be elected.

        Args:
            value: what everybody sees of us while we lead; see ``Term.proclaim``.
            timeout_s: seconds to wait; None waits for ever, 0 tries once.
        Returns:
            The term: use it in a ``with``, or resign in the end.
        Raises:
            WaitTimeout: another still leads; nothing of ours is left behind.
            SessionLost: our session ended while waiting.
            Closed: the election, its session or its store was closed.
            LatchworkError: this is a callback, which must not wait.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; nothing is left behind.
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

        ``work`` tells it to stop before the term can end. When it was told to, and has ended, we campaign again: it may
        run several times, on several nodes, never on two at a time as long as it stops when told.

        Args:
            fn: checks ``work`` now and then, and writes with ``work.fence``.
            value: announced at the beginning of each term.
            timeout_s: seconds to wait for each election; None waits for ever.
            margin_s: how long before the end of a term to tell it; None takes a tenth of the session's TTL.
        Returns:
            What it returned when it ended without having been told to stop.
        Raises:
            WaitTimeout, SessionLost, Closed: as ``campaign`` does.
            TypeError: ``fn`` cannot be called as ``fn(term, work)``, or is async or a generator.
            Exception: whatever ``fn`` raises.
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
        """Who leads now as the store knows it, or None. Needs no campaign."""
        return next(iter(await steps_of(self.candidates)()), None)

    @driven
    async def candidates(self) -> list[Leader]:
        """All campaigns in the order in which they will lead, the leader first; may be empty."""
        return [Leader.of(ticket) for ticket in await self._queue.tickets()]

    def observe(self) -> Observer:
        """Follow who leads, and with which value. Close it when done: it outlives this object. Needs no campaign.

        Raises:
            Closed: the election was closed.
        """
        self._waits.check()
        return Observer(self._store, self.name)

    @ending
    async def close(self) -> None:
        """Resign every term of this object, and call off its campaigns. From any thread; twice is fine."""
        if self._waits.home.is_foreign:
            return
        self._waits.close()  # first: whoever campaigns from now on is refused
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
    """One time of leading: from an election until it is resigned or lost. Get it from ``Election.campaign``.

    Safe to share between threads. ``with`` resigns at the end.
    """

    def __init__(self, election: Election, seat: _Seat) -> None:
        self._election = election
        self._seat = seat

    def __repr__(self) -> str:
        return f"<Term {self._election.name!r} {self._election.node_id!r} {self.remaining_s():.2f}s>"

    def __enter__(self) -> Self:
        return self

    @ending
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            await steps_of(self.resign)()
        except OwnershipLost as error:
            if exc_type is None:
                raise
            _log.warning("%s, while its work failed", error)

    @property
    def fence(self) -> Fence:
        """The check for every write that only the leader may do; its ``token`` grows with each new term.

        Raises:
            NotLeader: the term is over.
        """
        return self._seat.fence

    @property
    def is_leader(self) -> bool:
        """True while we lead for certain: turns False by our own clock before another can lead. Does no I/O."""
        return self._seat.is_held

    @property
    def lost(self) -> Signal:
        """Set when the term is lost; never by resigning."""
        return self._seat.lost

    def remaining_s(self) -> float:
        """Seconds we lead for certain if no further renewal succeeds; 0 when the term is over. Does no I/O."""
        return self._seat.remaining_s()

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` when the term is lost, not when it is resigned. Returns what ends that."""
        return self._seat.on_lost(fn)

    @driven
    async def proclaim(self, value: bytes) -> None:
        """Announce another value without another election.

        Raises:
            NotLeader: the term is over; nothing was announced.
            Unavailable, OutcomeUnknown: as for any write; to announce it again does no harm.
        """
        await self._seat.proclaim(value)

    @ending
    async def resign(self) -> None:
        """End the term; the next campaign is elected. Once it was resigned or closed, nothing happens.

        Raises:
            NotLeader: it had been lost, to the knowledge of the store if not to ours.
        """
        if not self._seat.is_over:
            await self._seat.resign()

    @ending
    async def close(self) -> None:
        """End the term, lost or not."""
        await self._seat.give_up()

    def _owned(self) -> Ownership:
        return self._seat.owned()


class _Seat(SessionLock):
    """One campaign, and the term that follows it."""

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
        self.is_over = False

    def owned(self) -> Ownership:
        return self._owned()

    async def proclaim(self, value: bytes) -> None:
        check_bytes(value, f"the value of {self.what}")
        place = self._held().place
        body = {**read_object(place.ticket.value), **_value_body(value)}
        try:
            await ask(self._store.commit, [place.fence], [Put(place.ticket.key, encode(body))])
        except Conflict as error:
            raise NotLeader(f"{self.what} is not led by us any more, nothing was announced; stop leading") from error

    async def resign(self) -> None:
        self._home.check()
        self.is_over = True
        try:
            await steps_of(self.release)()
        finally:
            self._on_over(self)

    def abandon(self) -> None:
        self.is_over = True
        super().abandon()
        self._on_over(self)

    async def give_up(self) -> None:
        self.is_over = True
        try:
            await steps_of(self.close)()
        finally:
            self._on_over(self)

    async def _take(self, waiter: Waiter, patience: Patience) -> QueuePosition | None:
        return await take_turn(self._queue, waiter, patience, body=_value_body(self._value))


def _value_body(value: bytes) -> dict[str, object]:
    """As text where it is text, so that people can read it in the store."""
    try:
        return {"value": value.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}
