"""A worker's assignment as it is stored, followed and decoded."""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork import Unavailable
from latchwork.jobs.stored import caches, cluster_store, keys
from latchwork.jobs.stored.caches import AssignmentCache
from latchwork.jobs.stored.chunked_set import ChunkNamer, store_set


@pytest.fixture
def memory():
    with latchwork.connect("memory://assignments") as store:
        yield cluster_store(store)


def write(store, job, items, tag="m1"):
    store_set(store, keys.assignment_key("w1", job), items, checks=[], new_name=ChunkNamer(tag))


class Follower:
    def __init__(self, store):
        self.changed = threading.Event()
        self.assignments = AssignmentCache(store, "w1", self.changed.set)

    def until(self, wanted, jobs=("a", "b")):
        """The assigned items of these jobs once it is what is wanted."""
        while self.assignments.read_items(jobs) != wanted:
            assert self.changed.wait(20), self.assignments.read_items(jobs)
            self.changed.clear()
        return self.assignments.read_items(jobs)


@pytest.fixture
def follower(memory):
    made = Follower(memory)
    yield made
    made.assignments.close()


def test_what_is_stored_already_is_there_at_once(memory):
    write(memory, "a", ["x", "y"])
    cache = AssignmentCache(memory, "w1", lambda: None)
    cache.wait_ready()
    assert cache.read_items(["a", "b"]) == {"a": ("x", "y")}
    cache.close()


def test_assignment_follows_every_write_and_ends_with_its_manifest(memory, follower):
    write(memory, "a", ["x"])
    follower.until({"a": ("x",)})
    write(memory, "b", [f"item-{i:05d}" for i in range(2_000)])
    follower.until({"a": ("x",), "b": tuple(f"item-{i:05d}" for i in range(2_000))})
    memory.delete(keys.assignment_key("w1", "a"))
    follower.until({"b": tuple(f"item-{i:05d}" for i in range(2_000))})


def test_a_job_that_did_not_change_keeps_its_very_tuple(memory, follower):
    write(memory, "a", [f"item-{i:05d}" for i in range(2_000)])
    before = follower.until({"a": tuple(f"item-{i:05d}" for i in range(2_000))})
    write(memory, "b", ["x"])
    after = follower.until({**before, "b": ("x",)})
    assert after["a"] is before["a"]


def test_jobs_that_are_not_asked_for_are_left_for_later(memory, follower):
    write(memory, "a", ["x"])
    write(memory, "b", ["y"])
    follower.until({"b": ("y",)}, jobs=("b",))
    follower.until({"a": ("x",), "b": ("y",)})


def test_assignment_that_could_not_be_read_is_read_again_without_a_new_event(memory, follower, monkeypatch):
    write(memory, "a", ["x"])
    follower.until({"a": ("x",)})

    def fail(*_):
        raise Unavailable("down")

    with monkeypatch.context() as patched:
        patched.setattr(caches, "decode_or_read_set", fail)
        write(memory, "a", ["x", "y"], "m2")
        with pytest.raises(Unavailable):
            follower.until({"a": ("x", "y")})
    assert follower.assignments.read_items(["a"]) == {"a": ("x", "y")}
