"""A queue of session-bound tickets, which every fair primitive uses.

Keys:  <name>/t<number>   numbered by the store in order of arrival, dies with its owner's session; as JSON a label,
                          host, pid, a nonce, and what the primitive adds
Order: by number. A number is greater than all that were committed before it, so nothing can ever appear ahead of a
       ticket: what was seen to be gone from ahead is gone for good.

docs/design/0008 has the states, and which fence closes which race.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from latchwork.errors import (
    Closed,
    ForkedProcess,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    PermissionDenied,
    SessionLost,
)
from latchwork.interrupts import mutex
from latchwork.primitives.waiting.common import Identity, Patience, check_text
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.records import Record
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, Pause, Settled, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Entry, Exists, Fence

_log = logging.getLogger(__name__)

#: These do not go away by trying again.
FATAL = (Closed, ForkedProcess, InvalidKey, PermissionDenied)

_STEM = "t"
#: Seconds for which a ticket that was not there when we looked may still appear.
_LATE_S = 120.0
#: The names of more tickets than that are not listed to see whether the first of them is gone.
_MANY = 256
_NUMBERED = re.compile(rf"{_STEM}\d{{10,}}\Z")


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
        body: all that is stored in it.
    """

    key: str
    label: str
    host: str
    pid: int
    token: int
    session_id: str | None
    body: Mapping[str, object] = field(compare=False, repr=False)

    def __str__(self) -> str:
        place = f"pid {self.pid} on {self.host}"
        return f"{self.label!r} ({place})" if self.label else place

    @classmethod
    def of(cls, entry: Entry) -> Ticket:
        """What an entry says; a body that cannot be read is empty, and its ticket still counts."""
        body = Record.or_empty(entry.value)
        about = body.text("label", ""), body.text("host", ""), body.whole("pid", 0)
        return cls(entry.key, *about, entry.created, entry.owner, body.body)

    @property
    def nonce(self) -> str:
        """By which its creator finds it."""
        return Record(self.body).text("nonce", "")


#: Which tickets ahead have to be waited for.
Blocks = Callable[[Ticket], bool]


def everyone(_ticket: Ticket) -> bool:
    """Every ticket ahead has to go first."""
    return True


@dataclass(frozen=True, slots=True)
class Place:
    """Our own ticket, its session, and the fence that proves that it is still there."""

    ticket: Entry
    session: Session
    fence: Fence

    @property
    def nonce(self) -> str:
        """The nonce of the ticket."""
        return Ticket.of(self.ticket).nonce


