"""What is interrupted, and what has to be true afterwards: whatever was asked for is held and known, or gone.

A play makes its calls with ``mine``. Afterwards it gives back what it knows that it holds, and another client must be
able to do the same, long before any session of ``mine`` ends.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from latchwork import primitives as p
from latchwork.errors import LockLost, WaitTimeout
from patience import eventually
from trials.interrupts.play import WAIT_S, Play
from trials.interrupts.plays_of_many import barriers, double_barriers, groups, numbers, onces
from trials.interrupts.plays_of_watchers import keepers, mirrors, observers

if TYPE_CHECKING:
    from collections.abc import Callable

    from latchwork import Store


def _with(lock: Any, *_: object) -> None:
    with lock:
        pass


def _acquired(lock: Any, *_: object) -> None:
    lock.acquire(WAIT_S)


def _had(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(mine: Store, name: str) -> Any:
        lock = make(mine, name)
        lock.acquire(WAIT_S)
        return lock

    return made


def _released(lock: Any, *_: object) -> None:
    lock.release()


def _gone(make: Callable[..., Any]) -> Callable[..., Any]:
    """Others can have it although we gave nothing back."""

    def after(lock: Any, _mine: Store, other: Store, name: str) -> None:
        assert not lock.is_held, "it is held by a `with` that did not begin"
        theirs = make(other, name)
        theirs.acquire(WAIT_S)
        theirs.release()

    return after


def _gone_or_known(make: Callable[..., Any]) -> Callable[..., Any]:
    def after(lock: Any, mine: Store, other: Store, name: str) -> None:
        if lock.is_held:
            lock.release()
        _gone(make)(lock, mine, other, name)

    return after


def _locks() -> list[Play]:
    kinds: dict[str, Callable[..., Any]] = {
        "Lock": p.Lock,
        "Semaphore": lambda store, name: p.Semaphore(store, name, leases=1),
        "read": lambda store, name: p.ReadWriteLock(store, name).read,
        "write": lambda store, name: p.ReadWriteLock(store, name).write,
        "PersistentLock": lambda store, name: p.PersistentLock(store, name, ttl_s=30.0),
    }
    rivals = {**kinds, "read": kinds["write"]}
    plays = []
    for kind, make in kinds.items():
        rival = rivals[kind]
        plays += [
            Play(f"{kind}.with", make, _with, _gone(rival)),
            Play(f"{kind}.acquire", make, _acquired, _gone_or_known(rival)),
            Play(f"{kind}.release", _had(make), _released, _gone_or_known(rival)),
            Play(f"{kind}.close", _had(make), lambda lock, *_: lock.close(), _gone(rival)),
        ]
    return plays


def _in_vain() -> list[Play]:
    """Waits for what another has; it is free at once when that one gives it back."""
    kinds: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "Lock": (p.Lock, p.Lock),
        "Semaphore": (lambda store, name: p.Semaphore(store, name, leases=1),) * 2,
        "read": (lambda store, name: p.ReadWriteLock(store, name).read, lambda s, name: p.ReadWriteLock(s, name).write),
        "write": (lambda s, name: p.ReadWriteLock(s, name).write, lambda s, name: p.ReadWriteLock(s, name).read),
        "PersistentLock": (lambda store, name: p.PersistentLock(store, name, ttl_s=30.0),) * 2,
    }

    def play(kind: str, make: Callable[..., Any], rival: Callable[..., Any]) -> Play:
        def made(mine: Store, name: str) -> tuple[Any, Any]:
            first = rival(mine, name)
            first.acquire(WAIT_S)
            return first, make(mine, name)

        def use(both: tuple[Any, Any], *_: object) -> None:
            with suppress(WaitTimeout):
                both[1].acquire(0.02)

        def after(both: tuple[Any, Any], mine: Store, other: Store, name: str) -> None:
            both[0].release()
            _gone(kinds["write"][0] if kind == "read" else make)(both[1], mine, other, name)

        return Play(f"{kind}.acquire in vain", made, use, after)

    def campaign(elections: tuple[p.Election, p.Election], *_: object) -> None:
        with suppress(WaitTimeout):
            elections[1].campaign(timeout_s=0.02)

    def elected(mine: Store, name: str) -> tuple[p.Election, p.Election]:
        first = p.Election(mine, name, node_id="first")
        first.campaign(timeout_s=WAIT_S)
        return first, p.Election(mine, name, node_id="second")

    def resigned(elections: tuple[p.Election, p.Election], _mine: Store, other: Store, name: str) -> None:
        elections[0].close()
        p.Election(other, name, node_id="third").campaign(timeout_s=WAIT_S).resign()

    def take(queue: p.Queue, *_: object) -> None:
        with suppress(WaitTimeout):
            queue.take(0.02)

    def empty(_queue: p.Queue, _mine: Store, other: Store, name: str) -> None:
        queue = p.Queue(other, name)
        queue.put(b"item")
        with queue.take(WAIT_S):
            pass

    return [
        *(play(kind, make, rival) for kind, (make, rival) in kinds.items()),
        Play("Election.campaign in vain", elected, campaign, resigned),
        Play("Queue.take in vain", p.Queue, take, empty),
        Play("PriorityQueue.take in vain", p.PriorityQueue, take, empty),
    ]


def _downgrade() -> list[Play]:
    def written(store: Store, name: str) -> p.ReadWriteLock:
        lock = p.ReadWriteLock(store, name)
        lock.write.acquire(WAIT_S)
        return lock

    def after(lock: p.ReadWriteLock, _mine: Store, other: Store, name: str) -> None:
        held = [side for side in (lock.read, lock.write) if side.is_held]
        assert len(held) == 1, "it is held by none of its sides, or by both"
        held[0].release()
        with p.ReadWriteLock(other, name).write:
            pass

    return [Play("ReadWriteLock.downgrade", written, lambda lock, *_: lock.downgrade(), after)]


def _election() -> list[Play]:
    def make(store: Store, name: str) -> p.Election:
        return p.Election(store, name, node_id=f"node-{id(store)}")

    def elected(store: Store, name: str) -> p.Election:
        ours = make(store, name)
        ours.campaign(timeout_s=WAIT_S)
        return ours

    def after(_ours: p.Election, _mine: Store, other: Store, name: str) -> None:
        theirs = make(other, name)
        theirs.campaign(timeout_s=WAIT_S).resign()

    return [
        Play("Election.run", make, lambda ours, *_: ours.run(lambda _term, _work: None, timeout_s=WAIT_S), after),
        Play("Election.campaign", make, lambda ours, *_: _campaign(ours), after),
        Play("Election.close", elected, lambda ours, *_: ours.close(), after),
    ]


def _campaign(ours: p.Election) -> None:
    with ours.campaign(timeout_s=WAIT_S):
        pass


def _latch() -> list[Play]:
    def make(store: Store, name: str) -> p.LeaderLatch:
        return p.LeaderLatch(store, name, node_id=f"node-{id(store)}")

    def after(ours: p.LeaderLatch, _mine: Store, other: Store, name: str) -> None:
        ours.close()
        with make(other, name) as theirs:
            theirs.wait(WAIT_S)

    def started(store: Store, name: str) -> p.LeaderLatch:
        latch = make(store, name)
        latch.start()
        latch.wait(WAIT_S)
        return latch

    return [
        Play("LeaderLatch.with", make, _with, after),
        Play("LeaderLatch.run", started, lambda ours, *_: ours.run(lambda _work: None, timeout_s=WAIT_S), after),
        Play("LeaderLatch.leave", started, lambda ours, *_: ours.leave(), after),
        Play("LeaderLatch.close", started, lambda ours, *_: ours.close(), after),
    ]


def _queue() -> list[Play]:
    def filled(store: Store, name: str) -> p.Queue:
        queue = p.Queue(store, name)
        queue.put(b"item")
        return queue

    def taken(store: Store, name: str) -> p.QueueClaim:
        return filled(store, name).take(WAIT_S)

    def take(queue: p.Queue, *_: object) -> None:
        with queue.take(WAIT_S):
            pass

    def done(_ours: object, _mine: Store, other: Store, name: str) -> None:
        queue = p.Queue(other, name)
        for _ in range(4):
            with suppress(WaitTimeout), queue.take(0.0 if queue.size() == 0 else WAIT_S):
                pass
        assert queue.size() == 0, "an item that nobody can have"

    def ended(claim: p.QueueClaim, mine: Store, other: Store, name: str) -> None:
        if claim.is_held:
            with suppress(LockLost):
                claim.release()
        done(claim, mine, other, name)

    def put(queue: p.Queue, *_: object) -> None:
        queue.put(b"item")

    return [
        Play("Queue.put", p.Queue, put, done),
        Play("Queue.put_many", p.Queue, lambda queue, *_: queue.put_many([b"a", b"b", b"c"]), done),
        Play("PriorityQueue.put_many", p.PriorityQueue, lambda queue, *_: queue.put_many([b"a", b"b"]), done),
        Play("Queue.take", filled, take, done),
        Play("Queue claim.with", taken, _with, done),
        Play("Queue claim.ack", taken, lambda claim, *_: claim.ack(), ended),
        Play("Queue claim.release", taken, lambda claim, *_: claim.release(), ended),
    ]


def _filled_backlog(store: Store, name: str) -> p.WorkQueue:
    backlog = p.WorkQueue(store, name)
    backlog.put("any", "s", "1", b"item")
    assert store.session.remaining_s() > 0.0  # opened here, where nothing is interrupted
    return backlog


def _emptied(_ours: object, _mine: Store, other: Store, name: str) -> None:
    backlog = p.WorkQueue(other, name)
    deadline = time.monotonic() + WAIT_S
    while backlog.size():  # the end of a claim that was interrupted goes on in the background
        assert time.monotonic() < deadline, "an item that nobody can have"
        for claim in backlog.try_take(["any"]) if backlog.wait_free("any", 0.02) else ():
            claim.ack()
    assert not backlog.claims()
    eventually(lambda: not backlog.waiting_consumers("other"), WAIT_S, "a ticket that landed late is removed")


def _backlog() -> list[Play]:
    def taken(store: Store, name: str) -> p.QueueClaim:
        return _filled_backlog(store, name).try_take(["any"])[0]

    def take(backlog: p.WorkQueue, *_: object) -> None:
        for claim in backlog.try_take(["any"]):
            with claim:
                pass

    def take_items(backlog: p.WorkQueue, *_: object) -> None:
        for claim in backlog.take_items(backlog.items("any")):
            with claim:
                pass

    def ended(claim: p.QueueClaim, mine: Store, other: Store, name: str) -> None:
        if claim.is_held:
            with suppress(LockLost):
                claim.release()
        _emptied(claim, mine, other, name)

    def put(backlog: p.WorkQueue, *_: object) -> None:
        backlog.put("any", "s", "1", b"item")

    return [
        Play("WorkQueue.put", p.WorkQueue, put, _emptied),
        Play("WorkQueue.try_take", _filled_backlog, take, _emptied),
        Play("WorkQueue.take_items", _filled_backlog, take_items, _emptied),
        Play("WorkQueue.wait_items", _filled_backlog, lambda one, *_: one.wait_items("other", 0.01), _emptied),
        Play("WorkQueue.wait_free", _filled_backlog, lambda one, *_: one.wait_free("other", 0.01), _emptied),
        Play("QueueClaim.with", taken, _with, _emptied),
        Play("QueueClaim.ack", taken, lambda claim, *_: claim.ack(), ended),
        Play("QueueClaim.release", taken, lambda claim, *_: claim.release(count=False), ended),
        Play("QueueClaim.move_to_dead_letters", taken, lambda claim, *_: claim.move_to_dead_letters(), ended),
    ]


def _store() -> list[Play]:
    def nothing(_mine: Store, _name: str) -> None:
        return None

    def after(_ours: object, mine: Store, other: Store, name: str) -> None:
        mine.put(f"{name}/after", b"1")
        assert other.get(f"{name}/after").value == b"1"

    def transact(_: None, mine: Store, name: str) -> None:
        mine.transact(lambda txn: txn.put(f"{name}/a", b"1"))

    def watch(_: None, mine: Store, name: str) -> None:
        with mine.watch(name):
            pass

    def session(_: None, mine: Store, _name: str) -> None:
        mine.open_session(ttl_s=5.0).close()

    def pipeline(_: None, mine: Store, name: str) -> None:
        with mine.pipeline() as line:
            line.put(f"{name}/a", b"1")
            line.get(f"{name}/a")

    return [
        Play("Store.put", nothing, lambda _, mine, name: mine.put(f"{name}/a", b"1"), after),
        Play("Store.get", nothing, lambda _, mine, name: mine.get(f"{name}/a"), after),
        Play("Store.list", nothing, lambda _, mine, name: mine.list(name, recursive=True), after),
        Play("Store.transact", nothing, transact, after),
        Play("Store.watch", nothing, watch, after),
        Play("Store.session", nothing, session, after),
        Play("Store.pipeline", nothing, pipeline, after),
    ]


def of_protocols() -> list[Play]:
    """Those whose calls are protocols: any driver can have them."""
    return [
        *_locks(),
        *_in_vain(),
        *_downgrade(),
        *_election(),
        *_latch(),
        *_queue(),
        *_backlog(),
        *onces(),
        *barriers(),
        *double_barriers(),
        *groups(),
        *numbers(),
        *_store(),
        *keepers(),
        *mirrors(),
        *observers(),
    ]
