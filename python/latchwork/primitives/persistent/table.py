"""The keys of the persistent locks: what was read of them, and every transaction that writes one.

Blocking calls, no thread of its own. Knows nothing of who holds what in this process: ``LockKeeper`` does.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latchwork.backends.base import MAX_CHECKS, MAX_OPS
from latchwork.errors import Conflict, KeyExists, OutcomeUnknown, Unavailable
from latchwork.primitives.persistent.protocol import (
    FREE,
    Held,
    LockRecord,
    OwnerRecord,
    Plan,
    Sighting,
    Sightings,
    Take,
    plan,
    plan_adoption,
)
from latchwork.primitives.waiting.common import check_name
from latchwork.types import At, Check, Delete, Entry, Exists, Op, Put

if TYPE_CHECKING:
    from latchwork.store.store import Store
    from latchwork.types import Change

#: Names looked at together; a transaction then takes as many of them as its limits allow.
_BATCH = 90
#: So many locks at once are taken without a look at first, as if they did not exist: true for a job that begins.
_GUESS_FROM = 10
#: A single lock is tried so often against others that write it at the same moment, then it counts as held.
_ROUNDS = 5
#: A lock nobody holds is forgotten when a later sweep, after at least so long, finds it unchanged.
FORGET_FREE_AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class Doubt:
    """A write of L that may have landed or may land yet; ``before`` is L as that write's check wants it."""

    name: str
    before: Entry | None


class Doubtful(OutcomeUnknown):
    """Writes of these locks may have landed or may land yet."""

    def __init__(self, message: str, doubts: Sequence[Doubt]) -> None:
        super().__init__(message)
        self.doubts = tuple(doubts)


