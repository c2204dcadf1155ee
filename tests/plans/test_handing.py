"""What an end makes ready is taken along by its worker: when it is, when it is not, and when the answer is lost."""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork.errors import Conflict, LockLost, OutcomeUnknown
from latchwork.plans import Plans, PlanWorker, TaskState
from latchwork.plans.completion import CompletionBatcher
from latchwork.plans.keys import PARTITION
from latchwork.plans.propagation import EagerClaimer
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from latchwork.store.steps import Signal, run
from plans.test_ends import FUNCTIONS as ECHO
from plans.test_ends import Bench, echo
from plans.work import FUNCTIONS, WAIT_S, wait_until


class Taking(Bench):
    """A worker with so much room, whose ends are committed by hand."""

    def __init__(self, store, build, room=1, **options):
        super().__init__(store, build, **options)
        self.room, self.begun = room, []
        self.backlog = WorkQueue(system_namespace(store, "plans"), "default/queue", session=store.session)
        claimer = EagerClaimer(self.plan_store, self.backlog, store.session)
        claimer.free_slots, claimer.start_runs = lambda: self.room, self.begun.extend
        self.ends = CompletionBatcher(self.plan_store, self.progress, None, Signal(), claimer)

    def commit(self, name, done):
        part = self.claims[name].prepare_ack(done.ops)
        try:
            self.landed = self.store.commit([*part.checks, *done.checks], part.ops)
        except Conflict:
            part.mark_not_committed()
            return False
        part.mark_committed()
        return True


def pair(plan):
    plan.add(echo, plan.add(echo, 1, name="one"), name="two")


def triple(plan):
    plan.add(echo, plan.add(echo, plan.add(echo, 1, name="one"), name="two"), name="three")


def test_what_an_end_makes_ready_is_ours_in_the_same_transaction(store):
    bench = Taking(store, pair)
    (one,) = bench.decide("one")
    assert bench.commit("one", one)
    assert bench.plan_store.queue.try_take([PARTITION]) == []  # nobody sees it free
    one.on_committed(bench.landed)
    (claim,) = bench.begun
    assert (claim.item.id, claim.attempts, claim.is_held) == ("p~two", 1, True)
    assert bench.state("two") is TaskState.READY
    claim.release(count=False)
    assert [each.item.id for each in bench.plan_store.queue.try_take([PARTITION])] == ["p~two"]


def test_a_claim_whose_answer_was_lost_is_found_by_the_next_look(store):
    bench = Taking(store, pair)
    (one,) = bench.decide("one")
    assert bench.commit("one", one)
    one.on_committed(None)
    assert bench.begun == []
    assert [each.item.id for each in bench.backlog.try_take([PARTITION])] == ["p~two"]


def test_what_was_taken_along_is_free_if_the_session_ends_before_its_worker_hears_of_it(backend_url, store):
    """It is told that its end was lost, and never that this landed: nobody has the claim: all die together."""
    with latchwork.connect(backend_url) as opened:
        its = system_namespace(opened, "plans")
        bench = Taking(its, pair)
        (one,) = bench.decide("one")
        part = bench.claims["one"].prepare_ack(one.ops)
        its.commit([*part.checks, *one.checks], part.ops)
        its.session.close()
        with pytest.raises(LockLost):
            part.was_committed(OutcomeUnknown("cut"))
    with WorkQueue(store, "default/queue") as others:
        assert "p~two" in {each.item.id for each in others.try_take([PARTITION], limit=10)}


def test_nothing_is_taken_along_once_the_plan_is_not_as_it_was(store):
    bench = Taking(store, pair)
    (one,) = bench.decide("one")
    Plans(store, functions=ECHO).get("p").cancel()
    assert not bench.commit("one", one)
    assert bench.state("two") is TaskState.WAITING


@pytest.mark.parametrize(("room", "options"), [(0, {}), (1, {"max_parallel": 2})], ids=["full", "limited"])
def test_a_worker_without_room_and_a_plan_with_places_leave_it_free(store, room, options):
    bench = Taking(store, pair, room, **options)
    (one,) = bench.decide("one")
    assert bench.commit("one", one)
    one.on_committed(bench.landed)
    assert bench.begun == []
    assert [each.item.id for each in bench.plan_store.queue.try_take([PARTITION])] == ["p~two"]


def test_an_end_that_looks_itself_takes_along_what_it_finds(store):
    bench = Taking(store, pair)
    (one,) = bench.decide("one", again=True)
    (claim,) = bench.begun
    assert claim.item.id == "p~two"
    assert bench.commit("one", one)
    assert claim.is_held


def test_a_chain_does_not_keep_what_comes_first_waiting(store):
    with PlanWorker(store, functions=FUNCTIONS) as worker:
        plans = Plans(store, functions=FUNCTIONS)
        with plans.new() as long:
            ref = long.add("same", 0)
            for _ in range(300):
                ref = long.add("moment", ref)
        wait_until(lambda: worker.stats().done > 10)
        with plans.new(priority=9) as urgent:
            answer = urgent.add("same", 1)
        assert urgent.handle.result(answer, WAIT_S) == 1
        assert not long.handle.is_completed()
        long.handle.cancel()


def test_what_was_taken_along_begins_while_the_read_ahead_still_waits(store):
    bench = Taking(store, triple)
    read, is_answered = bench.plan_store.read_tasks, threading.Event()

    async def late(plan_id, names):
        if names == ["three"]:
            is_answered.wait(WAIT_S)
        return await read(plan_id, names)

    bench.plan_store.read_tasks = late
    try:
        one = bench.ends.add(bench.completion("one")).result(WAIT_S)
        assert bench.commit("one", one)
        one.on_committed(bench.landed)
        assert [claim.item.id for claim in bench.begun] == ["p~two"]
    finally:
        is_answered.set()
        bench.ends.close()


def test_a_successor_that_changed_after_it_was_read_ahead_is_read_again(store):
    """The end of the first task reads the third one ahead, and another client rewrites that before the second ends."""

    def chain(plan):
        refs.append(plan.add(echo, plan.add(echo, plan.add(echo, 1, name="one"), name="two"), name="three"))

    refs = []
    bench = Taking(store, chain)
    (one,) = bench.decide("one")
    assert bench.commit("one", one)
    one.on_committed(bench.landed)
    (bench.claims["two"],) = bench.begun
    run(bench.ends._prefetch_successors(bench.ends._claimed))
    (known,) = bench.ends._plans.values()
    assert known.is_waiting("three")
    Plans(store, functions=ECHO).get("p").add(echo, refs[0], name="late")
    (two,) = bench.decide("two")
    assert not bench.commit("two", two)
    assert bench.state("three") is TaskState.WAITING
    (two,) = bench.decide("two", again=True)
    assert bench.commit("two", two)
    assert bench.state("three") is TaskState.READY
