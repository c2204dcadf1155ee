"""Decisions of the persistent lock. Pure: no I/O, no threads, no clock.

    Keys:   owners/<uuid>         O: one per owner, rewritten to renew it unless it names a session; a UUID is never
                                  reused
            owners/alive/<uuid>   its liveness key: bound to the session that O names, created with O and never again
            locks/<name>          L: names its O, or none
    Owner:  stops at the *send* of its last confirmed renewal plus the TTL (``store.lease.Lease``), and, while O names a
            session, ``session_grace_s`` after the end of that session.
    Others: take over once they have seen O unchanged for 1.05 TTL since the *response* that showed it, or, if O names a
            session, without its liveness key for ``session_grace_s`` (``OwnerObservations``). The transaction checks
            exactly that O and that L, and that there is no liveness key (``plan_write``).

docs/design/locks.md has the race that each check closes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from latchwork._base.decoding import MAX_DURATION_S, Decoder, Record, Timestamp, Whole
from latchwork.types import Absent, At, Check, Delete, Entry, Exists, Op, Put

_log = logging.getLogger(__name__)

#: Owners and locks are below ``@locks``, or in the tree of a system that keeps its own.
OWNERS = "owners"
LOCKS = "locks"
#: Shorter ones leave no time for a second renewal after a lost one.
LEAST_TTL_S = 0.3
#: An owner's id is a segment of a key: any other text in an L would make every read of owners fail.
_OWNER = r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,120}\Z"
#: The last segment of an owner's liveness key.
ALIVE = "alive"
#: An observer's clock may run 5 % faster than the owner's before two can overlap without fences.
TAKEOVER_FACTOR = 1.05


class OwnerRecord(Record, frozen=True, omit_defaults=True):
    """The stored record of an owner of locks. Comments and docs call it "O".

    Attributes:
        ttl_s: TTL of its locks in seconds.
        label: Name of the owner, for display.
        host: Host name of the owner's process.
        pid: Process ID.
        session: ID of the session to which the owner's liveness key is bound; "" for none.
    """

    ttl_s: Annotated[float, Meta(gt=0.0, le=MAX_DURATION_S)]
    label: str = ""
    host: str = ""
    pid: Whole = 0
    session: str = ""

    @classmethod
    def decode(cls, value: bytes) -> OwnerRecord | None:
        """Decode the stored record of an owner. Return None if the value is invalid."""
        return _OWNER_RECORD.find(value)


class LockRecord(Record, frozen=True, omit_defaults=True):
    """The stored record of a lock. Comments and docs call it "L".

    Attributes:
        owner: ID of the owner that holds the lock; None if the lock is free.
        nonce: A unique text for each attempt to acquire the lock.
        since_s: When the lock was acquired, in seconds since the epoch on the owner's clock, for display.
    """

    owner: Annotated[str, Meta(pattern=_OWNER)] | None
    nonce: str = ""
    since_s: Timestamp | None = None

    @classmethod
    def decode(cls, value: bytes) -> LockRecord | None:
        """Decode the stored record of a lock. Return None if it is invalid; the caller must not overwrite it then."""
        return _LOCK_RECORD.find(value)


_OWNER_RECORD: Decoder[OwnerRecord] = Decoder(OwnerRecord, "an owner of locks")
_LOCK_RECORD: Decoder[LockRecord] = Decoder(LockRecord, "a lock")
FREE = LockRecord(None).to_bytes()


def liveness_key(owner_key: str) -> str:
    """Return the liveness key of an owner. It is bound to the owner's session, so it exists as long as the session."""
    folder, _, owner = owner_key.rpartition("/")
    return f"{folder}/{ALIVE}/{owner}"


def clamp_ttl_s(ttl_s: float, what: str) -> float:
    """Return a TTL in seconds. If it is below the supported minimum, return the minimum and log a warning.

    Args:
        ttl_s: The wanted TTL in seconds.
        what: Name of the lock or keeper, for messages.
    Raises:
        ValueError: The TTL is not positive, or too long.
    """
    if not 0.0 < ttl_s <= MAX_DURATION_S:
        raise ValueError(f"ttl_s of {what} must be more than 0 seconds, and at most {MAX_DURATION_S:g}, not {ttl_s!r}")
    if ttl_s < LEAST_TTL_S:
        _log.warning("%s: a TTL of %.3g s is raised to the minimum, %.3g s", what, ttl_s, LEAST_TTL_S)
    return max(float(ttl_s), LEAST_TTL_S)


