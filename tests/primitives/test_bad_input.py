"""Bad input and misuse, the same at every primitive: a clear error at once, and never a hang. Memory is enough."""

from __future__ import annotations

import contextlib
import logging
import math
from queue import Queue as Mailbox

import pytest

import latchwork
from latchwork.errors import Closed, InvalidKey, LatchworkError
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
from latchwork.types import Create

MAKERS = {
    "Lock": lambda store, name="a": Lock(store, name),
    "ReadWriteLock.read": lambda store, name="a": ReadWriteLock(store, name).read,
    "ReadWriteLock.write": lambda store, name="a": ReadWriteLock(store, name).write,
    "Semaphore": lambda store, name="a": Semaphore(store, name, leases=1),
    "PersistentLock": lambda store, name="a": PersistentLock(store, name),
    "LockKeeper": lambda store, name="a": LockKeeper(store),
    "LeaderLatch": lambda store, name="a": LeaderLatch(store, name, node_id="n"),
    "Election": lambda store, name="a": Election(store, name, node_id="n"),
    "Barrier": lambda store, name="a": Barrier(store, name, parties=2, member_id="m"),
    "DoubleBarrier": lambda store, name="a": DoubleBarrier(store, name, parties=2, member_id="m"),
    "Group": lambda store, name="a": Group(store, name, member_id="m"),
    "Queue": lambda store, name="a": Queue(store, name),
    "PriorityQueue": lambda store, name="a": PriorityQueue(store, name),
    "WorkQueue": lambda store, name="a": WorkQueue(store, name),
    "Once": lambda store, name="a": Once(store, name),
    "RateLimiter": lambda store, name="a": RateLimiter(store, name, permits=1, interval_s=60),
    "Counter": lambda store, name="a": Counter(store, name),
    "Sequence": lambda store, name="a": Sequence(store, name),
}
WAITS = {
    **{name: lambda one, s: one.acquire(s) for name in ("Lock", "ReadWriteLock.read", "ReadWriteLock.write")},
    "Semaphore": lambda one, s: one.acquire(s),
    "PersistentLock": lambda one, s: one.acquire(s),
    "LockKeeper": lambda one, s: one.acquire("a", s),
    "LeaderLatch": lambda one, s: one.wait(s),
    "Election": lambda one, s: one.campaign(timeout_s=s),
    "Barrier": lambda one, s: one.wait(s),
    "DoubleBarrier": lambda one, s: one.enter(s),
    "Group": lambda one, s: one.wait(s),
    "Queue": lambda one, s: one.take(s),
    "PriorityQueue": lambda one, s: one.take(s),
    "WorkQueue": lambda one, s: one.wait_free("any", s),
    "Once": lambda one, s: one.run(lambda _work: b"", timeout_s=s),
    "RateLimiter": lambda one, s: one.acquire(timeout_s=s),
}
CHANGES = {
    "Counter": lambda one, s: one.add(timeout_s=s),
    "Sequence": lambda one, s: one.take(lambda number: [Create(f"ids/{number}", b"")], timeout_s=s),
}
HELD_BY_ONE = {"Lock", "ReadWriteLock.write", "Semaphore", "PersistentLock", "LockKeeper", "Election"}


@pytest.fixture
def store():
    with latchwork.connect("memory://bad-input/test") as opened:
        yield opened
        for key in opened.children(""):
            opened.delete_tree(key)


def started(name, store):
    one = MAKERS[name](store)
    if hasattr(one, "start"):
        one.start()
    return one


@pytest.mark.parametrize("timeout_s", [-1, -0.001, math.nan])
@pytest.mark.parametrize("name", [*WAITS, *CHANGES])
def test_a_time_below_zero_is_refused_instead_of_being_taken_for_ever_or_none(store, name, timeout_s):
    one = started(name, store)
    with pytest.raises(ValueError, match="timeout_s must be None or at least 0 seconds"):
        {**WAITS, **CHANGES}[name](one, timeout_s)
    getattr(one, "close", lambda: None)()


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("name", WAITS)
def test_a_flag_for_blocking_is_refused_instead_of_being_taken_for_seconds(store, name, flag):
    one = started(name, store)
    with pytest.raises(TypeError, match="timeout_s is in seconds, not"):
        WAITS[name](one, flag)
    one.close()


