"""A queue of clients, which every fair primitive uses. A ticket is the session-bound key of one client in the queue.

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
from latchwork.primitives.waiting.arguments import check_text
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import Identity
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import Pause, TrackedWrite, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Entry, Exists, Fence, OrderedKey

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
    """The fields of a ticket that describe the client that created it."""

    label: str = ""
    host: str = ""
    pid: Whole = 0


_CREATOR: Decoder[_TicketCreator] = Decoder(_TicketCreator, "a ticket")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A client that waits in the queue of a primitive or holds it, as it described itself in its stored ticket.

    A ticket is a key that is bound to the client's session. The leases of a semaphore have the same form.

    Attributes:
        key: Its key.
        label: The name of the owner; "" if the record is invalid.
        host: The host name of the owner.
        pid: The process ID of the owner.
        token: The fencing token that the owner has, or will have once it holds the lock.
        session_id: The ID of the session to which the ticket is bound.
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
        """The last segment of the ticket's key."""
        return self.key.rpartition("/")[2]

    def __str__(self) -> str:
        process = f"pid {self.pid} on {self.host}"
        return f"{self.label!r} ({process})" if self.label else process

    @classmethod
    def from_entry(cls, entry: Entry) -> Ticket:
        """Return the ticket stored in an entry. If its record is invalid, the fields of the owner are empty."""
        creator = _CREATOR.find(entry.value) or _TicketCreator()
        return cls(entry.key, creator.label, creator.host, creator.pid, entry.created, entry.owner, entry.value)

    @property
    def body(self) -> dict[str, object]:
        """The stored fields of the ticket. Empty if the record is invalid."""
        return read_object(self.value)


#: Returns whether a client must wait for a ticket that is ahead of its own.
BlockingFilter = Callable[[Ticket], bool]


def any_ticket_blocks(_ticket: Ticket) -> bool:
    """Return True for any ticket. The default: a client waits for every ticket ahead of its own."""
    return True


