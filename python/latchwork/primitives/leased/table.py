"""The stored records of persistent locks and their owners: all reads, and all transactions that write them.

It has no thread, and does not know which locks this process holds. ``KeeperState`` knows them.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future

from msgspec.structs import replace

from latchwork._base.interrupts import mutex
from latchwork._base.validation import check_store
from latchwork.backends.capabilities import MAX_CHECKS, MAX_OPS
from latchwork.backends.futures import then
from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown
from latchwork.primitives.leased.protocol import (
    ALIVE,
    FREE,
    LOCKS,
    OWNERS,
    LockRecord,
    LockWrite,
    ObservedOwner,
    OwnerObservations,
    OwnerRecord,
    UnconfirmedWrite,
    liveness_key,
    plan_adoption,
    plan_write,
)
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store, system_namespace
from latchwork.types import At, Change, Check, Create, Delete, Entry, Exists, Op, Put

#: Number of names read together; a transaction then takes as many of them as its limits allow.
_BATCH = 90
#: From this many locks on, they are written without a read, as if they did not exist: true for a new job.
_GUESS_FROM = 10
#: Attempts to take a single lock while others write it; after these it counts as held.
_ROUNDS = 5


class LockTable:
    """Reads and writes the stored records of locks and their owners. Thread-safe.

    Attributes:
        store: The namespace of the keys.
    """

    def __init__(self, store: Store) -> None:
        check_store(store, "a lock")
        self.store = system_namespace(store, "locks")
        self._lock = mutex()
        self._observations = OwnerObservations()

    def lock_key(self, name: str) -> str:
        """Return the key of the lock with this name."""
        return f"{LOCKS}/{name}"

    def get_lock_name(self, key: str) -> str:
        """Return the name of the lock with this key."""
        return key[len(LOCKS) + 1 :]

    def owner_key(self, owner: str) -> str:
        """Return the key of the owner with this ID."""
        return f"{OWNERS}/{owner}"

    def liveness_key(self, owner: str) -> str:
        """Return the liveness key of an owner. It exists as long as the owner's session."""
        return liveness_key(self.owner_key(owner))

    # What is known of the owners

    def record_changes(self, changes: Iterable[Change]) -> list[str]:
        """Record changes of owners that a watch has reported. Return the IDs of the removed owners."""
        return self._record_entries([(change.key, change.entry) for change in changes])

    def _record_entries(self, found: Collection[tuple[str, Entry | None]]) -> list[str]:
        """Record the state of owner keys from a response or a watch, and return the IDs of the owners without a record.

        Args:
            found: The keys, each with its entry or None if the key does not exist.
        """
        now = self.store.clock.now()
        gone = []
        owners: list[tuple[str, Entry | None]] = []
        with self._lock:
            for key, entry in found:
                folder, _, owner = key[len(OWNERS) + 1 :].rpartition("/")
                if not folder:
                    owners.append((owner, entry))
                elif folder == ALIVE and entry is not None:
                    self._observations.observe_liveness_key(owner)
                elif folder == ALIVE:
                    self._observations.observe_missing_liveness_key(owner, now)
            for owner, entry in owners:
                if entry is None:
                    self._observations.observe_removal(owner)
                    gone.append(owner)
                else:
                    ttl_s, session = _parse_owner(entry)
                    self._observations.observe_owner(owner, entry.version, ttl_s, now, session=session)
        return gone

    def find_observed_owner(self, owner: str) -> ObservedOwner | None:
        """Return the last observation of an owner. None if it was never seen or has been removed."""
        with self._lock:
            return self._observations.find(owner)

    def get_blocking_owner(self, entry: Entry | None) -> str | None:
        """Return the ID of the owner that prevents acquiring a lock.

        Args:
            entry: Entry of the lock; None if it does not exist.
        Returns:
            The ID; None if the lock looks free; "" if its record is invalid, so that it cannot be acquired.
        """
        record = LockRecord.decode(entry.value) if entry is not None else LockRecord(None)
        if record is None or record.owner is None:
            return "" if record is None else None
        return record.owner if self.find_death_time(record.owner) is not None else None

    def find_death_time(self, owner: str) -> float | None:
        """Return the local clock time at which an owner counts as dead if it is not renewed before.

        Returns:
            The time. None if it has passed, or if the owner was never seen.
        """
        seen = self.find_observed_owner(owner)
        return seen.dead_at if seen is not None and seen.dead_at > self.store.clock.now() else None

    async def read_locks(self, names: Sequence[str], *, fresh: bool) -> dict[str, Entry | None]:
        """Read these locks, and record the state of their owners where it is unknown or may be stale.

        Args:
            names: Names of the locks.
            fresh: Read all owners that the locks name, whatever is known of them.
        Returns:
            The entries of the locks by name, None for a lock without a record.
        """
        entries = dict(zip(names, await ask(self.store.get_many, [self.lock_key(name) for name in names]), strict=True))
        await self.find_removed_owners(
            [owner for owner in list_lock_owners(entries.values()) if fresh or self._must_read_owner(owner)]
        )
        return entries

    def _must_read_owner(self, owner: str) -> bool:
        """Return whether an owner must be read before this client decides on its locks.

        True if it was never seen, or if only its liveness key shows that it is alive. The last response that showed
        that key may be older than the deletion of the key.
        """
        seen = self.find_observed_owner(owner)
        return seen is None or seen.dead_at == math.inf

    async def find_removed_owners(self, owners: Sequence[str]) -> list[str]:
        """Read the records and liveness keys of these owners. Return the IDs of the owners that have no record."""
        keys = [key for owner in owners for key in (self.owner_key(owner), self.liveness_key(owner))]
        found = await ask(self.store.get_many, keys) if keys else []
        return self._record_entries(list(zip(keys, found, strict=True)))

    def find_lowest_alive_owner(self) -> str | None:
        """Return the lowest ID among the owners that were seen and are not known to be dead, or None."""
        now = self.store.clock.now()
        with self._lock:
            return self._observations.find_lowest_alive_owner(now)

    async def find_owners_dead_for_ttl(self) -> dict[str, tuple[Check, ...]]:
        """Read all owners, and find those that have been dead for longer than their TTL.

        Returns:
            The keys of these owners, each with the transaction checks that the owner has not changed.
        """
        found = {entry.key: entry for entry in await ask(self.store.list, OWNERS, recursive=True)}
        owners = [key for key in found if key.count("/") == 1]
        self._record_entries([(key, found.get(key)) for owner in owners for key in (owner, liveness_key(owner))])
        with self._lock:
            dead = self._observations.find_owners_dead_for_ttl(self.store.clock.now())
        return {self.owner_key(owner): seen.build_unchanged_checks(self.owner_key(owner)) for owner, seen in dead}

    # Writing

    async def acquire(
        self,
        names: Sequence[str],
        own_id: str,
        written: dict[str, Entry | UnconfirmedWrite],
        *,
        from_owner: str | None = None,
    ) -> None:
        """Acquire each lock that is free or whose owner is dead, for one of this client's owners.

        Args:
            names: Names of the locks.
            own_id: ID of the owner that acquires the locks.
            written: Receives by name the new entry of each acquired lock, and an ``UnconfirmedWrite`` for each write
                whose outcome is unknown. Also filled if the call raises an error.
            from_owner: Take over only the locks of the owner with this ID, whether it is alive or dead. None acquires
                free locks and locks of dead owners.
        Raises:
            OutcomeUnknown: The answer to a transaction was lost. Later ones were not tried.
            Unavailable: A transaction failed. Later ones were not tried.
            Conflict: The record of our owner was deleted.
        """
        guess = len(names) >= _GUESS_FROM and from_owner is None
        todo = [(list(names[at : at + _BATCH]), 0) for at in range(0, len(names), _BATCH)]
        while todo:
            batch, tries = todo.pop(0)
            entries = dict.fromkeys(batch) if guess else await self.read_locks(batch, fresh=tries > 0)
            mine = LockRecord(own_id, uuid.uuid4().hex, round(time.time(), 3)).to_bytes()
            now, later = _split_writes_by_size(self._plan_writes(entries, self.owner_key(own_id), mine, from_owner))
            if later:
                todo.insert(0, (later, tries))
            try:
                await self._write(now, entries, written)
            except Conflict as conflict:
                if Exists(self.owner_key(own_id)) in conflict.failed:
                    raise
                todo[:0] = [(list(now), tries)] if guess else _split_after_conflict(list(now), tries)
                guess = False  # wrong once, it would be wrong again

    def _plan_writes(
        self, entries: dict[str, Entry | None], own_key: str | None, value: bytes, from_owner: str | None = None
    ) -> dict[str, LockWrite]:
        now = self.store.clock.now()
        writes = {}
        with self._lock:  # the same sightings for all, so that no two plans of a batch contradict each other
            for name, entry in entries.items():
                owner = get_owner(entry) or ""
                key, owner_key, seen = self.lock_key(name), self.owner_key(owner), self._observations.find(owner)
                if from_owner is not None and own_key is not None:
                    old = self.owner_key(from_owner)
                    decision = plan_adoption(key, entry, value, own_key=own_key, owner_key=owner_key, old=old)
                else:
                    decision = plan_write(key, entry, value, own_key=own_key, owner_key=owner_key, seen=seen, now=now)
                if isinstance(decision, LockWrite):
                    writes[name] = decision
        return writes

    async def _write(
        self,
        writes: dict[str, LockWrite],
        entries: dict[str, Entry | None],
        written: dict[str, Entry | UnconfirmedWrite],
    ) -> None:
        if not writes:
            return
        checks, ops = _merge_writes(writes.values())
        written.update(
            {name: UnconfirmedWrite(name, entries[name]) for name in writes}
        )  # before it is sent: it may be interrupted
        try:
            done = await ask(self.store.commit, checks, ops)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"taking {_describe_locks(writes)}: {error}") from error
        except LatchworkError:  # nothing was written
            for name in writes:
                del written[name]
            raise
        self._record_removals([take.removes_owner for take in writes.values() if take.removes_owner])
        by_key = {entry.key: entry for entry in done.entries}
        written.update({name: by_key[self.lock_key(name)] for name in writes})

    def _record_removals(self, owners: Iterable[str]) -> None:
        with self._lock:
            for owner in owners:
                self._observations.observe_removal(owner)

    async def release(self, held: dict[str, Entry]) -> list[str]:
        """Release these locks, unless their entries have changed.

        Args:
            held: Entries of the locks by name.
        Returns:
            Names of the locks that another owner has acquired.
        Raises:
            OutcomeUnknown, Unavailable: Some locks may still be held. Call ``resolve_write`` for all of them.
        """
        gone: list[str] = []
        names = list(held)
        todo = [names[at : at + _BATCH] for at in range(0, len(names), _BATCH)]
        while todo:
            batch = todo.pop(0)
            checks = [At(held[name]) for name in batch]
            try:
                await ask(self.store.commit, checks, [Put(self.lock_key(name), FREE) for name in batch])
            except Conflict:
                gone += batch if len(batch) == 1 else []
                todo[:0] = _halves(batch) if len(batch) > 1 else []
            except OutcomeUnknown as error:
                raise OutcomeUnknown(f"releasing {_describe_locks(batch)}: {error}") from error
        return gone

    async def resolve_write(self, write: UnconfirmedWrite, own_ids: frozenset[str]) -> None:
        """Undo a write whose outcome is unknown, or write the lock before it, so that it can no longer be applied.

        Args:
            write: The write.
            own_ids: IDs of this keeper's owners. If the lock names one of them, it is released.
        Raises:
            Conflict, Unavailable, OutcomeUnknown: The write may still have an effect. Try again later.
        """
        entry = (await self.read_locks([write.name], fresh=True))[write.name]
        if get_owner(entry) in own_ids and entry is not None:
            await ask(self.store.commit, [At(entry)], [Put(entry.key, FREE)])
            return
        if not _is_same_version(entry, write.before):
            return  # its check can never hold again
        # L is as that write's check wants it: write it first. If its owner is alive, the other check can never hold.
        take = self._plan_writes({write.name: entry}, None, FREE).get(write.name)
        if take is not None:
            await ask(self.store.commit, take.checks, take.ops)

    # Owners

    async def create_owner(self, owner: str, record: OwnerRecord, session: Session | None) -> None:
        """Store the record of a new owner, and its liveness key if a session is given.

        If the outcome is unknown, an owner without locks may exist. Call ``delete_owner`` then.

        Args:
            owner: ID of the owner.
            record: The record to store.
            session: The session to which the liveness key is bound. None for no liveness key.
        """
        key, value = self.owner_key(owner), record.to_bytes()
        if session is None:
            await ask(self.store.create, key, value)
        else:
            await ask(self.store.commit, [], [Create(key, value), Create(self.liveness_key(owner), b"", session)])

    async def delete_owner(self, owner: str, *, has_liveness_key: bool = True) -> None:
        """Delete the record of an owner and its liveness key, which frees all its locks.

        Args:
            owner: ID of the owner.
            has_liveness_key: Whether the owner may have a liveness key. With False, only the record is deleted.
        """
        if has_liveness_key:
            await ask(self.store.commit, [], [Delete(self.owner_key(owner)), Delete(self.liveness_key(owner))])
        else:
            await ask(self.store.delete, self.owner_key(owner))
        self._record_removals([owner])

    async def delete_liveness_key(self, owner: str) -> None:
        """Delete the liveness key of an owner. Other clients can take its locks ``session_grace_s`` seconds later."""
        await ask(self.store.delete, self.liveness_key(owner))

    def renew(self, owner: str, record: OwnerRecord) -> Future[float]:
        """Renew an owner by rewriting its record, which must exist.

        Args:
            owner: ID of the owner.
            record: The record to write.
        Returns:
            A future of the local time at which the request was sent.
        """
        key, sent_at = self.owner_key(owner), self.store.clock.now()
        written = self.store.start_call("commit", [Exists(key)], [Put(key, record.to_bytes())])
        return then(written, lambda _written: sent_at)

    def renew_by_check(self, owner: str, session: Session) -> Future[float]:
        """Renew an owner that has a session, by checking that its record and its liveness key exist. Writes nothing.

        If the backend supports it, the same transaction renews the session.

        Returns:
            A future of the local time at which the request was sent.
        """
        sent_at = self.store.clock.now()
        checks = [Exists(self.owner_key(owner)), Exists(self.liveness_key(owner))]
        return then(self.store.start_call("commit", checks, [], by=session), lambda _checked: sent_at)

    def renew_and_detach(self, owner: str, record: OwnerRecord) -> Future[float]:
        """Renew an owner whose session has ended: rewrite its record, which must exist, and delete its liveness key.

        From then on, other clients treat the owner as alive only as long as it rewrites its record.

        Returns:
            A future of the local time at which the request was sent.
        """
        sent_at = self.store.clock.now()
        checks, ops = [Exists(self.owner_key(owner))], self._build_detach_ops(owner, record)
        written = self.store.start_call("commit", checks, ops)
        return then(written, lambda _written: sent_at)

    async def detach_owner_from_session(self, owner: str, record: OwnerRecord) -> None:
        """Rewrite the record of an owner and delete its liveness key, so that it no longer depends on its session. Wait
        for the result.
        """
        await ask(self.store.commit, [Exists(self.owner_key(owner))], self._build_detach_ops(owner, record))

    def _build_detach_ops(self, owner: str, record: OwnerRecord) -> list[Op]:
        return [Put(self.owner_key(owner), record.to_bytes()), Delete(self.liveness_key(owner))]

    async def renew_for_adoption(self, owner: str) -> None:
        """Renew another process's owner once before its locks are adopted, so that no third client takes them.

        The session is removed from its record, because it may end at any time. Its liveness key is deleted, so that its
        process notices the adoption if it is running. Nothing is done if the owner does not exist.
        """
        while (entry := await ask(self.store.get, self.owner_key(owner))) is not None:
            record = OwnerRecord.decode(entry.value)
            if record is None:
                return  # no client considers it dead
            with contextlib.suppress(Conflict):  # it renews itself, or was removed just now
                await ask(self.store.commit, [At(entry)], self._build_detach_ops(owner, replace(record, session="")))
                return

    async def list_locks_of_owner(self, owner: str) -> list[str]:
        """Return the names of the locks that an owner holds, sorted. Not a snapshot."""
        return [self.get_lock_name(entry.key) for entry in await self.list_locks() if get_owner(entry) == owner]

    async def list_locks(self, below: str = "") -> list[Entry]:
        """Return the entries of all locks below a name, sorted by key. Not a snapshot.

        Args:
            below: The name, such as ``report`` for ``report/item-1``; "" for all locks.
        """
        prefix = self.lock_key(below) if below else LOCKS
        found: list[Entry] = await ask(self.store.list, prefix, recursive=True)
        return found


