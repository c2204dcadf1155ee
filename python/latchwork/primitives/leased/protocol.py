"""Decisions of the persistent lock. Pure: no I/O, no threads, no clock.

Keys:   owners/<uuid>         O: one per owner, rewritten to renew it; a UUID is never reused
        owners/<uuid>/alive   its sign: bound to the session that O names, created with O and never again
        locks/<name>          L: names its O, or none
Owner:  stops at the *send* of its last confirmed renewal plus the TTL (``store.lease.Lease``), and, while O names a
        session, ``grace_s`` after the end of that session.
Others: take over once they have seen O unchanged for 1.05 TTL since the *response* that showed it, or without its sign
        for ``grace_s`` (``Sightings``), in a transaction that checks exactly that O and that L (``plan``).
docs/design/locks.md has the race that each check closes.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import MAX_DURATION_S, Decoder, Timestamp, Whole, encode
from latchwork.types import Absent, At, Check, Delete, Entry, Exists, Op, Put

_log = logging.getLogger(__name__)

#: Owners and locks are below ``@locks``, or in the tree of a system that keeps its own.
OWNERS = "owners"
LOCKS = "locks"
#: Shorter ones leave no time for a second renewal after a lost one.
LEAST_TTL_S = 0.3
#: An owner's id is a segment of a key: any other text in an L would make every read of owners fail.
_OWNER = r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,120}\Z"
#: The last segment of the key of a sign.
SIGN = "alive"
#: An observer's clock may run 5 % faster than the owner's before two can overlap without fences.
TAKEOVER_FACTOR = 1.05


class OwnerRecord(Struct, frozen=True, omit_defaults=True):
    """The record O: the owner, the TTL of its locks, and the session whose end is its own.

    ``session`` is the ID of the session of its sign; "" for none.
    """

    ttl_s: Annotated[float, Meta(gt=0.0, le=MAX_DURATION_S)]
    label: str = ""
    host: str = ""
    pid: Whole = 0
    session: str = ""

    def encode(self) -> bytes:
        """Return the value of O."""
        return encode(self)

    @classmethod
    def decode(cls, value: bytes) -> OwnerRecord | None:
        """Return the record of an O; None if the value is invalid."""
        return _OWNER_RECORD.find(value)


class LockRecord(Struct, frozen=True, omit_defaults=True):
    """The record L: the ID of its owner, None if free, and a nonce per attempt.

    ``since_s`` is when it was taken, in seconds since the epoch on the owner's clock, for people.
    """

    owner: Annotated[str, Meta(pattern=_OWNER)] | None
    nonce: str = ""
    since_s: Timestamp | None = None

    def encode(self) -> bytes:
        """Return the value of L."""
        return encode(self)

    @classmethod
    def decode(cls, value: bytes) -> LockRecord | None:
        """Return the record of an L; None if the value is invalid and must not be overwritten."""
        return _LOCK_RECORD.find(value)


_OWNER_RECORD: Decoder[OwnerRecord] = Decoder(OwnerRecord, "an owner of locks")
_LOCK_RECORD: Decoder[LockRecord] = Decoder(LockRecord, "a lock")
FREE = LockRecord(None).encode()


def sign_key(owner_key: str) -> str:
    """Return the key of an owner's sign."""
    return f"{owner_key}/{SIGN}"


def raised_ttl_s(ttl_s: float, what: str) -> float:
    """Return the TTL, raised to the minimum with a warning. ``ValueError`` if it is not a positive number."""
    if not 0.0 < ttl_s <= MAX_DURATION_S:
        raise ValueError(f"ttl_s of {what} must be more than 0 seconds, and at most {MAX_DURATION_S:g}, not {ttl_s!r}")
    if ttl_s < LEAST_TTL_S:
        _log.warning("%s: a ttl of %.3g s is raised to the least, %.3g s", what, ttl_s, LEAST_TTL_S)
    return max(float(ttl_s), LEAST_TTL_S)


def grace_s(ttl_s: float) -> float:
    """Return the seconds after the end of its session for which an owner of this TTL counts as alive.

    In that time a running process whose session was ended by another client says that it continues without one.
    """
    return min(1.0, max(0.3, ttl_s / 5))


@dataclass(frozen=True, slots=True)
class Sighting:
    """An O as last seen, and the local time since which it is unchanged.

    ``session`` is the one that it names. ``unsigned_since`` is since when it is seen without its sign; None: it has its
    sign, or names no session.
    """

    version: Hashable
    ttl_s: float
    since: float
    session: str = ""
    unsigned_since: float | None = None

    @property
    def silent_at(self) -> float:
        """When its owner must have stopped if O is still unchanged."""
        return self.since + self.ttl_s * TAKEOVER_FACTOR

    @property
    def dead_at(self) -> float:
        """When its owner must have stopped if O is still unchanged and has no sign."""
        if self.unsigned_since is None:
            return self.silent_at
        return min(self.silent_at, self.unsigned_since + grace_s(self.ttl_s))