@dataclass(slots=True)
class _Joining:
    """A ticket that is being created, and has been once it is known."""

    nonce: str
    session: Session
    ticket: Entry | None = None


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
        return [Ticket.of(entry) for entry in entries if is_ticket(entry.key) and entry.owner is not None]

    async def first_in_words(self) -> str:
        """The first in the queue, for messages."""
        try:
            return str(next(iter(await self.tickets()), "nobody now, though it was"))
        except LatchworkError:
            return "others"

    async def join(self, session: Session, more: Mapping[str, object] | None = None) -> Place:
        """Take a ticket at the end of the queue.

        A ticket whose creation was cut off is found again by its nonce. If it is not there, or that could not be found
        out, it never counts as ahead of us, and is removed in the background as soon as it shows.

        Args:
            session: the session the ticket is bound to.
            more: what the primitive adds to the ticket's body.
        Raises:
            OutcomeUnknown: no ticket of ours is there; try again.
        """
        joining = _Joining(uuid.uuid4().hex, session)
        before = await OnInterrupt(partial(self._undo, joining))
        try:
            joining.ticket = ticket = await self._create(
                write_body({**self.about, "nonce": joining.nonce, **(more or {})}), joining.nonce, session
            )
        except LatchworkError:
            await Settled(before)
            raise
        return Place(ticket, session, self.store.fence(ticket.created, Exists(ticket.key), session.fence))

    def _undo(self, joining: _Joining) -> None:
        """Have no ticket: remove the one that is there, or may come."""
        if joining.ticket is not None:
            self._clear_later(joining.session, (joining.ticket.key,))
        else:
            self.disown(joining.nonce)
            self._hunt_later(joining.session, joining.nonce)

    async def ahead(self, place: Place, blocks: Blocks = everyone) -> list[str]:
        """The keys of the tickets before ours that block it, the nearest last; empty when it is our turn.

        A state of the queue that has our ticket will do, however old: all tickets ahead of ours had been created by
        then, and those that are gone from it never come back.

        Raises:
            SessionLost: our session has ended.
            LockLost: our ticket is gone.
        """
        self.refuse_lost(place)
        if blocks is everyone and not self._strays:  # then names are enough
            return [key for key in await self._keys_with_ours(place) if key < place.ticket.key]
        tickets = await self._with_ours(place)
        strays = {ticket.key for ticket in tickets if ticket.nonce in self._strays}
        for key in strays:  # a ticket of ours that landed late would hold up everybody, and nobody waits by it
            await ask(self.store.delete, key)
        ahead = [ticket for ticket in tickets if ticket.key < place.ticket.key and ticket.key not in strays]
        return [ticket.key for ticket in ahead if blocks(ticket)]

    async def _keys(self, *, stale_ok: bool) -> list[str]:
        names = await ask(self.store.children, self._name, stale_ok=stale_ok)
        return [f"{self._name}/{name}" for name in names if is_ticket(name)]

    async def _keys_with_ours(self, place: Place) -> list[str]:
        for stale_ok in (True, False):
            keys = await self._keys(stale_ok=stale_ok)
            if place.ticket.key in keys:
                return keys
        raise self.gone(place)

    async def _with_ours(self, place: Place) -> list[Ticket]:
        for stale_ok in (True, False):
            tickets = await self.tickets(stale_ok=stale_ok)
            if any(ticket.key == place.ticket.key for ticket in tickets):
                return tickets
        raise self.gone(place)

    async def are_gone(self, place: Place, ahead: Sequence[str], names: Iterable[str] | None = None) -> bool:
        """Whether tickets that were seen ahead of ours are gone, by a state of the queue that has ours, as above.

        Args:
            place: ours.
            ahead: keys of the tickets seen; none if they are known to be gone, and only ours is in question.
            names: of the tickets, when they were read already; None: costs one request.
        """
        if names is None and not ahead:
            return await ask(self.store.get, place.ticket.key, stale_ok=True) is not None
        if names is None and len(ahead) > _MANY:
            first = await ask(self.store.list, self._name, limit=1, start_after=f"{self._name}/{_STEM}", stale_ok=True)
            return bool(first) and first[0].key == place.ticket.key
        left = set(await self._keys(stale_ok=True)) if names is None else {f"{self._name}/{name}" for name in names}
        return place.ticket.key in left and left.isdisjoint(ahead)

    async def has_nobody_ahead(self, place: Place, ahead: Iterable[str]) -> bool:
        """Whether ours is there, and each of these that were seen ahead is gone by now, or nobody's."""
        there = {ticket.key for ticket in await self.tickets()}
        return place.ticket.key in there and there.isdisjoint(ahead)

    def gone(self, place: Place) -> LockLost:
        """The error to raise when our ticket is gone; raises ``SessionLost`` itself if our session has ended."""
        self.refuse_lost(place)
        return LockLost(f"ticket {place.ticket.key!r} in {self.what} is gone, somebody deleted it; queue again")

    def refuse_lost(self, place: Place) -> None:
        """Raise ``SessionLost`` if our session has ended."""
        if place.session.remaining_s() <= 0.0:
            raise SessionLost(f"the session of a ticket in {self.what} has ended; queue again with another session")

    def disown(self, nonce: str) -> None:
        """Stop counting a ticket with this nonce; whichever look of ours sees it removes it."""
        with self._lock:
            self._strays.add(nonce)

    async def leave(self, place: Place) -> bool:
        """Delete our ticket; see ``discard``."""
        return await self.discard(place.session, (place.ticket.key,))

    def leave_later(self, place: Place, more: Iterable[str] = ()) -> None:
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
        while session.remaining_s() > 0.0:
            try:
                await self._delete(keys)
            except FATAL as error:
                self._tell_left(keys, error)
                return
            except LatchworkError as error:
                _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys) or "a ticket", error)
                await Pause(self.store.clock, session.lost, backoff.next_s())
            else:
                return

    async def _create(self, value: bytes, nonce: str, session: Session) -> Entry:
        try:
            created: Entry = await ask(
                self.store.create, f"{self._name}/{_STEM}", value, session=session, sequential=True
            )
            return created
        except OutcomeUnknown:
            self.disown(nonce)
            found = None
            try:
                found = await self._find(nonce)
            finally:
                if found is None:
                    self._hunt_later(session, nonce)
            if found is None:
                raise
            with self._lock:
                self._strays.discard(nonce)
            return found

    async def _find(self, nonce: str) -> Entry | None:
        entries = await ask(self.store.list, self._name)
        return next((entry for entry in entries if Ticket.of(entry).nonce == nonce), None)

    async def _delete(self, keys: tuple[str, ...]) -> bool:
        """Delete these keys, and tickets that are disowned; True if each of the keys was there."""
        were_there = [await ask(self.store.delete, key) for key in keys]
        if self._strays:
            for ticket in await self.tickets():
                if ticket.nonce in self._strays:
                    await ask(self.store.delete, ticket.key)
        return all(were_there)

    async def _hunt(self, session: Session, nonce: str) -> None:
        """Follow the queue for a while, until a ticket that may still come is there, and delete it.

        Once we have looked, a write of ours can hardly land any more; but a ticket that nobody waits by would hold up
        everybody until its session ends.
        """
        backoff = Backoff()
        patience = Patience(self.store.clock, _LATE_S)
        seen: list[str] = []

        def look(batch: Batch) -> bool:
            entries = [change.entry for change in batch if change.entry is not None]
            seen.extend(entry.key for entry in entries if Ticket.of(entry).nonce == nonce)
            return bool(seen)

        with closing(Waiter(self.store, session)) as waiter:
            while not (patience.is_over or waiter.is_off):
                try:
                    if await waiter.follow(self._name, look, patience):
                        _log.warning("%s: ticket %s of ours landed late and is removed", self.what, seen[0])
                        await self.discard(session, seen)
                        return
                except FATAL as error:
                    self._tell_left((), error)
                    return
                except LatchworkError as error:
                    _log.info("%s: looking for a late ticket: %s", self.what, error)
                    await waiter.pause(backoff.next_s())

    def _clear_later(self, session: Session, keys: tuple[str, ...]) -> None:
        if session.remaining_s() > 0.0:
            Background(partial(self.clear, session, keys), f"latchwork-leaving-{self._name}")

    def _hunt_later(self, session: Session, nonce: str) -> None:
        if session.remaining_s() > 0.0:
            Background(partial(self._hunt, session, nonce), f"latchwork-leaving-{self._name}")

    def _tell_left(self, keys: tuple[str, ...], error: LatchworkError) -> None:
        _log.warning("%s: %s stays until its session ends: %s", self.what, ", ".join(keys) or "a ticket", error)


def read_body(value: bytes) -> dict[str, object]:
    """The JSON object in a value; empty when there is none."""
    return dict(Record.or_empty(value).body)


def write_body(body: Mapping[str, object]) -> bytes:
    """The value that holds a JSON object."""
    return json.dumps(body).encode()


def is_ticket(key: str) -> bool:
    """True for the key of a ticket or lease: others may keep other keys below the same name."""
    return _NUMBERED.match(key.rpartition("/")[2]) is not None