def session_grace_s(ttl_s: float) -> float:
    """Return for how many seconds other clients do not take an owner's locks after the owner's session has ended.

    A process that is still running uses this grace period to continue without the session. The grace period is 5 % of
    the TTL, but at least 0.3 and at most 1 second.
    """
    return min(1.0, max(0.3, ttl_s * (TAKEOVER_FACTOR - 1)))


@dataclass(frozen=True, slots=True)
class ObservedOwner:
    """The record of an owner as this process last saw it.

    Attributes:
        version: Version of the record.
        ttl_s: TTL of the owner in seconds.
        since: Local clock time since which the record is unchanged.
        session: ID of the session that the record names.
        missing_since: Local clock time since which the owner's liveness key is missing. None if it exists, or if the
            record names no session.
    """

    version: Hashable
    ttl_s: float
    since: float
    session: str = ""
    missing_since: float | None = None

    @property
    def dead_at(self) -> float:
        """The local clock time at which the owner counts as dead if nothing changes. Infinite while its liveness key
        exists.
        """
        if not self.session:
            return self.since + self.ttl_s * TAKEOVER_FACTOR
        return math.inf if self.missing_since is None else self.missing_since + session_grace_s(self.ttl_s)

    def build_unchanged_checks(self, owner_key: str) -> tuple[Check, ...]:
        """Return the transaction checks that the owner has not changed since this observation.

        Args:
            owner_key: Key of the owner's record.
        """
        no_liveness_key = (Absent(liveness_key(owner_key)),) if self.session else ()
        return (At.of(owner_key, self.version), *no_liveness_key)


class OwnerObservations:
    """The owners' records as this process last saw them, to decide which owners are dead. Not thread-safe.

    An owner that is not included was never seen or has been removed. The caller must read its key.
    """

    def __init__(self) -> None:
        self._seen: dict[str, ObservedOwner] = {}
        self._liveness_keys: set[str] = set()

    def observe_owner(self, owner: str, version: Hashable, ttl_s: float, now: float, *, session: str = "") -> bool:
        """Note the record of an owner, as a response or a watch has shown it.

        Call ``observe_liveness_key`` first if the same response contained the liveness key.

        Args:
            owner: ID of the owner.
            version: Version of the record.
            ttl_s: TTL of the owner in seconds.
            now: Local clock time at which the response arrived, or an earlier time.
            session: ID of the session that the record names; "" for none.
        Returns:
            Whether the record has changed since it was last seen.
        """
        known = self._seen.get(owner)
        if known is not None and known.version == version:
            return False
        missing_since = now if session and owner not in self._liveness_keys else None
        self._seen[owner] = ObservedOwner(version, ttl_s, now, session, missing_since)
        return True

    def observe_liveness_key(self, owner: str) -> None:
        """Note that a response or a watch has shown the liveness key of an owner."""
        self._liveness_keys.add(owner)
        known = self._seen.get(owner)
        if known is not None and known.missing_since is not None:
            self._seen[owner] = replace(known, missing_since=None)

    def observe_missing_liveness_key(self, owner: str, now: float) -> None:
        """Note that a response or a watch has shown that an owner has no liveness key.

        Args:
            owner: ID of the owner.
            now: Local clock time at which the response arrived, or an earlier time.
        """
        self._liveness_keys.discard(owner)
        known = self._seen.get(owner)
        if known is not None and known.missing_since is None and known.session:
            self._seen[owner] = replace(known, missing_since=now)

    def observe_removal(self, owner: str) -> None:
        """Note that an owner's record was deleted."""
        self._seen.pop(owner, None)
        self._liveness_keys.discard(owner)

    def find(self, owner: str) -> ObservedOwner | None:
        """Return the last observation of an owner. None if it was never seen or has been removed."""
        return self._seen.get(owner)

    def find_lowest_alive_owner(self, now: float) -> str | None:
        """Return the lowest ID among the owners that are not known to be dead. None if there are none.

        Args:
            now: Local clock time.
        """
        return min((owner for owner, seen in self._seen.items() if seen.dead_at > now), default=None)

    def find_owners_dead_for_ttl(self, now: float) -> list[tuple[str, ObservedOwner]]:
        """Return the IDs and observations of owners that have been dead for longer than their TTL.

        Args:
            now: Local clock time.
        """
        return [(owner, seen) for owner, seen in self._seen.items() if now > seen.dead_at + seen.ttl_s]