class Sightings:
    """What this node has seen of the owners. For one thread at a time.

    An owner that is not here was never seen, or is gone: read its key.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Sighting] = {}
        self._signs: set[str] = set()

    def seen(self, owner: str, version: Hashable, ttl_s: float, now: float, *, session: str = "") -> bool:
        """Record a response with this O, which arrived at ``now`` or later. Return whether O had changed.

        The sign must be recorded first if the same response showed it.
        """
        known = self._seen.get(owner)
        if known is not None and known.version == version:
            return False
        unsigned_since = now if session and owner not in self._signs else None
        self._seen[owner] = Sighting(version, ttl_s, now, session, unsigned_since)
        return True

    def signed(self, owner: str) -> None:
        """Record a response with the sign of an owner."""
        self._signs.add(owner)
        known = self._seen.get(owner)
        if known is not None and known.unsigned_since is not None:
            self._seen[owner] = replace(known, unsigned_since=None)

    def unsigned(self, owner: str, now: float) -> None:
        """Record a response without the sign of an owner, which arrived at ``now`` or later."""
        self._signs.discard(owner)
        known = self._seen.get(owner)
        if known is not None and known.unsigned_since is None and known.session:
            self._seen[owner] = replace(known, unsigned_since=now)

    def gone(self, owner: str) -> None:
        """Record that O was deleted."""
        self._seen.pop(owner, None)
        self._signs.discard(owner)

    def of(self, owner: str) -> Sighting | None:
        """Return the last sighting, or None."""
        return self._seen.get(owner)

    def first(self, now: float) -> str | None:
        """Return the first ID of the owners that may be alive; None without any."""
        return min((owner for owner, seen in self._seen.items() if seen.dead_at > now), default=None)

    def silent_since(self, seconds_per_ttl: float, now: float) -> list[tuple[str, Sighting]]:
        """Return owners that were seen unchanged for more than this many of their TTLs."""
        return [(owner, seen) for owner, seen in self._seen.items() if now > seen.since + seconds_per_ttl * seen.ttl_s]


@dataclass(frozen=True, slots=True)
class Take:
    """The lock can be written with these checks and operations. ``removes_owner`` is the owner that they remove."""

    checks: tuple[Check, ...]
    ops: tuple[Op, ...]
    removes_owner: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The lock is held: try again when L or O changes, or at ``dead_at``; None if only a change helps."""

    owner: str
    dead_at: float | None


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A write of L that may have been applied or may still be. ``before`` is L as that write's check wants it."""

    name: str
    before: Entry | None


Plan = Take | Held


def plan(
    key: str, entry: Entry | None, value: bytes, *, me: str | None, owner_key: str, seen: Sighting | None, now: float
) -> Plan:
    """Return how to write a lock that may have another owner.

    Args:
        key: The key of L.
        entry: L as read; None if absent.
        value: The value to write: our claim, or ``FREE``.
        me: The key of our O, which must exist; None if the lock is only freed.
        owner_key: The key of the O that L names; ignored if it names none.
        seen: That O as sighted; None if it is known to be gone.
        now: The local time.
    """
    alive: tuple[Check, ...] = (Exists(me),) if me is not None else ()
    write = Put(key, value)
    if entry is None:
        return Take((Absent(key), *alive), (write,))
    record = LockRecord.decode(entry.value)
    if record is None:
        return Held("", None)
    if record.owner is None or owner_key == me:
        return Take((At(entry), *alive), (write,))
    if seen is None:
        return Take((At(entry), Absent(owner_key), *alive), (write,))
    if now < seen.dead_at:
        return Held(record.owner, seen.dead_at)
    unchanged = At.of(owner_key, seen.version)
    unsigned: tuple[Check, ...] = (Absent(sign_key(owner_key)),) if now < seen.silent_at else ()
    return Take((At(entry), unchanged, *unsigned, *alive), (write, Delete(owner_key)), removes_owner=record.owner)


def plan_adoption(key: str, entry: Entry | None, value: bytes, *, me: str, owner_key: str, old: str) -> Plan:
    """Return how to write a lock that may pass only from one owner to its heir.

    Args:
        key: The key of L.
        entry: L as read; None if absent.
        value: The value to write: our claim.
        me: The key of our O, which must exist.
        owner_key: The key of the O that L names; ignored if it names none.
        old: The key of the O that is inherited from, alive or not.
    """
    record = LockRecord.decode(entry.value) if entry is not None else None
    if entry is None or record is None or record.owner is None:
        return Held("", None)
    if owner_key in {old, me}:  # me: an earlier try got through, its answer did not
        return Take((At(entry), Exists(me)), (Put(key, value),))
    return Held(record.owner, None)
