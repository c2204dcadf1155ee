"""The harness finds what it is there for: broken primitives, which are planted here."""

from __future__ import annotations

import re

import pytest

from latchwork import At, KeyExists
from latchwork.primitives import LeaderLatch
from latchwork.testing.faults import Fault
from latchwork.testing.simulation import ThreadFailed
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check, replay, run
from trials.schedules.plans import Plan, Trouble

pytestmark = pytest.mark.threads  # what it replays are points of runs by threads

TRIES = 20
#: The one that breaks the lease without a fence comes soon after this seed: it is number 115.
FROM = 100


class Unchecked(Model):
    """A lock that is looked at first and taken then."""

    @action
    def hold(self, me):
        held = []
        self.claims.add(me, lambda: bool(held))
        for _ in range(TRIES):
            if me.store.get("lock") is None:
                held.append(me.store.put("lock", b""))
                me.pause()
                held.clear()
                me.store.delete("lock")
                return
            me.pause(0.2)


class WithoutSession(Model):
    """A lock that its holder takes with it when it dies, so that everybody else waits for ever."""

    @action
    def hold(self, me):
        for _ in range(TRIES):
            try:
                me.store.create("lock", b"")
            except KeyExists:
                me.pause(1.0)
            else:
                me.pause()
                me.store.delete("lock")
                return
        raise ModelBroken(f"{me.name} was forgotten")


class Unfenced(Model):
    """A lease without a fence: a holder that was frozen writes after the next one."""

    fenced = False

    @action
    def hold(self, me):
        for _ in range(TRIES):
            try:
                entry = me.store.create("lock", b"", session=me.store.session)
            except KeyExists:
                me.pause(0.2)
                continue
            me.pause(0.1)
            self.writes.write(me, me.store.fence(entry.token, *([At(entry)] if self.fenced else [])))
            me.store.delete("lock", version=entry.version)
            return


class Fenced(Unfenced):
    """The same with its fence."""

    fenced = True


@pytest.mark.parametrize(
    ("model", "complaint", "first_seed"),
    [
        (Unchecked, "own it at the same time", 0),
        (WithoutSession, "was forgotten", 0),
        (Unfenced, "after a write with token", FROM),
    ],
    ids=["Unchecked", "WithoutSession", "Unfenced"],
)
def test_a_planted_defect_is_found_and_told_so_that_it_can_be_replayed(model, complaint, first_seed):
    with pytest.raises(AssertionError, match=complaint) as caught:
        check(model, 300, first_seed=first_seed)
    told = str(caught.value)
    written = re.search(rf"replay\({model.__name__}, (Plan\(.*\))\)\n", told)[1]
    plan = eval(written, {"Plan": Plan, "Fault": Fault, "Trouble": Trouble})
    with pytest.raises((ModelBroken, ThreadFailed), match=complaint):
        replay(model, plan)
    assert len(plan.faults) + len(plan.troubles) <= 2, "more trouble than it takes"
    assert len(plan.decisions) <= 20, "more changes of turns than it takes"


def test_a_sound_lock_passes_the_schedules_that_break_the_others():
    for first_seed in (0, FROM):
        check(Fenced, 20, first_seed=first_seed)


class Latched(Model):
    @action
    def lead(self, me):
        with LeaderLatch(me.store, "leader", node_id=me.name) as latch:
            self.claims.add(me, lambda: latch.is_leader)
            me.patiently(lambda: latch.wait(PATIENCE_S))
            me.pause()


@pytest.mark.parametrize("seed", range(5))
def test_the_same_plan_gives_the_same_run(seed):
    plan = Plan(
        actors=(("lead",), ("lead", "lead"), ("lead",)),
        faults=((0, Fault("cut_after", op="create")), (2, Fault("slow_request", nth=5))),
        troubles=(Trouble("freeze", 1, point=700, seconds=2.5), Trouble("expire", 2, at_s=0.7)),
        seed=seed,
        rate=0.1,
    )
    first, second = run(Latched, plan), run(Latched, plan)
    assert first.decisions == second.decisions
    assert [turn.thread.rpartition("-")[0] for turn in first.trace] == [
        turn.thread.rpartition("-")[0] for turn in second.trace
    ], "names of stores are counted on, all else is the same"


def test_the_short_form_has_trouble_of_every_kind_and_owners_all_the_same():
    seen = {"kinds": set(), "owned": 0}

    class Watched(Latched):
        def finish(self, store):
            seen["owned"] += self.claims.seen > 0

        @action
        def lead(self, me):
            try:
                super().lead(me)
            finally:
                seen["kinds"] |= {call.fault.kind for call in me.store.faults}

    check(Watched, 40)
    assert seen["owned"] > 20
    assert len(seen["kinds"]) >= 9
