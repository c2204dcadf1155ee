"""Locks that live by a session, under random schedules."""

from __future__ import annotations

from contextlib import closing

import pytest

import latchwork
from latchwork.errors import SessionLost, WaitTimeout
from latchwork.primitives import Lock
from latchwork.testing.faults import FaultyStore
from latchwork.testing.simulation import Simulation
from trials.schedules.harness import PATIENCE_S, Model, action, check


class LockModel(Model):
    """At most one holds; whoever waits gets it in the end; a try that timed out leaves nothing behind."""

    @action
    def hold(self, me):
        with me.ended(Lock(me.store, "orders", label=me.name)) as lock:
            fence = me.patiently(lambda: lock.acquire(PATIENCE_S))
            self.claims.add(me, lambda: lock.is_held)
            self.writes.write(me, fence)
            me.pause()
            self.writes.write(me, fence)
            lock.release()

    @action
    def hold_long(self, me):
        with me.ended(Lock(me.store, "orders", label=me.name)) as lock:
            me.patiently(lambda: lock.acquire(PATIENCE_S))
            self.claims.add(me, lambda: lock.is_held)
            with lock.guard_work() as work:
                work.wait(3.0)
                self.writes.write(me, work.fence)

    @action
    def wait_briefly(self, me):
        with me.ended(Lock(me.store, "orders", label=me.name)) as lock:
            try:
                fence = lock.acquire(0.5)
            except WaitTimeout:
                return
            self.claims.add(me, lambda: lock.is_held)
            self.writes.write(me, fence)

    def finish(self, store):
        assert store.list("orders") == [], "a ticket was left behind"


def test_lock_keeps_its_rules_under_random_schedules():
    check(LockModel)


def test_a_waiter_does_not_go_round_in_circles_while_its_server_lags_behind():
    with (
        Simulation(max_turns=20_000) as sim,
        latchwork.connect("memory://lag") as store,
        FaultyStore(latchwork.connect("memory://lag"), lag_s=5.0) as lagging,
    ):
        first, second = Lock(store, "orders"), Lock(store, "orders")
        first.acquire()
        queued = sim.spawn(second.acquire, name="second")
        sim.sleep(6)
        held = []

        def third():
            with Lock(lagging, "orders"):
                held.append(sim.elapsed_s)

        waiting = sim.spawn(third, name="third")
        sim.sleep(6)
        before = len(lagging.calls)
        first.release()
        sim.sleep(1)
        second.close()
        waiting.join()
        queued.join()
        assert held == [13.0], "it holds as soon as both ahead are gone, though its server still shows them"
        assert len(lagging.calls) - before < 30


@pytest.mark.parametrize("seed", range(12))
def test_a_waiter_that_slept_past_its_session_is_told_instead_of_given_the_lock(seed):
    url, got = f"memory://slept-{seed}", []

    def wait():
        with latchwork.connect(url, session_ttl_s=2.0) as store, closing(Lock(store, "orders")) as lock:
            try:
                lock.acquire(100.0)
            except SessionLost:
                got.append("told")
            else:
                got.append("held" if lock.is_held else "held no more")

    with Simulation(seed, preempt_rate=0.3) as sim, latchwork.connect(url) as store:
        first = Lock(store, "orders")
        first.acquire()
        waiting = sim.spawn(wait, name="waiter", node="waiter")
        sim.sleep(1.0)
        sim.freeze("waiter", 5.0)
        sim.sleep(1.0)
        first.release()
        waiting.join()
    assert got == ["told"]
