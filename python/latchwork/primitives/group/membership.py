"""The key of one member of a group: created, kept up to date, deleted.

The key of our process before a restart may be there until its session ends. We wait for that: it may be another's key.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace

from latchwork.errors import Conflict, LatchworkError, NodeIdInUse, SessionLost
from latchwork.interrupts import mutex
from latchwork.primitives.fair.tickets import FATAL, read_body, write_body
from latchwork.primitives.group.views import GroupMember, check_member_body
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import Background, Pause, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Entry, Put

_log = logging.getLogger(__name__)

#: How many TTLs to wait for a member of our id that is there already.
_PATIENCE_TTLS = 1.5


class Membership:
    """Our member of one group, below the ``parent`` of all its members. Safe to share between threads."""

    def __init__(self, store: Store, parent: str, what: str, me: GroupMember) -> None:
        self.key = f"{parent}/{me.id}"
        self._store = store
        self._what = what
        self._lock = mutex()
        self._me = check_member_body(me)
        self._incarnations: set[str] = set()
        self._session: Session | None = None
        self._bound: Session | None = None  # our key may be there by this one, whatever we know

    @property
    def me(self) -> GroupMember:
        """Who we are now."""
        return self._me

    async def enter(self, waiter: Waiter) -> None:
        """Create our key by the waiter's session, or move it there from our last session.

        Raises:
            NodeIdInUse: another is there, for longer than a dead one could be.
            SessionLost: the session ended meanwhile.
        """
        session = waiter.session
        patience = Patience(self._store.clock, session.ttl_s * _PATIENCE_TTLS + 1.0)
        while not waiter.is_off:
            entry = await ask(self._store.get, self.key)
            if entry is not None and read_body(entry.value).get("incarnation") not in self._incarnations:
                await self._await_gone(entry, waiter, patience)
            elif (entry is not None and entry.owner == session.id) or await self._create(entry, session):
                self._session = self._bound = session
                await self.rewrite()  # attributes may have changed meanwhile
                return

    async def update(self, weight: float | None, labels: Mapping[str, str] | None, address: str | None) -> None:
        """Change our attributes, and store them if we are there. None leaves one as it is."""
        with self._lock:
            me = self._me
            self._me = check_member_body(
                replace(
                    me,
                    weight=me.weight if weight is None else weight,
                    labels=me.labels if labels is None else dict(labels),
                    address=me.address if address is None else address,
                )
            )
        await self.rewrite()

    async def rewrite(self) -> None:
        """Store our attributes as they are now, if we have entered.

        Raises:
            SessionLost: we are not there any more.
        """
        session = self._session
        while session is not None:
            entry = await ask(self._store.get, self.key)
            if entry is None or entry.owner != session.id:
                raise SessionLost(f"member {self._me.id!r} of {self._what} is gone; it joins again by itself")
            body = self._me.to_body()
            if read_body(entry.value) == body:
                return
            try:
                await ask(self._store.commit, [At(entry), session.fence], [Put(self.key, write_body(body))])
            except Conflict:
                continue

    async def is_there(self) -> bool:
        """True if the store has our key, linearizable; False before we have entered."""
        session = self._session
        entry = await ask(self._store.get, self.key) if session is not None else None
        return entry is not None and session is not None and entry.owner == session.id

    async def leave(self) -> bool:
        """Delete our key: now, or in the background until it works or the session has ended.

        A key of our id that is bound to another session by now is not ours. False if we never had one.
        """
        session, self._session, self._bound = self._bound, None, None
        if session is None:
            return False
        if session.remaining_s() > 0.0 and not await self._drop(session):
            Background(self._drop_later(session), f"latchwork-leaving-{self.key}")
        return True

    async def _drop(self, session: Session) -> bool:
        """Delete our key if it is there by this session; False when that has to be tried again."""
        try:
            entry = await ask(self._store.get, self.key)
            if entry is not None and entry.owner == session.id:
                await ask(self._store.delete, self.key, version=entry.version)
        except FATAL as error:
            _log.warning("%s: member %r stays until its session ends: %s", self._what, self._me.id, error)
        except LatchworkError as error:
            _log.info("%s: member %r is not deleted yet: %s", self._what, self._me.id, error)
            return False
        return True

    async def _drop_later(self, session: Session) -> None:
        backoff = Backoff()
        while session.remaining_s() > 0.0 and not await self._drop(session):
            await Pause(self._store.clock, session.lost, backoff.next_s())

    async def _create(self, entry: Entry | None, session: Session) -> bool:
        with self._lock:
            self._me = replace(self._me, incarnation=uuid.uuid4().hex[:12])
            self._incarnations.add(self._me.incarnation)
            body = write_body(self._me.to_body())
        self._bound = session
        try:
            await ask(
                self._store.commit, [Absent(self.key) if entry is None else At(entry)], [Put(self.key, body, session)]
            )
        except Conflict:
            return False
        return True

    async def _await_gone(self, entry: Entry, waiter: Waiter, patience: Patience) -> None:
        def is_gone(batch: Batch) -> bool:
            return all(change.entry is None for change in batch)

        if not await waiter.follow(self.key, is_gone, patience) and not waiter.is_off:
            other = GroupMember.of(self._me.id, read_body(entry.value))
            raise NodeIdInUse(
                f"member {other.id!r} of {self._what} is in use by pid {other.pid} on {other.host}; use another id"
            )
