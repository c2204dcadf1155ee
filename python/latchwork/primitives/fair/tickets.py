"""A queue of session-bound tickets, which every fair primitive uses.

Keys:  <name>/t-<nonce>   one per attempt to queue, bound to its owner's session: label, host, PID and fields of the
                          primitive as JSON. ZooKeeper appends a number
Order: by the token of the creation, which grows with every write. Nothing appears ahead of a ticket later, and a
       ticket that has disappeared from ahead never returns.
Turn:  each waiter watches exactly one ticket ahead.

docs/design/locks.md has the states, and which fence closes which race.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from latchwork._base.decoding import Decoder, Whole, encode, read_object
from latchwork._base.interrupts import mutex
from latchwork.errors import (
    Closed,
    ForkedProcess,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    PermissionDenied,
    SessionLost,
    StoreFull,
)
from latchwork.primitives.waiting.common import Deadline, Identity, check_text
from latchwork.primitives.waiting.waits import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import Pause, Tracked, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Entry, Exists, Fence, Ordered

_log = logging.getLogger(__name__)

#: These do not go away by trying again.
FATAL = (Closed, ForkedProcess, InvalidKey, PermissionDenied)

_STEM = "t-"
#: Seconds for which a ticket may still appear. The backend settles a write of unknown outcome long before that.
_LATE_S = 120.0
#: Seconds between two looks at a queue, at most.
_CHECK_S = 1.0
#: A nonce, and the number that ZooKeeper appends.
_NAME = re.compile(rf"{_STEM}([0-9a-f]{{32}})(?:--?\d{{9,}})?\Z")


class _TicketCreator(Struct, frozen=True):
    """The creator of a ticket."""

    label: str = ""
    host: str = ""
    pid: Whole = 0


_CREATOR: Decoder[_TicketCreator] = Decoder(_TicketCreator, "a ticket")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket in a queue, or a lease, as its owner described it.

    Attributes:
        key: Its key.
        label: The name of the owner; empty if it is invalid.
        host: The host of the owner.
        pid: The process of the owner.
        token: The fencing token that the owner has or will have.
        session_id: The session of the ticket.
        value: The stored bytes.
    """

    key: str
    label: str
    host: str
    pid: int
    token: int
    session_id: str | None
    value: bytes = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The last segment of its key."""
        return self.key.rpartition("/")[2]

    def __str__(self) -> str:
        process = f"pid {self.pid} on {self.host}"
        return f"{self.label!r} ({process})" if self.label else process

    @classmethod
    def from_entry(cls, entry: Entry) -> Ticket:
        """Return the ticket of an entry. An invalid body is empty, and the ticket still counts."""
        creator = _CREATOR.find(entry.value) or _TicketCreator()
        return cls(entry.key, creator.label, creator.host, creator.pid, entry.created, entry.owner, entry.value)

    @property
    def body(self) -> dict[str, object]:
        """The stored fields; empty if they are invalid."""
        return read_object(self.value)


#: Which tickets ahead have to be waited for.
Blocks = Callable[[Ticket], bool]


def any_ticket_blocks(_ticket: Ticket) -> bool:
    """Return True: every ticket ahead blocks."""
    return True


@dataclass(slots=True, eq=False)
class QueuePosition:
    """Our ticket, its session, and the fence that proves that it exists.

    Attributes:
        ticket: The ticket as created.
        session: Its session.
        fence: For writes that depend on the ticket.
        older: The names of all tickets that can be ahead, in order; None until they are known.
        is_new: Whether the queue was not read since the creation.
    """

    ticket: Entry
    session: Session
    fence: Fence
    older: tuple[str, ...] | None = None
    is_new: bool = False

    @property
    def name(self) -> str:
        """The last segment of the ticket's key."""
        return self.ticket.key.rpartition("/")[2]

    @property
    def nonce(self) -> str:
        """The nonce in that name, which is unique."""
        return parse_nonce(self.name)


@dataclass(slots=True)
class _Creation:
    """A ticket that is being created.

    Attributes:
        ticket: The ticket, if the answer came after the call was cancelled.
        is_refused: Whether such an answer was that it does not exist and never will.
    """

    ticket: Entry | None = None
    is_refused: bool = False

    def answered(self, future: Future[Ordered]) -> None:
        """Record an answer that came after the call was cancelled."""
        error = future.exception()
        if error is None:
            self.ticket = future.result().entry
        else:
            self.is_refused = not isinstance(error, OutcomeUnknown)