@dataclass(frozen=True, slots=True)
class LockWrite:
    """The decision that a lock can be written, with the checks and operations of the transaction.

    Attributes:
        checks: Preconditions of the transaction.
        ops: The writes.
        removes_owner: ID of a dead owner whose record the transaction deletes, or None.
    """

    checks: tuple[Check, ...]
    ops: tuple[Op, ...]
    removes_owner: str | None = None


@dataclass(frozen=True, slots=True)
class LockIsHeld:
    """The decision that a lock cannot be written now because another owner holds it.

    Attributes:
        owner: ID of the owner; "" if it is unknown.
        dead_at: Local clock time at which to try again if nothing changes before. Infinite if only a change of the
            lock, its owner or the liveness key helps.
    """

    owner: str
    dead_at: float = math.inf


@dataclass(frozen=True, slots=True)
class UnconfirmedWrite:
    """A write of a lock whose outcome is unknown: the server may have applied it, or may still apply it later.

    Attributes:
        name: Name of the lock.
        before: The entry of the lock that the write expects. None if it expects no entry.
    """

    name: str
    before: Entry | None


Plan = LockWrite | LockIsHeld


def plan_write(
    key: str,
    entry: Entry | None,
    value: bytes,
    *,
    own_key: str | None,
    owner_key: str,
    seen: ObservedOwner | None,
    now: float,
) -> Plan:
    """Decide whether a lock can be acquired or released now, and build the write.

    Args:
        key: Key of the lock.
        entry: Entry of the lock; None if it does not exist.
        value: The value to write: a new ``LockRecord``, or ``FREE``.
        own_key: Key of our own owner record, which must exist. None if the lock is only released.
        owner_key: Key of the owner that the lock names. Ignored if it names none.
        seen: The last observation of that owner. None if it is known to be removed.
        now: Local clock time.
    """
    alive: tuple[Check, ...] = (Exists(own_key),) if own_key is not None else ()
    write = Put(key, value)
    if entry is None:
        return LockWrite((Absent(key), *alive), (write,))
    record = LockRecord.decode(entry.value)
    if record is None:
        return LockIsHeld("")
    if record.owner is None or owner_key == own_key:
        return LockWrite((At(entry), *alive), (write,))
    if seen is None:
        return LockWrite((At(entry), Absent(owner_key), *alive), (write,))
    if now < seen.dead_at:
        return LockIsHeld(record.owner, seen.dead_at)
    checks = (At(entry), *seen.build_unchanged_checks(owner_key), *alive)
    return LockWrite(checks, (write, Delete(owner_key)), removes_owner=record.owner)


def plan_adoption(key: str, entry: Entry | None, value: bytes, *, own_key: str, owner_key: str, old: str) -> Plan:
    """Decide whether a lock can be taken over from one particular owner, alive or dead, and build the write.

    Args:
        key: Key of the lock.
        entry: Entry of the lock; None if it does not exist.
        value: The value to write: a new ``LockRecord``.
        own_key: Key of our own owner record, which must exist.
        owner_key: Key of the owner that the lock names. Ignored if it names none.
        old: Key of the owner from which the lock is taken over.
    """
    record = LockRecord.decode(entry.value) if entry is not None else None
    if entry is None or record is None or record.owner is None:
        return LockIsHeld("")
    if owner_key in {old, own_key}:  # own_key: an earlier try got through, its answer did not
        return LockWrite((At(entry), Exists(own_key)), (Put(key, value),))
    return LockIsHeld(record.owner)