@dataclass(slots=True, eq=False)
class QueuePosition:
    """Our ticket in a queue, its session, and the fence that proves that it exists.

    Attributes:
        ticket: The entry of the ticket as it was created.
        session: The session to which it is bound.
        fence: The check for writes that depend on the ticket.
        older: The names of all tickets that can be ahead, in order. None until they are known.
        is_new: Whether the queue was not read since the ticket was created.
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
        """The unique text in the name of the ticket, which finds the ticket after a lost answer."""
        return parse_nonce(self.name)


@dataclass(slots=True)
class _TicketCreation:
    """The result of a request to create a ticket, for the case that the call is canceled before the answer.

    Attributes:
        ticket: The created ticket. None if unknown.
        is_refused: Whether the ticket was certainly not created.
    """

    ticket: Entry | None = None
    is_refused: bool = False

    def on_late_answer(self, future: Future[OrderedKey]) -> None:
        """Record the result of a request whose call was canceled before the answer.

        Args:
            future: The future of the request.
        """
        error = future.exception()
        if error is None:
            self.ticket = future.result().entry
        else:
            self.is_refused = not isinstance(error, OutcomeUnknown)


class TicketQueue:
    """The queue of tickets below one key. Thread-safe.

    Args:
        store: The store.
        name: The key, which the caller has validated.
        what: Name of the primitive, for messages: ``lock 'orders'``.
        label: Name of this client, stored in its tickets.

    Attributes:
        what: Name of the primitive.
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
        """Return all tickets of the queue in order. Entries without a session are skipped: other programs wrote them.

        Args:
            stale_ok: Whether the server may answer from a state that is not the newest.
        """
        return [Ticket.from_entry(entry) for entry in await self._list_entries(stale_ok=stale_ok)]

    async def _list_entries(self, *, stale_ok: bool) -> list[Entry]:
        """Return the entries of all tickets of the queue in order."""
        entries = await ask(self.store.list, self._name, stale_ok=stale_ok)
        found = [entry for entry in entries if entry.owner is not None and is_ticket(entry.key)]
        return sorted(found, key=lambda entry: (entry.created, entry.key))

    async def describe_first(self) -> str:
        """Return a description of the owner of the first ticket, for messages."""
        try:
            return str(next(iter(await self.tickets()), "no one any more"))
        except LatchworkError:
            return "others"

    async def join(self, session: Session, more: Mapping[str, object] | None = None) -> QueuePosition:
        """Create a ticket at the end of the queue, and return its position.

        This takes one request. On some backends the answer also contains the names of the older tickets. If the answer
        is lost, the ticket is searched by its unique name. If it is not found, it is deleted in the background should
        it appear later, and this client never waits for it.

        Args:
            session: The session to which the ticket is bound.
            more: Further fields to store in the ticket.
        Raises:
            OutcomeUnknown: The ticket may appear later, but does not count. Try again.
        """
        nonce, value, creation = uuid.uuid4().hex, encode({**self.creator, **(more or {})}), _TicketCreation()
        create, stem = self.store.create_ordered_key, f"{self._name}/{_STEM}"
        older: tuple[str, ...] | None = None
        try:
            created: OrderedKey = await TrackedWrite(
                creation.on_late_answer, create, stem, nonce, value, session=session
            )
            ticket, older = created.entry, created.older
        except OutcomeUnknown:
            found = await self._find_or_delete_later(nonce, session)
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

    async def _find_or_delete_later(self, nonce: str, session: Session) -> Entry | None:
        """Search for a ticket after the answer to its creation was lost.

        If it is not found, the server may still create it. It is then deleted in the background once it appears.

        Args:
            nonce: The unique text in the name of the ticket.
            session: The session of the ticket.
        Returns:
            The entry of the ticket, or None.
        """
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
        if session.remaining_s() > 0.0:
            with suppress(*FATAL):  # the store is being closed, and its sessions take the ticket with them
                LateTicketRemover.get_for_store(self.store).remove_when_it_appears(self._name, nonce, session)

    async def find_tickets_ahead(
        self, position: QueuePosition, is_blocking: BlockingFilter = any_ticket_blocks
    ) -> list[str]:
        """Return the keys of the tickets ahead of ours that we must wait for, the nearest one last.

        If there are none, it is our turn. The result may contain tickets that were deleted a moment ago, but never
        misses one. The first call needs no request if ``join`` received the names of the older tickets.

        Args:
            position: Our position in the queue.
            is_blocking: Returns whether we must wait for a ticket ahead.
        Raises:
            SessionLost: The session of our ticket has ended.
            LockLost: Another client deleted our ticket.
        """
        self.raise_if_session_ended(position)
        is_new, position.is_new = position.is_new, False
        if position.older is not None and (is_blocking is any_ticket_blocks or not position.older):
            if not is_new:
                left = await self._get_names_with_ours(position)
                position.older = tuple(name for name in position.older if name in left)
            abandoned = await self._remove_abandoned(position.older)
            return [f"{self._name}/{name}" for name in position.older if name not in abandoned]
        entries = await self._get_entries_with_ours(position)
        ours = next(at for at, entry in enumerate(entries) if entry.key == position.ticket.key)
        ahead = {entry.key.rpartition("/")[2]: entry for entry in entries[:ours]}
        position.older = tuple(ahead)
        for name in await self._remove_abandoned(position.older):
            del ahead[name]
        return [
            entry.key
            for entry in ahead.values()
            if is_blocking is any_ticket_blocks or is_blocking(Ticket.from_entry(entry))
        ]

    async def _remove_abandoned(self, names: Iterable[str]) -> set[str]:
        """Delete the abandoned tickets of this client that are among the given names. Return the deleted names."""
        if not self._abandoned:
            return set()
        abandoned = {name for name in names if parse_nonce(name) in self._abandoned}
        for name in abandoned:
            await ask(self.store.delete, f"{self._name}/{name}")
        return abandoned

    async def _get_names_with_ours(self, position: QueuePosition) -> set[str]:
        for stale_ok in (True, False):
            names = await ask(self.store.children, self._name, stale_ok=stale_ok)
            if position.name in names:
                return set(names)
        raise self.build_lost_error(position)

    async def _get_entries_with_ours(self, position: QueuePosition) -> list[Entry]:
        for stale_ok in (True, False):
            entries = await self._list_entries(stale_ok=stale_ok)
            if any(entry.key == position.ticket.key for entry in entries):
                return entries
        raise self.build_lost_error(position)

    async def is_first_by_names(
        self, position: QueuePosition, ahead: Sequence[str], names: Iterable[str] | None = None
    ) -> bool:
        """Return whether our ticket exists and all the given tickets ahead of it are deleted, from the names alone.

        The names may be stale. A True result is correct in any case, because a deleted ticket never returns.

        Args:
            position: Our position in the queue.
            ahead: Keys of the tickets ahead. Empty checks only that our ticket exists.
            names: Names of all tickets if they were read already. None reads them in one request.
        """
        if names is None and not ahead:
            return await ask(self.store.get, position.ticket.key, stale_ok=True) is not None
        if names is None:
            names = await ask(self.store.children, self._name, stale_ok=True)
        left = {f"{self._name}/{name}" for name in names}
        return position.ticket.key in left and left.isdisjoint(ahead)

    async def is_first(self, position: QueuePosition, ahead: Iterable[str]) -> bool:
        """Return whether our ticket exists and none of the given tickets ahead blocks it. Reads the current tickets.

        Args:
            position: Our position in the queue.
            ahead: Keys of the tickets ahead. A ticket that was deleted or has no session does not block.
        """
        there = {ticket.key for ticket in await self.tickets()}
        return position.ticket.key in there and there.isdisjoint(ahead)

    def build_lost_error(self, position: QueuePosition) -> LockLost:
        """Return the error for the case that another client has deleted our ticket.

        Raises:
            SessionLost: The session of the ticket has ended, so that this is the reason.
        """
        self.raise_if_session_ended(position)
        what = f"ticket {position.ticket.key!r} in {self.what}"
        return LockLost(f"{what} is gone because another client deleted it; queue again")

    def raise_if_session_ended(self, position: QueuePosition) -> None:
        """Raise ``SessionLost`` if the session of our ticket has ended."""
        if position.session.remaining_s() <= 0.0:
            raise SessionLost(f"the session of a ticket in {self.what} has ended; queue again with another session")

    def mark_abandoned(self, nonce: str) -> None:
        """Mark a ticket of this client as abandoned: it never counts, and any read that finds it deletes it.

        Args:
            nonce: The unique text in the name of the ticket.
        """
        with self._lock:
            self._abandoned.add(nonce)

    async def leave(self, position: QueuePosition) -> bool:
        """Delete our ticket, now or in the background. Return False if another client had already deleted it."""
        return await self.delete_now_or_later(position.session, (position.ticket.key,))

    def leave_in_background(self, position: QueuePosition) -> None:
        """Delete our ticket in the background."""
        self._delete_in_background(position.session, (position.ticket.key,))

    async def delete_now_or_later(self, session: Session, keys: Iterable[str]) -> bool:
        """Delete keys that are bound to a session. If that fails, retry in the background until the session has ended.

        Returns:
            False if a key did not exist, because another client had deleted it. True otherwise, also if that is not
                known yet.
        """
        keys = tuple(keys)
        if session.remaining_s() <= 0.0:
            return True
        try:
            return await self._delete(keys)
        except FATAL as error:
            self._log_undeleted_tickets(keys, error)
        except StoreFull as error:
            message = (
                "the wait for %s has ended, but the server is full and keeps %s: others wait "
                "until it is deleted or our session ends: %s"
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
        """Delete these keys and all abandoned tickets. Retry until that succeeds or the session has ended."""
        backoff = Backoff()
        while (pause_s := await self._try_delete(session, keys, backoff)) is not None:
            await Pause(self.store.clock, session.lost, pause_s)

    async def _try_delete(self, session: Session, keys: tuple[str, ...], backoff: Backoff) -> float | None:
        """Try once to delete these keys and all abandoned tickets. Runs as a background cleanup.

        Returns:
            Seconds until the next attempt. None if there is nothing left to do.
        """
        if session.remaining_s() <= 0.0:
            return None
        try:
            await self._delete(keys)
        except FATAL as error:
            self._log_undeleted_tickets(keys, error)
        except LatchworkError as error:
            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys) or "a ticket", error)
            return backoff.next_s()
        return None

    async def _delete(self, keys: tuple[str, ...]) -> bool:
        """Delete these keys and all abandoned tickets. Return whether all keys existed."""
        were_there = [await ask(self.store.delete, key) for key in keys]
        if self._abandoned:
            await self._remove_abandoned(await ask(self.store.children, self._name))
        return all(were_there)

    def _delete_in_background(self, session: Session, keys: tuple[str, ...]) -> None:
        self.store.cleanup.add(partial(self._try_delete, session, keys, Backoff()))

    def _log_undeleted_tickets(self, keys: tuple[str, ...], error: LatchworkError) -> None:
        _log.warning("%s: %s stays until its session ends: %s", self.what, ", ".join(keys) or "a ticket", error)


