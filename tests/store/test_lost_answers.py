"""Calls whose write is applied and whose answer is lost, with the server gone from then on, or one call later.

``Unavailable`` says "not applied, safe to retry", so after such a write no call may raise it. Each call that writes is
swept: its first write loses its answer, then its second, and so on. Through threads, and through an event loop where
there is a twin.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import latchwork
import latchwork.aio.executor  # twins of executors and of what they give
from backends_table import SERVERS
from latchwork import (
    AuthenticationFailed,
    Conflict,
    KeyExists,
    LatchworkError,
    OutcomeUnknown,
    PermissionDenied,
    Put,
    QuotaExceeded,
    Unavailable,
    primitives,
)
from latchwork.aio.wrapper import wrap_async
from latchwork.clock import SYSTEM_CLOCK
from latchwork.executor import Executor, TaskRef, cancel_task, list_tasks
from latchwork.jobs import Control
from latchwork.plans import PlanHandle, Plans, PlanWorker
from latchwork.primitives import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Group,
    Lock,
    LockKeeper,
    Once,
    PersistentLock,
    PriorityQueue,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    Sequence,
    WorkQueue,
)
from latchwork.store import system_namespace
from latchwork.store.keys import SYSTEMS
from latchwork.store.steps import is_blocking
from latchwork.tasks import Functions
from latchwork.testing import VirtualClock
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.worker_group import submit
from latchwork_testkit.proxy import Proxy

WAIT_S = 30.0
#: How long a call may try that is swept.
SHORT_S = 0.05
#: Seconds for a call that reads, then says that it waits, and then waits in vain; it must come to its write.
LONGER_S = 0.5
#: On a busy machine its time may be over before that; then it is played again.
TRIES = 4
#: Errors that say that nothing was done.
NOT_DONE = (Unavailable, QuotaExceeded, PermissionDenied, AuthenticationFailed, Conflict, KeyExists)
WRITES = {"put", "create", "delete", "commit", "delete_tree"}
OF_SESSIONS = {"renew", "open_session", "close_session", "event"}
WORK = Functions()
THREAD, LOOP = ("thread",), ("loop",)
numbers = itertools.count()


@WORK.task(name="add")
def add(a: int, b: int) -> int:
    return a + b


@WORK.task(name="size")
def size(text: str) -> int:
    return len(text)


class Losing:
    """Loses the answer to the nth write; so many calls later the server is gone."""

    def __init__(self):
        self._lock = threading.Lock()
        self.disarm()

    def arm(self, nth, later=0):
        with self._lock:
            self._nth, self._later, self._count = nth, later, 0

    def disarm(self):
        self.arm(0)

    @property
    def is_lost(self):
        return 0 < self._nth <= self._count

    def next_fault(self, op, keys):
        with self._lock:
            if not self._nth or op in OF_SESSIONS:
                return None
            if self._count >= self._nth:
                self._later -= 1
                return Fault("fail") if self._later < 0 else None
            self._count += op in WRITES
            return Fault("cut_after") if self._count == self._nth else None


class Case(NamedTuple):
    """What is made with the store, with its arguments if it is a tuple; and the call that is made with that."""

    make: Callable[[Any], Any]
    call: Callable[..., Any]
    drivers: tuple[str, ...] = ("thread", "loop")


async def put_k(tx):
    await tx.put("k", b"1")


async def work_x(_work):
    return b"x"


def did(one, call):
    call(one)
    return one


def item(store):
    return did(WorkQueue(store, "b"), lambda b: b.put("l", "s", "i", b"x"))


def found(store):
    return (item(store), WorkQueue(store, "b").find("l", "s", "i"))


def taken(store):
    return item(store).try_take(["l"])[0]


def letter(store):
    taken(store).move_to_dead_letters("bad")
    return (WorkQueue(store, "b"), WorkQueue(store, "b").dead_letters()[0].dead_letter_id)


def filled(store, kind=Queue):
    return did(kind(store, "q"), lambda q: q.put(b"x"))


def claim(store, kind=Queue):
    return filled(store, kind).take(WAIT_S)


def dead(store):
    claim(store).move_to_dead_letters("bad")
    return (Queue(store, "q"), Queue(store, "q").dead_letters()[0].id)


def held(lock):
    return did(lock, lambda lock: lock.acquire(WAIT_S))


def joined(store):
    group = Group(store, "g", member_id="a")
    group.start()
    group.wait(WAIT_S)
    return group


def drafted(store):
    return did(Plans(store, functions=WORK).new(id="p"), lambda p: p.add(add, 1, 2, name="t"))


def failed(store):
    handle = did(drafted(store).start(), lambda h: h.cancel())
    with PlanWorker(store, functions=WORK, slots=1):
        handle.wait(WAIT_S)
    return handle


def pool(store):
    return Executor(store, functions=WORK)


def detached(store):
    return pool(store).detached(add, 1, 2, id="mine")


def ended(store):
    return did(detached(store), lambda ref: ref.cancel())


def two_keepers(store):
    return LockKeeper(store), did(LockKeeper(store), lambda keeper: keeper.acquire("x", WAIT_S))


def once_run(store):
    return did(Once(store, "once"), lambda once: once.run(lambda _work: b"x"))


def group_job(store):
    return submit(store, "job", workers=2)


CALLS = {
    "Store.put": Case(lambda s: s, lambda s: s.put("k", b"1")),
    "Store.create": Case(lambda s: s, lambda s: s.create("k", b"1")),
    "Store.delete": Case(lambda s: did(s, lambda s: s.put("k", b"1")), lambda s: s.delete("k")),
    "Store.delete_tree": Case(lambda s: did(s, lambda s: s.put("t/a", b"")), lambda s: s.delete_tree("t")),
    "Store.commit": Case(lambda s: s, lambda s: s.commit([], [Put("k", b"1"), Put("l", b"1")])),
    "Store.transact": Case(lambda s: s, lambda s: s.transact(lambda tx: tx.put("k", b"1")), THREAD),
    "Store.transact in a loop": Case(lambda s: s, lambda s: s.transact(put_k), LOOP),
    "WorkQueue.put": Case(lambda s: WorkQueue(s, "b"), lambda b: b.put("l", "s", "i", b"v")),
    "WorkQueue.put large": Case(lambda s: WorkQueue(s, "b"), lambda b: b.put("l", "s", "i", b"v" * 9000)),
    "WorkQueue.put bounded": Case(
        lambda s: WorkQueue(s, "b", capacity=5), lambda b: b.put("l", "s", "i", b"v", timeout_s=SHORT_S)
    ),
    "WorkQueue.take": Case(item, lambda b: b.take("l", SHORT_S)),
    "WorkQueue.remove": Case(found, lambda b, item: b.remove(item)),
    "WorkQueue.move_to_dead_letters": Case(found, lambda b, item: b.move_to_dead_letters(item)),
    "WorkQueue.try_take": Case(item, lambda b: b.try_take(["l"])),
    "WorkQueue.take_items": Case(found, lambda b, item: b.take_items([item])),
    "WorkQueue.wait_free": Case(lambda s: WorkQueue(s, "b"), lambda b: b.wait_free("l", LONGER_S)),
    "WorkQueue.wait_items": Case(lambda s: WorkQueue(s, "b"), lambda b: b.wait_items("l", LONGER_S)),
    "WorkQueue.requeue": Case(letter, lambda b, letter: b.requeue(letter)),
    "WorkQueue.drop": Case(letter, lambda b, letter: b.drop(letter)),
    "QueueClaim.ack": Case(taken, lambda c: c.ack(ops=[Put("done", b"")], timeout_s=SHORT_S)),
    "QueueClaim.release": Case(taken, lambda c: c.release("again", timeout_s=SHORT_S)),
    "QueueClaim.move_to_dead_letters": Case(taken, lambda c: c.move_to_dead_letters("bad", timeout_s=SHORT_S)),
    "Queue.put": Case(lambda s: Queue(s, "q"), lambda q: q.put(b"v", timeout_s=SHORT_S)),
    "Queue.put bounded": Case(lambda s: Queue(s, "q", capacity=5), lambda q: q.put(b"v", timeout_s=SHORT_S)),
    "Queue.put with writes": Case(
        lambda s: Queue(s, "q"), lambda q: q.put(b"v", ops=[Put("seen", b"")], timeout_s=SHORT_S)
    ),
    "Queue.put_many": Case(lambda s: Queue(s, "q"), lambda q: q.put_many([b"v"] * 3, timeout_s=SHORT_S)),
    "Queue.take": Case(filled, lambda q: q.take(SHORT_S)),
    "Queue.requeue": Case(dead, lambda q, item: q.requeue(item, timeout_s=SHORT_S)),
    "Queue.drop": Case(dead, lambda q, item: q.drop(item)),
    "QueueClaim.ack in a queue": Case(claim, lambda c: c.ack(ops=[Put("done", b"")], timeout_s=SHORT_S)),
    "QueueClaim.release in a queue": Case(claim, lambda c: c.release("again", timeout_s=SHORT_S)),
    "QueueClaim.move_to_dead_letters in a queue": Case(
        claim, lambda c: c.move_to_dead_letters("bad", timeout_s=SHORT_S)
    ),
    "PriorityQueue.put": Case(lambda s: PriorityQueue(s, "q"), lambda q: q.put(b"v", priority=1, timeout_s=SHORT_S)),
    "PriorityQueue.put_many": Case(lambda s: PriorityQueue(s, "q"), lambda q: q.put_many([b"v"], timeout_s=SHORT_S)),
    "PriorityQueue.take": Case(lambda s: filled(s, PriorityQueue), lambda q: q.take(SHORT_S)),
    "Counter.add": Case(lambda s: Counter(s, "c"), lambda c: c.add(timeout_s=SHORT_S)),
    "Counter.add again": Case(lambda s: did(Counter(s, "c"), lambda c: c.add()), lambda c: c.add(timeout_s=SHORT_S)),
    "Counter.put": Case(lambda s: Counter(s, "c"), lambda c: c.put(5, timeout_s=SHORT_S)),
    "Counter.compare_and_set": Case(lambda s: Counter(s, "c"), lambda c: c.compare_and_set(0, 5, timeout_s=SHORT_S)),
    "Sequence.take": Case(
        lambda s: Sequence(s, "n"), lambda n: n.take(lambda number: [Put(f"rec/{number}", b"")], timeout_s=SHORT_S)
    ),
    "RateLimiter.acquire": Case(
        lambda s: RateLimiter(s, "r", permits=5, interval_s=1), lambda r: r.acquire(timeout_s=SHORT_S)
    ),
    "Lock.acquire": Case(lambda s: Lock(s, "x"), lambda x: x.acquire(SHORT_S)),
    "ReadWriteLock.downgrade": Case(
        lambda s: did(ReadWriteLock(s, "x"), lambda x: x.write.acquire(WAIT_S)), lambda x: x.downgrade(), THREAD
    ),
    "Semaphore.acquire": Case(lambda s: Semaphore(s, "x", leases=2), lambda x: x.acquire(SHORT_S)),
    "Semaphore.resize": Case(lambda s: held(Semaphore(s, "x", leases=2)), lambda x: x.resize(3)),
    "Election.campaign": Case(lambda s: Election(s, "e", node_id="a"), lambda e: e.campaign(b"1", timeout_s=SHORT_S)),
    "Term.proclaim": Case(
        lambda s: Election(s, "e", node_id="a").campaign(b"1", timeout_s=WAIT_S), lambda t: t.proclaim(b"2")
    ),
    "Barrier.wait": Case(lambda s: Barrier(s, "b", parties=1, member_id="a"), lambda b: b.wait(SHORT_S)),
    "Barrier.abort": Case(lambda s: Barrier(s, "b", parties=2, member_id="a"), lambda b: b.abort("no")),
    "DoubleBarrier.enter": Case(lambda s: DoubleBarrier(s, "d", parties=1, member_id="a"), lambda d: d.enter(SHORT_S)),
    "DoubleBarrier.leave": Case(
        lambda s: did(DoubleBarrier(s, "d", parties=1, member_id="a"), lambda d: d.enter(WAIT_S)),
        lambda d: d.leave(SHORT_S),
    ),
    "DoubleBarrier.abort": Case(lambda s: DoubleBarrier(s, "d", parties=2, member_id="a"), lambda d: d.abort("no")),
    "Group.update": Case(joined, lambda g: g.update(address="x")),
    "Group.evict": Case(joined, lambda g: g.evict("a")),
    "Group.remove": Case(lambda s: Group(s, "g"), lambda g: g.remove()),
    "Once.run": Case(lambda s: Once(s, "once"), lambda once: once.run(lambda _work: b"x", timeout_s=SHORT_S), THREAD),
    "Once.run in a loop": Case(lambda s: Once(s, "once"), lambda once: once.run(work_x, timeout_s=SHORT_S), LOOP),
    "Once.reset": Case(once_run, lambda once: once.reset()),
    "PersistentLock.acquire": Case(lambda s: PersistentLock(s, "x"), lambda x: x.acquire(SHORT_S)),
    "LockKeeper.acquire": Case(LockKeeper, lambda k: k.acquire("x", SHORT_S)),
    "LockKeeper.adopt": Case(two_keepers, lambda k, other: k.adopt(other.owner_id, None, SHORT_S)),
    "LockKeeper.try_acquire": Case(LockKeeper, lambda k: k.try_acquire("x")),
    "LockKeeper.try_acquire_many": Case(LockKeeper, lambda k: k.try_acquire_many(["x", "y"])),
    "Executor.detached": Case(pool, lambda e: e.detached(add, 1, 2, id="mine")),
    "Executor.detached without an id": Case(pool, lambda e: e.detached(add, 1, 2)),
    "Executor.detached large": Case(pool, lambda e: e.detached(size, "x" * 9000)),
    "TaskRef.cancel": Case(detached, lambda ref: ref.cancel()),
    "TaskRef.forget": Case(ended, lambda ref: ref.forget()),
    "cancel_task": Case(lambda s: (s, detached(s).id), cancel_task, THREAD),
    "PlanBuilder.start": Case(drafted, lambda p: p.start(), THREAD),
    "PlanHandle.add": Case(lambda s: drafted(s).start(), lambda h: h.add(add, 1, 2, name="u"), THREAD),
    "PlanHandle.add without a name": Case(lambda s: drafted(s).start(), lambda h: h.add(add, 1, 2), THREAD),
    "PlanHandle.cancel": Case(lambda s: drafted(s).start(), lambda h: h.cancel(), THREAD),
    "PlanHandle.recover": Case(failed, lambda h: h.recover(), THREAD),
    "PlanHandle.remove": Case(lambda s: drafted(s).start(), lambda h: h.remove(), THREAD),
    "Control.disable": Case(Control, lambda c: c.disable("report"), THREAD),
    "Control.change_job": Case(Control, lambda c: c.change_job("report", schedule="@daily"), THREAD),
    "Control.run_now": Case(Control, lambda c: c.run_now("report", ["north"]), THREAD),
    "Control.drain": Case(Control, lambda c: c.drain("n1"), THREAD),
    "workers.submit": Case(lambda s: s, lambda s: submit(s, "job", workers=2), THREAD),
    "GroupHandle.scale": Case(group_job, lambda job: job.scale(3), THREAD),
    "GroupHandle.terminate": Case(group_job, lambda job: job.terminate("enough"), THREAD),
}
#: Calls that only read or wait; that end something, in the background if need be; and housekeeping.
OTHERS = {
    *("arrived", "candidates", "check", "claims", "is_completed", "dead_letters", "find", "find_all", "generation"),
    *("issued", "graph"),
    *("holder", "holders", "items", "last", "leader", "list", "members", "next", "outcome", "partitions"),
    *(
        "waiting_producers",
        "result",
        "round",
        "runner",
        "size",
        "state",
        "status",
        "sync",
        "waiting_consumers",
        "value",
        "wait",
    ),
    *("wait_joined", "wait_until", "waiters", "pending_deps", "was_committed"),
    *("close", "flush", "leave", "release", "release_held", "resign", "start", "sweep", "clean_index"),
}
#: Calls that are made of others which are swept.
COMPOSED = {"Election.run", "LeaderLatch.run", "PersistentLock.adopt", "PriorityQueue.drop", "PriorityQueue.requeue"}
VARIANTS = [(name, driver) for name, case in CALLS.items() for driver in case.drivers]


def outcome_of(call, made, driver):
    async def main():
        result = call(*map(wrap_async, made))
        return await result if inspect.isawaitable(result) else result

    try:
        return call(*made) if driver == "thread" else asyncio.run(asyncio.wait_for(main(), WAIT_S))
    except LatchworkError as error:
        return error


def state_of(store):
    """Every key with its version, those of our systems too."""
    parts = [store, *(system_namespace(store, name) for name in SYSTEMS)]
    return {(number, e.key): e.version for number, part in enumerate(parts) for e in part.list("", recursive=True)}


class Opened:
    """A new memory, seen through a store that loses answers and through one that does not."""

    def __init__(self, clock=SYSTEM_CLOCK):
        self.losing, url = Losing(), f"memory://lost-{next(numbers)}?call_timeout_s=1"
        self.clean = latchwork.connect(url, clock=clock)
        self.store = FaultyStore(latchwork.connect(url, clock=clock), self.losing)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.losing.disarm()
        self.store.close()
        self.clean.close()


def play(case, driver, nth, later):
    """Whether the call had so many writes; fails if it says "not done" of what was done."""
    with Opened() as opened:
        made = case.make(opened.store)
        made = made if isinstance(made, tuple) else (made,)
        before = state_of(opened.clean)
        opened.losing.arm(nth, later)
        outcome = outcome_of(case.call, made, driver)
        was_lost = opened.losing.is_lost
        opened.losing.disarm()
        changed = sorted({key for key, _ in before.items() ^ state_of(opened.clean).items()})
        says_no = isinstance(outcome, NOT_DONE) or outcome is False
        assert not (was_lost and changed and says_no), f"write {nth}, then {later} calls: {outcome!r}, but {changed}"
        for each in made:
            if hasattr(each, "close"):
                each.close()
        return was_lost


def writes_of(case, driver):
    """Lose the answer to each write of a call in turn, and return how many writes there were."""
    for nth in itertools.count(1):
        if sum(play(case, driver, nth, later) for later in (0, 1)) == 0:
            return nth - 1
    raise AssertionError


@pytest.mark.parametrize(("name", "driver"), VARIANTS, ids=[f"{name}-{driver}" for name, driver in VARIANTS])
def test_a_call_never_says_not_applied_after_a_write_whose_answer_was_lost(name, driver, monkeypatch):
    monkeypatch.setattr("latchwork.primitives.once._RECORD_S", SHORT_S)
    case = CALLS[name]
    writes = next((count for _ in range(TRIES) if (count := writes_of(case, driver)) > 0), 0)
    assert writes > 0, "nothing was written"


def test_every_call_of_the_primitives_and_of_tasks_that_writes_is_swept():
    kinds = [getattr(primitives, name) for name in primitives.__all__]
    kinds = [*(kind for kind in kinds if isinstance(kind, type)), Executor, TaskRef, PlanHandle]
    calls = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for each in kind.__mro__
        for name, value in vars(each).items()
        if is_blocking(value) and not name.startswith("_") and name not in OTHERS
    }
    swept = {name.partition(" ")[0] for name in CALLS}
    assert calls - COMPOSED <= swept


#: How often each of these was done.
COUNTS = {
    "Executor.detached without an id": lambda store: len(list_tasks(store)),
    "PlanHandle.add without a name": lambda store: sum(Plans(store).get("p").status().tasks.values()) - 1,
    "WorkQueue.put": lambda store: WorkQueue(store, "b").size(),
    "Queue.put": lambda store: Queue(store, "q").size(),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_caller_that_repeats_what_was_unavailable_does_nothing_twice(name):
    with Opened() as opened:
        made = CALLS[name].make(opened.store)
        opened.losing.arm(2 if name == "Queue.put" else 1)  # a queue's first use writes its capacity
        with pytest.raises(OutcomeUnknown):
            try:
                CALLS[name].call(made)
            except Unavailable:
                opened.losing.disarm()
                CALLS[name].call(made)
        opened.losing.disarm()
        assert COUNTS[name](opened.clean) == 1


@pytest.mark.parametrize(
    "end", [lambda claim: claim.ack(), lambda claim: claim.release(), lambda claim: claim.move_to_dead_letters()]
)
@pytest.mark.parametrize("take", [claim, taken])
def test_an_end_of_a_claim_is_unknown_when_the_session_ends_behind_its_lost_answer(take, end):
    clock, outcomes = VirtualClock(settle_s=5.0), []
    with Opened(clock) as opened:
        held = take(opened.store)
        opened.losing.arm(1)
        ending = threading.Thread(target=lambda: outcomes.append(outcome_of(end, (held,), "thread")))
        ending.start()
        while not opened.losing.is_lost:
            clock.settle()
        opened.store.cut_off()
        clock.advance(2 * opened.store.session.ttl_s)
        ending.join(WAIT_S)
        outcomes.append(outcome_of(end, (held,), "thread"))
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, OutcomeUnknown]


@pytest.fixture(params=SERVERS)
def server(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ["WorkQueue.put", "QueueClaim.ack", "PlanHandle.add without a name"])
def test_no_call_says_not_applied_when_a_server_applied_it_and_its_answer_was_lost(server, name):
    url = server.url(f"lost-{uuid.uuid4().hex}", call_timeout_s=1)
    with (
        Proxy(server.endpoint) as proxy,
        latchwork.connect(url) as clean,
        latchwork.connect(url.replace(server.endpoint, proxy.endpoint)) as store,
    ):
        store.put("first", b"")  # what a client writes once
        made = CALLS[name].make(store)
        before = state_of(clean)
        seen = system_namespace(clean, "plans") if name.startswith("Plan") else clean
        with seen.watch("") as watch:
            watch.next(WAIT_S)
            watch.subscribe(lambda _batch: proxy.drop("answers"))  # it is applied, and its answer is on its way
            proxy.delay(0.1, "answers")
            outcome = outcome_of(CALLS[name].call, (made,), "thread")
        assert state_of(clean) != before
        assert not isinstance(outcome, NOT_DONE), outcome
        proxy.release()
