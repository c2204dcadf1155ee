"""Reading and writing packed sets: chunks first, then the head under its fence, then the old chunks go.

Races closed here: the flip of a head checks that nobody wrote it since it was read, so that a write which arrives late
cannot bring back chunks that were deleted; a chunk's name carries its writer's incarnation, so that a sweeper can tell
the chunks of a write under way from those that nobody will ever name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from latchwork.errors import Conflict
from latchwork.jobs.stored.packed import (
    EMPTY,
    BadHead,
    KnownChunks,
    MissingChunk,
    PackedSet,
    Update,
    batched,
    chunk_names,
    decode,
    plan_update,
)
from latchwork.store import Store
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

log = logging.getLogger(__name__)

#: Below the portable limits (100 checks, 100 operations, 1,000,000 bytes), with room for fences and guards.
MOST_OPS = 95
MOST_BYTES = 600_000
_READ_BATCH = 200
_READ_ATTEMPTS = 20
_WRITE_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Stored:
    """A set with the head it was read from, if there was one."""

    head: Entry | None = None
    packed: PackedSet = EMPTY

    def unchanged(self, key: str) -> At | Absent:
        """The check that nobody wrote the head at ``key`` since."""
        return Absent(key) if self.head is None else At(self.head)


class ChunkNames:
    """Names that were never used: the writer's incarnation and a counter. Safe to share between threads."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._numbers = count(1)

    def __call__(self) -> str:
        """The next name."""
        return f"{self.tag}-{next(self._numbers):x}"


def from_entries(key: str, entries: Mapping[str, Entry]) -> Stored:
    """The set at ``key`` from entries by full key, such as a mirror's.

    Raises:
        MissingChunk: a chunk is not among them.
        BadHead: head or chunk cannot be read.
    """
    head = entries.get(key)
    if head is None:
        return Stored()

    def chunk_value(name: str) -> bytes | None:
        entry = entries.get(f"{key}/{name}")
        return None if entry is None else entry.value

    return Stored(head, decode(head.value, chunk_value))


def from_entries_or_read(store: Store, key: str, entries: Mapping[str, Entry]) -> Stored:
    """The set at ``key`` from entries; read anew if they do not fit together, for they were not read at one moment."""
    try:
        return from_entries(key, entries)
    except (MissingChunk, BadHead):
        return read(store, key)


def read(store: Store, key: str, known: KnownChunks = lambda _name: None) -> Stored:
    """Read the set at ``key``; when a chunk is missing because the set is being rewritten, its new head is read.

    Chunks of which ``known`` gives the items are not read. Never fails on content: a head that cannot be
    read is an empty set, and a chunk that stays missing under an unchanged head is left out; both are logged as errors,
    and the next rewrite repairs them.
    """
    head = store.get(key)
    for _ in range(_READ_ATTEMPTS):
        if head is None:
            return Stored()
        try:
            chunks = _read_chunks(store, key, [name for name in chunk_names(head.value) if known(name) is None])
            return Stored(head, decode(head.value, chunks.get, known))
        except BadHead as error:
            log.error("set at %s cannot be read and counts as empty: %s", key, error)  # noqa: TRY400 - no stack needed
            return Stored(head)
        except MissingChunk as error:
            again = store.get(key)
            if again is not None and again.version == head.version:
                log.error("set at %s is damaged, what is left is used: %s", key, error)  # noqa: TRY400 - no stack needed
                return Stored(head, decode(head.value, lambda name, chunks=chunks: chunks.get(name, b"[]"), known))  # type: ignore[misc]
            head = again
    msg = f"set at {key} was rewritten {_READ_ATTEMPTS} times while it was read; find out who writes it so often"
    raise Conflict(msg)


def write_chunks(store: Store, updates: Iterable[tuple[str, Update]], checks: Sequence[Check]) -> int:
    """Write the new chunks of updates, given with their heads' keys, under the checks; return about how many bytes."""
    ops: list[Op] = [Put(f"{key}/{name}", value) for key, update in updates for name, value in update.added.items()]
    return commit_all(store, checks, ops)


