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
from latchwork.primitives.fair.latch import Leader, Observer
from latchwork.primitives.fair.session_lock import SessionLock
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue, wait_for_turn
from latchwork.primitives.waiting.arguments import check_bytes, check_name, check_node_id
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import GuardedWork, Ownership, OwnershipHolder, check_function, run_guarded
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.types import Fence, Put

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Election:
    """Leadership for one term at a time: ``with election.campaign(b"10.0.0.7:80") as term:``.

    Construction does no I/O. Thread-safe: each campaign queues separately. A paused process may write late, so pass
    ``term.fence`` to every write that matters.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the tickets.
        node_id: The name of this candidate, shown to others: any non-empty text.
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
        self._campaign_locks: set[_CampaignLock] = set()

    def __repr__(self) -> str:
        return f"<Election {self.name!r} {self.node_id!r}>"

    @blocking
    async def campaign(self, value: bytes = b"", *, timeout_s: float | None = None) -> Term:
        """Join the queue of candidates and wait to be elected.

        Args:
            value: The public value of the leader during the term; see ``Term.proclaim``.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
        Returns:
            The term. Use it in a ``with`` statement, or call ``resign`` at the end.
        Raises:
            WaitTimeout: Another candidate still leads. Our ticket has been removed.
            SessionLost: Our session ended while waiting.
            Closed: The election, its session or its store was closed.
            LatchworkError: The call is inside a callback, which must not wait.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Nothing is left behind.
        """
        self._waits.ensure_usable()
        check_bytes(value, f"the value of {self._what}")
        campaign_lock = _CampaignLock(
            self._store, self._what, self._queue, session=self._session, value=value, on_end=self._forget
        )
        with self._lock:
            self._waits.ensure_usable()
            self._campaign_locks.add(campaign_lock)
        try:
            await coroutine_of(campaign_lock.acquire)(timeout_s)
        except BaseException:
            await campaign_lock.give_up()
            raise
        return Term(self, campaign_lock)

    @blocking
    async def run(
        self,
        fn: Callable[[Term, GuardedWork], T],
        value: bytes = b"",
        *,
        timeout_s: float | None = None,
        margin_s: float | None = None,
    ) -> T:
        """Campaign, run ``fn(term, work)`` in this thread, and resign.

        ``work`` asks the function to stop before the term can end. If it returns after that, the campaign starts again.
        The function may run several times on several nodes, but never on two at a time as long as it stops in time.

        Args:
            fn: Called as ``fn(term, work)``. It must check ``work`` regularly, and write with ``work.fence``.
            value: The public value of the leader at the beginning of each term.
            timeout_s: Seconds to wait for each election. None waits forever.
            margin_s: Seconds between the request to stop and the end of a term. None uses a tenth of the session's TTL.
        Returns:
            The result of ``fn`` when it returned without a request to stop.
        Raises:
            WaitTimeout, SessionLost, Closed: As for ``campaign``.
            TypeError: ``fn`` cannot be called as ``fn(term, work)``, or is async or a generator.
            Exception: ``fn`` raised it.
        """
        check_function(fn, self._what, ("term", "work"))
        while True:
            term = await coroutine_of(self.campaign)(value, timeout_s=timeout_s)
            try:
                try:
                    work = term.guard_work(margin_s)
                except NotLeader:
                    continue
                for result in await run_guarded(work, partial(fn, term)):
                    return result
            finally:
                await coroutine_of(term.close)()

    @blocking
    async def leader(self) -> Leader | None:
        """Return the current leader, read from the store. None if there is none. This process need not be a
        candidate.
        """
        return next(iter(await coroutine_of(self.candidates)()), None)

    @blocking
    async def candidates(self) -> list[Leader]:
        """Return all candidates in the order in which they will lead, the leader first. This process need not be
        one.
        """
        return [Leader.from_ticket(ticket) for ticket in await self._queue.tickets()]

    def observe(self) -> Observer:
        """Return an iterator over the leaders and their values, as they change.

        Close the iterator after use. The ``close`` of this election does not end it.

        Raises:
            Closed: The election was closed.
        """
        self._waits.ensure_usable()
        return Observer(self._store, self.name)

    @shielded
    async def close(self) -> None:
        """Resign from all terms of this object, and make its waiting calls raise ``Closed``. Thread-safe and
        idempotent.
        """
        if self._waits.home.is_foreign:
            return
        self._waits.close()  # first: new campaigns are refused from now on
        with self._lock:
            campaign_locks = list(self._campaign_locks)
        try:
            for campaign_lock in campaign_locks:
                await campaign_lock.give_up()
        except BaseException:
            for campaign_lock in campaign_locks:
                campaign_lock.abandon()
            raise

    def _forget(self, campaign_lock: _CampaignLock) -> None:
        if self._waits.home.is_foreign:
            return
        with self._lock:
            self._campaign_locks.discard(campaign_lock)


class Term(OwnershipHolder):
    """A term of leadership, from the election until it is resigned or lost. ``Election.campaign`` returns it.

    Thread-safe. The end of a ``with`` block resigns.
    """

    def __init__(self, election: Election, campaign_lock: _CampaignLock) -> None:
        self._election = election
        self._campaign_lock = campaign_lock

    def __repr__(self) -> str:
        return f"<Term {self._election.name!r} {self._election.node_id!r} {self.remaining_s():.2f}s>"

    def __enter__(self) -> Self:
        return self

    @shielded
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            await coroutine_of(self.resign)()
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
        return self._campaign_lock.fence

    @property
    def is_leader(self) -> bool:
        """Whether this process certainly leads now. Performs no I/O.

        It becomes False by the local clock before another candidate can lead.
        """
        return self._campaign_lock.is_held

    @property
    def lost(self) -> Signal:
        """A signal that is set when the term is lost, but not when it is resigned."""
        return self._campaign_lock.lost

    def remaining_s(self) -> float:
        """Return for how many seconds this process certainly leads without a further renewal, 0 after the term.
        Performs no I/O.
        """
        return self._campaign_lock.remaining_s()

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` when the term is lost, but not when it is resigned. Return a function that removes the
        listener.
        """
        return self._campaign_lock.on_lost(fn)

    @blocking
    async def proclaim(self, value: bytes) -> None:
        """Replace the leader's public value without another election.

        Raises:
            NotLeader: The term has ended. Nothing was published.
            Unavailable, OutcomeUnknown: As for any write. Publishing again is safe.
        """
        await self._campaign_lock.proclaim(value)

    @shielded
    async def resign(self) -> None:
        """End the term, so that the next candidate is elected. Idempotent.

        Raises:
            NotLeader: The term had been lost, even if this process did not know it yet.
        """
        if not self._campaign_lock.has_ended:
            await self._campaign_lock.resign()

    @shielded
    async def close(self) -> None:
        """End the term. Unlike ``resign``, raise no error if it was lost."""
        await self._campaign_lock.give_up()

    def _get_ownership(self) -> Ownership:
        return self._campaign_lock.owned()


