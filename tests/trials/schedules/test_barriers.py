"""Barriers under random schedules: nobody passes before all have come, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from latchwork.errors import BarrierBroken
from latchwork.primitives import Barrier, DoubleBarrier
from latchwork.primitives.barrier import Expected, barrier_state, member, phases
from latchwork.types import At
from trials.schedules.harness import Model, ModelBroken, action, check

WAIT_S = 20.0
#: Calls that are cut off may make a wait this much longer than it was to be.
SLACK_S = 30.0


class Arrivals:
    """Who began to wait how often, and which generations let whom through."""

    def __init__(self, names):
        self.begun = Counter(dict.fromkeys(names, 0))
        self.passed = {name: set() for name in names}

    def wait(self, me, fn):
        self.begun[me.name] += 1
        began = me.sim.elapsed_s
        try:
            generation = fn()
        except BarrierBroken:
            self.refuse_long(me, began)
            raise
        self.refuse_long(me, began)
        self.passed[me.name].add(generation)
        for name, begun in self.begun.items():
            if begun <= len(self.passed[name] - {generation}):
                raise ModelBroken(f"generation {generation} let {me.name} through, but {name} has not come")
        return generation

    def refuse_long(self, me, began):
        """A freeze makes a wait longer, whoever is not frozen has to come back in time."""
        if me.sim.elapsed_s - began > WAIT_S + SLACK_S:
            raise ModelBroken(f"{me.name} waited {me.sim.elapsed_s - began:.1f} s, not {WAIT_S}")


class BarrierModel(Model):
    """A generation passes once all have come, or is broken for all; the next one is usable."""

    actors = (2, 3)

    def setup(self, store):
        self.arrivals = Arrivals(self.names)

    @action
    def meet(self, me):
        with Barrier(me.store, "phase", parties=len(self.names), member_id=me.name) as barrier:
            self.arrivals.wait(me, lambda: barrier.wait(WAIT_S))
            me.pause(0.3)

    @action
    def meet_twice(self, me):
        with Barrier(me.store, "phase", parties=len(self.names), member_id=me.name) as barrier:
            for _ in range(2):
                self.arrivals.wait(me, lambda: barrier.wait(WAIT_S))

    def finish(self, store):
        barrier = Barrier(store, "phase", parties=len(self.names), member_id="a")
        barrier.abort("the end")
        assert barrier.arrived() == []


class DoubleBarrierModel(Model):
    """All have entered before any works; all have finished before any leaves."""

    actors = (2, 3)

    def setup(self, store):
        self.entering = Arrivals(self.names)
        self.inside = {}

    @action
    def work(self, me):
        with me.ended(DoubleBarrier(me.store, "join", parties=len(self.names), member_id=me.name)) as barrier:
            number = self.entering.wait(me, lambda: barrier.enter(WAIT_S))
            self.inside[me.name] = number
            me.pause(0.5)
            del self.inside[me.name]
            left = barrier.leave(WAIT_S)
            working = [name for name, other in self.inside.items() if other == left]
            if working:
                raise ModelBroken(f"{me.name} left round {left} while {working} still worked in it")

    @action
    def work_long(self, me):
        with me.ended(DoubleBarrier(me.store, "join", parties=len(self.names), member_id=me.name)) as barrier:
            number = self.entering.wait(me, lambda: barrier.enter(WAIT_S))
            self.inside[me.name] = number
            me.pause(3.0)
            del self.inside[me.name]
            barrier.leave(WAIT_S)


class CrowdModel(Model):
    """The same with parties that the first says, and with so many that only some follow: see ``small_crowds``."""

    actors = (2, 4)

    def setup(self, store):
        self.arrivals = Arrivals(self.names)
        store.put("count", str(len(self.names)).encode())

    def barrier(self, me):
        def parties():
            entry = me.store.get("count")
            return Expected(int(entry.value), [At(entry)])

        return Barrier(me.store, "phase", parties=parties, member_id=me.name, per_generation=True)

    @action
    def meet(self, me):
        with self.barrier(me) as barrier:
            self.arrivals.wait(me, lambda: barrier.wait(WAIT_S))
            me.pause(0.3)

    @action
    def meet_while_the_count_is_written_anew(self, me):
        me.store.put("count", str(len(self.names)).encode())
        with self.barrier(me) as barrier:
            self.arrivals.wait(me, lambda: barrier.wait(WAIT_S))

    def finish(self, store):
        state = barrier_state(store, "phase")
        if state is not None and state.arrived:  # nobody is left to break it
            Barrier(store, "phase", parties=1, member_id="a", per_generation=True).abort("the end")
            assert barrier_state(store, "phase").arrived == ()


@pytest.fixture
def small_crowds(monkeypatch):
    """From two members on they are many, of whom one follows."""
    for module in (member, phases):
        monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(member, "FOLLOWERS", 1)


def test_crowd_keeps_its_rules_under_random_schedules(small_crowds):
    check(CrowdModel)


def test_barrier_keeps_its_rules_under_random_schedules():
    check(BarrierModel)


def test_double_barrier_keeps_its_rules_under_random_schedules():
    check(DoubleBarrierModel)