@dataclass(frozen=True, slots=True)
class _LateTicket:
    """A ticket that may still appear, because the answer to its creation was lost."""

    session: Session
    until: float


class LateTicketRemover:
    """Deletes tickets that appear after the answer to their creation was lost. Thread-safe.

    Such a ticket would block its queue until its session ends. One read of a queue finds all of its late tickets.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = mutex()
        self._late: dict[str, dict[str, _LateTicket]] = {}

    @classmethod
    def get_for_store(cls, store: Store) -> LateTicketRemover:
        """Return the object that all queues of a store share."""
        return store.shared("late tickets", cls)

    def close(self) -> None:
        """Do nothing: the store drops its background cleanups, and the tickets end with their sessions."""

    def remove_when_it_appears(self, queue: str, nonce: str, session: Session) -> None:
        """Delete a ticket if it appears within the next minutes. Does not block.

        Args:
            queue: Key of the queue.
            nonce: The unique text in the name of the ticket.
            session: The session of the ticket.
        """
        late = _LateTicket(session, self._store.clock.now() + _LATE_S)
        with self._lock:
            is_new = queue not in self._late
            self._late.setdefault(queue, {})[nonce] = late
        if is_new:
            self._store.cleanup.add(partial(self._delete_late_tickets, queue, Backoff(longest_s=_CHECK_S)))

    async def _delete_late_tickets(self, queue: str, backoff: Backoff) -> float | None:
        """Read a queue once, and delete those of its tickets that were created late. Runs as a background cleanup.

        Returns:
            Seconds until the next attempt. None if there is nothing left to do.
        """
        wanted = self._list_late_nonces(queue)
        if not wanted:
            return None
        try:
            for name in await ask(self._store.children, queue):
                nonce = parse_nonce(name)
                if nonce in wanted:
                    await ask(self._store.delete, f"{queue}/{name}")
                    _log.warning("our ticket %s/%s was created late and is deleted", queue, name)
                    self._forget(queue, nonce)
        except FATAL as error:
            _log.warning("%s: a late ticket stays until its session ends: %s", queue, error)
            self._forget(queue, *wanted)
        except LatchworkError as error:
            _log.info("%s: looking for a late ticket: %s", queue, error)
        return backoff.next_s()

    def _list_late_nonces(self, queue: str) -> set[str]:
        now = self._store.clock.now()
        with self._lock:
            left = {
                nonce: late
                for nonce, late in self._late.pop(queue).items()
                if late.until > now and late.session.remaining_s() > 0.0
            }
            if left:
                self._late[queue] = left
            return set(left)

    def _forget(self, queue: str, *nonces: str) -> None:
        with self._lock:
            for nonce in nonces:
                self._late[queue].pop(nonce, None)


def is_ticket(key: str) -> bool:
    """Return whether a key or name is that of a ticket or lease, and not one that another program has written."""
    return parse_nonce(key.rpartition("/")[2]) != ""


def parse_nonce(name: str) -> str:
    """Return the unique text in the name of a ticket, or "" if the name is not that of a ticket.

    Args:
        name: The last segment of a key, such as ``t-<nonce>``.
    """
    found = _NAME.match(name)
    return "" if found is None else found[1]


def sort_tickets(tickets: Iterable[Ticket]) -> list[Ticket]:
    """Return the tickets in the order of their creation."""
    return sorted(tickets, key=lambda ticket: (ticket.token, ticket.key))


async def wait_for_turn(
    queue: TicketQueue,
    waiter: Waiter,
    deadline: Deadline,
    *,
    is_blocking: BlockingFilter = any_ticket_blocks,
    body: Mapping[str, object] | None = None,
    on_ahead: Callable[[int], None] | None = None,
) -> QueuePosition | None:
    """Join a queue of tickets, and wait until it is our turn. If that fails, our ticket is deleted.

    Args:
        queue: The queue to join.
        waiter: The waiting call. Its session is that of the ticket. Canceling it ends the wait.
        deadline: When the wait times out.
        is_blocking: Returns whether we must wait for a ticket ahead.
        body: Further fields to store in the ticket.
        on_ahead: Called after each read of the queue with the number of tickets ahead for which we wait.
    Returns:
        Our position in the queue. None after the timeout or a cancellation.
    Raises:
        SessionLost: The session ended while waiting.
        LockLost: Another client deleted our ticket while we waited.
        Unavailable, OutcomeUnknown: The server could not be reached in time.
    """
    if deadline.has_passed and any(map(is_blocking, await queue.tickets())):
        return None  # a single try: do not even queue
    position = await waiter.keep_trying(lambda: queue.join(waiter.session, body), deadline)
    has_turn = False
    wait = partial(await_turn, queue, position, waiter, deadline, is_blocking, on_ahead)
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
    is_blocking: BlockingFilter = any_ticket_blocks,
    on_ahead: Callable[[int], None] | None = None,
) -> bool:
    """Wait until it is our turn in a queue that we have joined.

    Args:
        queue: The queue.
        position: Our position in the queue.
        waiter: The waiting call. Canceling it ends the wait.
        deadline: When the wait times out.
        is_blocking: Returns whether we must wait for a ticket ahead.
        on_ahead: Called after each read of the queue with the number of tickets ahead for which we wait.
    Returns:
        False after the timeout or a cancellation.
    Raises:
        SessionLost: The session has ended, even if it seems to be our turn.
        LockLost: Another client deleted our ticket.
    """
    on_ahead = on_ahead or _ignore_ahead
    if position.is_new and position.older == ():  # its creation showed no ticket ahead
        position.is_new, has_turn = False, True
        on_ahead(0)
    else:
        has_turn = await _await_turn(queue, position, waiter, deadline, is_blocking, on_ahead)
    queue.raise_if_session_ended(position)
    return has_turn


def _ignore_ahead(_ahead: int) -> None:
    """Do nothing with the number of tickets ahead."""


async def _await_turn(  # noqa: PLR0917 - one caller
    queue: TicketQueue,
    position: QueuePosition,
    waiter: Waiter,
    deadline: Deadline,
    is_blocking: BlockingFilter,
    on_ahead: Callable[[int], None],
) -> bool:
    gone: set[str] = set()  # permanently, though older states of the queue may still show them
    while True:
        ahead = [key for key in await queue.find_tickets_ahead(position, is_blocking) if key not in gone]
        on_ahead(len(ahead))
        if not ahead:
            return True
        if deadline.has_passed:
            return await queue.is_first(position, ahead)
        if not await wait_until_ticket_gone(ahead[-1], is_blocking, waiter, deadline, siblings=True):
            return False
        gone.add(ahead[-1])
        if await queue.is_first_by_names(position, ahead[:-1], waiter.siblings):
            on_ahead(0)
            return True


async def wait_until_ticket_gone(
    key: str, is_blocking: BlockingFilter, waiter: Waiter, deadline: Deadline, *, siblings: bool = False
) -> bool:
    """Wait until a ticket is deleted, or ``is_blocking`` returns False for it.

    Do not wait for an entry without a session, because another program wrote it.

    Args:
        key: Key of the ticket.
        is_blocking: Returns whether we must wait for the ticket.
        waiter: The waiting call. Canceling it ends the wait.
        deadline: When the wait times out.
        siblings: Whether the waiter should receive the names of the other tickets, if the server can send them cheaply.
    Returns:
        False after the timeout or a cancellation.
    """

    def has_ended(batch: Batch) -> bool:
        entry = batch[-1].entry if batch else None
        return entry is None or entry.owner is None or not is_blocking(Ticket.from_entry(entry))

    return await waiter.watch_until(key, has_ended, deadline, single_key=True, siblings=siblings)
