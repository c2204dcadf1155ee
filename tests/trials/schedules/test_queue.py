"""Queues under random schedules: nothing is lost, nothing is done twice by fence, one taker at a time."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.errors import OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives import PriorityQueue, Queue
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.testing.simulation import Simulation
from latchwork.types import Create
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check


def seen(value):
    """The write that goes with the put of a value."""
    return Create(f"seen/{value.decode()}", b"")


class QueueModel(Model):
    """Every item that was put is acknowledged once, or still there; nobody takes what another holds.

    With each put comes a mark: it is there exactly if the item was put.
    """

    make = Queue

    def __init__(self):
        super().__init__()
        self.put = set()
        self.acknowledged = []
        self.doubtful = set()
        self.held = {}
        self.next = 0

    def look(self):
        for value, claims in self.held.items():
            holders = [name for name, claim in claims if claim.is_held]
            if len(holders) > 1 and self.claims.are_judged:
                raise ModelBroken(f"{' and '.join(holders)} hold item {value!r}")

    def open(self, me, store=None):
        return self.make(store or me.store, "work", max_attempts=100)

    @action
    def put_two(self, me):
        with self.open(me) as queue:
            for _ in range(2):
                self.next += 1
                value = f"{me.name}-{self.next}".encode()
                self.doubtful.add(value)  # until it is known: its putter may die in the middle
                try:
                    queue.put(value, ops=[seen(value)], timeout_s=30.0)
                except OutcomeUnknown:
                    raise
                except Exception:
                    self.doubtful.discard(value)
                    raise
                self.doubtful.discard(value)
                self.put.add(value)

    def take(self, me, queue):
        claim = queue.take(5.0)
        self.held.setdefault(claim.value, []).append((me.name, claim))
        return claim

    @action
    def take_and_acknowledge(self, me):
        with self.open(me) as queue:
            try:
                claim = self.take(me, queue)
            except WaitTimeout:
                return
            me.pause(0.3)
            self.doubtful.add(claim.value)
            try:
                claim.ack()
            except OutcomeUnknown:
                raise
            except Exception:
                if claim.value not in self.acknowledged:
                    self.doubtful.discard(claim.value)
                raise
            self.acknowledged.append(claim.value)

    @action
    def take_and_give_back(self, me):
        with self.open(me) as queue:
            try:
                claim = self.take(me, queue)
            except WaitTimeout:
                return
            me.pause(3.0)
            claim.release("not now")

    @action
    def take_and_forget(self, me):
        with self.open(me) as queue:
            try:
                self.take(me, queue)
            except WaitTimeout:
                return

    def finish(self, store):
        if len(set(self.acknowledged)) != len(self.acknowledged):
            raise ModelBroken("an item was acknowledged twice")
        with self.open(None, store) as queue:
            assert queue.claims() == {}
            assert queue.waiting_consumers() == []
            assert queue.waiting_producers() == []
            left = set()
            while queue.size():
                claim = queue.take(PATIENCE_S)
                left.add(claim.value)
                claim.ack()
        marked = {name.encode() for name in store.children("seen")}
        assert marked >= left | self.put, "an item without its mark"
        assert marked <= left | set(self.acknowledged) | self.doubtful, "a mark without its item"
        lost = self.put - left - set(self.acknowledged) - self.doubtful
        assert not lost, "items were lost"
        again = left & (set(self.acknowledged) - self.doubtful)
        assert not again, "items came back after they were acknowledged"
        assert left <= self.put | self.doubtful, "an item came from nowhere"


class PriorityQueueModel(QueueModel):
    """The same with priorities."""

    make = PriorityQueue

    @action
    def put_two(self, me):
        with self.open(me) as queue:
            for priority in (9, 0):
                self.next += 1
                value = f"{me.name}-{self.next}".encode()
                self.doubtful.add(value)
                queue.put(value, priority=priority, ops=[seen(value)], timeout_s=30.0)
                self.doubtful.discard(value)
                self.put.add(value)


def test_a_claim_that_is_given_back_says_so_before_anybody_else_can_take_the_item():
    with (
        Simulation() as sim,
        FaultyStore(latchwork.connect("memory://give-back")) as store,
        latchwork.connect("memory://give-back") as other,
        Queue(store, "work") as queue,
    ):
        queue.put(b"item")
        claim = queue.take()
        store.add(Fault("slow_answer", op="commit", key="work/*", delay_s=2.0))
        said = []

        def take():
            with Queue(other, "work") as theirs, theirs.take(10) as taken:
                said.append((taken.is_held, claim.is_held, sim.elapsed_s))

        taker = sim.spawn(take, name="taker")
        sim.sleep(1)
        claim.release()
        taker.join()
    assert said == [(True, False, 1.0)]


def test_a_claim_whose_release_failed_is_held_still():
    with Simulation(), FaultyStore(latchwork.connect("memory://give-back")) as store, Queue(store, "work") as queue:
        queue.put(b"item")
        with queue.take() as claim:
            store.add(Fault("fail", op="commit", key="work/*"))
            with pytest.raises(Unavailable):
                claim.release(timeout_s=0)
            assert claim.is_held


def test_queue_keeps_its_rules_under_random_schedules():
    check(QueueModel)


def test_priority_queue_keeps_its_rules_under_random_schedules():
    check(PriorityQueueModel)
