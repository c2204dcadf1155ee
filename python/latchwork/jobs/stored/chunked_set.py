"""Large sets of texts in a store with a limited value size, stored as a manifest and immutable chunks.

Keys:   <key>               the manifest: JSON with the items of a small set, or the names of the chunks in order
        <key>/<chunk>       JSON list of sorted items; written once under a name that is never reused, later deleted

A writer stores its new chunks, rewrites the manifest with its fence, and then deletes the chunks that the manifest no
longer names. Readers use only what the manifest names. Moving a few items rewrites their chunks and the manifest.

Races: the write of a manifest checks that the manifest is unchanged since it was read, so that a late write cannot
bring back deleted chunks. The name of a chunk contains the incarnation of its writer, so that a cleanup can distinguish
chunks of a write in progress from abandoned ones.
"""

from __future__ import annotations

import logging
import math
import operator
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, count, islice, pairwise
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from latchwork._base.decoding import Decoder, Whole, encode
from latchwork._base.text import short
from latchwork.errors import BadRecord, Conflict, LatchworkError
from latchwork.jobs.stored.keys import MAX_ITEM_BYTES, check_id
from latchwork.store import Store
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

log = logging.getLogger(__name__)

_INLINE_BYTES = 3_000
_MIN_CHUNK_BYTES = 2_000
_MAX_CHUNK_BYTES = 32_000
_NAME_BYTES = 24
#: Returns the items of a chunk by name; None if they are unknown.
FindKnownChunk = Callable[[str], "tuple[str, ...] | None"]

#: Below the portable limits (100 checks, 100 writes, 1,000,000 bytes), with a margin for fences and guards.
MAX_OPS = 95
MAX_BYTES = 600_000
_READ_BATCH = 200
_READ_ATTEMPTS = 20
_WRITE_ATTEMPTS = 10


class MissingChunk(LatchworkError):
    """A manifest names a chunk that does not exist, because the set is being rewritten. Read its manifest again."""


class BadManifest(BadRecord):
    """A manifest or a chunk is unreadable because another program wrote to its key."""


_Item = Annotated[str, Meta(max_length=MAX_ITEM_BYTES)]
_T = TypeVar("_T")


class SetManifest(Struct, frozen=True, omit_defaults=True):
    """The stored manifest of a set.

    Attributes:
        count: Number of items; informational.
        items: The items of a small set.
        chunks: The names of the chunks of a large set.
    """

    count: Whole = 0
    items: tuple[_Item, ...] = ()
    chunks: tuple[str, ...] | None = None


_MANIFEST: Decoder[SetManifest] = Decoder(SetManifest, "the manifest of a set")
_CHUNK: Decoder[tuple[str, ...]] = Decoder(tuple[_Item, ...], "a chunk of a set")