class LockTable:
    """Reads and writes ``<owners>/<uuid>`` and ``<locks>/<name>``. Safe to share between threads."""

    def __init__(self, store: Store, owners_prefix: str, locks_prefix: str) -> None:
        self.store = store
        self.owners_prefix = check_name(owners_prefix, "owners prefix")
        self.locks_prefix = check_name(locks_prefix, "locks prefix")
        self._lock = threading.Lock()
        self._sightings = Sightings()
        self._free_since: dict[str, tuple[object, float]] = {}

    def lock_key(self, name: str) -> str:
        """L of a name."""
        return f"{self.locks_prefix}/{name}"

    def name_of(self, key: str) -> str:
        """The name of an L."""
        return key[len(self.locks_prefix) + 1 :]

    def owner_key(self, owner: str) -> str:
        """O of an owner's id."""
        return f"{self.owners_prefix}/{owner}"

    # What is known of the owners

    def note(self, changes: Iterable[Change]) -> list[str]:
        """Take in what a watch of the owners showed; the ids of those that are gone."""
        now = self.store.clock.now()
        gone = []
        with self._lock:
            for change in changes:
                owner = change.key.rpartition("/")[2]
                if change.entry is None:
                    self._sightings.gone(owner)
                    gone.append(owner)
                else:
                    self._sightings.seen(owner, change.entry.version, _ttl_of(change.entry), now)
        return gone

    def sighting(self, owner: str) -> Sighting | None:
        """The last sighting of an owner; None if it was never seen or is gone."""
        with self._lock:
            return self._sightings.of(owner)

    def look(self, names: Sequence[str], *, fresh: bool) -> dict[str, Entry | None]:
        """Read these L, and each O they name that was never seen; with ``fresh`` every O they name."""
        entries = dict(zip(names, self.store.get_many([self.lock_key(name) for name in names]), strict=True))
        named = {owner_of(entry) for entry in entries.values() if entry is not None} - {None}
        owners = sorted(owner for owner in named if owner and (fresh or self.sighting(owner) is None))
        if owners:
            found = self.store.get_many([self.owner_key(owner) for owner in owners])
            self._note_reads(owners, found)
        return entries

    def gone(self, owners: Sequence[str]) -> list[str]:
        """Read these O; the ids of those that are gone."""
        found = self.store.get_many([self.owner_key(owner) for owner in owners]) if owners else []
        self._note_reads(owners, found)
        return [owner for owner, entry in zip(owners, found, strict=True) if entry is None]

    def _note_reads(self, owners: Sequence[str], found: Sequence[Entry | None]) -> None:
        now = self.store.clock.now()
        with self._lock:
            for owner, entry in zip(owners, found, strict=True):
                if entry is None:
                    self._sightings.gone(owner)
                else:
                    self._sightings.seen(owner, entry.version, _ttl_of(entry), now)

    # Writing

    def take(
        self, names: Sequence[str], me: str, taken: Callable[[str, Entry], None], *, heir_of: str | None = None
    ) -> dict[str, Held]:
        """Take each lock that may be taken for the owner ``me``; ``taken`` is told of each as soon as it is certain.

        With ``heir_of`` those that this owner has, alive or not, and no others.

        Returns:
            Who holds the others, by name.
        Raises:
            Doubtful: the answer to one transaction was lost; its locks may be ours, those after it were not tried.
            Unavailable: the locks after those taken were not tried.
            Conflict: our own O is gone.
        """
        held: dict[str, Held] = {}
        guess = len(names) >= _GUESS_FROM and heir_of is None
        todo = [(list(names[at : at + _BATCH]), 0) for at in range(0, len(names), _BATCH)]
        while todo:
            batch, tries = todo.pop(0)
            entries = dict.fromkeys(batch) if guess else self.look(batch, fresh=tries > 0)
            mine = LockRecord(me, uuid.uuid4().hex, time.time()).encode()
            takes = self._plans(entries, self.owner_key(me), mine, held, heir_of)
            now, later = _fit(takes)
            if later:
                todo.insert(0, (later, tries))
            try:
                self._write(now, entries, taken)
            except Conflict as conflict:
                if Exists(self.owner_key(me)) in conflict.failed:
                    raise
                todo[:0] = [(list(now), tries)] if guess else _again(list(now), tries, held)
                guess = False  # wrong once, it would be wrong again
        return held

    def _plans(
        self,
        entries: dict[str, Entry | None],
        me: str | None,
        value: bytes,
        held: dict[str, Held],
        heir_of: str | None = None,
    ) -> dict[str, Take]:
        now = self.store.clock.now()
        takes = {}
        with self._lock:  # one look at the sightings for all, so that no two plans of a batch contradict
            for name, entry in entries.items():
                decision = self._plan(name, entry, me, value, now=now, heir_of=heir_of)
                if isinstance(decision, Take):
                    takes[name] = decision
                else:
                    held[name] = decision
        return takes

    def _plan(
        self, name: str, entry: Entry | None, me: str | None, value: bytes, *, now: float, heir_of: str | None
    ) -> Plan:
        owner = owner_of(entry) or ""
        key, owner_key = self.lock_key(name), self.owner_key(owner)
        if heir_of is not None and me is not None:
            return plan_adoption(key, entry, value, me=me, owner_key=owner_key, old=self.owner_key(heir_of))
        seen = self._sightings.of(owner)
        return plan(key, entry, value, me=me, owner_key=owner_key, seen=seen, now=now)

    def _write(
        self, takes: dict[str, Take], entries: dict[str, Entry | None], taken: Callable[[str, Entry], None]
    ) -> None:
        if not takes:
            return
        checks, ops = _merge(takes.values())
        try:
            written = self.store.commit(checks, ops)
        except OutcomeUnknown as error:
            doubts = [Doubt(name, entries[name]) for name in takes]
            raise Doubtful(f"taking {_some(takes)}: {error}", doubts) from error
        buried = [take.buries for take in takes.values() if take.buries]
        with self._lock:
            for owner in buried:
                self._sightings.gone(owner)
        by_key = {entry.key: entry for entry in written.entries}
        for name in takes:
            taken(name, by_key[self.lock_key(name)])

    def free(self, held: dict[str, Entry]) -> list[str]:
        """Set these locks free, each if it is still as we hold it; the names of those that are not.

        Raises:
            Doubtful, Unavailable: some may not be free yet: settle all of them.
        """
        gone: list[str] = []
        names = list(held)
        todo = [names[at : at + _BATCH] for at in range(0, len(names), _BATCH)]
        while todo:
            batch = todo.pop(0)
            try:
                self.store.commit(
                    [At(held[name]) for name in batch], [Put(self.lock_key(name), FREE) for name in batch]
                )
            except Conflict:
                gone += batch if len(batch) == 1 else []
                todo[:0] = _halves(batch) if len(batch) > 1 else []
            except OutcomeUnknown as error:
                raise Doubtful(f"releasing {_some(batch)}: {error}", [Doubt(n, held[n]) for n in batch]) from error
        return gone

    def settle(self, doubt: Doubt, ours: frozenset[str]) -> None:
        """See to it that a doubtful write has not landed and never will: the lock ends up not ours.

        Args:
            doubt: the write.
            ours: the ids of all owners that this process ever was.
        Raises:
            Conflict, Unavailable, OutcomeUnknown: not settled; do it again later.
        """
        entry = self.look([doubt.name], fresh=True)[doubt.name]
        if owner_of(entry) in ours and entry is not None:
            self.store.commit([At(entry)], [Put(entry.key, FREE)])
            return
        if not _same(entry, doubt.before):
            return  # its check can never hold again
        # L is as that write wants it: write it first. If the owner it names lives, its other check has failed for good.
        take = self._plans({doubt.name: entry}, None, FREE, {}).get(doubt.name)
        if take is not None:
            self.store.commit(take.checks, take.ops)

    # Owners

    def create_owner(self, owner: str, record: OwnerRecord) -> None:
        """Create O. An unknown outcome leaves at most an O that names nothing; ``delete_owner`` it."""
        self.store.create(self.owner_key(owner), record.encode())

    def delete_owner(self, owner: str) -> None:
        """Delete O: every lock that names it is free at once."""
        self.store.delete(self.owner_key(owner))
        with self._lock:
            self._sightings.gone(owner)

    def prolong(self, owner: str) -> None:
        """Have an owner live for another TTL, if it is still there, so that nobody takes its locks over meanwhile."""
        key = self.owner_key(owner)
        while (entry := self.store.get(key)) is not None:
            with contextlib.suppress(Conflict):  # it renews itself, or was removed just now
                self.store.commit([At(entry)], [Put(key, entry.value)])
                return

    def held_by(self, owner: str) -> list[str]:
        """The names of the locks that name an owner, sorted. Not a snapshot."""
        found = self.store.list(self.locks_prefix, recursive=True)
        return [self.name_of(entry.key) for entry in found if owner_of(entry) == owner]

    def sweep(self) -> tuple[int, int]:
        """Remove what dead owners left: owners silent for 2 TTL, and then what names owners that are gone.

        Returns:
            How many owners were removed, and how many locks were freed or, long free, forgotten.
        """
        return self._sweep_owners(), self._sweep_locks()

    def _sweep_owners(self) -> int:
        found = self.store.list(self.owners_prefix)
        present = [entry.key.rpartition("/")[2] for entry in found]
        self._note_reads(present, found)
        with self._lock:
            silent = self._sightings.silent_since(2.0, self.store.clock.now())
        removed = 0
        for owner, seen in silent:
            key = self.owner_key(owner)
            removed += self._unless_changed([At.of(key, seen.version)], Delete(key))
        return removed

    def _sweep_locks(self) -> int:
        found = self.store.list(self.locks_prefix, recursive=True)
        present = {entry.key for entry in found}
        self._free_since = {key: seen for key, seen in self._free_since.items() if key in present}
        swept = 0
        for at in range(0, len(found), _BATCH):
            batch = found[at : at + _BATCH]
            named = sorted({owner for entry in batch if (owner := owner_of(entry))})
            owners = self.store.get_many([self.owner_key(owner) for owner in named])
            gone = {owner for owner, entry in zip(named, owners, strict=True) if entry is None}
            for entry in batch:
                swept += self._sweep_lock(entry, gone)
        return swept

    def _sweep_lock(self, entry: Entry, gone: set[str]) -> int:
        owner = owner_of(entry)
        if owner in gone:
            return self._unless_changed([At(entry)], Put(entry.key, FREE))
        if owner is not None or LockRecord.decode(entry.value) is None:
            return 0
        now = self.store.clock.now()
        version, since = self._free_since.setdefault(entry.key, (entry.version, now))
        if version != entry.version:
            self._free_since[entry.key] = (entry.version, now)
        elif now - since >= FORGET_FREE_AFTER_S:
            self._free_since.pop(entry.key)
            return self._unless_changed([At(entry)], Delete(entry.key))
        return 0

    def _unless_changed(self, checks: Sequence[Check], op: Op) -> int:
        try:
            self.store.commit(checks, [op])
        except (Conflict, KeyExists, Unavailable, OutcomeUnknown):
            return 0  # somebody else was faster, or the next sweep is
        return 1


