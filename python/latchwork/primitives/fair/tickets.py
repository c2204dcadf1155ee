"""A queue of session-bound tickets, which every fair primitive uses.

Keys:  <name>/t-<nonce>   one for each attempt to queue, dies with its owner's session; as JSON a label, host, pid, and
                          what the primitive adds. ZooKeeper appends a number
Order: by the token of the creation, which grows with every write: nothing can ever appear ahead of a ticket. What was
       ahead when it was created is all that ever will be, and a ticket that is gone from ahead never returns.
Turn:  each waiter watches exactly one ticket ahead of its own.

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
from latchwork.errors import (
    Closed,
    ForkedProcess,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    PermissionDenied,
    QuotaExceeded,
    SessionLost,
)
from latchwork.interrupts import mutex
from latchwork.primitives.waiting.common import Identity, Patience, check_text
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
_LOOK_S = 1.0
#: A nonce, and the number that ZooKeeper appends.
_NAME = re.compile(rf"{_STEM}([0-9a-f]{{32}})(?:--?\d{{9,}})?\Z")


class _About(Struct, frozen=True):
    """Who created a ticket."""

    label: str = ""
    host: str = ""
    pid: Whole = 0


_ABOUT: Decoder[_About] = Decoder(_About, "a ticket")


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket in a queue, or one lease, as its owner described it.

    Attributes:
        key: where it is.
        label: what the owner calls itself; empty when it cannot be read.
        host: its machine.
        pid: its process.
        token: the fencing token that its owner has, or will have.
        session_id: the session it is bound to.
        value: all that is stored in it.
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
        place = f"pid {self.pid} on {self.host}"
        return f"{self.label!r} ({place})" if self.label else place

    @classmethod
    def of(cls, entry: Entry) -> Ticket:
        """What an entry says; a body that cannot be read is empty, and its ticket still counts."""
        about = _ABOUT.find(entry.value) or _About()
        return cls(entry.key, about.label, about.host, about.pid, entry.created, entry.owner, entry.value)

    @property
    def body(self) -> dict[str, object]:
        """All that is stored in it; empty when it cannot be read."""
        return read_object(self.value)


#: Which tickets ahead have to be waited for.
Blocks = Callable[[Ticket], bool]


def everyone(_ticket: Ticket) -> bool:
    """Every ticket ahead has to go first."""
    return True


@dataclass(slots=True, eq=False)
class QueuePosition:
    """Our own ticket, its session, and the fence that proves that it is still there.

    Attributes:
        ticket: as it was created.
        session: the one it is bound to.
        fence: for writes that depend on it.
        older: the names of all tickets that can be ahead, in their order; None until they are known.
        is_new: the queue was not looked at since the ticket was created.
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
        """The nonce in that name: no other attempt to queue has it."""
        return nonce_of(self.name)


@dataclass(slots=True)
class _Creation:
    """A ticket that is being created.

    Attributes:
        ticket: it, if its answer came after the call was cancelled.
        is_refused: such an answer was that it is not there, and never will be.
    """

    ticket: Entry | None = None
    is_refused: bool = False

    def answered(self, future: Future[Ordered]) -> None:
        """Note the answer to the creation, which came after the call was cancelled."""
        error = future.exception()
        if error is None:
            self.ticket = future.result().entry
        else:
            self.is_refused = not isinstance(error, OutcomeUnknown)