@dataclass(frozen=True, slots=True)
class Chunk:
    """An immutable part of a set: a name that is never reused, and sorted, unique items (at least one)."""

    name: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkedSet:
    """A set as it is stored: a small set within its manifest, a large one in chunks with consecutive ranges of items.

    Attributes:
        inline: The items of a small set: sorted, unique.
        chunks: The chunks of a large set.
    """

    inline: tuple[str, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def items(self) -> tuple[str, ...]:
        """All items of the set: sorted, unique."""
        return tuple(chain.from_iterable(chunk.items for chunk in self.chunks)) if self.chunks else self.inline

    def __len__(self) -> int:
        return len(self.inline) + sum(len(chunk.items) for chunk in self.chunks)

    def chunk_names(self) -> tuple[str, ...]:
        """Return the names of the set's chunks, in order."""
        return tuple(chunk.name for chunk in self.chunks)

    def reuse_strings_of(self, items: tuple[str, ...]) -> ChunkedSet:
        """Return an equal set that consists of the given string objects. This avoids a second copy of each string in
        memory.

        Args:
            items: Strings that equal the items of this set, in the same order.
        """
        if not self.chunks:
            return ChunkedSet(inline=items)
        ends = list(accumulate(len(chunk.items) for chunk in self.chunks))
        pieces = [items[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return ChunkedSet(chunks=tuple(Chunk(c.name, piece) for c, piece in zip(self.chunks, pieces, strict=True)))

    def encode_manifest(self) -> bytes:
        """Encode the set's manifest as JSON: the items of a small set, or the names of the chunks of a large one."""
        manifest = (
            SetManifest(len(self), chunks=self.chunk_names())
            if self.chunks
            else SetManifest(len(self), items=self.inline)
        )
        return encode(manifest)


EMPTY = ChunkedSet()


@dataclass(frozen=True, slots=True)
class SetUpdate:
    """The writes that turn one stored set into another.

    Attributes:
        after: The set as it will be stored.
        added: Values of the chunks to write first, by name.
        dropped: Names of the chunks to delete last.
    """

    after: ChunkedSet
    added: dict[str, bytes] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def decode_chunk_names(manifest: bytes) -> tuple[str, ...]:
    """Decode a set's manifest, and return the names of its chunks, in order.

    Args:
        manifest: Stored value of the manifest.
    Raises:
        BadManifest: The manifest is unreadable.
    """
    return _validate_chunk_names(_decode(_MANIFEST, manifest).chunks or ())


def decode_set(
    manifest: bytes,
    find_chunk_value: Callable[[str], bytes | None],
    find_known_chunk: FindKnownChunk = lambda _name: None,
) -> ChunkedSet:
    """Decode a set from its manifest and chunks.

    Args:
        manifest: Value of the manifest.
        find_chunk_value: Returns the value of a chunk by name, or None if the chunk does not exist.
        find_known_chunk: Returns the items of a chunk that was decoded before, or None. Chunks never change.
    Raises:
        MissingChunk: A chunk does not exist.
        BadManifest: The manifest or a chunk is unreadable.
    """
    stored = _decode(_MANIFEST, manifest)
    if stored.chunks is None:
        return ChunkedSet(inline=_check_sorted(stored.items))
    chunks = []
    for name in _validate_chunk_names(stored.chunks):
        items = find_known_chunk(name)
        if items is not None:
            chunks.append(Chunk(name, items))
            continue
        value = find_chunk_value(name)
        if value is None:
            msg = f"chunk {name} is missing"
            raise MissingChunk(msg)
        chunks.append(Chunk(name, _check_sorted(_decode(_CHUNK, value))))
    full = [chunk for chunk in chunks if chunk.items]
    if not all(before.items[-1] < after.items[0] for before, after in pairwise(full)):
        raise BadManifest("its chunks do not follow one another; another program wrote to them")
    return ChunkedSet(chunks=tuple(chunks))


def plan_update(current: ChunkedSet, wanted: Collection[str], new_name: Callable[[], str]) -> SetUpdate | None:
    """Plan the smallest update after which a stored set contains exactly the wanted items.

    Args:
        current: The set as it is stored.
        wanted: Unique items in any order.
        new_name: Returns an unused chunk name.
    Returns:
        The update; None if the set contains exactly these items already.
    """
    have, want = set(current.items), set(wanted)
    if have == want:
        return None
    total = sum(map(len, want)) + 3 * len(want)
    if total <= _INLINE_BYTES and _fits_in_manifest(ordered := sorted(want), total):
        return SetUpdate(ChunkedSet(inline=tuple(ordered)), dropped=current.chunk_names())
    target = min(_MAX_CHUNK_BYTES, max(_MIN_CHUNK_BYTES, math.isqrt(total * _NAME_BYTES)))
    parts = _merge_small_chunks(_apply_item_changes(current, have - want, sorted(want - have)), target)
    chunks: list[Chunk] = []
    for part in parts:
        if part.name is not None:
            chunks.append(Chunk(part.name, tuple(part.items)))
        else:
            chunks.extend(Chunk(new_name(), piece) for piece in _split(part.items, target))
    kept = {part.name for part in parts}
    added = {chunk.name: encode(chunk.items) for chunk in chunks if chunk.name not in kept}
    dropped = tuple(name for name in current.chunk_names() if name not in kept)
    return SetUpdate(ChunkedSet(chunks=tuple(chunks)), added, dropped)


def split_into_batches(sizes: Sequence[int], max_count: int, max_bytes: int) -> list[slice]:
    """Split a list of sizes into consecutive batches with limited counts and sums.

    Args:
        sizes: Sizes in bytes.
        max_count: Maximum number of elements in a batch.
        max_bytes: Maximum sum of a batch. An element that exceeds it alone gets a batch of its own.
    Returns:
        The batches, as slices of the list.
    """
    slices, begin, weight = [], 0, 0
    for i, size in enumerate(sizes):
        if i > begin and (i - begin >= max_count or weight + size > max_bytes):
            slices.append(slice(begin, i))
            begin, weight = i, 0
        weight += size
    if begin < len(sizes):
        slices.append(slice(begin, len(sizes)))
    return slices


def _fits_in_manifest(items: list[str], character_count: int) -> bool:
    """Return whether a set is small enough to be stored within its manifest.

    Args:
        items: The items of the set.
        character_count: Number of characters of all items. JSON may need up to 6 bytes per character, so the exact size
            is computed only if it matters.
    """
    return 6 * character_count <= 2 * _INLINE_BYTES or len(encode(items)) <= 2 * _INLINE_BYTES


@dataclass(slots=True)
class _ChunkDraft:
    name: str | None  # None: must be written
    items: list[str]


def _apply_item_changes(current: ChunkedSet, removed: set[str], added: list[str]) -> list[_ChunkDraft]:
    """Remove and add items in the chunks of a set. Each item belongs to the chunk whose range contains it.

    A changed chunk gets no name yet, because it must be stored under a new one.

    Args:
        current: The set as it is stored.
        removed: Items to remove.
        added: Items to add.
    Returns:
        Drafts of all chunks that are not empty, in order.
    """
    parts = [_ChunkDraft(chunk.name, list(chunk.items)) for chunk in current.chunks] or [
        _ChunkDraft(None, list(current.inline))
    ]
    if removed:
        for part in parts:
            left = [item for item in part.items if item not in removed]
            if len(left) != len(part.items):
                part.name, part.items = None, left
    firsts = [chunk.items[0] if chunk.items else "" for chunk in current.chunks] or [""]
    for item in added:
        part = parts[max(0, bisect_right(firsts, item) - 1)]
        part.name = None
        part.items.append(item)
    for part in parts:
        if part.name is None:
            part.items.sort()
    return [part for part in parts if part.items]


def _merge_small_chunks(drafts: list[_ChunkDraft], target_bytes: int) -> list[_ChunkDraft]:
    """Merge each changed chunk that has become small with the previous chunk; merge the first one with the next chunk.

    Args:
        drafts: The chunks, in order.
        target_bytes: Desired size of a chunk.
    """
    merged: list[_ChunkDraft] = []
    carry = False
    for part in drafts:
        small = part.name is None and len(encode(part.items)) < target_bytes // 4
        if merged and (small or carry) and len(encode(merged[-1].items)) + len(encode(part.items)) <= 2 * target_bytes:
            merged[-1] = _ChunkDraft(None, merged[-1].items + part.items)
            carry = False
        else:
            merged.append(part)
            carry = small
    return merged


def _split(items: list[str], target: int) -> Iterable[tuple[str, ...]]:
    size = len(encode(items))
    if size <= 2 * target:
        return [tuple(items)]
    sizes = [len(encode(item)) + 1 for item in items]
    pieces = split_into_batches(sizes, len(items), max(1, -(-size // -(-size // target))))
    return [tuple(items[piece]) for piece in pieces]


def _decode(decoder: Decoder[_T], value: bytes) -> _T:
    try:
        return decoder.decode(value)
    except BadRecord as error:
        raise BadManifest(f"{error}; another program wrote to this key") from None


def _check_sorted(items: tuple[str, ...]) -> tuple[str, ...]:
    if not all(map(operator.lt, items, islice(items, 1, None))):
        raise BadManifest(f"items {short(items)} are not sorted, each once; another program wrote to this key")
    return items


def _validate_chunk_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the chunk names of a manifest, if each is valid and occurs only once.

    Repeated names are refused because a small manifest could expand to an enormous set with them.

    Raises:
        BadManifest: A name is repeated or invalid.
    """
    if len(set(names)) < len(names):
        raise BadManifest(f"chunks {short(names)} are not each named once; another program wrote to this key")
    try:
        return tuple(check_id("chunk", name) for name in names)
    except ValueError as error:
        raise BadManifest(f"{error}; another program wrote to this key") from None


@dataclass(frozen=True, slots=True)
class StoredSet:
    """A set that was read from the store, with the entry of its manifest if there was one.

    Attributes:
        manifest: The entry of its manifest.
        chunked: Its items, as far as they are readable.
        damage: Why it is not readable in full. Empty if it is.
    """

    manifest: Entry | None = None
    chunked: ChunkedSet = EMPTY
    damage: str = ""

    def unchanged_check(self, key: str) -> At | Absent:
        """Return a transaction check that the manifest at ``key`` is unchanged since the set was read."""
        return Absent(key) if self.manifest is None else At(self.manifest)


class ChunkNamer:
    """Generates unique chunk names from the writer's incarnation and a counter. Thread-safe."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._numbers = count(1)

    def __call__(self) -> str:
        """Return the next name."""
        return f"{self.tag}-{next(self._numbers):x}"


def decode_set_entries(key: str, entries: Mapping[str, Entry]) -> StoredSet:
    """Decode the set at ``key`` from entries that are already known, such as those of a mirror.

    Args:
        key: Key of the manifest.
        entries: Entries by full key.
    Returns:
        The set; an empty one if its manifest is not among the entries.
    Raises:
        MissingChunk: A chunk is not among the entries.
        BadManifest: The manifest or a chunk is unreadable.
    """
    manifest = entries.get(key)
    if manifest is None:
        return StoredSet()

    def chunk_value(name: str) -> bytes | None:
        entry = entries.get(f"{key}/{name}")
        return None if entry is None else entry.value

    return StoredSet(manifest, decode_set(manifest.value, chunk_value))


def decode_or_read_set(store: Store, key: str, entries: Mapping[str, Entry]) -> StoredSet:
    """Decode the set at ``key`` from known entries. If they do not fit together, read the set from the store.

    Args:
        store: The store.
        key: Key of the manifest.
        entries: Entries by full key, possibly read at different times.
    """
    try:
        return decode_set_entries(key, entries)
    except (MissingChunk, BadManifest):
        return read_set(store, key)


def read_set(store: Store, key: str, find_known_chunk: FindKnownChunk = lambda _name: None) -> StoredSet:
    """Read the set at ``key`` from the store. If it is rewritten meanwhile, read its new state.

    Unreadable content never raises an error: an unreadable manifest counts as an empty set, and a missing chunk is left
    out. Both are logged as errors, and the next rewrite repairs them.

    Args:
        store: The store.
        key: Key of the manifest.
        find_known_chunk: Returns the items of a chunk that need not be read, or None.
    Raises:
        Conflict: Other clients kept rewriting the set.
    """
    manifest = store.get(key)
    for _ in range(_READ_ATTEMPTS):
        if manifest is None:
            return StoredSet()
        try:
            chunks = _read_chunks(
                store, key, [name for name in decode_chunk_names(manifest.value) if find_known_chunk(name) is None]
            )
            return StoredSet(manifest, decode_set(manifest.value, chunks.get, find_known_chunk))
        except BadManifest as error:
            log.error("set at %s cannot be read and counts as empty: %s", key, error)  # noqa: TRY400 - no stack needed
            return StoredSet(manifest, damage=str(error))
        except MissingChunk as error:
            again = store.get(key)
            if again is not None and again.version == manifest.version:
                log.error("set at %s is damaged; its readable part is used: %s", key, error)  # noqa: TRY400 - no stack needed
                found = defaultdict(lambda: b"[]", chunks)
                return StoredSet(manifest, decode_set(manifest.value, found.__getitem__, find_known_chunk), str(error))
            manifest = again
    msg = (
        f"set at {key} was rewritten {_READ_ATTEMPTS} times while it was read; find "
        "out which program writes it so often"
    )
    raise Conflict(msg)


def write_chunks(store: Store, updates: Iterable[tuple[str, SetUpdate]], checks: Sequence[Check]) -> int:
    """Store the new chunks of updated sets. Call it before their manifests are written.

    Args:
        store: The store.
        updates: Key of each manifest, and the update of its set.
        checks: Checks for each transaction.
    Returns:
        The approximate number of written bytes.
    """
    ops: list[Op] = [Put(f"{key}/{name}", value) for key, update in updates for name, value in update.added.items()]
    return commit_all(store, checks, ops)


def delete_chunks(store: Store, updates: Iterable[tuple[str, SetUpdate]], checks: Sequence[Check]) -> int:
    """Delete the chunks that updated sets no longer contain. Call it after their manifests were written.

    Args:
        store: The store.
        updates: Key of each manifest, and the update of its set.
        checks: Checks for each transaction.
    Returns:
        The approximate number of written bytes.
    """
    ops: list[Op] = [Delete(f"{key}/{name}") for key, update in updates for name in update.dropped]
    return commit_all(store, checks, ops)


def commit_all(store: Store, checks: Sequence[Check], ops: Sequence[Op]) -> int:
    """Commit any number of independent writes, in as many transactions as necessary.

    Args:
        store: The store.
        checks: Checks for each transaction.
        ops: The writes.
    Returns:
        The approximate number of bytes of the writes.
    """
    sizes = [estimate_op_bytes(op) for op in ops]
    for part in split_into_batches(sizes, MAX_OPS, MAX_BYTES):
        store.commit(checks, ops[part])
    return sum(sizes)


def estimate_op_bytes(op: Op) -> int:
    """Return the approximate number of bytes that a write adds to a transaction."""
    return len(op.key) + 16 + (0 if isinstance(op, Delete) else len(op.value))


def store_set(
    store: Store,
    key: str,
    wanted: Collection[str],
    *,
    checks: Sequence[Check],
    new_name: Callable[[], str],
    ops_if_created: Sequence[Op] = (),
    may_replace: Callable[[StoredSet], bool] = lambda _before: True,
    known_manifest: Sequence[Entry | None] = (),
) -> tuple[StoredSet, tuple[str, ...]]:
    """Make the set at ``key`` contain exactly the wanted items. Of concurrent writers the last one wins.

    Nothing is written if the set contains exactly these items already.

    Args:
        store: The store.
        key: Key of the manifest.
        wanted: Unique items.
        checks: Checks for each transaction, usually a fence.
        new_name: Returns unused chunk names.
        ops_if_created: Writes that are committed together with a new manifest.
        may_replace: Called with the stored set if it differs; if it returns False, that set is kept.
        known_manifest: The manifest if it was read already, None if it did not exist; empty to read it. A retry reads
            it again.
    Returns:
        The set as it is stored now, and the items that were stored before.
    Raises:
        Conflict: One of the checks does not hold, or other clients kept writing the same set.
    """
    for attempt in range(_WRITE_ATTEMPTS):
        if known_manifest and attempt == 0:
            before = decode_or_read_set(store, key, {entry.key: entry for entry in known_manifest if entry is not None})
        else:
            before = read_set(store, key)
        update = plan_update(before.chunked, wanted, new_name)
        if update is None and before.manifest is not None:
            return before, before.chunked.items
        if not may_replace(before):
            return before, before.chunked.items
        update = update or SetUpdate(EMPTY)
        write_chunks(store, [(key, update)], checks)
        extra = list(ops_if_created) if before.manifest is None else []
        try:
            done = store.commit(
                [*checks, before.unchanged_check(key)], [Put(key, update.after.encode_manifest()), *extra]
            )
        except Conflict as error:
            only_manifest_changed = {before.unchanged_check(key)}.issuperset(error.failed)
            if attempt + 1 == _WRITE_ATTEMPTS or not only_manifest_changed:
                raise
            commit_all(store, checks, [Delete(f"{key}/{name}") for name in update.added])
            continue
        delete_chunks(store, [(key, update)], checks)
        return StoredSet(done.entries[0], update.after), before.chunked.items
    raise AssertionError


def find_orphaned_chunks(
    key: str, stored_keys: Iterable[str], manifest: Entry | None, running_writers: Collection[str]
) -> list[str]:
    """Find abandoned chunks of a set: the manifest does not name them, and the client that wrote them is no longer
    running.

    Args:
        key: Key of the manifest.
        stored_keys: Keys of the set's chunks, possibly including the manifest.
        manifest: The manifest, read after those keys; None if there is none.
        running_writers: Incarnations of all running writers.
    Returns:
        The keys of the abandoned chunks.
    """
    try:
        named = set(decode_chunk_names(manifest.value)) if manifest is not None else set()
    except BadManifest:
        named = set()
    orphans = []
    for stored_key in stored_keys:
        name = stored_key.removeprefix(f"{key}/")
        writer = name.rpartition("-")[0]  # see ChunkNamer
        if name != stored_key and name not in named and writer not in running_writers:
            orphans.append(stored_key)
    return orphans


def _read_chunks(store: Store, key: str, names: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for begin in range(0, len(names), _READ_BATCH):
        part = names[begin : begin + _READ_BATCH]
        entries = store.get_many([f"{key}/{name}" for name in part])
        found.update({name: entry.value for name, entry in zip(part, entries) if entry is not None})  # noqa: B905 - one answer per key
    return found