@pytest.mark.parametrize("name", [name for name in WAITS if name not in {"LeaderLatch", "Group"}])  # they have theirs
def test_waiting_in_a_callback_is_an_error_instead_of_a_hang(store, name):
    holder, one, said = MAKERS[name](store), MAKERS[name](store), Mailbox()
    if name in HELD_BY_ONE:
        WAITS[name](holder, 30.0)

    def callback(_batch):
        try:
            said.put(WAITS[name](one, 30.0))
        except LatchworkError as error:
            said.put(error)

    with store.watch("trigger") as watch:
        watch.subscribe(callback)
        assert "must not be waited for in a callback" in str(said.get(timeout=60.0))
    one.close()
    holder.close()


@pytest.mark.parametrize("name", ["", "/a", "a/", "a b", "@x", "../a", b"orders", None, "é"])
@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "LockKeeper"])
def test_a_name_that_is_no_key_is_refused_before_any_io_and_named(kind, name):
    with pytest.raises(InvalidKey, match=r"name .* cannot be used: "):
        MAKERS[kind](NoIo(), name)


class NoIo:
    """Fails if it is used: construction and bad names do no I/O."""

    clock = None

    def pipeline(self, **_):
        return None


@pytest.mark.parametrize("kind", [*WAITS, *CHANGES])
def test_a_closed_store_is_said_to_be_closed(kind):
    with latchwork.connect("memory://bad-input/closed") as store:
        one = MAKERS[kind](store)
    with pytest.raises(Closed):
        if hasattr(one, "start"):
            one.start()
        {**WAITS, **CHANGES}[kind](one, 5.0)
    getattr(one, "close", lambda: None)()


USES = {
    **{
        f"{kind}.on_lost": (kind, lambda one: one.on_lost(print))
        for kind in ("Lock", "ReadWriteLock.read", "ReadWriteLock.write", "Semaphore", "PersistentLock", "LockKeeper")
    },
    "Semaphore.resize": ("Semaphore", lambda one: one.resize(9)),
    "PersistentLock.on_renewal_failed": ("PersistentLock", lambda one: one.on_renewal_failed(print)),
    "PersistentLock.adopt": ("PersistentLock", lambda one: one.adopt("0" * 32, 0)),
    "LockKeeper.start": ("LockKeeper", lambda one: one.start()),
    "LockKeeper.try_acquire": ("LockKeeper", lambda one: one.try_acquire("a")),
    "LockKeeper.try_acquire_many": ("LockKeeper", lambda one: one.try_acquire_many(["a"])),
    "LockKeeper.adopt": ("LockKeeper", lambda one: one.adopt("0" * 32, timeout_s=0)),
    "LockKeeper.when_free": ("LockKeeper", lambda one: one.when_free("a", print)),
    "LockKeeper.sweep": ("LockKeeper", lambda one: one.sweep()),
    "LockKeeper.on_renewal_failed": ("LockKeeper", lambda one: one.on_renewal_failed(print)),
    "LeaderLatch.start": ("LeaderLatch", lambda one: one.start()),
    "LeaderLatch.run": ("LeaderLatch", lambda one: one.run(print)),
    "LeaderLatch.on_elected": ("LeaderLatch", lambda one: one.on_elected(print)),
    "LeaderLatch.on_revoked": ("LeaderLatch", lambda one: one.on_revoked(print)),
    "Election.run": ("Election", lambda one: one.run(print)),
    "Election.observe": ("Election", lambda one: one.observe()),
    **{
        f"{kind}.{method}": (kind, lambda one, method=method: getattr(one, method)())
        for kind, methods in {
            "Barrier": ("abort", "generation", "arrived"),
            "DoubleBarrier": ("leave", "abort", "round", "members"),
            "Queue": ("size", "items", "claims", "dead_letters"),
            "PriorityQueue": ("size", "items", "claims", "dead_letters"),
            "WorkQueue": ("size", "items", "claims", "dead_letters", "partitions"),
            "Once": ("outcome", "reset"),
            "RateLimiter": ("issued",),
        }.items()
        for method in methods
    },
    "Group.start": ("Group", lambda one: one.start()),
    "Group.wait_until": ("Group", lambda one: one.wait_until(lambda _view: False)),
    "Group.update": ("Group", lambda one: one.update(weight=5.0)),
    "Group.on_view": ("Group", lambda one: one.on_view(print)),
    **{
        f"{kind}.{method}": (kind, lambda one, use=use: use(one))
        for kind in ("Queue", "PriorityQueue")
        for method, use in {
            "put": lambda one: one.put(b""),
            "put_many": lambda one: one.put_many([b""]),
            "requeue": lambda one: one.requeue("5-000000000001"),
            "drop": lambda one: one.drop("5-000000000001"),
        }.items()
    },
    "WorkQueue.put": ("WorkQueue", lambda one: one.put("any", "s", "1", b"")),
    "WorkQueue.take": ("WorkQueue", lambda one: one.take("any", 0)),
    "WorkQueue.try_take": ("WorkQueue", lambda one: one.try_take(["any"])),
    "WorkQueue.find": ("WorkQueue", lambda one: one.find("any", "s", "1")),
    "WorkQueue.requeue": ("WorkQueue", lambda one: one.requeue("1")),
    "WorkQueue.drop": ("WorkQueue", lambda one: one.drop("1")),
}


