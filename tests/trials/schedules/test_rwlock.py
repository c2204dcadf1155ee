"""Readers and writers under random schedules."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.errors import Unavailable
from latchwork.primitives import ReadWriteLock
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.testing.simulation import Simulation
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check


class ReadWriteLockModel(Model):
    """One writer and nobody else, or any number of readers; whoever waits gets in, in the end."""

    def __init__(self):
        super().__init__()
        self.readers = []

    def look(self):
        super().look()
        writers = [name for name, is_owned in self.claims.now() if is_owned]
        readers = [name for name, is_held in self.readers if is_held()]
        if writers and readers and self.claims.are_judged:
            raise ModelBroken(f"{writers} writes while {readers} read")

    @action
    def write(self, me):
        with me.ended(ReadWriteLock(me.store, "page", label=me.name)) as lock:
            fence = me.patiently(lambda: lock.write.acquire(PATIENCE_S))
            self.claims.add(me, lambda: lock.write.is_held)
            self.writes.write(me, fence)
            me.pause()
            self.writes.write(me, fence)
            lock.write.release()

    @action
    def read(self, me):
        with me.ended(ReadWriteLock(me.store, "page", label=me.name)) as lock:
            me.patiently(lambda: lock.read.acquire(PATIENCE_S))
            self.readers.append((me.name, lambda: lock.read.is_held))
            me.pause()
            lock.read.release()

    @action
    def write_then_read(self, me):
        with me.ended(ReadWriteLock(me.store, "page", label=me.name)) as lock:
            fence = me.patiently(lambda: lock.write.acquire(PATIENCE_S))
            self.claims.add(me, lambda: lock.write.is_held)
            self.writes.write(me, fence)
            lock.downgrade()
            self.readers.append((me.name, lambda: lock.read.is_held))
            me.pause()
            lock.read.release()

    def finish(self, store):
        assert store.list("page") == [], "a ticket was left behind"


def test_read_write_lock_keeps_its_rules_under_random_schedules():
    check(ReadWriteLockModel)


def test_a_downgraded_writer_says_so_before_anybody_else_can_read():
    with Simulation() as sim, FaultyStore(latchwork.connect("memory://downgrade")) as store:
        lock = ReadWriteLock(store, "page")
        with latchwork.connect("memory://downgrade") as other, lock.write:
            store.add(Fault("slow_answer", op="commit", key="page/*", delay_s=2.0))
            said = []

            def read():
                with ReadWriteLock(other, "page").read:
                    said.append((sim.elapsed_s, lock.write.is_held, lock.read.is_held))

            reader = sim.spawn(read, name="reader")
            sim.sleep(1)
            lock.downgrade()
            reader.join()
            assert sim.elapsed_s == 3
    assert said == [(1.0, False, True)], "it reads as soon as that is written, and no writer is left"


def test_a_downgrade_that_did_not_reach_the_server_leaves_the_writer_a_writer():
    with Simulation(), FaultyStore(latchwork.connect("memory://downgrade")) as store:
        lock = ReadWriteLock(store, "page")
        with lock.write:
            store.add(Fault("fail", op="commit", key="page/*"))
            with pytest.raises(Unavailable):
                lock.downgrade()
            assert (lock.write.is_held, lock.read.is_held) == (True, False)
            lock.downgrade()
            assert (lock.write.is_held, lock.read.is_held) == (False, True)
