"""Primitives that own something: one small class for each, with the same few methods.

``own`` waits for it, and gives the fences that prove it; ``end`` gives it up; ``late`` ends it as one does who does not
know yet that it was lost, and must be refused.
"""

from __future__ import annotations

import contextlib
import threading
import time

from latchwork.errors import LatchworkError, LockLost, OutcomeUnknown, OwnershipLost, Unavailable, WaitTimeout
from latchwork.primitives import (
    Election,
    LeaderLatch,
    Lock,
    LockKeeper,
    Once,
    PersistentLock,
    PriorityQueue,
    Queue,
    ReadWriteLock,
    Semaphore,
    WorkQueue,
)

#: Nobody is forgotten: whoever waits longer fails the test.
PATIENCE_S = 90.0


class Acquired:
    """Whatever is acquired and released; it lives by the session unless it says otherwise."""

    def __init__(self, thing, *, closes=None):
        self._thing = thing
        self._closes = closes or thing
        self._has_owned = False

    def own(self):
        if self._has_owned:
            with contextlib.suppress(OwnershipLost):
                self._thing.release()  # what was lost
        fence = self._thing.acquire(PATIENCE_S)
        self._has_owned = True
        return [fence]

    def is_held(self):
        return self._thing.is_held

    def end(self):
        self._has_owned = False
        self._thing.release()

    late = end

    def close(self):
        self._closes.close()


def lock(store, name, role, ttl_s):
    return Acquired(Lock(store, name, label=role))


def read_write_lock(store, name, role, ttl_s):
    """The victim writes, the others read."""
    both = ReadWriteLock(store, name, label=role)
    return Acquired(both.write if role == "victim" else both.read, closes=both)


def semaphore(store, name, role, ttl_s):
    return Acquired(Semaphore(store, name, leases=1, label=role))


def persistent_lock(store, name, role, ttl_s):
    return Acquired(PersistentLock(store, name, ttl_s=ttl_s, owner_label=role))


class Keeper:
    """Three locks of one owner: all or none is held."""

    def __init__(self, store, name, role, ttl_s):
        self._names = [f"{name}/{number}" for number in range(3)]
        self._keeper = LockKeeper(store, ttl_s=ttl_s, owner_label=role)
        self._held = []

    def own(self):
        self._keeper.start()
        with contextlib.suppress(OwnershipLost):
            self._keeper.release_held(self._held)
        self._held = []
        for name in self._names:
            self._held.append(self._keeper.acquire(name, PATIENCE_S))
        return [held.fence for held in self._held]

    def is_held(self):
        return bool(self._held) and all(held.is_held for held in self._held)

    def end(self):
        self._keeper.release_held(self._held)

    late = end

    def close(self):
        self._keeper.close()


class Latch:
    def __init__(self, store, name, role, ttl_s):
        self._latch = LeaderLatch(store, name, node_id=role)

    def own(self):
        self._latch.start()
        return [self._latch.wait(PATIENCE_S)]

    def is_held(self):
        return self._latch.is_leader

    def end(self):
        self._latch.leave()

    def late(self):
        return self._latch.fence  # it has queued again by itself

    def close(self):
        self._latch.close()


class Campaign:
    def __init__(self, store, name, role, ttl_s):
        self._election = Election(store, name, node_id=role)
        self._term = None

    def own(self):
        self._term = self._election.campaign(timeout_s=PATIENCE_S)
        return [self._term.fence]

    def is_held(self):
        return self._term is not None and self._term.is_leader

    def end(self):
        self._term.resign()

    late = end

    def close(self):
        self._election.close()


class Taker:
    """The claim of the one item of a queue: given back, or acknowledged late."""

    def __init__(self, store, name, role, ttl_s):
        self._queue = self._made(store, name, max_attempts=100, label=role)
        self._claim = None

    def _made(self, *args, **options):
        return Queue(*args, **options)

    def prepare(self):
        self._queue.put(b"the only one", timeout_s=PATIENCE_S)

    def own(self):
        self._claim = self._queue.take(PATIENCE_S)
        return [self._claim.fence]

    def is_held(self):
        return self._claim is not None and self._claim.is_held

    def end(self):
        self._claim.release()

    def late(self):
        self._claim.ack()

    def close(self):
        self._queue.close()


class PriorityTaker(Taker):
    def _made(self, *args, **options):
        return PriorityQueue(*args, **options)


class BacklogTaker:
    """The claim of the one item of a backlog: given back, or acknowledged late."""

    def __init__(self, store, name, role, ttl_s):
        self._backlog = WorkQueue(store, name, max_attempts=100, label=role)
        self._claim = None

    def prepare(self):
        self._backlog.put("any", "shelf", "only", b"the only one")

    def own(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                if self._backlog.wait_free("any", PATIENCE_S) and (claims := self._backlog.try_take(["any"])):
                    (self._claim,) = claims
                    return [self._claim.fence]
        raise WaitTimeout("the only item of the backlog was never free")

    def is_held(self):
        return self._claim is not None and self._claim.is_held

    def end(self):
        self._claim.release()

    def late(self):
        self._claim.ack()

    def close(self):
        self._backlog.close()


class Runner:
    """The one that runs a function once; what somebody else has done is forgotten, and done again."""

    def __init__(self, store, name, role, ttl_s):
        self._once = Once(store, name, max_starts=100, label=role)
        self._role = role.encode()
        self._began = threading.Event()
        self._finish = threading.Event()
        self._closed = False
        self._thread = self._work = self._result = self._error = None

    def own(self):
        self._finish.set()
        while not self._closed:
            self._began, self._finish, self._error = threading.Event(), threading.Event(), None
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            while not self._began.wait(0.02) and self._thread.is_alive():
                pass
            if self._began.is_set():
                return [self._work.fence]
            if self._error is not None:
                raise self._error
            self._once.reset()
        raise LockLost("closed")

    def is_held(self):
        return self._began.is_set() and self._work.remaining_s() > 0.0

    def end(self):
        self._finish.set()
        self._thread.join()
        self._began.clear()
        if self._error is not None:
            raise self._error
        if self._result != self._role:
            raise LockLost(f"recorded is the outcome of {self._result!r}")

    late = end

    def close(self):
        self._closed = True
        self._finish.set()
        self._once.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self):
        try:
            self._result = self._once.run(self._do, timeout_s=PATIENCE_S)
        except LatchworkError as error:
            self._error = error

    def _do(self, work):
        self._work = work
        self._began.set()
        self._finish.wait()
        return self._role


OWNERS = {
    "LeaderLatch": Latch,
    "Election": Campaign,
    "Lock": lock,
    "ReadWriteLock": read_write_lock,
    "Semaphore": semaphore,
    "PersistentLock": persistent_lock,
    "LockKeeper": Keeper,
    "Queue": Taker,
    "PriorityQueue": PriorityTaker,
    "WorkQueue": BacklogTaker,
    "Once": Runner,
}
#: They outlive their session.
PERSISTENT = {"PersistentLock", "LockKeeper"}