@pytest.mark.parametrize("name", [*WAITS, *USES])
def test_a_closed_object_says_so_and_changes_nothing(store, name):
    kind, use = USES.get(name, (name, lambda one: WAITS[name](one, 5.0)))
    one = started(kind, store)
    one.close()
    one.close()
    before = store.list("", recursive=True)
    with pytest.raises(Closed, match=r"was closed|not in the queue"):
        use(one)
    assert store.list("", recursive=True) == before


def test_closing_a_read_write_lock_closes_both_sides(store):
    lock = ReadWriteLock(store, "a")
    lock.close()
    for side in (lock.read, lock.write):
        with pytest.raises(Closed):
            side.acquire(5.0)


LOOKS = {
    "Lock": ("holder", "waiters", "remaining_s"),
    "Semaphore": ("size", "holders", "waiters", "remaining_s"),
    "PersistentLock": ("holder", "remaining_s"),
    "LockKeeper": ("held", "holders", "awaited_locks", "remaining_s"),
    "LeaderLatch": ("leader", "candidates", "remaining_s"),
    "Election": ("leader", "candidates"),
    "Group": ("members",),
    "Queue": ("waiting_consumers", "waiting_producers"),
    "WorkQueue": ("waiting_producers",),
    "Once": ("runner", "waiters"),
    "RateLimiter": ("waiters",),
}


@pytest.mark.parametrize(("kind", "look"), [(kind, look) for kind, looks in LOOKS.items() for look in looks])
def test_who_is_there_can_be_asked_of_a_closed_object(store, kind, look):
    one = MAKERS[kind](store)
    one.close()
    assert not getattr(one, look)()


@pytest.mark.parametrize(
    "change",
    [
        lambda counter: counter.add(0.5),
        lambda counter: counter.add(True),
        lambda counter: counter.put("7"),
        lambda counter: counter.compare_and_set(0, 1.0),
    ],
    ids=["add", "flag", "put", "compare_and_set"],
)
def test_a_counter_refuses_what_it_would_read_back_as_another_number(store, change):
    counter = Counter(store, "a")
    with pytest.raises(TypeError, match="must be a whole number"):
        change(counter)
    assert counter.value() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda store: Semaphore(store, "a", leases=1.5),
        lambda store: Semaphore(store, "a").resize(2.5),
        lambda store: RateLimiter(store, "a", permits=1.5, interval_s=1),
        lambda store: RateLimiter(store, "a", permits=2, interval_s=1).acquire(1.5),
        lambda store: Queue(store, "a", capacity=1.5),
        lambda store: Queue(store, "a", max_attempts=1.5),
        lambda store: WorkQueue(store, "a", max_attempts=1.5),
        lambda store: Once(store, "a", max_starts=1.5),
        lambda store: Barrier(store, "a", parties=1.5, member_id="m"),
        lambda store: Sequence(store, "a").take(lambda _number: [], count=1.5),
        lambda store: Group(store, "a", member_id="m", address=None),
    ],
)
def test_what_is_no_whole_number_or_no_text_is_refused(store, make):
    with pytest.raises(TypeError, match="must be"):
        make(store)


