"""A worker that completes counts as arrived at each barrier that waits for it."""

from __future__ import annotations

import threading

import pytest

from latchwork.errors import LatchworkError
from latchwork.testing.faults import FaultyStore
from latchwork.worker_group import EpochEnded
from worker_group.conftest import Killed, KilledAt
from worker_group.test_scaling import arrivals_of


class Between:
    """Calls a function once, before the first call of an operation in the thread that it was made in."""

    def __init__(self, op, key):
        self.op, self.key, self.fn, self.thread = op, key, None, threading.get_ident()

    def next_fault(self, op, keys):
        if self.fn is None or threading.get_ident() != self.thread or op != self.op:
            return
        if any(key.endswith(self.key) for key in keys):
            fn, self.fn = self.fn, None
            fn()


def test_an_open_barrier_passes_when_the_worker_it_waits_for_completes(team, all_at_once, in_thread, store, eventually):
    a, b, c = team(3)
    all_at_once(lambda one: one.initialize(60.0), (a, b, c))
    waiting = [in_thread(lambda each=each: each.barrier(timeout_s=None)) for each in (a, b)]
    assert eventually(lambda: len(arrivals_of(store, a)) == 2)
    c.complete()
    assert [each.outcome() for each in waiting] == [0, 0]
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), (a, b)) == [1, 1]


def test_a_completion_alone_does_not_pass_a_barrier(team, all_at_once, in_thread, store, eventually):
    a, b, c = team(3)
    all_at_once(lambda one: one.initialize(60.0), (a, b, c))
    waiting = in_thread(lambda: a.barrier(timeout_s=None))
    assert eventually(lambda: arrivals_of(store, a))
    c.complete()
    assert waiting.is_alive()
    assert b.barrier(timeout_s=60.0) == 0
    assert waiting.outcome() == 0


@pytest.mark.parametrize(("op", "key"), [("get_many", "opened"), ("children", "barriers/0"), ("commit", "record")])
def test_a_barrier_that_opens_while_a_worker_completes_passes(
    connect, worker, in_thread, all_at_once, store, eventually, op, key
):
    between = Between(op, key)
    faulty = FaultyStore(connect(), between)
    a, b, c = worker("a", workers=3), worker("b"), worker("c", store=faulty)
    all_at_once(lambda one: one.initialize(60.0), (a, b, c))
    waiting = []

    def open_barrier():
        waiting.extend(in_thread(lambda each=each: each.barrier(timeout_s=None)) for each in (a, b))
        assert eventually(lambda: len(arrivals_of(store, a)) == 2)

    between.fn = open_barrier
    c.complete()
    assert [each.outcome() for each in waiting] == [0, 0]
    c.close()
    faulty.close()


def test_a_barrier_that_opens_between_a_refused_completion_and_the_next_passes(
    connect, worker, in_thread, all_at_once, store, eventually
):
    """The next transaction has the arrivals of the refused one, and checks that no other barrier was opened."""
    between = Between("commit", "record")
    faulty = FaultyStore(connect(), between)
    a, b, c, d = worker("a", workers=4), worker("b"), worker("c", store=faulty), worker("d")
    all_at_once(lambda one: one.initialize(60.0), (a, b, c, d))
    waiting = []

    def open_barrier():
        waiting.append(in_thread(lambda: a.barrier(timeout_s=None)))
        assert eventually(lambda: arrivals_of(store, a))

    def refuse():
        d.complete()
        between.fn = open_barrier

    between.fn = refuse
    c.complete()
    assert waiting
    assert b.barrier(timeout_s=60.0) == 0
    assert waiting[0].outcome() == 0
    c.close()
    faulty.close()


def test_a_barrier_does_not_wait_for_a_worker_that_completes_while_it_opens(
    team, in_thread, all_at_once, store, eventually, monkeypatch
):
    a, b, c = team(3)
    all_at_once(lambda one: one.initialize(60.0), (a, b, c))
    own, start_call = a._core.store, a._core.store.start_call
    completed = []

    def complete_before_it_opens(method, *given, **options):
        if method == "commit" and any(op.key.endswith("opened") for op in given[1]):
            monkeypatch.setattr(own, "start_call", start_call)
            completed.append(in_thread(c.complete).outcome())
        return start_call(method, *given, **options)

    def arrive_second():
        assert eventually(lambda: arrivals_of(store, b))
        return b.barrier(timeout_s=10.0)

    monkeypatch.setattr(own, "start_call", complete_before_it_opens)
    second = in_thread(arrive_second)
    assert a.barrier(timeout_s=10.0) == 0
    assert second.outcome() == 0
    assert completed == [None]


@pytest.mark.parametrize("first", [range(0, 30, 2), range(1, 30, 2)], ids=str)
def test_wherever_a_worker_dies_while_it_completes_the_others_pass_or_begin_again(
    connect, worker, in_thread, all_at_once, store, eventually, first
):
    """It is killed before any of its calls: a death before its commit is a fault, which ends the barrier."""
    for number in first:
        group, plan = f"group{number}", KilledAt(10_000)
        dying = FaultyStore(connect(), plan)
        session = dying.open_session(5.0)
        a, b = worker("a", group, workers=2), worker("b", group, store=dying, session=session)
        all_at_once(lambda one: one.initialize(60.0), (a, b))
        waiting = in_thread(lambda a=a: a.barrier(timeout_s=None))
        assert eventually(lambda a=a, group=group: arrivals_of(store, a, group))
        plan.left, killed = number, False
        try:
            b.complete()
        except Killed:
            killed = True
        plan.left = 10_000
        session.close()
        if killed:
            with pytest.raises(EpochEnded):
                waiting.outcome()
        else:
            assert waiting.outcome() == 0
        dying.close()
        if not killed:
            return


def test_a_worker_that_has_completed_is_at_no_barrier(team, all_at_once):
    a, b = team(2)
    all_at_once(lambda one: one.initialize(60.0), (a, b))
    b.complete()
    with pytest.raises(LatchworkError, match="has completed, so it cannot wait"):
        b.barrier(timeout_s=0.0)
    assert a.barrier(timeout_s=60.0) == 0