def delete_chunks(store: Store, updates: Iterable[tuple[str, Update]], checks: Sequence[Check]) -> int:
    """Delete the chunks that updates dropped, after their heads were flipped; return about how many bytes."""
    ops: list[Op] = [Delete(f"{key}/{name}") for key, update in updates for name in update.dropped]
    return commit_all(store, checks, ops)


def commit_all(store: Store, checks: Sequence[Check], ops: Sequence[Op]) -> int:
    """Commit any number of independent operations in as many transactions as it takes, each under the checks.

    Returns:
        About how many bytes the operations have.
    """
    sizes = [op_bytes(op) for op in ops]
    for part in batched(sizes, MOST_OPS, MOST_BYTES):
        store.commit(checks, ops[part])
    return sum(sizes)


def op_bytes(op: Op) -> int:
    """About how many bytes an operation adds to a transaction."""
    return len(op.key) + 16 + (0 if isinstance(op, Delete) else len(op.value))


def replace(
    store: Store,
    key: str,
    wanted: Collection[str],
    *,
    checks: Sequence[Check],
    new_name: Callable[[], str],
    ops_if_created: Sequence[Op] = (),
    may_replace: Callable[[Stored], bool] = lambda _before: True,
) -> tuple[Stored, tuple[str, ...]]:
    """Make the set at ``key`` hold exactly ``wanted``; nothing is written when it does. The last writer wins.

    Args:
        store: where.
        key: the head.
        wanted: the items, unique.
        checks: what must hold for each transaction, a fence usually.
        new_name: gives chunk names that were never used.
        ops_if_created: committed with the head when there was none before.
        may_replace: asked about a set that holds something else; if it says no, that stays.
    Returns:
        The set as stored now, and the items it held before.
    Raises:
        Conflict: one of ``checks`` does not hold, or others kept writing the same set.
    """
    for attempt in range(_WRITE_ATTEMPTS):
        before = read(store, key)
        update = plan_update(before.packed, wanted, new_name)
        if update is None and before.head is not None:
            return before, before.packed.items
        if not may_replace(before):
            return before, before.packed.items
        update = update or Update(EMPTY)
        write_chunks(store, [(key, update)], checks)
        extra = list(ops_if_created) if before.head is None else []
        try:
            done = store.commit([*checks, before.unchanged(key)], [Put(key, update.after.head()), *extra])
        except Conflict as error:
            ours = {before.unchanged(key)}
            if attempt + 1 == _WRITE_ATTEMPTS or not ours.issuperset(error.failed):
                raise
            commit_all(store, checks, [Delete(f"{key}/{name}") for name in update.added])
            continue
        delete_chunks(store, [(key, update)], checks)
        return Stored(done.entries[0], update.after), before.packed.items
    raise AssertionError


def orphans(key: str, found: Iterable[str], head: Entry | None, living: Collection[str]) -> list[str]:
    """The chunks that no head names, and that no living writer may be about to name.

    Args:
        key: of the head.
        found: keys of the set; the head's own may be among them.
        head: as it was read after those keys; None when there is none.
        living: the incarnations of all living writers.
    """
    try:
        named = set(chunk_names(head.value)) if head is not None else set()
    except BadHead:
        named = set()
    lost = []
    for full in found:
        name = full.removeprefix(f"{key}/")
        writer = name.rpartition("-")[0]  # see ChunkNames
        if name != full and name not in named and writer not in living:
            lost.append(full)
    return lost


def _read_chunks(store: Store, key: str, names: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for begin in range(0, len(names), _READ_BATCH):
        part = names[begin : begin + _READ_BATCH]
        entries = store.get_many([f"{key}/{name}" for name in part])
        found.update({name: entry.value for name, entry in zip(part, entries) if entry is not None})  # noqa: B905 - one answer per key
    return found
