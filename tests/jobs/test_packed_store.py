"""Chunked sets on real stores."""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork import At, Conflict, Put
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.stored.chunked_set import ChunkNamer, find_orphaned_chunks, read_set, store_set

BIG = {f"https://example.org/{i:06d}" for i in range(3_000)}


def put(store, items, tag="w1", checks=()):
    return store_set(store, "work-pool/report", items, checks=list(checks), new_name=ChunkNamer(tag))


def test_sets_of_every_size_come_back_and_leave_nothing_of_the_older_ones(store):
    names = ChunkNamer("w1")
    for items in ({"a"}, BIG, BIG | {"b"}, BIG - {"https://example.org/000100"}, {"c"}, set()):
        store_set(store, "work-pool/report", items, checks=[], new_name=names)
        assert set(read_set(store, "work-pool/report").chunked.items) == items
        entries = {entry.key: entry for entry in store.list("work-pool", recursive=True)}
        assert find_orphaned_chunks("work-pool/report", entries, entries.get("work-pool/report"), {}) == []


def test_an_unchanged_set_is_no_write_at_all(store):
    first, _ = put(store, BIG)
    second, before = put(store, BIG, tag="w2")
    assert second.manifest.version == first.manifest.version
    assert set(before) == BIG


@pytest.fixture
def memory():
    with latchwork.connect("memory://packed") as store:
        yield cluster_store(store)


def test_a_failed_fence_writes_nothing_that_a_reader_sees(memory):
    put(memory, {"a"})
    lock = memory.put("lock", b"mine")
    memory.put("lock", b"theirs")
    with pytest.raises(Conflict):
        put(memory, BIG, checks=[At(lock)])
    assert read_set(memory, "work-pool/report").chunked.items == ("a",)


def test_a_writer_that_slept_between_read_and_flip_tries_again_on_the_new_state(memory):
    put(memory, {"a"})
    commit, raced = memory.commit, []

    def commit_late(checks, ops):
        if not raced and any(isinstance(op, Put) and op.key == "work-pool/report" for op in ops):
            raced.append(True)
            put(memory, {"theirs"}, tag="w2")
        return commit(checks, ops)

    memory.commit = commit_late
    _, before = put(memory, {"ours"})
    assert before == ("theirs",)
    assert read_set(memory, "work-pool/report").chunked.items == ("ours",)


def test_readers_never_see_a_mixture_while_a_set_is_rewritten(memory):
    versions = [BIG | {f"version-{n}"} | {f"x{i:04d}-{n}" for i in range(300)} for n in range(6)]
    names, seen, done = ChunkNamer("w1"), [], threading.Event()
    store_set(memory, "k", versions[0], checks=[], new_name=names)

    def reader():
        while not done.is_set():
            seen.append(set(read_set(memory, "k").chunked.items))

    thread = threading.Thread(target=reader)
    thread.start()
    for version in versions * 3:
        store_set(memory, "k", version, checks=[], new_name=names)
    done.set()
    thread.join()
    assert seen
    assert all(items in versions for items in seen)


def test_after_each_transaction_of_a_rewrite_the_set_is_the_old_or_the_new_one(memory, caplog):
    other = {f"other-{item}" for item in BIG}
    put(memory, BIG)
    commit, seen = memory.commit, []

    def commit_and_look(checks, ops):
        done = commit(checks, ops)
        seen.append(set(read_set(memory, "work-pool/report").chunked.items))
        return done

    memory.commit = commit_and_look
    put(memory, other, tag="w2")
    assert BIG in seen
    assert other in seen
    assert all(items in (BIG, other) for items in seen)
    assert "damaged" not in caplog.text


def test_a_chunk_that_stays_missing_is_left_out_and_the_next_write_repairs_it(memory, caplog):
    stored, _ = put(memory, BIG)
    memory.delete(f"work-pool/report/{stored.chunked.chunk_names()[0]}")
    damaged = set(read_set(memory, "work-pool/report").chunked.items)
    assert damaged < BIG
    assert "damaged" in caplog.text
    put(memory, BIG, tag="w2")
    assert set(read_set(memory, "work-pool/report").chunked.items) == BIG


def test_a_head_that_something_else_wrote_counts_as_empty_and_can_be_replaced(memory, caplog):
    memory.put("work-pool/report", b"\xff")
    assert read_set(memory, "work-pool/report").chunked.items == ()
    assert "cannot be read" in caplog.text
    put(memory, {"a"})
    assert read_set(memory, "work-pool/report").chunked.items == ("a",)


def test_only_chunks_of_writers_that_are_gone_count_as_orphans(memory):
    put(memory, BIG)
    memory.put("work-pool/report/w1-ff", b"[]")
    memory.put("work-pool/report/w2-1", b"[]")
    entries = {entry.key: entry for entry in memory.list("work-pool", recursive=True)}
    assert find_orphaned_chunks("work-pool/report", entries, entries["work-pool/report"], {"w1"}) == [
        "work-pool/report/w2-1"
    ]