@pytest.mark.parametrize("node_id", [b"n1", None, 5, ""])
@pytest.mark.parametrize("kind", [LeaderLatch, Election])
def test_a_node_id_that_is_no_text_is_refused_before_any_io(kind, node_id):
    with pytest.raises(InvalidKey, match=r"node id .* cannot be used: it must be text, and not empty"):
        kind(NoIo(), "a", node_id=node_id)


@pytest.mark.parametrize("node_id", ["a/b", "10.0.0.1:80", "n 1", "größe"])
def test_a_node_id_is_no_key_and_may_be_any_text(store, node_id):
    with LeaderLatch(store, "latch", node_id=node_id) as latch:
        latch.wait(45.0)
        assert latch.leader().node_id == node_id
    election = Election(store, "election", node_id=node_id)
    with election.campaign(timeout_s=5.0):
        assert election.leader().node_id == node_id


@pytest.mark.parametrize("member_id", [b"n1", None, 5, "", "a/b"])
@pytest.mark.parametrize("kind", [Barrier, DoubleBarrier])
def test_a_member_id_that_is_no_segment_of_a_key_is_refused_before_any_io(kind, member_id):
    with pytest.raises(InvalidKey, match=r"member name .* cannot be used"):
        kind(NoIo(), "a", parties=1, member_id=member_id)


@pytest.mark.parametrize("label", [b"n1", None, 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda label: Lock(NoIo(), "a", label=label),
        lambda label: ReadWriteLock(NoIo(), "a", label=label),
        lambda label: Semaphore(NoIo(), "a", label=label),
        lambda label: Queue(NoIo(), "a", label=label),
        lambda label: PriorityQueue(NoIo(), "a", label=label),
        lambda label: WorkQueue(NoIo(), "a", label=label),
        lambda label: Once(NoIo(), "a", label=label),
        lambda label: RateLimiter(NoIo(), "a", permits=1, interval_s=1, label=label),
        lambda label: PersistentLock(NoIo(), "a", owner_label=label),
        lambda label: LockKeeper(NoIo(), owner_label=label),
    ],
    ids=[
        "Lock",
        "ReadWriteLock",
        "Semaphore",
        "Queue",
        "PriorityQueue",
        "WorkQueue",
        "Once",
        "RateLimiter",
        "Persistent",
        "Keeper",
    ],
)
def test_a_label_that_is_no_text_is_refused_before_any_io(make, label):
    with pytest.raises(TypeError, match=r"label.* must be text, not "):
        make(label)


@pytest.mark.parametrize("value", ["text", None, 5, bytearray(b"x")])
def test_a_leaders_value_that_is_no_bytes_is_refused_and_changes_nothing(store, value):
    election = Election(store, "a", node_id="n")
    for campaign in (election.campaign, lambda value: election.run(lambda _term, _work: None, value)):
        with pytest.raises(TypeError, match=r"the value of election 'a' must be bytes, not .*; encode it first"):
            campaign(value)
    assert election.candidates() == []
    with election.campaign(b"old", timeout_s=5.0) as term:
        with pytest.raises(TypeError, match="must be bytes"):
            term.proclaim(value)
        assert election.leader().value == b"old"