class TicketQueue:
    """The tickets below one name, which the primitive has checked. Safe to share between threads.

    Attributes:
        what: the primitive in words, for messages: ``lock 'orders'``.
        about: what every ticket of ours says: label, host and pid.
    """

    def __init__(self, store: Store, name: str, what: str, label: str = "") -> None:
        self.store = store
        self.what = what
        self._name = name
        identity = Identity()
        self.about = {"label": check_text(label, f"the label of {what}"), "host": identity.host, "pid": identity.pid}
        self._lock = mutex()
        self._strays: set[str] = set()

    async def tickets(self, *, stale_ok: bool = False) -> list[Ticket]:
        """All tickets, the first in the queue first; may be empty. What no session owns is none."""
        entries = await ask(self.store.list, self._name, stale_ok=stale_ok)
        return in_order(Ticket.of(entry) for entry in entries if is_ticket(entry.key) and entry.owner is not None)

    async def first_in_words(self) -> str:
        """The first in the queue, for messages."""
        try:
            return str(next(iter(await self.tickets()), "nobody now, though it was"))
        except LatchworkError:
            return "others"

    async def join(self, session: Session, more: Mapping[str, object] | None = None) -> QueuePosition:
        """Create a ticket at the end of the queue by one request, whose answer names who is ahead if the backend can.

        A ticket whose creation was cut off is found again by its nonce. If it is not there, or that could not be found
        out, it never counts as ahead of us, and is removed in the background as soon as it shows.

        Args:
            session: the session the ticket is bound to.
            more: what the primitive adds to the ticket's body.
        Raises:
            OutcomeUnknown: no ticket of ours is there; try again.
        """
        nonce, value, creation = uuid.uuid4().hex, encode({**self.about, **(more or {})}), _Creation()
        create, stem = self.store.create_ordered, f"{self._name}/{_STEM}"
        older: tuple[str, ...] | None = None
        try:
            created: Ordered = await Tracked(creation.answered, create, stem, nonce, value, session=session)
            ticket, older = created.entry, created.older
        except OutcomeUnknown:
            found = await self._find_or_disown(nonce, session)
            if found is None:
                raise
            ticket = found
        except LatchworkError:
            raise
        except BaseException:
            if creation.ticket is not None:
                self._clear_later(session, (creation.ticket.key,))
            elif not creation.is_refused:
                self._disown(nonce, session)
            raise
        fence = self.store.fence(ticket.created, Exists(ticket.key), session.fence)
        return QueuePosition(
            ticket, session, fence, None if older is None else tuple(filter(is_ticket, older)), is_new=True
        )

    async def _find_or_disown(self, nonce: str, session: Session) -> Entry | None:
        """Find the ticket with this nonce. If it is not there, or not found out, have it removed when it shows."""
        ticket: Entry | None = None
        try:
            names = await ask(self.store.children, self._name)
            for name in names:
                if nonce_of(name) == nonce:
                    ticket = await ask(self.store.get, f"{self._name}/{name}")
        finally:
            if ticket is None:
                self._disown(nonce, session)
        return ticket

    def _disown(self, nonce: str, session: Session) -> None:
        self.disown(nonce)
        self._expect_late(session, nonce)

    async def ahead(self, place: QueuePosition, blocks: Blocks = everyone) -> list[str]:
        """The keys of the tickets before ours that block it, the nearest last; empty when it is our turn.

        A state of the queue that has our ticket will do, however old: all tickets ahead of ours had been created by
        then, and those that are gone from it never come back. The first look needs no request if the creation named
        them.

        Raises:
            SessionLost: our session has ended.
            LockLost: our ticket is gone.
        """
        self.refuse_lost(place)
        is_new, place.is_new = place.is_new, False
        if place.older is not None and (blocks is everyone or not place.older):
            if not is_new:
                left = await self._names_with_ours(place)
                place.older = tuple(name for name in place.older if name in left)
            strays = await self._remove_strays(place.older)
            return [f"{self._name}/{name}" for name in place.older if name not in strays]
        tickets = await self._tickets_with_ours(place)
        ours = next(at for at, ticket in enumerate(tickets) if ticket.key == place.ticket.key)
        place.older = tuple(ticket.name for ticket in tickets[:ours])
        strays = await self._remove_strays(place.older)
        return [ticket.key for ticket in tickets[:ours] if ticket.name not in strays and blocks(ticket)]

    async def _remove_strays(self, names: Iterable[str]) -> set[str]:
        """Delete the tickets among these that are disowned, which would hold up everybody; return their names."""
        if not self._strays:
            return set()
        strays = {name for name in names if nonce_of(name) in self._strays}
        for name in strays:
            await ask(self.store.delete, f"{self._name}/{name}")
        return strays

    async def _names_with_ours(self, place: QueuePosition) -> set[str]:
        for stale_ok in (True, False):
            names = await ask(self.store.children, self._name, stale_ok=stale_ok)
            if place.name in names:
                return set(names)
        raise self.gone(place)

    async def _tickets_with_ours(self, place: QueuePosition) -> list[Ticket]:
        for stale_ok in (True, False):
            tickets = await self.tickets(stale_ok=stale_ok)
            if any(ticket.key == place.ticket.key for ticket in tickets):
                return tickets
        raise self.gone(place)

    async def are_gone(self, place: QueuePosition, ahead: Sequence[str], names: Iterable[str] | None = None) -> bool:
        """Whether tickets that were seen ahead of ours are gone, by a state of the queue that has ours, as above.

        Args:
            place: ours.
            ahead: keys of the tickets seen; none if they are known to be gone, and only ours is in question.
            names: of the tickets, when they were read already; None: costs one request.
        """
        if names is None and not ahead:
            return await ask(self.store.get, place.ticket.key, stale_ok=True) is not None
        if names is None:
            names = await ask(self.store.children, self._name, stale_ok=True)
        left = {f"{self._name}/{name}" for name in names}
        return place.ticket.key in left and left.isdisjoint(ahead)

    async def has_nobody_ahead(self, place: QueuePosition, ahead: Iterable[str]) -> bool:
        """Whether ours is there, and each of these that were seen ahead is gone by now, or nobody's."""
        there = {ticket.key for ticket in await self.tickets()}
        return place.ticket.key in there and there.isdisjoint(ahead)

    def gone(self, place: QueuePosition) -> LockLost:
        """The error to raise when our ticket is gone; raises ``SessionLost`` itself if our session has ended."""
        self.refuse_lost(place)
        return LockLost(f"ticket {place.ticket.key!r} in {self.what} is gone, somebody deleted it; queue again")

    def refuse_lost(self, place: QueuePosition) -> None:
        """Raise ``SessionLost`` if our session has ended."""
        if place.session.remaining_s() <= 0.0:
            raise SessionLost(f"the session of a ticket in {self.what} has ended; queue again with another session")

    def disown(self, nonce: str) -> None:
        """Stop counting a ticket with this nonce; whichever look of ours sees it removes it."""
        with self._lock:
            self._strays.add(nonce)

    async def leave(self, place: QueuePosition) -> bool:
        """Delete our ticket; see ``discard``."""
        return await self.discard(place.session, (place.ticket.key,))

    def leave_later(self, place: QueuePosition, more: Iterable[str] = ()) -> None:
        """Delete our ticket in the background, then more keys."""
        self._clear_later(place.session, (place.ticket.key, *more))

    async def discard(self, session: Session, keys: Iterable[str]) -> bool:
        """Delete keys of a session: now, or in the background until it works or the session has ended.

        Returns:
            False if one was not there: somebody else had ended it. True also when nobody knows yet.
        """
        keys = tuple(keys)
        if session.remaining_s() <= 0.0:
            return True
        try:
            return await self._delete(keys)
        except FATAL as error:
            self._tell_left(keys, error)
        except QuotaExceeded as error:
            told = "%s is given up, but a full server keeps %s: others wait until it is deleted or our session ends: %s"
            _log.warning(told, self.what, ", ".join(keys), error)
            self._clear_later(session, keys)
        except LatchworkError as error:
            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys), error)
            self._clear_later(session, keys)
        except BaseException:
            self._clear_later(session, keys)
            raise
        return True

    async def clear(self, session: Session, keys: tuple[str, ...]) -> None:
        """Delete these keys, and tickets that are disowned; returns when that is done or the session has ended."""
        backoff = Backoff()
        while (pause_s := await self._clear(session, keys, backoff)) is not None:
            await Pause(self.store.clock, session.lost, pause_s)

    async def _clear(self, session: Session, keys: tuple[str, ...], backoff: Backoff) -> float | None:
        """Try once to delete these keys, and tickets that are disowned; a ``CleanupJob``."""
        if session.remaining_s() <= 0.0:
            return None
        try:
            await self._delete(keys)
        except FATAL as error:
            self._tell_left(keys, error)
        except LatchworkError as error:
            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys) or "a ticket", error)
            return backoff.next_s()
        return None

    async def _delete(self, keys: tuple[str, ...]) -> bool:
        """Delete these keys, and tickets that are disowned; True if each of the keys was there."""
        were_there = [await ask(self.store.delete, key) for key in keys]
        if self._strays:
            await self._remove_strays(await ask(self.store.children, self._name))
        return all(were_there)

    def _clear_later(self, session: Session, keys: tuple[str, ...]) -> None:
        self.store.cleanup.add(partial(self._clear, session, keys, Backoff()))

    def _expect_late(self, session: Session, nonce: str) -> None:
        if session.remaining_s() > 0.0:
            with suppress(*FATAL):  # the store is being closed, and its sessions take the ticket with them
                LateTickets.of(self.store).expect(self._name, nonce, session)

    def _tell_left(self, keys: tuple[str, ...], error: LatchworkError) -> None:
        _log.warning("%s: %s stays until its session ends: %s", self.what, ", ".join(keys) or "a ticket", error)