class TicketQueue:
    """The tickets below one name, which the primitive has validated. Thread-safe.

    Attributes:
        what: The primitive in messages, such as ``lock 'orders'``.
        creator: The fields of all our tickets: label, host and PID.
    """

    def __init__(self, store: Store, name: str, what: str, label: str = "") -> None:
        self.store = store
        self.what = what
        self._name = name
        identity = Identity()
        self.creator = {"label": check_text(label, f"the label of {what}"), "host": identity.host, "pid": identity.pid}
        self._lock = mutex()
        self._abandoned: set[str] = set()

    async def tickets(self, *, stale_ok: bool = False) -> list[Ticket]:
        """Return all tickets in order. Entries without a session are skipped."""
        entries = await ask(self.store.list, self._name, stale_ok=stale_ok)
        return sort_tickets(
            Ticket.from_entry(entry) for entry in entries if is_ticket(entry.key) and entry.owner is not None
        )

    async def describe_first(self) -> str:
        """Return the first ticket in words, for messages."""
        try:
            return str(next(iter(await self.tickets()), "no one any more"))
        except LatchworkError:
            return "others"

    async def join(self, session: Session, more: Mapping[str, object] | None = None) -> QueuePosition:
        """Create a ticket at the end of the queue with one request. If the backend can, its answer names the older
        tickets.

        If the answer is lost, the ticket is searched by its nonce. A ticket that is not found never counts as ahead of
        ours, and is deleted in the background as soon as it appears.

        Args:
            session: The session of the ticket.
            more: The fields of the primitive.
        Raises:
            OutcomeUnknown: There is no ticket of ours. Try again.
        """
        nonce, value, creation = uuid.uuid4().hex, encode({**self.creator, **(more or {})}), _Creation()
        create, stem = self.store.create_ordered, f"{self._name}/{_STEM}"
        older: tuple[str, ...] | None = None
        try:
            created: Ordered = await Tracked(creation.answered, create, stem, nonce, value, session=session)
            ticket, older = created.entry, created.older
        except OutcomeUnknown:
            found = await self._find_or_abandon(nonce, session)
            if found is None:
                raise
            ticket = found
        except LatchworkError:
            raise
        except BaseException:
            if creation.ticket is not None:
                self._delete_in_background(session, (creation.ticket.key,))
            elif not creation.is_refused:
                self._abandon(nonce, session)
            raise
        fence = self.store.fence(ticket.created, Exists(ticket.key), session.fence)
        return QueuePosition(
            ticket, session, fence, None if older is None else tuple(filter(is_ticket, older)), is_new=True
        )

    async def _find_or_abandon(self, nonce: str, session: Session) -> Entry | None:
        """Find the ticket with this nonce. If it is not found, have it removed when it appears."""
        ticket: Entry | None = None
        try:
            names = await ask(self.store.children, self._name)
            for name in names:
                if parse_nonce(name) == nonce:
                    ticket = await ask(self.store.get, f"{self._name}/{name}")
        finally:
            if ticket is None:
                self._abandon(nonce, session)
        return ticket

    def _abandon(self, nonce: str, session: Session) -> None:
        self.mark_abandoned(nonce)
        self._remove_late_ticket(session, nonce)

    async def find_tickets_ahead(self, position: QueuePosition, blocks: Blocks = any_ticket_blocks) -> list[str]:
        """Return the keys of tickets before ours that block it, nearest last; empty when it is our turn.

        Any state of the queue with our ticket is sufficient: all tickets ahead of it had been created by then, and a
        deleted ticket never returns. The first call needs no request if the creation named them.

        Raises:
            SessionLost: Our session has ended.
            LockLost: Our ticket is gone.
        """
        self.raise_if_session_ended(position)
        is_new, position.is_new = position.is_new, False
        if position.older is not None and (blocks is any_ticket_blocks or not position.older):
            if not is_new:
                left = await self._names_with_ours(position)
                position.older = tuple(name for name in position.older if name in left)
            abandoned = await self._remove_abandoned(position.older)
            return [f"{self._name}/{name}" for name in position.older if name not in abandoned]
        tickets = await self._tickets_with_ours(position)
        ours = next(at for at, ticket in enumerate(tickets) if ticket.key == position.ticket.key)
        position.older = tuple(ticket.name for ticket in tickets[:ours])
        abandoned = await self._remove_abandoned(position.older)
        return [ticket.key for ticket in tickets[:ours] if ticket.name not in abandoned and blocks(ticket)]

    async def _remove_abandoned(self, names: Iterable[str]) -> set[str]:
        """Delete disowned tickets among these, which would block everybody, and return their names."""
        if not self._abandoned:
            return set()
        abandoned = {name for name in names if parse_nonce(name) in self._abandoned}
        for name in abandoned:
            await ask(self.store.delete, f"{self._name}/{name}")
        return abandoned

    async def _names_with_ours(self, position: QueuePosition) -> set[str]:
        for stale_ok in (True, False):
            names = await ask(self.store.children, self._name, stale_ok=stale_ok)
            if position.name in names:
                return set(names)
        raise self.lost_error(position)

    async def _tickets_with_ours(self, position: QueuePosition) -> list[Ticket]:
        for stale_ok in (True, False):
            tickets = await self.tickets(stale_ok=stale_ok)
            if any(ticket.key == position.ticket.key for ticket in tickets):
                return tickets
        raise self.lost_error(position)

    async def are_tickets_gone(
        self, position: QueuePosition, ahead: Sequence[str], names: Iterable[str] | None = None
    ) -> bool:
        """Return whether our ticket exists and all of these tickets ahead of it are gone.

        An older state of the queue is sufficient if it contains our ticket, because a deleted ticket never returns.

        Args:
            position: Our position.
            ahead: Keys of the tickets ahead. Empty if they are known to be gone, so that only our ticket is checked.
            names: Names of all tickets if they were read already. None reads them with one request.
        """
        if names is None and not ahead:
            return await ask(self.store.get, position.ticket.key, stale_ok=True) is not None
        if names is None:
            names = await ask(self.store.children, self._name, stale_ok=True)
        left = {f"{self._name}/{name}" for name in names}
        return position.ticket.key in left and left.isdisjoint(ahead)

    async def is_head(self, position: QueuePosition, ahead: Iterable[str]) -> bool:
        """Return whether our ticket exists, and each of these tickets has gone or has no session."""
        there = {ticket.key for ticket in await self.tickets()}
        return position.ticket.key in there and there.isdisjoint(ahead)

    def lost_error(self, position: QueuePosition) -> LockLost:
        """Return the error for a lost ticket; raises ``SessionLost`` if our session has ended."""
        self.raise_if_session_ended(position)
        what = f"ticket {position.ticket.key!r} in {self.what}"
        return LockLost(f"{what} is gone because another client deleted it; queue again")

    def raise_if_session_ended(self, position: QueuePosition) -> None:
        """Raise ``SessionLost`` if our session has ended."""
        if position.session.remaining_s() <= 0.0:
            raise SessionLost(f"the session of a ticket in {self.what} has ended; queue again with another session")

    def mark_abandoned(self, nonce: str) -> None:
        """Mark the ticket with this nonce as abandoned: it never counts, and any read that finds it deletes it."""
        with self._lock:
            self._abandoned.add(nonce)

    async def leave(self, position: QueuePosition) -> bool:
        """Delete our ticket. See ``discard``."""
        return await self.delete_now_or_later(position.session, (position.ticket.key,))

    def leave_in_background(self, position: QueuePosition, more: Iterable[str] = ()) -> None:
        """Delete our ticket in the background, then more keys."""
        self._delete_in_background(position.session, (position.ticket.key, *more))

    async def delete_now_or_later(self, session: Session, keys: Iterable[str]) -> bool:
        """Delete keys of a session, now or in the background until that works or the session has ended.

        Returns:
            False if one did not exist, because another client had ended it. True also while it is unknown.
        """
        keys = tuple(keys)
        if session.remaining_s() <= 0.0:
            return True
        try:
            return await self._delete(keys)
        except FATAL as error:
            self._log_left_tickets(keys, error)
        except StoreFull as error:
            message = (
                "%s is given up, but a full server keeps %s: others wait until it is deleted or our session ends: %s"
            )
            _log.warning(message, self.what, ", ".join(keys), error)
            self._delete_in_background(session, keys)
        except LatchworkError as error:
            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys), error)
            self._delete_in_background(session, keys)
        except BaseException:
            self._delete_in_background(session, keys)
            raise
        return True

    async def delete_until_done(self, session: Session, keys: tuple[str, ...]) -> None:
        """Delete these keys and disowned tickets. Returns when that is done or the session has ended."""
        backoff = Backoff()
        while (pause_s := await self._try_delete(session, keys, backoff)) is not None:
            await Pause(self.store.clock, session.lost, pause_s)

    async def _try_delete(self, session: Session, keys: tuple[str, ...], backoff: Backoff) -> float | None:
        """Try once to delete these keys and disowned tickets; a ``CleanupJob``."""
        if session.remaining_s() <= 0.0:
            return None
        try:
            await self._delete(keys)
        except FATAL as error:
            self._log_left_tickets(keys, error)
        except LatchworkError as error:
            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys) or "a ticket", error)
            return backoff.next_s()
        return None

    async def _delete(self, keys: tuple[str, ...]) -> bool:
        """Delete these keys and disowned tickets. Return whether all keys existed."""
        were_there = [await ask(self.store.delete, key) for key in keys]
        if self._abandoned:
            await self._remove_abandoned(await ask(self.store.children, self._name))
        return all(were_there)

    def _delete_in_background(self, session: Session, keys: tuple[str, ...]) -> None:
        self.store.cleanup.add(partial(self._try_delete, session, keys, Backoff()))

    def _remove_late_ticket(self, session: Session, nonce: str) -> None:
        if session.remaining_s() > 0.0:
            with suppress(*FATAL):  # the store is being closed, and its sessions take the ticket with them
                LateTicketRemover.for_store(self.store).remove_when_it_appears(self._name, nonce, session)

    def _log_left_tickets(self, keys: tuple[str, ...], error: LatchworkError) -> None:
        _log.warning("%s: %s stays until its session ends: %s", self.what, ", ".join(keys) or "a ticket", error)


