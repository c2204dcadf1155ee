"""What the leader knows of the work pools: read when they change, and no more of them than has changed."""

from __future__ import annotations

import logging
import platform

import pytest

import latchwork
from latchwork.jobs.manager import manager as manager_module
from latchwork.jobs.manager.manager import trim_memory
from latchwork.jobs.stored import cluster_store, keys
from latchwork.jobs.stored.caches import PoolCache
from latchwork.jobs.stored.chunked_set import ChunkNamer, store_set

MANY = [f"order-{number:06d}" for number in range(4_000)]


class Reads:
    """A store, and the keys that were read from it."""

    def __init__(self, store):
        self._store = store
        self.keys = []

    def get(self, key):
        self.keys.append(key)
        return self._store.get(key)

    def get_many(self, wanted):
        self.keys += wanted
        return self._store.get_many(wanted)


@pytest.fixture
def memory():
    with latchwork.connect("memory://known-pools") as store:
        yield cluster_store(store)


@pytest.fixture
def reads(memory):
    return Reads(memory)


@pytest.fixture
def known(memory, reads):
    with memory.mirror(keys.WORK_POOL, values=False) as mirror:
        pools = PoolCache(reads, mirror)
        pools.settled = lambda job: mirror.wait_until(lambda now: _version(now, job) == _version(memory, job), 10)
        yield pools


def _version(state, job):
    manifest = state.get(keys.work_pool_key(job))
    return None if manifest is None else manifest.version


def write(store, known, job, items, tag="w1", names={}):  # noqa: B006 - names are never used twice, in no test
    store_set(store, keys.work_pool_key(job), items, checks=[], new_name=names.setdefault(tag, ChunkNamer(tag)))
    known.settled(job)


def test_pools_of_every_size_are_read(memory, known):
    write(memory, known, "large", MANY)
    write(memory, known, "small", ["b", "a"])
    write(memory, known, "none", [])
    assert known.read_pools() == {"large": tuple(MANY), "small": ("a", "b"), "none": ()}


def test_a_pool_that_did_not_change_is_the_same_tuple_and_is_not_read_again(memory, known, reads):
    write(memory, known, "large", MANY)
    before = known.read_pools()["large"]
    reads.keys.clear()
    assert known.read_pools()["large"] is before
    assert reads.keys == []


def test_of_a_pool_that_grew_by_one_its_head_and_one_chunk_are_read(memory, known, reads):
    write(memory, known, "large", MANY)
    known.read_pools()
    reads.keys.clear()
    write(memory, known, "large", [*MANY, "order-002000b"])
    assert known.read_pools()["large"] == tuple(sorted([*MANY, "order-002000b"]))
    assert len(reads.keys) == 2


def test_what_stays_in_a_pool_is_made_of_the_same_strings(memory, known):
    write(memory, known, "large", MANY)
    before = {id(item) for item in known.read_pools()["large"]}
    write(memory, known, "large", [*MANY[5:], "order-002000b"])
    assert [item for item in known.read_pools()["large"] if id(item) not in before] == ["order-002000b"]


def test_a_pool_that_shrinks_to_a_few_items_and_grows_again_is_read_right(memory, known):
    for items in (MANY, MANY[:3], MANY[::2], []):
        write(memory, known, "large", items)
        assert known.read_pools()["large"] == tuple(items)


def test_a_pool_that_is_deleted_is_forgotten(memory, known):
    write(memory, known, "small", ["a"])
    known.read_pools()
    memory.delete(keys.work_pool_key("small"))
    known.settled("small")
    assert known.read_pools() == {}


def test_a_pool_that_something_else_overwrote_counts_as_empty_and_is_an_error_in_the_log(memory, known, caplog):
    memory.put(keys.work_pool_key("bad"), b"no json")
    known.settled("bad")
    with caplog.at_level(logging.ERROR):
        assert known.read_pools() == {"bad": ()}
    assert "set at work-pool/bad cannot be read and counts as empty" in caplog.text


def test_chunks_are_found_whether_a_head_names_them_or_not(memory, known):
    memory.put(f"{keys.work_pool_key('lost')}/w9-1", b"[]")
    write(memory, known, "small", ["a"])
    assert known.list_chunk_keys() == {"lost": ["work-pool/lost/w9-1"], "small": []}


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries give memory back by themselves, or not"
)
def test_memory_that_lies_free_between_what_stays_is_given_back():
    many = [bytes(60_000) for _ in range(1_000)]
    kept = many[::100]
    many.clear()
    assert trim_memory()
    assert len(kept) == 10


def test_no_memory_is_given_back_where_the_c_library_knows_no_way(monkeypatch):
    monkeypatch.setattr(manager_module, "_malloc_trim", lambda: None)
    assert not trim_memory()