def get_owner(entry: Entry | None) -> str | None:
    """Return the ID of the owner that the entry of a lock names. None if the lock is free, invalid or has no entry."""
    record = LockRecord.decode(entry.value) if entry is not None else None
    return record.owner if record is not None else None


def list_lock_owners(entries: Iterable[Entry | None]) -> list[str]:
    """Return the IDs of the owners of these locks, sorted and unique.

    Args:
        entries: The stored entries of the locks. None for a lock without an entry.
    """
    return sorted({owner for entry in entries if (owner := get_owner(entry))})


def _parse_owner(entry: Entry) -> tuple[float, str]:
    """Return the TTL in seconds and the session ID that an owner's record contains.

    The TTL of an invalid record is infinite, so that its owner never counts as dead.
    """
    record = OwnerRecord.decode(entry.value)
    return (record.ttl_s, record.session) if record is not None else (math.inf, "")


def _is_same_version(entry: Entry | None, before: Entry | None) -> bool:
    if entry is None or before is None:
        return entry is before
    return entry.version == before.version


def _merge_writes(writes: Iterable[LockWrite]) -> tuple[list[Check], list[Op]]:
    checks: dict[Check, None] = {}
    ops: dict[Op, None] = {}
    for take in writes:
        checks.update(dict.fromkeys(take.checks))
        ops.update(dict.fromkeys(take.ops))
    return list(checks), list(ops)


