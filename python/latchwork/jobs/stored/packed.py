"""Large sets of texts in a store of small values: a head and immutable, uniquely named chunks.

Keys:   <key>               the head: JSON, the items while they are few, else the names of the chunks in order
        <key>/<chunk>       JSON list of items, sorted; written once under a name never used again, later deleted

A writer puts its new chunks, flips the head under its fence, then deletes the chunks that the head no longer names.
Readers use only what the head names. Moving a handful of items rewrites the chunks they live in and the head.
Everything here is pure; ``packed_store`` reads and writes.
"""

from __future__ import annotations

import json
import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise

from latchwork.errors import BadRecord, LatchworkError
from latchwork.jobs.stored.keys import MAX_ITEM_BYTES, check_id
from latchwork.records import read_json, short

_INLINE_BYTES = 3_000
_MIN_CHUNK_BYTES = 2_000
_MAX_CHUNK_BYTES = 32_000
_NAME_BYTES = 24
#: Gives the items of a chunk by its name; None when it is not known.
KnownChunks = Callable[[str], "tuple[str, ...] | None"]
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class MissingChunk(LatchworkError):
    """A head names a chunk that is not there: the set is being rewritten, read its head again."""


class BadHead(BadRecord):
    """A head or a chunk is none of ours: something else wrote to its key."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One immutable part of a set: a key segment that is never used twice; items that are sorted, unique, not empty."""

    name: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackedSet:
    """A set as it is stored: either inline, or in chunks whose ranges follow one another.

    Attributes:
        inline: the items while they are few: sorted, unique.
        chunks: the chunks otherwise.
    """

    inline: tuple[str, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def items(self) -> tuple[str, ...]:
        """All items: sorted, unique."""
        return tuple(chain.from_iterable(chunk.items for chunk in self.chunks)) if self.chunks else self.inline

    def __len__(self) -> int:
        return len(self.inline) + sum(len(chunk.items) for chunk in self.chunks)

    def names(self) -> tuple[str, ...]:
        """The names of its chunks, in order."""
        return tuple(chunk.name for chunk in self.chunks)

    def made_of(self, items: tuple[str, ...]) -> PackedSet:
        """The same set, made of these strings, which equal its own."""
        if not self.chunks:
            return PackedSet(inline=items)
        ends = list(accumulate(len(chunk.items) for chunk in self.chunks))
        pieces = [items[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return PackedSet(chunks=tuple(Chunk(c.name, piece) for c, piece in zip(self.chunks, pieces, strict=True)))

    def head(self) -> bytes:
        """The value of its head."""
        body: dict[str, object] = {"count": len(self)}
        if self.chunks:
            body["chunks"] = self.names()
        else:
            body["items"] = self.inline
        return _dump(body)


EMPTY = PackedSet()


@dataclass(frozen=True, slots=True)
class Update:
    """The writes that make one stored set another.

    Attributes:
        after: the set as it will be stored.
        added: the chunks to write first, by name.
        dropped: the names of the chunks to delete last.
    """

    after: PackedSet
    added: dict[str, bytes] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def chunk_names(head: bytes) -> tuple[str, ...]:
    """The names of the chunks that a head needs, in order.

    Raises:
        BadHead: it is no head.
    """
    return _names(_load_head(head).get("chunks", []))


def decode(
    head: bytes,
    chunk_value: Callable[[str], bytes | None],
    known: KnownChunks = lambda _name: None,
) -> PackedSet:
    """The set that a head and its chunks stand for.

    Args:
        head: the head's value.
        chunk_value: gives the value of a chunk by its name, None when it is not there.
        known: gives the items of a chunk that was decoded before: chunks never change.
    Raises:
        MissingChunk: a chunk is not there (yet, or any more).
        BadHead: head or chunk cannot be read.
    """
    body = _load_head(head)
    if "chunks" not in body:
        return PackedSet(inline=_items(body.get("items", [])))
    chunks = []
    for name in _names(body["chunks"]):
        items = known(name)
        if items is not None:
            chunks.append(Chunk(name, items))
            continue
        value = chunk_value(name)
        if value is None:
            msg = f"chunk {name} is not there"
            raise MissingChunk(msg)
        chunks.append(Chunk(name, _items(_load(value))))
    full = [chunk for chunk in chunks if chunk.items]
    if not all(before.items[-1] < after.items[0] for before, after in pairwise(full)):
        raise BadHead("its chunks do not follow one another; something else wrote to them")
    return PackedSet(chunks=tuple(chunks))


def plan_update(current: PackedSet, wanted: Collection[str], new_name: Callable[[], str]) -> Update | None:
    """The least rewriting that makes ``current`` hold exactly ``wanted``; None when it does already.

    Args:
        current: the set as it is stored.
        wanted: the items it shall hold; unique, any order.
        new_name: gives a chunk name that was never used.
    """
    have, want = set(current.items), set(wanted)
    if have == want:
        return None
    total = sum(map(len, want)) + 3 * len(want)
    if total <= _INLINE_BYTES and _fits_inline(ordered := sorted(want), total):
        return Update(PackedSet(inline=tuple(ordered)), dropped=current.names())
    target = min(_MAX_CHUNK_BYTES, max(_MIN_CHUNK_BYTES, math.isqrt(total * _NAME_BYTES)))
    parts = _merge_small(_distribute(current, have - want, sorted(want - have)), target)
    chunks: list[Chunk] = []
    for part in parts:
        if part.name is not None:
            chunks.append(Chunk(part.name, tuple(part.items)))
        else:
            chunks.extend(Chunk(new_name(), piece) for piece in _split(part.items, target))
    kept = {part.name for part in parts}
    added = {chunk.name: _dump(chunk.items) for chunk in chunks if chunk.name not in kept}
    dropped = tuple(name for name in current.names() if name not in kept)
    return Update(PackedSet(chunks=tuple(chunks)), added, dropped)


def batched(sizes: Sequence[int], most: int, most_bytes: int) -> list[slice]:
    """Cut a row of sizes into runs of at most ``most`` parts and, unless a single part exceeds it, ``most_bytes``."""
    slices, begin, weight = [], 0, 0
    for i, size in enumerate(sizes):
        if i > begin and (i - begin >= most or weight + size > most_bytes):
            slices.append(slice(begin, i))
            begin, weight = i, 0
        weight += size
    if begin < len(sizes):
        slices.append(slice(begin, len(sizes)))
    return slices


def _fits_inline(items: list[str], total: int) -> bool:
    """Whether the head can hold them: JSON may need up to 6 bytes for a character."""
    return 6 * total <= 2 * _INLINE_BYTES or len(_dump(items)) <= 2 * _INLINE_BYTES


@dataclass(slots=True)
class _Part:
    name: str | None  # None: to be written anew
    items: list[str]


def _distribute(current: PackedSet, removed: set[str], added: list[str]) -> list[_Part]:
    """The stored chunks with the changes put into those they belong to; a touched one loses its name."""
    parts = [_Part(chunk.name, list(chunk.items)) for chunk in current.chunks] or [_Part(None, list(current.inline))]
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


def _merge_small(parts: list[_Part], target: int) -> list[_Part]:
    """Join a rewritten part that became small with the one before it or, failing that, after it."""
    merged: list[_Part] = []
    carry = False
    for part in parts:
        small = part.name is None and len(_dump(part.items)) < target // 4
        if merged and (small or carry) and len(_dump(merged[-1].items)) + len(_dump(part.items)) <= 2 * target:
            merged[-1] = _Part(None, merged[-1].items + part.items)
            carry = False
        else:
            merged.append(part)
            carry = small
    return merged


def _split(items: list[str], target: int) -> Iterable[tuple[str, ...]]:
    size = len(_dump(items))
    if size <= 2 * target:
        return [tuple(items)]
    sizes = [len(_dump(item)) + 1 for item in items]
    pieces = batched(sizes, len(items), max(1, -(-size // -(-size // target))))
    return [tuple(items[piece]) for piece in pieces]


def _dump(value: object) -> bytes:
    return _ENCODER.encode(value).encode("utf-8")


def _load(value: bytes) -> object:
    try:
        return read_json(value)
    except BadRecord as error:
        raise BadHead(f"{error}; something else wrote to this key") from None


def _load_head(value: bytes) -> dict[str, object]:
    body = _load(value)
    if not isinstance(body, dict):
        raise BadHead(f"value {short(value)} is no head of a set; something else wrote to this key")
    return body


def _items(value: object) -> tuple[str, ...]:
    items = _texts(value)
    if not _is_ascending(items):
        raise BadHead(f"items {short(items)} are not sorted, each once; something else wrote to this key")
    if items and len(max(items, key=len)) > MAX_ITEM_BYTES:
        raise BadHead(f"an item is longer than {MAX_ITEM_BYTES} bytes; something else wrote to this key")
    return items


def _names(value: object) -> tuple[str, ...]:
    """The names of chunks: each once, for 1,000 bytes that name one chunk again and again would fill a memory."""
    names = _texts(value)
    if len(set(names)) < len(names):
        raise BadHead(f"chunks {short(names)} are not each named once; something else wrote to this key")
    try:
        return tuple(check_id("chunk", name) for name in names)
    except ValueError as error:
        raise BadHead(f"{error}; something else wrote to this key") from None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise BadHead(f"value {short(value)} is no list of texts; something else wrote to this key")
    return tuple(value)


def _is_ascending(items: Sequence[str]) -> bool:
    return all(map(operator.lt, items, islice(items, 1, None)))
