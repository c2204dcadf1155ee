"""Leader election: candidates queue, and the first one leads until it leaves or its session ends.

Keys:   <name>/t-<nonce>  one ticket per candidate, bound to its session; node ID as label, host and PID as JSON

The leader is the oldest ticket. Each other candidate watches the ticket directly before its own. ``Observer`` follows
the leader without being a candidate.

docs/design/locks.md has the states, and which fence closes which race.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from msgspec import Struct

from latchwork._base.decoding import Decoder
from latchwork._base.validation import check_store
from latchwork.errors import Closed, LatchworkError, NotLeader, OwnershipLost, WaitTimeout
from latchwork.primitives.fair.tickets import (
    FATAL,
    QueuePosition,
    Ticket,
    TicketQueue,
    any_ticket_blocks,
    await_turn,
    is_ticket,
    wait_until_ticket_gone,
)
from latchwork.primitives.waiting.arguments import check_name, check_node_id
from latchwork.primitives.waiting.closable import Closable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import GuardedWork, Ownership, OwnershipHolder, check_function, run_guarded
from latchwork.primitives.waiting.participant import Participant
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.observers import add_listener, check_listener
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.store.watch import Batch, Watch
from latchwork.types import Fence

_log = logging.getLogger(__name__)

LatchState = Literal["new", "joining", "waiting", "leading", "ended"]

T = TypeVar("T")
#: Seconds that leaving waits for ``on_revoked`` listeners before it lets the next candidate lead.
_REVOKE_TIMEOUT_S = 5.0
#: The watch of our own ticket is opened so long after we were elected: both would want the interpreter at once.
_WATCH_AFTER_S = 0.002


class LeaderLatch(OwnershipHolder, Participant):
    """A candidate for leadership. ``with`` joins the queue of candidates without waiting, and leaves it at the end.

    Construction does no I/O. Thread-safe. After a lost session it joins again at the end of the queue with the store's
    next session. If ``session`` is given, it cannot, and ``wait`` raises ``SessionLost``.

    ``is_leader`` becomes False by our own clock before any other candidate can lead. This does not prevent a paused
    process from writing late: pass ``fence`` to every write that matters.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the tickets.
        node_id: The name of this candidate, shown to others: any non-empty text.
        session: The session of the ticket, which the caller closes. None uses the store's primary session.
    """

    def __init__(self, store: Store, name: str, *, node_id: str, session: Session | None = None) -> None:
        check_store(store, "a latch")
        self.name = check_name(name, "latch")
        self.node_id = check_node_id(node_id, "latch")
        what = f"latch {name!r}"
        super().__init__(store, what, f"node {node_id!r}", session, name=f"latch-{node_id}")
        self._queue = TicketQueue(store, name, what, node_id)
        self._position: QueuePosition | None = None
        self._session: Session | None = None
        self._state: LatchState = "new"
        self._leadership: Ownership | None = None
        self._elected_listeners: dict[object, Callable[[], None]] = {}
        self._revoked_listeners: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<LeaderLatch {self.name!r} {self.node_id!r} {self.state}>"

    # Joining and leaving

    @blocking
    async def start(self) -> None:
        """Join the queue of candidates in a background thread, without waiting.

        Idempotent. Can be called again after ``leave``.

        Raises:
            Closed: The latch was closed.
            LatchworkError: A listener of the latch called this while the latch is leaving. Waiting here would be a
                deadlock, because leaving waits for the listener.
        """
        self._home.check()
        while (leaving := self._start_unless_leaving()) is not None:
            if self._announcer.is_running_here:
                raise LatchworkError(
                    f"{self._what} is leaving and waits for this listener; start it from another thread"
                )
            await self._ended(leaving)

    def _start_unless_leaving(self) -> Background | None:
        """Start the background thread, unless an earlier one is still leaving the queue.

        Returns:
            The earlier thread. The caller waits for its end and calls this again. None if a thread is now running.
        """
        with self._changed.mutex:
            self._check_open()
            if self._background is not None:
                return self._background if self._leaving else None
            self._leaving = False
            self._wake.clear()
            self._error = None
            self._state = "joining"
            self._start_thread()
            return None

    @shielded
    async def leave(self) -> None:
        """Leave the queue like ``close``. Unlike ``close``, ``start`` can join it again."""
        await self._stop(permanently=False)

    @shielded
    async def close(self) -> None:
        """Leave the queue of candidates permanently. Thread-safe and idempotent.

        ``is_leader`` becomes False at once. Then ``on_revoked`` listeners are called, for at most 5 seconds, before the
        next candidate can lead. The call returns when our ticket is deleted or its session has ended.
        """
        await self._stop(permanently=True)

    async def _stop(self, *, permanently: bool) -> None:
        if self._home.is_foreign:
            return
        with self._changed.mutex:
            self._closed = self._closed or permanently
            is_first, self._leaving = not self._leaving, True
            background, waiter = self._background, self._waiter
            if background is None and self._closed:
                self._state = "ended"
                self._changed.notify_all()
        self._revoke("it leaves")
        try:
            try:
                if is_first and await self._announcer.wait_until_delivered(self._store.clock, 0.0):
                    await self._try_delete_ticket()
            finally:
                self._wake.set()
                if waiter is not None:
                    waiter.cancel()
            if background is not None and not background.is_running_here and not self._announcer.is_running_here:
                await self._ended(background)
                await self._leave()  # if our thread ended while handing over failed
        except BaseException:
            self._stop_in_background(permanently=permanently)
            raise
        if permanently and (background is None or not background.is_alive):  # else it does so at its end
            self._dispatcher.close()

    def close_in_background(self) -> None:
        """Leave the queue permanently in the background, without waiting."""
        self._stop_in_background(permanently=True)

    def _stop_in_background(self, *, permanently: bool) -> None:
        """Make the background thread leave the queue, without waiting for it. Idempotent.

        Args:
            permanently: Whether the latch can never be started again.
        """
        with self._changed.mutex:
            self._closed = self._closed or permanently
            self._leaving = True
            background, waiter = self._background, self._waiter
        self._revoke("it leaves")
        self._wake.set()
        if waiter is not None:
            waiter.cancel()
        if background is None or not background.is_alive:
            Background(self._leave, f"latchwork-{self._name}")

    async def _try_delete_ticket(self) -> None:
        """Try to delete the ticket at once. After an error, the background thread deletes it when it ends."""
        position = self._position
        if position is None:
            return
        try:
            await ask(self._store.delete, position.ticket.key)
        except LatchworkError as error:
            _log.debug("%s: %s could not leave at once: %s", self._what, self._who, error)
        else:
            self._clear_position(position)

    def _drop_ticket(self) -> None:
        """Stop using the current ticket. If it still exists in the store, it will be deleted."""
        position, self._position = self._position, None
        if position is not None:
            self._queue.mark_abandoned(position.nonce)

    async def _leave(self) -> None:
        """Delete all tickets of this object. Retry until that succeeds or the session has ended."""
        position = self._position
        if self._session is not None:
            await self._queue.delete_until_done(self._session, (position.ticket.key,) if position is not None else ())
        self._clear_position(position)

    def _clear_position(self, position: QueuePosition | None) -> None:
        """Clear the position of this candidate after its ticket was deleted."""
        with self._changed.mutex:
            if self._position is position:
                self._position = None

    async def _ended(self, background: Background) -> None:
        await background
        with self._changed.mutex:
            if self._background is background:
                self._background = None

    # Being leader

    @property
    def is_leader(self) -> bool:
        """Whether this process certainly leads now. Performs no I/O.

        It becomes False by the local clock before another candidate can lead.
        """
        return self.remaining_s() > 0.0

    @property
    def fence(self) -> Fence:
        """The check to add to every write that only the leader may make.

        Raises:
            NotLeader: We do not lead now.
        """
        return self._get_ownership().fence

    def remaining_s(self) -> float:
        """Return for how many seconds this process certainly leads without a further renewal. 0 if it does not lead."""
        leadership = self._leadership
        return leadership.remaining_s() if leadership is not None else 0.0

    @blocking
    async def wait(self, timeout_s: float | None = None) -> Fence:
        """Wait until this process leads. After a timeout, it stays in the queue.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        Returns:
            The fence of our leadership.
        Raises:
            WaitTimeout: Another candidate still leads.
            SessionLost: The given session has ended. Create another latch with another session.
            Closed: The latch or its store was closed, or the latch was never started or has left.
            PermissionDenied: The account may not write here.
            LatchworkError: The call is inside a callback, and we do not lead.
        """
        return await self._wait_until(
            self._poll_leadership, timeout_s, self._what, partial(self._wait_error, timeout_s)
        )

    def _wait_error(self, timeout_s: float | None) -> WaitTimeout:
        return WaitTimeout(f"node {self.node_id!r} does not lead {self.name!r} after {timeout_s or 0.0:.3g} s")

    def _poll_leadership_across_restarts(self) -> Fence | None:
        """Return the fence if we lead, otherwise None. For a wait that continues if the latch leaves and starts again.

        Raises:
            LatchworkError: This latch can never lead again.
        """
        session = self._session
        if session is None or session.state == "closed" or self._closed or self._error is not None:
            return self._poll_leadership()
        leadership = self._leadership
        return leadership.fence if leadership is not None and leadership.remaining_s() > 0.0 else None

    def _poll_leadership(self) -> Fence | None:
        """Return the fence if we lead, otherwise None.

        Raises:
            LatchworkError: This latch is not a candidate.
        """
        leadership = self._leadership
        if leadership is not None and leadership.remaining_s() > 0.0:
            return leadership.fence
        self._raise_if_ended()
        return None

    @blocking
    async def run(
        self, fn: Callable[[GuardedWork], T], *, timeout_s: float | None = None, margin_s: float | None = None
    ) -> T:
        """Run ``fn(work)`` in this thread while we lead, and ask it to stop before our leadership can end.

        If the function returns after a request to stop, it runs again once we lead again. It may run several times on
        several nodes, but never on two at a time as long as it stops in time.

        Args:
            fn: Called as ``fn(work)``. It must check ``work`` regularly, and write with ``work.fence``.
            timeout_s: Seconds to wait for leadership, each time. None waits forever.
            margin_s: Seconds between the request to stop and the end of leadership. None uses a tenth of the session's
                TTL.
        Returns:
            The result of ``fn`` when it returned without a request to stop.
        Raises:
            WaitTimeout, SessionLost, Closed, PermissionDenied: As for ``wait``. After ``leave`` it waits for a start.
            TypeError: ``fn`` cannot be called as ``fn(work)``, or is async or a generator.
            Exception: ``fn`` raised it.
        """
        check_function(fn, self._what)
        self._poll_leadership()
        while True:
            await self._wait_until(
                self._poll_leadership_across_restarts,
                timeout_s,
                self._what,
                partial(self._wait_error, timeout_s),
                poll_s=1.0,
            )
            try:
                work = self.guard_work(margin_s)
            except NotLeader:
                continue
            if work.is_stopped:  # less than the margin is left: it waits for the renewal, or for the end of it
                await self._await_change(self.remaining_s())
                continue
            for result in await run_guarded(work, fn):
                return result

    async def _await_change(self, most_s: float) -> None:
        with self._changed.mutex:
            leads, version = self._leadership is not None, self._changed.version
        if leads:
            await self._changed.wait_for_change(version, self._store.clock, most_s)

    def on_elected(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` in a callback thread each time this process becomes the leader, and immediately if it leads
        now.

        Listeners for election and revocation are called one at a time, in the order of the events. A slow listener
        delays the others.

        Returns:
            A function that removes the listener.
        """
        self._check_open()
        with self._changed.mutex:
            if self._leadership is not None:
                self._announcer.enqueue(check_listener(fn))
            cancel = add_listener(self._elected_listeners, fn)
        self._announcer.start_delivery()
        return cancel

    def on_revoked(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` in a callback thread each time this process stops being the leader.

        Returns:
            A function that removes the listener.
        """
        self._check_open()
        with self._changed.mutex:
            return add_listener(self._revoked_listeners, fn)

    # Looking around

    @property
    def state(self) -> LatchState:
        """The last known state: ``new``, ``joining``, ``waiting``, ``leading`` or ``ended``."""
        return self._state

    @blocking
    async def candidates(self) -> list[Candidate]:
        """Return all candidates in the order in which they will lead, the leader first. This process need not be
        one.
        """
        return [Candidate.from_ticket(ticket) for ticket in await self._queue.tickets()]

    @blocking
    async def leader(self) -> Candidate | None:
        """Return the current leader, read from the store. None if there is none. This process need not be a
        candidate.
        """
        return next(iter(await coroutine_of(self.candidates)()), None)

    # The queue

    def _on_error(self, error: LatchworkError) -> None:
        if isinstance(error, OwnershipLost):
            self._drop_ticket()
        if self._position is None or self._is_final(error):  # else it is only trouble on the way to the server
            self._revoke(str(error))

    async def _depart(self) -> None:
        self._revoke("it leaves")
        await self._announcer.wait_until_delivered(self._store.clock, _REVOKE_TIMEOUT_S)
        await self._leave()
        with self._changed.mutex:
            self._state = "ended" if self._closed or self._error is not None else "new"
            self._changed.notify_all()
            closed = self._closed
        if closed:
            self._dispatcher.close()

    async def _participate(self, backoff: Backoff) -> None:
        """Wait in the queue of candidates, and lead when it is our turn, until our ticket is lost or we leave.

        Args:
            backoff: Delays between retries. Reset after an election.
        """
        session = await self._get_open_session()
        with closing(Waiter(self._store, session)) as waiter:
            self._waiter = waiter
            forever = Deadline(self._store.clock, None)
            position = await self._get_or_join_queue(session)
            cancel = session.on_end(lambda: self._on_session_end(session))
            try:
                while not self._leaving:
                    if await await_turn(self._queue, position, waiter, forever):
                        backoff.reset()
                        self._lead(position)
                        await self._pause(_WATCH_AFTER_S)  # who waited to lead goes first
                        if (
                            await wait_until_ticket_gone(position.ticket.key, any_ticket_blocks, waiter, forever)
                            and not self._leaving
                        ):
                            raise self._queue.build_lost_error(position)
            finally:
                cancel()

    async def _get_or_join_queue(self, session: Session) -> QueuePosition:
        """Return our position in the queue. If we have none for this session, join the queue at its end."""
        position = self._position
        if position is not None and position.session is session:
            return position
        self._drop_ticket()
        self._enter("joining")
        self._session = session
        self._position = position = await self._queue.join(session)
        self._enter("waiting")
        _log.info("%s: node %r queues with ticket %s", self._what, self.node_id, position.ticket.key)
        return position

    # Leading

    def _get_ownership(self) -> Ownership:
        leadership = self._leadership
        if leadership is None or leadership.remaining_s() <= 0.0:
            raise NotLeader(
                f"node {self.node_id!r} does not lead {self.name!r} now; wait until it "
                "does, or leave the work to the leader"
            )
        return leadership

    def _lead(self, position: QueuePosition) -> None:
        session = position.session
        with self._changed.mutex:
            leadership = self._leadership
            if (
                self._leaving
                or session.remaining_s() <= 0.0
                or (leadership is not None and leadership.fence is position.fence)
            ):
                return
            self._leadership = Ownership.for_session(self._what, position.fence, session, self._store.clock, NotLeader)
            self._state = "leading"
            self._announcer.enqueue(*self._elected_listeners.values())
            self._changed.notify_all()
        self._announcer.start_delivery()
        _log.info("%s: node %r leads with token %d", self._what, self.node_id, position.fence.token)

    def _on_session_end(self, session: Session) -> None:
        """End our leadership because the session has ended. Called in the session's thread.

        The background thread cannot do so in time if it waits for a server that does not answer.
        """
        position = self._position
        if position is not None and position.session is session:
            self._revoke("its session has ended")

    def _revoke(self, why: str) -> None:
        with self._changed.mutex:
            leadership, self._leadership = self._leadership, None
            if leadership is None:
                return
            self._announcer.enqueue(*self._revoked_listeners.values())
            self._changed.notify_all()
        leadership.end()
        self._announcer.start_delivery()
        _log.info("%s: node %r no longer leads: %s", self._what, self.node_id, why)

    def _enter(self, state: LatchState) -> None:
        with self._changed.mutex:
            self._state = state
            self._changed.notify_all()

    def _is_final(self, error: LatchworkError) -> bool:
        given = self._given
        return isinstance(error, FATAL) or (given is not None and given.remaining_s() <= 0.0)


class _PublicBody(Struct, frozen=True):
    """The fields of a candidate's ticket that others can read."""

    value: str = ""
    encoding: str = ""


_PUBLIC_BODY: Decoder[_PublicBody] = Decoder(_PublicBody, "what a candidate says")


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader or a waiting candidate of an election, read from the store.

    Attributes:
        node_id: The name that the candidate gave; "" if its ticket is invalid.
        value: Its public value; empty if that is invalid.
        ticket: The key of its ticket, one per term.
        token: Its fencing token as leader, also if it does not lead yet.
        session_id: The ID of the session to which its ticket is bound.
    """

    node_id: str
    value: bytes
    ticket: str
    token: int
    session_id: str | None

    @classmethod
    def from_ticket(cls, ticket: Ticket) -> Leader:
        """Return the leader or candidate that a ticket describes."""
        return cls(ticket.label, _decode_leader_value(ticket.value), ticket.key, ticket.token, ticket.session_id)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate in the queue, read from the store.

    Attributes:
        node_id: The name that the candidate gave; "" if its ticket is invalid.
        ticket: The key of its ticket.
        token: Its fencing token as leader, also if it does not lead yet.
        session_id: The ID of the session to which its ticket is bound.
    """

    node_id: str
    ticket: str
    token: int
    session_id: str | None

    @classmethod
    def from_ticket(cls, ticket: Ticket) -> Candidate:
        """Return the candidate that a ticket describes."""
        return cls(ticket.label, ticket.key, ticket.token, ticket.session_id)


class Observer(Closable):
    """Iterates over the leaders of an election, the current one first. ``with`` closes it.

    Each item is a ``Leader``, or None if there is no leader. Changes between two calls may be skipped, but the newest
    state is always returned. Only one thread may iterate; ``close`` is thread-safe.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._clock = store.clock
        self._name = name
        self._tickets: dict[str, Leader] = {}
        self._last_returned: Leader | None = None
        self._first = True
        self._watch: Watch = store.watch(name)

    def __iter__(self) -> Iterator[Leader | None]:
        return self

    def __next__(self) -> Leader | None:
        try:
            return self.next()
        except Closed:
            raise StopIteration from None

    @blocking
    async def next(self, timeout_s: float | None = None) -> Leader | None:
        """Wait for another leader, or for a new value of the leader.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        Returns:
            The leader. None if there is no leader now.
        Raises:
            WaitTimeout: Nothing changed in time.
            Closed: The observer or its store was closed.
            PermissionDenied: The account may no longer read here.
        """
        deadline = Deadline(self._clock, timeout_s)
        while True:
            self._apply_batch(await coroutine_of(self._watch.next)(deadline.left_s()))
            leader = min(self._tickets.values(), key=lambda each: (each.token, each.ticket), default=None)
            if self._first or leader != self._last_returned:
                self._first, self._last_returned = False, leader
                return leader

    def close(self) -> None:
        """Stop observing. A waiting ``next`` raises ``Closed``. Idempotent."""
        self._watch.close()

    def _apply_batch(self, batch: Batch) -> None:
        for change in batch:
            if change.entry is None or change.entry.owner is None:
                self._tickets.pop(change.key, None)
            elif is_ticket(change.key) and change.key.rpartition("/")[0] == self._name:  # not of a name below ours
                self._tickets[change.key] = Leader.from_ticket(Ticket.from_entry(change.entry))


def _decode_leader_value(value: bytes) -> bytes:
    body = _PUBLIC_BODY.find(value) or _PublicBody()
    try:
        return base64.b64decode(body.value) if body.encoding == "base64" else body.value.encode()
    except ValueError:
        return b""  # as of a ticket that cannot be read