@dataclass(frozen=True, slots=True)
class _ExpectedTicket:
    """A ticket that may appear."""

    session: Session
    until: float


class LateTicketRemover:
    """Tickets of one store whose creation is unknown and that may appear late. Thread-safe.

    Each is deleted once it exists, because it would block its queue until its session ends. One read of a queue finds
    all of them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = mutex()
        self._expected: dict[str, dict[str, _ExpectedTicket]] = {}

    @classmethod
    def for_store(cls, store: Store) -> LateTicketRemover:
        """Return those of a store."""
        return store.shared("late tickets", cls)

    def close(self) -> None:
        """Do nothing: the cleanup of the store drops the jobs, and the tickets end with their sessions."""

    def remove_when_it_appears(self, queue: str, nonce: str, session: Session) -> None:
        """Delete the ticket with this nonce if it appears within the next minutes. Does not block."""
        late = _ExpectedTicket(session, self._store.clock.now() + _LATE_S)
        with self._lock:
            is_new = queue not in self._expected
            self._expected.setdefault(queue, {})[nonce] = late
        if is_new:
            self._store.cleanup.add(partial(self._delete_expected, queue, Backoff(longest_s=_CHECK_S)))

    async def _delete_expected(self, queue: str, backoff: Backoff) -> float | None:
        """Read a queue once for expected tickets, and delete them; a ``CleanupJob``."""
        wanted = self._wanted(queue)
        if not wanted:
            return None
        try:
            for name in await ask(self._store.children, queue):
                nonce = parse_nonce(name)
                if nonce in wanted:
                    await ask(self._store.delete, f"{queue}/{name}")
                    _log.warning("ticket %s/%s of ours appeared late and is deleted", queue, name)
                    self._forget(queue, nonce)
        except FATAL as error:
            _log.warning("%s: a late ticket stays until its session ends: %s", queue, error)
            self._forget(queue, *wanted)
        except LatchworkError as error:
            _log.info("%s: looking for a late ticket: %s", queue, error)
        return backoff.next_s()

    def _wanted(self, queue: str) -> set[str]:
        now = self._store.clock.now()
        with self._lock:
            left = {
                nonce: late
                for nonce, late in self._expected.pop(queue).items()
                if late.until > now and late.session.remaining_s() > 0.0
            }
            if left:
                self._expected[queue] = left
            return set(left)

    def _forget(self, queue: str, *nonces: str) -> None:
        with self._lock:
            for nonce in nonces:
                self._expected[queue].pop(nonce, None)


def is_ticket(key: str) -> bool:
    """Return whether this is the key or the name of a ticket or lease. Others may store other keys below the name."""
    return parse_nonce(key.rpartition("/")[2]) != ""


def parse_nonce(name: str) -> str:
    """Return the nonce in the name of a ticket; empty for any other name."""
    found = _NAME.match(name)
    return "" if found is None else found[1]


def sort_tickets(tickets: Iterable[Ticket]) -> list[Ticket]:
    """Return tickets in the order of their creation."""
    return sorted(tickets, key=lambda ticket: (ticket.token, ticket.key))


async def wait_for_turn(
    queue: TicketQueue,
    waiter: Waiter,
    deadline: Deadline,
    *,
    blocks: Blocks = any_ticket_blocks,
    body: Mapping[str, object] | None = None,
    on_ahead: Callable[[int], None] | None = None,
) -> QueuePosition | None:
    """Join the queue and wait until no ticket that blocks ours is ahead.

    A ticket that does not get its turn is deleted.

    Args:
        queue: The queue to join.
        waiter: Its session is that of the ticket. Cancelling it ends the wait.
        deadline: End of the wait.
        blocks: Returns whether a ticket ahead blocks ours.
        body: Fields of the primitive to store in the ticket.
        on_ahead: Called after each read of the queue with the number of blocking tickets ahead.
    Returns:
        The position of our ticket; None after the timeout or a cancellation.
    Raises:
        SessionLost: The session ended while waiting.
        LockLost: Another client deleted our ticket while we waited.
        Unavailable, OutcomeUnknown: The server could not be reached in time.
    """
    if deadline.has_passed and any(map(blocks, await queue.tickets())):
        return None  # a single try: do not even queue
    position = await waiter.keep_trying(lambda: queue.join(waiter.session, body), deadline)
    has_turn = False
    wait = partial(await_turn, queue, position, waiter, deadline, blocks, on_ahead)
    try:
        has_turn = await waiter.keep_trying(wait, deadline)
    finally:
        if not has_turn:
            await queue.leave(position)
    return position if has_turn else None


async def await_turn(  # noqa: PLR0917 - as ``wait_for_turn``
    queue: TicketQueue,
    position: QueuePosition,
    waiter: Waiter,
    deadline: Deadline,
    blocks: Blocks = any_ticket_blocks,
    on_ahead: Callable[[int], None] | None = None,
) -> bool:
    """Wait until no ticket that blocks ours is ahead of a position in the queue.

    Returns:
        False after the timeout or a cancellation.
    Raises:
        SessionLost: The session has ended, even if it seems to be our turn.
        LockLost: Our ticket is gone.
    """
    on_ahead = on_ahead or _ignore_ahead
    if position.is_new and position.older == ():  # its creation showed no ticket ahead
        position.is_new, has_turn = False, True
        on_ahead(0)
    else:
        has_turn = await _await_turn(queue, position, waiter, deadline, blocks, on_ahead)
    queue.raise_if_session_ended(position)
    return has_turn


def _ignore_ahead(_ahead: int) -> None:
    """Ignore the number of tickets ahead."""


async def _await_turn(  # noqa: PLR0917 - one caller
    queue: TicketQueue,
    position: QueuePosition,
    waiter: Waiter,
    deadline: Deadline,
    blocks: Blocks,
    on_ahead: Callable[[int], None],
) -> bool:
    gone: set[str] = set()  # permanently, though older states of the queue may still show them
    while True:
        ahead = [key for key in await queue.find_tickets_ahead(position, blocks) if key not in gone]
        on_ahead(len(ahead))
        if not ahead:
            return True
        if deadline.has_passed:
            return await queue.is_head(position, ahead)
        if not await wait_until_gone(ahead[-1], blocks, waiter, deadline, siblings=True):
            return False
        gone.add(ahead[-1])
        if await queue.are_tickets_gone(position, ahead[:-1], waiter.siblings):
            on_ahead(0)
            return True


async def wait_until_gone(
    key: str, blocks: Blocks, waiter: Waiter, deadline: Deadline, *, siblings: bool = False
) -> bool:
    """Wait until a ticket has gone or blocks no more. Return False after the timeout or a cancellation.

    A ticket without a session is from another program and never ends; it counts as gone. With ``siblings`` the waiter
    may get the names of the other tickets.
    """

    def has_ended(batch: Batch) -> bool:
        entry = batch[-1].entry if batch else None
        return entry is None or entry.owner is None or not blocks(Ticket.from_entry(entry))

    return await waiter.watch_until(key, has_ended, deadline, leaf=True, siblings=siblings)