@dataclass(frozen=True, slots=True)
class _Late:
    """One ticket that may appear."""

    session: Session
    until: float


class LateTickets:
    """The tickets of unknown creation, which may appear late in the queues of one store. Thread-safe.

    Each is deleted once it is there: nobody waits by it, and it would hold up its queue until its session ends. One
    look at a queue finds all of them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = mutex()
        self._expected: dict[str, dict[str, _Late]] = {}

    @classmethod
    def of(cls, store: Store) -> LateTickets:
        """Return those of a store."""
        return store.shared("late tickets", cls)

    def close(self) -> None:
        """Do nothing: the cleanup of the store drops the jobs, and the sessions take the tickets with them."""

    def expect(self, queue: str, nonce: str, session: Session) -> None:
        """Delete the ticket with this nonce if it appears within the next minutes. Does not block."""
        late = _Late(session, self._store.clock.now() + _LATE_S)
        with self._lock:
            is_new = queue not in self._expected
            self._expected.setdefault(queue, {})[nonce] = late
        if is_new:
            self._store.cleanup.add(partial(self._look, queue, Backoff(longest_s=_LOOK_S)))

    async def _look(self, queue: str, backoff: Backoff) -> float | None:
        """Look once for the tickets that are expected in a queue, and delete them; a ``CleanupJob``."""
        wanted = self._wanted(queue)
        if not wanted:
            return None
        try:
            for name in await ask(self._store.children, queue):
                nonce = nonce_of(name)
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
    """True for the key or the name of a ticket or lease: others may keep other keys below the same name."""
    return nonce_of(key.rpartition("/")[2]) != ""


def nonce_of(name: str) -> str:
    """The nonce in the name of a ticket; empty for any other name."""
    found = _NAME.match(name)
    return "" if found is None else found[1]


def in_order(tickets: Iterable[Ticket]) -> list[Ticket]:
    """Tickets in the order of their creation."""
    return sorted(tickets, key=lambda ticket: (ticket.token, ticket.key))


async def take_turn(
    queue: TicketQueue,
    waiter: Waiter,
    patience: Patience,
    *,
    blocks: Blocks = everyone,
    body: Mapping[str, object] | None = None,
    on_ahead: Callable[[int], None] | None = None,
) -> QueuePosition | None:
    """Queue, and wait until nothing that blocks is ahead; None when time is over or the waiter was called off.

    No ticket is left behind when it ends without a place. ``on_ahead`` is called with how many block us, whenever that
    is looked at: with 0 when it seems to be our turn.

    Raises:
        SessionLost: the session ended while waiting.
        LockLost: somebody deleted our ticket while we waited.
        Unavailable, OutcomeUnknown: the server could not be reached before the time was over.
    """
    if patience.is_over and any(map(blocks, await queue.tickets())):
        return None  # a single try: do not even queue
    place = await waiter.keep_trying(lambda: queue.join(waiter.session, body), patience)
    has_turn = False
    wait = partial(await_turn, queue, place, waiter, patience, blocks, on_ahead)
    try:
        has_turn = await waiter.keep_trying(wait, patience)
    finally:
        if not has_turn:
            await queue.leave(place)
    return place if has_turn else None


async def await_turn(  # noqa: PLR0917 - as ``take_turn``
    queue: TicketQueue,
    place: QueuePosition,
    waiter: Waiter,
    patience: Patience,
    blocks: Blocks = everyone,
    on_ahead: Callable[[int], None] | None = None,
) -> bool:
    """Wait until nothing that blocks is ahead of a place; False when time is over or called off.

    Raises:
        SessionLost: the session has ended; also when our turn seems to have come, but the session ended while we slept.
        LockLost: our ticket is gone.
    """
    tell = on_ahead or _nobody
    if place.is_new and place.older == ():  # its creation said that nobody is ahead
        place.is_new, has_turn = False, True
        tell(0)
    else:
        has_turn = await _await_turn(queue, place, waiter, patience, blocks, tell)
    queue.refuse_lost(place)
    return has_turn


def _nobody(_ahead: int) -> None:
    """Nobody wants to know."""


async def _await_turn(  # noqa: PLR0917 - one caller
    queue: TicketQueue,
    place: QueuePosition,
    waiter: Waiter,
    patience: Patience,
    blocks: Blocks,
    tell: Callable[[int], None],
) -> bool:
    over: set[str] = set()  # for good; an older state of the queue may go on showing them for a while
    while True:
        ahead = [key for key in await queue.ahead(place, blocks) if key not in over]
        tell(len(ahead))
        if not ahead:
            return True
        if patience.is_over:
            return await queue.has_nobody_ahead(place, ahead)
        if not await until_over(ahead[-1], blocks, waiter, patience, beside=True):
            return False
        over.add(ahead[-1])
        if await queue.are_gone(place, ahead[:-1], waiter.beside):
            tell(0)
            return True


async def until_over(key: str, blocks: Blocks, waiter: Waiter, patience: Patience, *, beside: bool = False) -> bool:
    """Wait until a ticket is gone or blocks no more; False when time is over or called off.

    One that no session owns is nobody's: another program wrote it, and nothing would ever end it.

    With ``beside`` the waiter may have the names of the other tickets then.
    """

    def is_over(batch: Batch) -> bool:
        entry = batch[-1].entry if batch else None
        return entry is None or entry.owner is None or not blocks(Ticket.of(entry))

    return await waiter.follow(key, is_over, patience, leaf=True, beside=beside)
