"""Sets as a manifest and immutable chunks: pure part."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.jobs.stored.chunked_set import (
    EMPTY,
    BadManifest,
    MissingChunk,
    decode_chunk_names,
    decode_set,
    plan_update,
    split_into_batches,
)

ITEMS = st.sets(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), max_size=60)


class Names:
    def __init__(self):
        self._numbers = count()

    def __call__(self):
        return f"tag-{next(self._numbers)}"


class Disk:
    """What a store would hold, driven the way a writer drives it."""

    def __init__(self):
        self.names = Names()
        self.chunked = EMPTY
        self.manifest = EMPTY.encode_manifest()
        self.chunks = {}
        self.written = 0

    def make(self, wanted):
        update = plan_update(self.chunked, wanted, self.names)
        self.written = 0
        if update is None:
            return
        assert not set(update.added) & set(self.chunks), "a chunk name was used twice"
        self.chunks.update(update.added)
        self.manifest = update.after.encode_manifest()
        self.chunked = update.after
        for name in update.dropped:
            del self.chunks[name]
        self.written = sum(map(len, update.added.values())) + len(self.manifest)


@given(st.lists(ITEMS, max_size=6), st.integers(0, 400))
@settings(deadline=None, max_examples=150)
def test_a_set_reads_back_as_it_was_written_through_any_changes(versions, bulk):
    disk = Disk()
    base = {f"item-{i:05d}" for i in range(bulk)}
    for wanted in versions:
        disk.make(base | wanted)
        read = decode_set(disk.manifest, disk.chunks.get)
        assert read == disk.chunked
        assert list(read.items) == sorted(base | wanted)
        assert set(disk.chunks) == set(decode_chunk_names(disk.manifest)), "a chunk was left over"


@given(ITEMS)
@settings(deadline=None)
def test_an_unchanged_set_is_no_write(items):
    disk = Disk()
    disk.make(items)
    assert plan_update(disk.chunked, list(items), disk.names) is None


def test_a_small_set_lives_in_its_head_alone():
    disk = Disk()
    disk.make({"a", "b"})
    assert disk.chunks == {}
    assert json.loads(disk.manifest) == {"count": 2, "items": ["a", "b"]}


@pytest.mark.parametrize(("size", "most_bytes"), [(1_000, 8_000), (10_000, 25_000), (200_000, 60_000)])
def test_moving_one_item_writes_little_however_large_the_set(size, most_bytes):
    disk = Disk()
    items = {f"https://example.org/{i:07d}" for i in range(size)}
    disk.make(items)
    disk.make(items | {"https://example.org/0000500-new"})
    assert disk.written <= most_bytes
    disk.make(items)
    assert disk.written <= most_bytes


def test_every_value_stays_far_below_the_limit_with_the_longest_items():
    disk = Disk()
    disk.make({f"{i:06d}" + "\x01" * 506 for i in range(3_000)})
    assert max(map(len, disk.chunks.values())) < 300_000
    assert len(disk.manifest) < 300_000


def test_a_set_that_shrinks_bit_by_bit_does_not_keep_tiny_chunks():
    disk = Disk()
    items = {f"item-{i:06d}" for i in range(20_000)}
    disk.make(items)
    for begin in range(0, 19_000, 500):
        items -= {f"item-{i:06d}" for i in range(begin, begin + 500) if i % 10}
        disk.make(items)
    assert len(disk.chunks) <= 30


def test_a_head_whose_chunk_is_missing_says_so():
    disk = Disk()
    disk.make({f"item-{i:05d}" for i in range(1_000)})
    with pytest.raises(MissingChunk):
        decode_set(disk.manifest, lambda name: None)


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b'{"items":[1]}', b'{"chunks":"a"}'])
def test_a_head_that_something_else_wrote_is_refused(value):
    with pytest.raises(BadManifest):
        decode_set(value, lambda name: None)


@given(st.lists(st.integers(0, 20), max_size=50), st.integers(1, 7), st.integers(1, 40))
def test_batches_keep_order_and_limits(sizes, most, most_bytes):
    slices = split_into_batches(sizes, most, most_bytes)
    assert [size for part in slices for size in sizes[part]] == sizes
    for part in slices:
        batch = sizes[part]
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or sum(batch) <= most_bytes