@pytest.mark.parametrize(
    "end",
    [
        lambda store: Barrier(store, "a", parties=1, member_id="m").abort(b"why"),
        lambda store: DoubleBarrier(store, "a", parties=1, member_id="m").abort(b"why"),
        lambda store: taken(store).release(b"why"),
        lambda store: taken(store).move_to_dead_letters(b"why"),
        lambda store: taken_from_backlog(store).release(b"why"),
        lambda store: taken_from_backlog(store).move_to_dead_letters(b"why"),
    ],
    ids=[
        *("Barrier.abort", "DoubleBarrier.abort", "claim of a queue.release", "claim of a queue.move_to_dead_letters"),
        *("QueueClaim.release", "QueueClaim.move_to_dead_letters"),
    ],
)
def test_a_reason_that_is_no_text_is_refused(store, end):
    with pytest.raises(TypeError, match="the reason must be text, not b'why'"):
        end(store)


def taken(store):
    """The claim of the only item of a queue."""
    queue = Queue(store, "a")
    queue.put(b"")
    return queue.take(5.0)


def taken_from_backlog(store):
    """The claim of the only item of a work queue."""
    backlog = WorkQueue(store, "a")
    backlog.put("any", "s", "1", b"")
    return backlog.try_take(["any"])[0]


@pytest.mark.parametrize("make", [LockKeeper, lambda store, ttl_s: PersistentLock(store, "a", ttl_s=ttl_s)])
def test_a_ttl_below_the_least_is_raised_to_it_with_a_warning(store, make, caplog):
    with caplog.at_level(logging.WARNING):
        one = make(store, ttl_s=0.01)
    assert "a TTL of 0.01 s is raised to the minimum, 0.3 s" in caplog.text
    held = one.acquire("a", 5.0) if hasattr(one, "try_acquire_many") else one  # of a keeper
    if held is one:
        one.acquire(5.0)
        assert one.holder().ttl_s == 0.3
    else:
        assert one.state("a").holder.ttl_s == 0.3
    assert 0 < held.remaining_s() <= 0.3
    one.close()


@pytest.mark.parametrize("ttl_s", [0, -1.0, math.nan, math.inf])
def test_a_ttl_that_is_no_time_is_refused(ttl_s):
    with pytest.raises(ValueError, match="must be more than 0 seconds"):
        LockKeeper(NoIo(), ttl_s=ttl_s)
    with pytest.raises(ValueError, match="must be more than 0 seconds"):
        PersistentLock(NoIo(), "a", ttl_s=ttl_s)


def test_a_session_of_another_store_is_refused(store):
    with latchwork.connect("memory://bad-input-elsewhere/test") as other:
        lock = Lock(store, "a", session=other.session)
        with pytest.raises(LatchworkError):
            lock.acquire(0)


async def forgotten(*_):
    """Nobody awaits it."""


@pytest.mark.parametrize("wrong", [None, 7, forgotten, lambda: None])
@pytest.mark.parametrize("kind", [LeaderLatch, Election])
def test_what_cannot_be_run_by_a_leader_is_refused_at_once(kind, wrong):
    with latchwork.connect("memory://refused-leaders") as store:
        leader = kind(store, "leads", node_id="n1")
        with pytest.raises(TypeError, match="leads"):
            leader.run(wrong, timeout_s=0.0)


METHODS = ("acquire", "take", "run", "wait", "wait_free", "put")


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_url_in_the_place_of_a_store_is_refused_by_name_and_not_shown(name):
    with pytest.raises(TypeError, match=r"needs a store, not a URL; open one first: latchwork.connect\(url\)") as error:
        MAKERS[name]("etcd://me:s3cret@h:1")
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("name", sorted(WAITS))
def test_a_time_by_another_librarys_name_is_refused_with_ours(name):
    with latchwork.connect("memory://names") as store, contextlib.closing(MAKERS[name](store)) as one:
        others = {"LeaderLatch": "wait", "Election": "campaign", "Barrier": "wait", "DoubleBarrier": "enter"}
        method = getattr(one, others.get(name) or next(each for each in METHODS if hasattr(one, each)))
        with pytest.raises(TypeError, match=r"\(\) has no argument 'timeout'; it is timeout_s, in seconds"):
            method(*(["any"] if method.__name__ == "wait_free" else []), timeout=5)
        with pytest.raises(TypeError, match=r"unexpected keyword argument|missing 1 required"):
            method(tiemout_s=5)
