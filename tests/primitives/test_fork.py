"""What a child of a fork gets from the primitives of its parent: a clear error at once, and never a hang.

The child is forked at the worst moment: every mutex of the object is held, by a thread that the child does not have.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from contextlib import ExitStack, contextmanager

import pytest

from latchwork.errors import ForkedProcess, LockLost, NotLeader, OutcomeUnknown
from latchwork.primitives import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Group,
    LeaderLatch,
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
from latchwork.types import Put

#: Seconds for one call in the child before it counts as hanging: a call there fails without any I/O.
HANG_S = 20
_MUTEXES = (type(threading.Lock()), type(threading.RLock()), threading.Condition)


def mutexes(thing, seen=None):
    """Every mutex that an object of the primitives, and those that it is made of, has."""
    seen = {} if seen is None else seen
    if id(thing) in seen or not type(thing).__module__.startswith("latchwork.primitives"):
        return []
    seen[id(thing)] = thing
    slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    values = [*vars(thing).values()] if hasattr(thing, "__dict__") else [getattr(thing, name) for name in slots]
    found = [value for value in values if isinstance(value, _MUTEXES)]
    for value in values:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | set) else [value]
        found += [mutex for each in list(inner) for mutex in mutexes(each, seen)]
    return found


@contextmanager
def held_by_another_thread(found):
    """Hold them in a thread of its own, as a busy thread would at the moment of a fork."""
    ready, done = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as stack:
            for mutex in found:
                stack.enter_context(mutex)
            ready.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        done.set()
        thread.join()


def run_in_fork(thing, calls):
    """Fork, and make the calls in the child: what each gave or raised, by name."""
    reader, writer = os.pipe()
    with held_by_another_thread(mutexes(thing)):
        pid = os.fork()
        if pid == 0:
            try:
                said = {}
                for name, call in calls.items():
                    os.write(writer, b"")
                    signal.alarm(HANG_S)  # a hang ends the child
                    try:
                        said[name] = repr(call())
                    except BaseException as error:
                        said[name] = type(error).__name__
                    os.write(writer, (json.dumps({name: said[name]}) + "\n").encode())
            finally:
                os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        heard = {}
        while select.select([pipe], [], [], 2 * HANG_S)[0]:
            line = pipe.readline()
            if not line:
                break
            heard.update(json.loads(line))
    _, status = os.waitpid(pid, 0)
    unheard = [name for name in calls if name not in heard]
    assert status == 0, f"the child hung in {unheard[0] if unheard else 'its end'}"
    return heard


def refused(thing, calls, *, quiet=()):
    """Each call raises ForkedProcess in a child, and the quiet ones give what is expected."""
    quiet = dict(quiet)
    heard = run_in_fork(thing, {**calls, **{name: call for name, (call, _) in quiet.items()}})
    assert heard == {**dict.fromkeys(calls, "ForkedProcess"), **{name: want for name, (_, want) in quiet.items()}}


def lost(error):
    return error.__name__


def ownership(held, error):
    """What every ownership says of itself in a child: it is not ours."""
    return {
        "remaining_s": (held.remaining_s, "0.0"),
        "lost": (lambda: held.lost.wait(HANG_S / 2), "True"),
        "fence": (lambda: held.fence, lost(error)),
        "guard_work": (held.guard_work, lost(error)),
        "repr": (lambda: repr(held)[:0], "''"),
        "close": (held.close, "None"),
    }


def test_a_lock_is_refused(store):
    lock = Lock(store, "a")
    with lock:
        refused(
            lock,
            {
                "acquire": lock.acquire,
                "release": lock.release,
                "on_lost": lambda: lock.on_lost(print),
                "holder": lock.holder,
                "waiters": lock.waiters,
                "a with": lock.__enter__,
                "the end of a with": lambda: lock.__exit__(None, None, None),
            },
            quiet={"is_held": (lambda: lock.is_held, "False"), **ownership(lock, LockLost)},
        )
        assert lock.is_held


def test_work_is_told_to_stop(store):
    lock = Lock(store, "a")
    with lock, lock.guard_work() as work:
        heard = run_in_fork(
            work,
            {
                "wait": lambda: work.wait(None),
                "stopped": lambda: work.stopped.wait(HANG_S / 2),
                "is_stopped": lambda: work.is_stopped,
                "check": work.raise_if_stopped,
                "end": lambda: work.__exit__(None, None, None),
            },
        )
        assert heard == {"wait": "True", "stopped": "True", "is_stopped": "True", "check": "LockLost", "end": "None"}
        assert not work.is_stopped


def test_both_sides_of_a_read_write_lock_are_refused(store):
    lock = ReadWriteLock(store, "a")
    with lock.write:
        refused(
            lock,
            {
                "read": lock.read.acquire,
                "write": lock.write.acquire,
                "downgrade": lock.downgrade,
                "release": lock.write.release,
                "holders": lock.holders,
                "waiters": lock.waiters,
            },
            quiet={
                "is_held": (lambda: lock.write.is_held, "False"),
                "close": (lock.close, "None"),
                "repr": (lambda: repr(lock)[:0], "''"),
            },
        )
        assert lock.write.is_held


def test_a_semaphore_is_refused(store):
    semaphore = Semaphore(store, "a", leases=2)
    with semaphore:
        refused(
            semaphore,
            {
                "acquire": semaphore.acquire,
                "release": semaphore.release,
                "resize": lambda: semaphore.resize(3),
                "size": semaphore.size,
                "holders": semaphore.holders,
            },
            quiet={"is_held": (lambda: semaphore.is_held, "False"), **ownership(semaphore, LockLost)},
        )
        assert semaphore.size() == 2


def test_a_latch_is_refused(store):
    with LeaderLatch(store, "a", node_id="n1") as latch:
        latch.wait(30.0)
        refused(
            latch,
            {
                "start": latch.start,
                "wait": latch.wait,
                "run": lambda: latch.run(print),
                "on_elected": lambda: latch.on_elected(print),
                "on_revoked": lambda: latch.on_revoked(print),
                "candidates": latch.candidates,
                "leader": latch.leader,
            },
            quiet={
                "is_leader": (lambda: latch.is_leader, "False"),
                "remaining_s": (latch.remaining_s, "0.0"),
                "fence": (lambda: latch.fence, lost(NotLeader)),
                "guard_work": (latch.guard_work, lost(NotLeader)),
                "leave": (latch.leave, "None"),
                "close": (latch.close, "None"),
            },
        )
        assert latch.is_leader


def test_an_election_and_its_term_are_refused(store):
    election = Election(store, "a", node_id="n1")
    with election.campaign(b"me", timeout_s=30.0) as term, election.observe() as seen:
        seen.next(30.0)
        refused(
            election,
            {
                "campaign": election.campaign,
                "run": lambda: election.run(print),
                "observe": election.observe,
                "leader": election.leader,
                "resign": term.resign,
            },
            quiet={
                "is_leader": (lambda: term.is_leader, "False"),
                "proclaim": (lambda: term.proclaim(b"x"), lost(NotLeader)),
                **ownership(term, NotLeader),
                "closing the election": (election.close, "None"),
            },
        )
        assert term.is_leader


def test_a_persistent_lock_is_refused(store):
    lock = PersistentLock(store, "a", ttl_s=30.0)
    with lock:
        refused(
            lock,
            {
                "acquire": lock.acquire,
                "adopt": lambda: lock.adopt("0" * 32),
                "release": lock.release,
                "on_lost": lambda: lock.on_lost(print),
                "on_renewal_failed": lambda: lock.on_renewal_failed(print),
                "holder": lock.holder,
                "a with": lock.__enter__,
                "the end of a with": lambda: lock.__exit__(None, None, None),
            },
            quiet={
                "is_held": (lambda: lock.is_held, "False"),
                "the end of a with that failed": (lambda: lock.__exit__(OSError, OSError(), None), "None"),
                **ownership(lock, LockLost),
            },
        )
        assert lock.is_held


def test_a_lock_keeper_and_its_holds_are_refused(store):
    with LockKeeper(store, ttl_s=30.0) as keeper:
        held = keeper.acquire("a", 30.0)
        refused(
            keeper,
            {
                "start": keeper.start,
                "acquire": lambda: keeper.acquire("b"),
                "try_acquire": lambda: keeper.try_acquire("b"),
                "adopt": lambda: keeper.adopt("0" * 32),
                "release": lambda: keeper.release(["a"]),
                "when_free": lambda: keeper.when_free("b", print),
                "on_lost": lambda: keeper.on_lost(print),
                "on_renewal_failed": lambda: keeper.on_renewal_failed(print),
                "state": lambda: keeper.state("a"),
                "holders": keeper.holders,
                "sweep": keeper.sweep,
                "release of a hold": held.release,
                "guard_work of a hold": held.guard_work,
            },
            quiet={
                "held": (keeper.held, "{}"),
                "is_held": (lambda: held.is_held, "False"),
                "remaining_s": (keeper.remaining_s, "0.0"),
                "lost": (lambda: keeper.lost.wait(HANG_S / 2), "True"),
                "repr": (lambda: repr(keeper)[:0], "''"),
                "close": (keeper.close, "None"),
            },
        )
        assert held.is_held


def test_a_counter_and_a_sequence_are_refused(store):
    counter, sequence = Counter(store, "a"), Sequence(store, "b")
    refused(
        counter,
        {
            "value": counter.value,
            "add": counter.add,
            "put": lambda: counter.put(1),
            "compare_and_set": lambda: counter.compare_and_set(0, 1),
        },
    )
    refused(sequence, {"last": sequence.last, "take": lambda: sequence.take(lambda n: [Put(f"c/{n}", b"")])})
    assert (counter.value(), sequence.last()) == (0, 0)


@pytest.mark.threads
@pytest.mark.parametrize("kind", [Barrier, DoubleBarrier])
def test_a_barrier_is_refused(store, kind):
    barrier = kind(store, "a", parties=2, member_id="m")
    calls = {"wait": barrier.wait} if kind is Barrier else {"enter": barrier.enter, "leave": barrier.leave}
    refused(barrier, {**calls, "abort": barrier.abort}, quiet={"close": (barrier.close, "None")})


def test_a_group_is_refused(store):
    with Group(store, "a", member_id="m") as group:
        group.wait(30.0)
        refused(
            group,
            {
                "start": group.start,
                "wait": group.wait,
                "wait_until": lambda: group.wait_until(lambda _view: False),
                "wait_joined": group.wait_joined,
                "sync": group.sync,
                "evict": lambda: group.evict("m"),
                "remove": group.remove,
                "update": lambda: group.update(weight=2.0),
                "members": group.members,
                "on_view": lambda: group.on_view(print),
            },
            quiet={"close": (group.close, "None"), "repr": (lambda: repr(group)[:0], "''")},
        )
        assert group.members()[0].weight == 1.0


@pytest.mark.parametrize("kind", [Queue, PriorityQueue])
def test_a_queue_and_its_claim_are_refused(store, kind):
    queue = kind(store, "a")
    queue.put(b"1")
    claim = queue.take(30.0)
    refused(
        queue,
        {
            "put": lambda: queue.put(b"2"),
            "take": queue.take,
            "size": queue.size,
            "items": queue.items,
            "claims": queue.claims,
            "dead_letters": queue.dead_letters,
            "requeue": lambda: queue.requeue("5-000000000001"),
            "drop": lambda: queue.drop("5-000000000001"),
            "waiting_consumers": queue.waiting_consumers,
        },
        quiet={"close": (queue.close, "None")},
    )
    refused(
        claim,
        {
            "ack": claim.ack,
            "release": claim.release,
            "move_to_dead_letters": claim.move_to_dead_letters,
            "on_lost": lambda: claim.on_lost(print),
            "the end of a with": lambda: claim.__exit__(None, None, None),
        },
        quiet={
            "is_held": (lambda: claim.is_held, "False"),
            "lost": (lambda: claim.lost.wait(HANG_S / 2), "True"),
            "the end of a with that failed": (lambda: claim.__exit__(OSError, OSError(), None), "None"),
            "guard_work": (lambda: claim.guard_work().is_stopped, "ForkedProcess"),
        },
    )
    claim.ack()


def test_a_work_queue_and_its_claim_are_refused(store):
    backlog = WorkQueue(store, "a")
    backlog.put("any", "s", "1", b"1")
    (claim,) = backlog.try_take(["any"])
    item = backlog.find("any", "s", "1")
    part = claim.prepare_ack()
    part.mark_not_committed()
    refused(
        backlog,
        {
            "put": lambda: backlog.put("any", "s", "2", b""),
            "take": lambda: backlog.take("any", 0),
            "try_take": lambda: backlog.try_take(["any"]),
            "wait_free": lambda: backlog.wait_free("any", 0),
            "remove": lambda: backlog.remove(item),
            "find": lambda: backlog.find("any", "s", "1"),
            "holder": lambda: backlog.holder(item),
            "size": backlog.size,
            "partitions": backlog.partitions,
            "items": backlog.items,
            "claims": backlog.claims,
            "dead_letters": backlog.dead_letters,
            "requeue": lambda: backlog.requeue("1"),
            "drop": lambda: backlog.drop("1"),
            "waiting_consumers": lambda: backlog.waiting_consumers("any"),
        },
        quiet={"close": (backlog.close, "None")},
    )
    refused(
        claim,
        {
            "ack": claim.ack,
            "release": claim.release,
            "move_to_dead_letters": claim.move_to_dead_letters,
            "prepare_ack": claim.prepare_ack,
            "landed": lambda: part.was_committed(OutcomeUnknown("cut")),
            "on_lost": lambda: claim.on_lost(print),
            "the end of a with": lambda: claim.__exit__(None, None, None),
        },
        quiet={
            "is_held": (lambda: claim.is_held, "False"),
            "lost": (lambda: claim.lost.wait(HANG_S / 2), "True"),
            "the end of a with that failed": (lambda: claim.__exit__(OSError, OSError(), None), "None"),
            "guard_work": (lambda: claim.guard_work().is_stopped, "ForkedProcess"),
        },
    )
    claim.ack()


def test_once_is_refused(store):
    once = Once(store, "a")
    refused(
        once,
        {"run": lambda: once.run(lambda _work: b""), "outcome": once.outcome, "reset": once.reset},
        quiet={"close": (once.close, "None")},
    )
    assert once.outcome() is None


def test_a_rate_limiter_is_refused(store):
    with RateLimiter(store, "a", permits=5, interval_s=60) as limiter:
        limiter.acquire(timeout_s=30.0)
        refused(
            limiter,
            {"acquire": limiter.acquire, "issued": limiter.issued, "waiters": limiter.waiters},
            quiet={"close": (limiter.close, "None")},
        )
        assert limiter.issued() == 1


def test_the_error_says_who_made_it_and_what_to_do(store):
    lock = Lock(store, "a")
    lock._home.is_foreign = True
    with pytest.raises(ForkedProcess, match=r"lock 'a' was made by process \d+ before a fork; connect again"):
        lock.acquire()
