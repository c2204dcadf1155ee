"""The key of one member of a group: created, updated, deleted.

The key of our process before a restart may exist until its session ends. We wait for that, because it may be another
member's.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from latchwork._base.interrupts import mutex
from latchwork.errors import Conflict, LatchworkError, MemberEvicted, NodeIdInUse, OutcomeUnknown, SessionLost
from latchwork.primitives.fair.tickets import FATAL
from latchwork.primitives.group.views import Evicted, GroupMember, Label, ViewChange, check_member
from latchwork.primitives.waiting.common import Deadline
from latchwork.primitives.waiting.waits import EntryLimit, Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: How many TTLs to wait for another member with our ID to end.
_PATIENCE_TTLS = 1.5
#: Maximum number of members of one store that join at a time, so that the server is not overloaded.
MOST_AT_ONCE = 64


class Membership:
    """Our member of a group. Thread-safe.

    Args:
        store: The store.
        name: The key of the group.
        me: This member.
        what: The group, for messages.
        checks: Checks of the transaction that joins.
        id_wait_s: Seconds to wait for another member with our ID; None for 1.5 TTLs of our session.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        me: GroupMember,
        *,
        what: str,
        checks: Sequence[Check] = (),
        id_wait_s: float | None = None,
    ) -> None:
        self.key = f"{name}/members/{me.id}"
        self._evicted_key = f"{name}/evicted/{me.id}"
        self._store = store
        self._what = what
        self._checks = tuple(checks)
        self._id_wait_s = id_wait_s
        self._lock = mutex()
        self._me = check_member(me, what)
        self._written: GroupMember | None = None
        self._incarnations: set[str] = set()
        self._entered_at = 0
        self._session: Session | None = None
        self._bound: Session | None = None  # our key may be there by this one, whatever we know

    @property
    def me(self) -> GroupMember:
        """Return this member with its current attributes."""
        return self._me

    @property
    def is_in(self) -> bool:
        """Return whether this member's key existed at the last check and its session has not ended."""
        session = self._session
        return session is not None and session.remaining_s() > 0.0

    def is_missing(self, changes: Sequence[ViewChange], *, is_first: bool) -> bool:
        """Return whether this member's key may have been deleted, given new views.

        This is the case if a view lacks the member although an earlier one had it, or contains members that joined
        later. The first view that lacks the member counts too.
        """
        me = self._me
        found = changes[-1].view.member(me.id)
        if not self.is_in or (found is not None and found.incarnation == me.incarnation):
            return False
        return is_first or any(
            any(member.incarnation == me.incarnation for member in change.left)
            or any(member.created > self._entered_at for member in change.joined)
            for change in changes
        )

    async def enter(self, waiter: Waiter) -> None:
        """Create this member's key, or bind it to a new session if it exists from the last one.

        Raises:
            NodeIdInUse: Another member has our ID for longer than a dead one could.
            MemberEvicted: We were evicted.
            Conflict: A check failed.
            SessionLost: The session ended meanwhile.
        """
        session = waiter.session
        wait_s = session.ttl_s * _PATIENCE_TTLS + 1.0 if self._id_wait_s is None else self._id_wait_s
        deadline = Deadline(self._store.clock, wait_s)
        entry: Entry | None = None
        if self._bound is not None:  # we come again
            await self._refuse_evicted()
            entry = await ask(self._store.get, self.key)
        gate = self._store.shared(EntryLimit, lambda _: EntryLimit(MOST_AT_ONCE))
        while not waiter.is_cancelled:
            if entry is not None and GroupMember.from_entry(entry).incarnation not in self._incarnations:
                await self._await_gone(entry, waiter, deadline)
            elif (entry is not None and entry.owner == session.id) or await self._create_through_limit(
                gate, entry, waiter
            ):
                await self._record_join(session)
                return
            entry = await ask(self._store.get, self.key)

    async def _record_join(self, session: Session) -> None:
        """Record that this member's key exists with this session, and write attributes that changed meanwhile."""
        with self._lock:
            self._session = self._bound = session
            is_written = self._me is self._written
        while not is_written:
            me = self._me
            is_written = await self._write_attributes(me, session) and self._me is me

    async def update(self, weight: float | None, labels: Mapping[str, Label] | None, address: str | None) -> None:
        """Change the attributes of this member, in the store or for the next join. None keeps a value.

        Raises:
            Unavailable: Nothing was changed.
            OutcomeUnknown: They may have changed.
            SessionLost: We are no longer in the group.
        """
        while True:
            with self._lock:
                me, session = self._me, self._session
                new = check_member(
                    replace(
                        me,
                        weight=me.weight if weight is None else weight,
                        labels=me.labels if labels is None else dict(labels),
                        address=me.address if address is None else address,
                        updated_at=time.time(),
                    ),
                    self._what,
                )
                if session is None:
                    self._me = new
                    return
            if await self._write_attributes(new, session):
                with self._lock:
                    if self._me is me:
                        self._me = new
                        return

    async def _write_attributes(self, new: GroupMember, session: Session) -> bool:
        """Write new attributes to this member's key. Return False if the key was changed meanwhile."""
        entry = await self._own(session)
        if entry is None:
            raise SessionLost(f"member {new.id!r} of {self._what} is gone; it joins again by itself")
        try:
            await ask(self._store.commit, [At(entry), session.fence], [Put(self.key, new.to_bytes())])
        except Conflict:
            return False
        except OutcomeUnknown:
            entry = await self._own(session)
            if entry is None or entry.value != new.to_bytes():
                raise
        return True

    async def _own(self, session: Session) -> Entry | None:
        entry = await ask(self._store.get, self.key)
        return entry if entry is not None and entry.owner == session.id else None

    async def exists_in_store(self) -> bool:
        """Read whether this member's key exists.

        The read is linearizable. Returns False before this member has joined.
        """
        session = self._session
        return session is not None and await self._own(session) is not None

    async def leave(self) -> bool:
        """Delete this member's key. If that fails, repeat it in the background until the session has ended.

        A key with the same ID but another session belongs to another member, and stays. Returns False if this member
        never had a key.
        """
        session, self._session, self._bound = self._bound, None, None
        if session is None:
            return False
        if session.remaining_s() > 0.0 and not await self._delete_key(session):
            self._store.cleanup.add(partial(self._delete_key_in_background, session, Backoff()))
        return True

    async def _delete_key(self, session: Session) -> bool:
        """Delete this member's key if it is bound to this session. Return False if the caller must try again."""
        try:
            entry = await self._own(session)
            if entry is not None:
                await ask(self._store.delete, self.key, version=entry.version)
        except FATAL as error:
            _log.warning("%s: member %r stays until its session ends: %s", self._what, self._me.id, error)
        except LatchworkError as error:
            _log.info("%s: member %r is not deleted yet: %s", self._what, self._me.id, error)
            return False
        return True

    async def _delete_key_in_background(self, session: Session, backoff: Backoff) -> float | None:
        return None if session.remaining_s() <= 0.0 or await self._delete_key(session) else backoff.next_s()

    async def _create_through_limit(self, gate: EntryLimit, entry: Entry | None, waiter: Waiter) -> bool:
        """Create this member's key when the limit on concurrent joins allows it.

        Returns:
            False if another client changed the key first, or if the wait was cancelled.
        """
        if not await gate.enter(waiter, self._store.clock):
            return False
        try:
            return await self._create(entry, waiter.session)
        finally:
            gate.leave()

    async def _create(self, entry: Entry | None, session: Session) -> bool:
        """Create this member's key, or take over the key from its last session.

        Return False if another client was first.
        """
        with self._lock:
            now = time.time()
            self._me = replace(self._me, incarnation=uuid.uuid4().hex[:12], joined_at=now, updated_at=now)
            self._written = self._me
            self._incarnations.add(self._me.incarnation)
            body = self._me.to_bytes()
        free = Absent(self.key) if entry is None else At(entry)
        ops: list[Op] = [Put(self.key, body, session)]
        self._bound = session
        try:
            done = await ask(self._store.commit, [free, *self._checks], ops)
            self._entered_at = done.token
        except Conflict as error:
            if self._checks and free not in error.failed:
                raise
            return False
        return True

    async def _refuse_evicted(self) -> None:
        """Raise ``MemberEvicted`` if this member was evicted, and remove the record of the eviction."""
        mark = await ask(self._store.get, self._evicted_key)
        evicted = None if mark is None else Evicted.find(mark.value)
        if mark is not None and evicted is not None and evicted.incarnation in self._incarnations:
            await ask(self._store.delete, self._evicted_key, version=mark.version)
            raise MemberEvicted(
                f"member {self._me.id!r} of {self._what} was evicted: {evicted.why or 'no reason given'}"
            )

    async def _await_gone(self, entry: Entry, waiter: Waiter, deadline: Deadline) -> None:
        def is_gone(batch: Batch) -> bool:
            return all(change.entry is None for change in batch)

        if deadline.has_passed or not await waiter.watch_until(self.key, is_gone, deadline):
            if waiter.is_cancelled:
                return
            other = GroupMember.from_entry(entry)
            raise NodeIdInUse(
                f"member {other.id!r} of {self._what} is in use by pid {other.pid} on {other.host}; use another id"
            )


async def evict(store: Store, name: str, member_id: str, why: str) -> bool:
    """Remove a member from a group, so that it does not join again by itself. Return False if it is not a member."""
    key = f"{name}/members/{member_id}"
    while (entry := await ask(store.get, key)) is not None:
        mark = Evicted(GroupMember.from_entry(entry).incarnation, why, time.time()).to_bytes()
        ops: list[Op] = [Delete(key), Put(f"{name}/evicted/{member_id}", mark)]
        try:
            await ask(store.commit, [At(entry)], ops)
        except Conflict:
            continue
        return True
    return False
