"""Read the holders of persistent locks, release a lock by force, and remove the records of free locks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latchwork.errors import Conflict, KeyExists, OutcomeUnknown, Unavailable
from latchwork.primitives.leased.protocol import FREE, LockRecord, OwnerRecord
from latchwork.primitives.leased.table import LockTable, get_owner, list_lock_owners
from latchwork.store.steps import ask, blocking
from latchwork.store.store import Store, resolve_ops
from latchwork.types import At, Check, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

_BATCH = 500
_TOGETHER = 50
#: A free lock is deleted when a later sweep finds it unchanged after at least this many seconds.
FORGET_FREE_AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The owner of a lock, as it described itself. It may be dead. Other clients take over its locks once its death is
    certain.

    Attributes:
        owner_id: The UUID of the owner.
        label: The name of the owner. May be empty.
        host: The host name of its process.
        pid: The process ID.
        ttl_s: Seconds that its locks outlive its last renewal.
    """

    owner_id: str
    label: str
    host: str
    pid: int
    ttl_s: float

    def __str__(self) -> str:
        place = f"pid {self.pid} on {self.host}"
        return f"{self.label!r} ({place})" if self.label else place


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock as last written.

    Attributes:
        name: The name of the lock.
        holder: The holder. None if the lock is free, or if its owner was removed, which means the same.
        token: The token of the last write: the fencing token of the holder.
        since_s: When the holder acquired it, in seconds since the epoch on the holder's clock, for display. None if the
            lock is free.
    """

    name: str
    holder: LockHolder | None
    token: int
    since_s: float | None = None


@blocking
async def lock_states(store: Store, *, below: str = "") -> list[LockState]:
    """Read the states of all locks whose records exist, including free locks. No keeper is needed.

    Args:
        store: The store of the locks.
        below: Only names below this one; "" for all.
    Returns:
        The states, sorted by name. Not a snapshot.
    """
    return await read_states_below(LockTable(store), below)


@blocking
async def force_release(
    store: Store,
    name: str,
    *,
    also: Callable[[LockState], Sequence[Op]] = lambda _before: (),
) -> LockState | None:
    """Release a lock of another holder by force. Use it when you know that the holder can do no more harm.

    From then on, every fenced write of the holder is refused. This does not mean that the holder notices or has
    stopped.

    Args:
        store: The store of the lock.
        name: The name of the lock.
        also: Called with the state before the release. Returns further operations for the same transaction, such as a
            record of who released the lock and why. Their keys are relative to ``store``.
    Returns:
        The state before the release. None if the lock was free and nothing was done.
    Raises:
        Conflict: The lock changed at the same time, or a key that ``also`` creates exists. Read again.
        InvalidKey: A key of ``also`` is malformed or reserved.
    """
    table = LockTable(store)
    entry = await ask(table.store.get, table.lock_key(name))
    before = next(iter(await read_states(table, [entry] if entry is not None else [])), None)
    if entry is None or before is None or before.holder is None:
        return None
    await ask(table.store.commit, [At(entry)], [Put(entry.key, FREE), *resolve_ops(store, also(before))])
    _log.warning("lock %r was released by force from %s, fencing token %d", name, before.holder, before.token)
    return before


@blocking
async def forget_free_locks(store: Store, *, below: str = "", at_most: int | None = None) -> int:
    """Remove the records of free locks, and return how many were removed.

    A keeper's ``sweep`` removes such a record ten minutes after it first saw the lock free. Use this function when no
    keeper is running. A lock that another client acquires at the same time stays.

    Args:
        store: The store of the locks.
        below: Only names below this one; "" for all.
        at_most: Examine at most this many locks. None for no limit.
    """
    table = LockTable(store)
    return await _forget_free(table, (await table.list_locks(below))[:at_most])


@blocking
async def forget_free_of(store: Store, found: Sequence[Entry]) -> int:
    """Remove the records of those locks that are free, and return how many were removed. A lock that has changed since
    it was read stays.

    Args:
        store: The store of the locks.
        found: The entries of the locks.
    """
    return await _forget_free(LockTable(store), found)


async def _forget_free(table: LockTable, found: Sequence[Entry]) -> int:
    names = {state.name for state in await read_states(table, found) if state.holder is None}
    free = [entry for entry in found if table.get_lock_name(entry.key) in names]
    removed = 0
    for at in range(0, len(free), _TOGETHER):
        removed += await _delete_unchanged(table.store, free[at : at + _TOGETHER])
    return removed


async def _delete_unchanged(store: Store, entries: list[Entry]) -> int:
    """Delete the entries that have not changed since they were read. Return how many were deleted.

    The first attempt is one transaction. If some entries have changed, each is deleted by its own transaction.
    """
    try:
        await ask(store.commit, [At(entry) for entry in entries], [Delete(entry.key) for entry in entries])
    except Conflict:
        if len(entries) == 1:
            return 0
        return sum([await _delete_unchanged(store, [entry]) for entry in entries])
    return len(entries)


async def read_state(table: LockTable, name: str) -> LockState:
    """Read the state of a lock. A lock that was never taken is free."""
    entry = await ask(table.store.get, table.lock_key(name))
    states = await read_states(table, [entry] if entry is not None else [])
    return states[0] if states else LockState(name, None, 0)


async def read_states_below(table: LockTable, below: str) -> list[LockState]:
    """Read the states of all locks below a name, sorted by name. "" reads all. Not a snapshot."""
    return await read_states(table, await table.list_locks(below))


async def read_states(table: LockTable, found: Sequence[Entry]) -> list[LockState]:
    """Return the states of locks, in the order of their entries. Also reads the records of their owners.

    Args:
        table: Reads the records.
        found: The entries of the locks.
    """
    holders = await _holders(table, list_lock_owners(found))
    states = []
    for entry in found:
        record = LockRecord.decode(entry.value)
        if record is not None:
            holder = holders.get(record.owner or "")
            since_s = record.since_s if holder is not None else None
            states.append(LockState(table.get_lock_name(entry.key), holder, entry.token, since_s))
    return states


async def _holders(table: LockTable, owners: list[str]) -> dict[str, LockHolder]:
    holders = {}
    for at in range(0, len(owners), _BATCH):
        batch = owners[at : at + _BATCH]
        entries = await ask(table.store.get_many, [table.owner_key(owner) for owner in batch])
        for owner, entry in zip(batch, entries, strict=True):
            record = OwnerRecord.decode(entry.value) if entry is not None else None
            if record is not None:
                holders[owner] = LockHolder(owner, record.label, record.host, record.pid, record.ttl_s)
    return holders


class LockSweeper:
    """Removes the records of dead owners and of free locks, and remembers since when each lock is free.

    Only one call may run at a time.
    """

    def __init__(self, table: LockTable) -> None:
        self._table = table
        self._store = table.store
        self._free_since: dict[str, tuple[object, float]] = {}

    async def sweep(self) -> tuple[int, int]:
        """Remove owners that have been dead for a TTL, release their locks, and remove locks that were free for ten
        minutes.

        Returns:
            The number of removed owners, and the number of released or removed locks.
        """
        return await self._sweep_owners(), await self._sweep_locks()

    async def _sweep_owners(self) -> int:
        removed = 0
        for key, unchanged in (await self._table.find_owners_dead_for_ttl()).items():
            removed += await self._write_if_unchanged(unchanged, Delete(key))
        return removed

    async def _sweep_locks(self) -> int:
        found = await self._table.list_locks()
        present = {entry.key for entry in found}
        self._free_since = {key: seen for key, seen in self._free_since.items() if key in present}
        swept = 0
        for at in range(0, len(found), _BATCH):
            batch = found[at : at + _BATCH]
            gone = set(await self._table.find_removed_owners(list_lock_owners(batch)))
            for entry in batch:
                swept += await self._sweep_lock(entry, gone)
        return swept

    async def _sweep_lock(self, entry: Entry, gone: set[str]) -> int:
        owner = get_owner(entry)
        if owner in gone:
            return await self._write_if_unchanged([At(entry)], Put(entry.key, FREE))
        if owner is not None or LockRecord.decode(entry.value) is None:
            return 0
        now = self._store.clock.now()
        version, since = self._free_since.setdefault(entry.key, (entry.version, now))
        if version != entry.version:
            self._free_since[entry.key] = (entry.version, now)
        elif now - since >= FORGET_FREE_AFTER_S:
            self._free_since.pop(entry.key, None)
            return await self._write_if_unchanged([At(entry)], Delete(entry.key))
        return 0

    async def _write_if_unchanged(self, unchanged: Sequence[Check], op: Op) -> int:
        try:
            await ask(self._store.commit, unchanged, [op])
        except (Conflict, KeyExists, Unavailable, OutcomeUnknown):
            return 0  # another client was faster, or the next sweep retries
        return 1
