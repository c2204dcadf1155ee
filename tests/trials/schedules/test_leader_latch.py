"""The leader latch under random schedules."""

from __future__ import annotations

import latchwork
from latchwork.primitives import LeaderLatch
from latchwork.testing.faults import FaultyStore
from latchwork.testing.simulation import Simulation
from trials.schedules.harness import PATIENCE_S, Model, action, check


class LeaderLatchModel(Model):
    """At most one leads; whoever waits leads in the end; no ticket outlives its candidate."""

    @action
    def lead(self, me):
        with LeaderLatch(me.store, "leader", node_id=me.name) as latch:
            self.claims.add(me, lambda: latch.is_leader)
            fence = me.patiently(lambda: latch.wait(PATIENCE_S))
            self.writes.write(me, fence)
            me.pause()
            self.writes.write(me, fence)

    @action
    def lead_long(self, me):
        with LeaderLatch(me.store, "leader", node_id=me.name) as latch:
            self.claims.add(me, lambda: latch.is_leader)
            me.patiently(lambda: latch.wait(PATIENCE_S))
            me.pause(3.0)
            self.writes.write(me, latch.fence)

    @action
    def join_and_leave(self, me):
        with LeaderLatch(me.store, "leader", node_id=me.name) as latch:
            self.claims.add(me, lambda: latch.is_leader)
            me.pause(0.2)

    def finish(self, store):
        assert store.list("leader") == [], "a ticket was left behind"


def test_leader_latch_keeps_its_rules_under_random_schedules():
    check(LeaderLatchModel)


def test_a_leader_whose_ticket_is_deleted_joins_again_though_its_server_lags_behind():
    with (
        Simulation(max_turns=20_000) as sim,
        latchwork.connect("memory://lag") as operator,
        FaultyStore(latchwork.connect("memory://lag"), lag_s=5.0) as lagging,
        LeaderLatch(lagging, "leader", node_id="a") as latch,
    ):
        first = latch.wait(10)
        sim.sleep(10)
        before = len(lagging.calls)
        operator.delete(operator.list("leader")[0].key)
        sim.sleep(1)
        assert latch.wait(10).token > first.token
        assert sim.elapsed_s < 15
        assert len(lagging.calls) - before < 30