class _CampaignLock(SessionLock):
    """The lock behind a campaign and the term of leadership that follows. The leader is the client that holds it."""

    error = NotLeader

    def __init__(
        self,
        store: Store,
        what: str,
        queue: TicketQueue,
        *,
        session: Session | None,
        value: bytes,
        on_end: Callable[[_CampaignLock], None],
    ) -> None:
        super().__init__(store, what, queue, session=session)
        self._value = value
        self._on_over = on_end
        self.has_ended = False

    def owned(self) -> Ownership:
        return self._get_ownership()

    async def proclaim(self, value: bytes) -> None:
        check_bytes(value, f"the value of {self.what}")
        position = self._require_held_lock().position
        body = {**read_object(position.ticket.value), **_encode_leader_value(value)}
        try:
            await ask(self._store.commit, [position.fence], [Put(position.ticket.key, encode(body))])
        except Conflict as error:
            raise NotLeader(
                f"{self.what} is no longer led by this process, so nothing was announced; stop leading"
            ) from error

    async def resign(self) -> None:
        self._home.check()
        self.has_ended = True
        try:
            await coroutine_of(self.release)()
        finally:
            self._on_over(self)

    def abandon(self) -> None:
        self.has_ended = True
        super().abandon()
        self._on_over(self)

    async def give_up(self) -> None:
        self.has_ended = True
        try:
            await coroutine_of(self.close)()
        finally:
            self._on_over(self)

    async def _acquire_ticket(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        return await wait_for_turn(self._queue, waiter, deadline, body=_encode_leader_value(self._value))


def _encode_leader_value(value: bytes) -> dict[str, object]:
    """Encode the public value of a leader as JSON fields of its ticket. A value in UTF-8 remains readable text."""
    try:
        return {"value": value.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}
