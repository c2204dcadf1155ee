"""The key of one member of a group: it is created, updated and deleted here.

After a restart, the key of the earlier process may exist until its session ends. The new process waits for that,
because the key may also be that of another member with the same ID.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from latchwork._base.interrupts import mutex
from latchwork.errors import Conflict, LatchworkError, MemberEvicted, NodeIdInUse, OutcomeUnknown, SessionLost
from latchwork.primitives.fair.tickets import FATAL
from latchwork.primitives.group.views import EvictionRecord, GroupMember, Label, ViewChange, check_member
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter, WaiterLimit
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: How many TTLs to wait for another member with our ID to end.
_ID_WAIT_TTLS = 1.5
#: Maximum number of members of one store that join at a time, so that the server is not overloaded.
MAX_CONCURRENT_JOINS = 64


class Membership:
    """The membership of this process in a group. Thread-safe.

    Args:
        store: The store.
        name: The key of the group.
        member: This member.
        what: Name of the group, for messages.
        checks: Further preconditions of the transaction that joins.
        id_wait_s: Seconds to wait until another member with our ID has ended. None for 1.5 TTLs of our session.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        member: GroupMember,
        *,
        what: str,
        checks: Sequence[Check] = (),
        id_wait_s: float | None = None,
    ) -> None:
        self.key = f"{name}/members/{member.id}"
        self._evicted_key = f"{name}/evicted/{member.id}"
        self._store = store
        self._what = what
        self._checks = tuple(checks)
        self._id_wait_s = id_wait_s
        self._lock = mutex()
        self._member = check_member(member, what)
        self._last_created: GroupMember | None = None
        self._incarnations: set[str] = set()
        self._join_token = 0
        self._session: Session | None = None
        self._key_session: Session | None = None  # our key may exist and be bound to it, even if we do not know that

    @property
    def member(self) -> GroupMember:
        """This member with its current attributes."""
        return self._member

    @property
    def has_joined(self) -> bool:
        """Whether this member has joined and its session has not ended, as far as this process knows."""
        session = self._session
        return session is not None and session.remaining_s() > 0.0

    def is_missing(self, changes: Sequence[ViewChange], *, is_first: bool) -> bool:
        """Return whether another client may have deleted this member's key, judged by new views.

        That is so if a view lacks the member although an earlier one had it, or although it contains members that
        joined later. It is also so if the first known view lacks the member.

        Args:
            changes: The changes of the new views, in order.
            is_first: Whether these are the first views that this process knows.
        """
        own = self._member
        found = changes[-1].view.member(own.id)
        if not self.has_joined or (found is not None and found.incarnation == own.incarnation):
            return False
        return is_first or any(
            any(member.incarnation == own.incarnation for member in change.left)
            or any(member.created > self._join_token for member in change.joined)
            for change in changes
        )

    async def join(self, waiter: Waiter) -> None:
        """Join the group: create this member's key, or bind an existing one to the new session.

        Args:
            waiter: The waiting call, with the session of the member.
        Raises:
            NodeIdInUse: Another running member has our ID.
            MemberEvicted: This member was evicted.
            Conflict: A check failed.
            SessionLost: The session has ended.
        """
        session = waiter.session
        wait_s = session.ttl_s * _ID_WAIT_TTLS + 1.0 if self._id_wait_s is None else self._id_wait_s
        deadline = Deadline(self._store.clock, wait_s)
        entry: Entry | None = None
        if self._key_session is not None:  # this is not the first join
            await self._raise_if_evicted()
            entry = await ask(self._store.get, self.key)
        limit = self._store.shared(WaiterLimit, lambda _: WaiterLimit(MAX_CONCURRENT_JOINS))
        while not waiter.is_cancelled:
            if entry is not None and GroupMember.from_entry(entry).incarnation not in self._incarnations:
                await self._wait_until_id_is_free(entry, waiter, deadline)
            elif (entry is not None and entry.owner == session.id) or await self._create_within_limit(
                limit, entry, waiter
            ):
                await self._record_join(session)
                return
            entry = await ask(self._store.get, self.key)

    async def _record_join(self, session: Session) -> None:
        """Record that this member has joined with this session. Then write attributes that were changed during the
        join.
        """
        with self._lock:
            self._session = self._key_session = session
            is_stored = self._member is self._last_created
        while not is_stored:
            member = self._member
            is_stored = await self._write_attributes(member, session) and self._member is member

    async def update(self, weight: float | None, labels: Mapping[str, Label] | None, address: str | None) -> None:
        """Change the attributes of this member. None keeps a value.

        If it has not joined, the attributes are used when it joins.

        Args:
            weight: The capacity of this member.
            labels: Text or bytes by name.
            address: The address of this member.
        Raises:
            Unavailable: Nothing was changed.
            OutcomeUnknown: The attributes may have changed.
            SessionLost: This member is no longer in the group.
        """
        while True:
            with self._lock:
                before, session = self._member, self._session
                new = check_member(
                    replace(
                        before,
                        weight=before.weight if weight is None else weight,
                        labels=before.labels if labels is None else dict(labels),
                        address=before.address if address is None else address,
                        updated_at=time.time(),
                    ),
                    self._what,
                )
                if session is None:
                    self._member = new
                    return
            if await self._write_attributes(new, session):
                with self._lock:
                    if self._member is before:
                        self._member = new
                        return

    async def _write_attributes(self, new: GroupMember, session: Session) -> bool:
        """Write new attributes to this member's key. Return False if the key was changed at the same time: try
        again.
        """
        entry = await self._read_own_key(session)
        if entry is None:
            raise SessionLost(f"member {new.id!r} of {self._what} is gone; it joins again automatically")
        try:
            await ask(self._store.commit, [At(entry), session.fence], [Put(self.key, new.to_bytes())])
        except Conflict:
            return False
        except OutcomeUnknown:
            entry = await self._read_own_key(session)
            if entry is None or entry.value != new.to_bytes():
                raise
        return True

    async def _read_own_key(self, session: Session) -> Entry | None:
        """Return the entry of this member's key if it is bound to this session; otherwise None."""
        entry = await ask(self._store.get, self.key)
        return entry if entry is not None and entry.owner == session.id else None

    async def leave(self) -> bool:
        """Leave the group: delete this member's key, if necessary in the background. Return False if it has not joined.

        A key that is bound to another session belongs to another member with the same ID, and is not deleted.
        """
        session, self._session, self._key_session = self._key_session, None, None
        if session is None:
            return False
        if session.remaining_s() > 0.0 and not await self._delete_key(session):
            self._store.cleanup.add(partial(self._delete_key_in_background, session, Backoff()))
        return True

    async def _delete_key(self, session: Session) -> bool:
        """Delete this member's key if it is bound to this session. Return False if the caller must try again."""
        try:
            entry = await self._read_own_key(session)
            if entry is not None:
                await ask(self._store.delete, self.key, version=entry.version)
        except FATAL as error:
            _log.warning("%s: member %r stays until its session ends: %s", self._what, self._member.id, error)
        except LatchworkError as error:
            _log.info("%s: member %r is not deleted yet: %s", self._what, self._member.id, error)
            return False
        return True

    async def _delete_key_in_background(self, session: Session, backoff: Backoff) -> float | None:
        return None if session.remaining_s() <= 0.0 or await self._delete_key(session) else backoff.next_s()

    async def _create_within_limit(self, limit: WaiterLimit, entry: Entry | None, waiter: Waiter) -> bool:
        """Create this member's key. Wait first while too many members of this process are joining.

        Args:
            limit: Limits the members that this process creates at a time.
            entry: The entry of the key from our last session. None if the key does not exist.
            waiter: The waiting call.
        Returns:
            False if another client changed the key first, or if the wait was canceled.
        """
        if not await limit.acquire(waiter, self._store.clock):
            return False
        try:
            return await self._create(entry, waiter.session)
        finally:
            limit.release()

    async def _create(self, entry: Entry | None, session: Session) -> bool:
        """Create this member's key, or replace the key from its last session.

        Args:
            entry: The entry of the key from our last session. None if the key does not exist.
            session: The session to which the new key is bound.
        Returns:
            False if another client changed the key first.
        """
        with self._lock:
            now = time.time()
            self._member = replace(self._member, incarnation=uuid.uuid4().hex[:12], joined_at=now, updated_at=now)
            self._last_created = self._member
            self._incarnations.add(self._member.incarnation)
            body = self._member.to_bytes()
        unchanged = Absent(self.key) if entry is None else At(entry)
        ops: list[Op] = [Put(self.key, body, session)]
        self._key_session = session
        try:
            done = await ask(self._store.commit, [unchanged, *self._checks], ops)
            self._join_token = done.token
        except Conflict as error:
            if self._checks and unchanged not in error.failed:
                raise
            return False
        return True

    async def _raise_if_evicted(self) -> None:
        """Raise ``MemberEvicted`` if this member was evicted. Also delete the record of the eviction, so that it can
        join again.
        """
        entry = await ask(self._store.get, self._evicted_key)
        eviction = None if entry is None else EvictionRecord.find(entry.value)
        if entry is not None and eviction is not None and eviction.incarnation in self._incarnations:
            await ask(self._store.delete, self._evicted_key, version=entry.version)
            raise MemberEvicted(
                f"member {self._member.id!r} of {self._what} was evicted: {eviction.why or 'no reason given'}"
            )

    async def _wait_until_id_is_free(self, entry: Entry, waiter: Waiter, deadline: Deadline) -> None:
        """Wait until another member with our ID has ended.

        Args:
            entry: The entry of the other member.
            waiter: The waiting call.
            deadline: Time at which to give up.
        Raises:
            NodeIdInUse: The other member is still there at the deadline.
        """

        def is_gone(batch: Batch) -> bool:
            return all(change.entry is None for change in batch)

        if deadline.has_passed or not await waiter.watch_until(self.key, is_gone, deadline):
            if waiter.is_cancelled:
                return
            other = GroupMember.from_entry(entry)
            raise NodeIdInUse(
                f"member {other.id!r} of {self._what} is in use by pid {other.pid} on {other.host}; use another ID"
            )


async def evict(store: Store, name: str, member_id: str, why: str) -> bool:
    """Remove a member from a group, and keep it from joining again by itself.

    Args:
        store: The store.
        name: The name of the group.
        member_id: ID of the member.
        why: The reason, for the evicted member.
    Returns:
        False if it is not a member.
    """
    key = f"{name}/members/{member_id}"
    while (entry := await ask(store.get, key)) is not None:
        record = EvictionRecord(GroupMember.from_entry(entry).incarnation, why, time.time()).to_bytes()
        ops: list[Op] = [Delete(key), Put(f"{name}/evicted/{member_id}", record)]
        try:
            await ask(store.commit, [At(entry)], ops)
        except Conflict:
            continue
        return True
    return False