def _split_writes_by_size(writes: dict[str, LockWrite]) -> tuple[dict[str, LockWrite], list[str]]:
    """Divide planned writes of locks into those that fit into one transaction, and the others.

    Args:
        writes: The planned writes by name of the lock.

    Returns:
        The writes that fit, and the names of the other locks.
    """
    checks: set[Check] = set()
    ops: set[Op] = set()
    now: dict[str, LockWrite] = {}
    for name, take in writes.items():
        checks.update(take.checks)
        ops.update(take.ops)
        if len(checks) > MAX_CHECKS or len(ops) > MAX_OPS:
            break
        now[name] = take
    return now, [name for name in writes if name not in now]


def _halves(names: list[str]) -> list[list[str]]:
    middle = len(names) // 2
    return [names[:middle], names[middle:]]


def _split_after_conflict(names: list[str], tries: int) -> list[tuple[list[str], int]]:
    """Return the smaller batches of locks to try after a conflict, each with the number of its tries.

    The failed batch is halved, so that one contended lock does not block the others.

    Args:
        names: Names of the locks in the failed batch.
        tries: How often the batch was tried before.
    """
    if len(names) > 1:
        return [(half, 1) for half in _halves(names)]
    return [(names, tries + 1)] if tries < _ROUNDS else []


def _describe_locks(names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(repr(name) for name in listed[:3])
    return f"lock {shown}" if len(listed) == 1 else f"{len(listed)} locks ({shown}{', ...' if len(listed) > 3 else ''})"