def owner_of(entry: Entry | None) -> str | None:
    """The owner that an L names, or None."""
    record = LockRecord.decode(entry.value) if entry is not None else None
    return record.owner if record is not None else None


def _ttl_of(entry: Entry) -> float:
    record = OwnerRecord.decode(entry.value)
    return record.ttl_s if record is not None else math.inf  # not one of ours: never judged dead


def _same(entry: Entry | None, before: Entry | None) -> bool:
    if entry is None or before is None:
        return entry is before
    return entry.version == before.version


def _merge(takes: Iterable[Take]) -> tuple[list[Check], list[Op]]:
    checks: dict[Check, None] = {}
    ops: dict[Op, None] = {}
    for take in takes:
        checks.update(dict.fromkeys(take.checks))
        ops.update(dict.fromkeys(take.ops))
    return list(checks), list(ops)


def _fit(takes: dict[str, Take]) -> tuple[dict[str, Take], list[str]]:
    """As many as one transaction holds, and the names of the rest."""
    checks: set[Check] = set()
    ops: set[Op] = set()
    now: dict[str, Take] = {}
    for name, take in takes.items():
        checks.update(take.checks)
        ops.update(take.ops)
        if len(checks) > MAX_CHECKS or len(ops) > MAX_OPS:
            break
        now[name] = take
    return now, [name for name in takes if name not in now]


def _halves(names: list[str]) -> list[list[str]]:
    middle = len(names) // 2
    return [names[:middle], names[middle:]]


def _again(names: list[str], tries: int, held: dict[str, Held]) -> list[tuple[list[str], int]]:
    """What to do after a conflict: halve, so that one contended lock does not stop the others."""
    if len(names) > 1:
        return [(half, 1) for half in _halves(names)]
    if tries < _ROUNDS:
        return [(names, tries + 1)]
    held[names[0]] = Held("", None)
    return []


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(repr(name) for name in listed[:3])
    return f"lock {shown}" if len(listed) == 1 else f"{len(listed)} locks ({shown}{', ...' if len(listed) > 3 else ''})"
