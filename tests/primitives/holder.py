"""A process of its own for tests: holds a lock or leads, and reports what happens, and what it is asked."""

from __future__ import annotations

import threading
from functools import partial

import latchwork
from latchwork.errors import LatchworkError
from latchwork.primitives import Group, LeaderLatch, Lock, LockKeeper, Once, PersistentLock, Queue, Semaphore, WorkQueue
from latchwork.types import Put


class Holding:
    """What is held, and how to ask about it."""

    def __init__(self, wire, store, thing, is_ours, fence=None, claim=None):
        self.thing = thing
        self._wire, self._store = wire, store
        self._is_ours, self._fence, self._claim = is_ours, fence, claim

    def ours(self):
        self._wire.report({"ours": self._is_ours()})

    def write(self):
        self._wire.report(
            {
                "write": _outcome(
                    lambda: self._store.commit([self._fence], [Put("written", b"by the holder")]), "written"
                )
            }
        )

    def ack(self):
        self._wire.report({"ack": _outcome(self._claim.ack, "done")})


def _outcome(step, done):
    try:
        step()
    except LatchworkError as error:
        return type(error).__name__
    return done


def _held(make, wire, store, name, ttl_s):
    held = make(store, name, ttl_s)
    fence = held.acquire(10.0)
    held.on_lost(lambda: wire.report({"lost": True}))
    wire.report({"token": fence.token})
    return Holding(wire, store, held, lambda: held.is_held, fence)


def _latch(wire, store, name, _ttl_s):
    candidate = LeaderLatch(store, name, node_id="holder")
    candidate.start()
    fence = candidate.wait(10.0)
    candidate.on_revoked(lambda: wire.report({"lost": True}))
    wire.report({"token": fence.token})
    return Holding(wire, store, candidate, lambda: candidate.is_leader, fence)


def _queue(wire, store, name, _ttl_s):
    taken = Queue(store, name)
    claim = taken.take(10.0)
    wire.report({"taken": claim.value.decode()})
    return Holding(wire, store, taken, lambda: claim.is_held, claim.fence, claim)


def _backlog(wire, store, name, _ttl_s):
    taken = WorkQueue(store, name)
    (claim,) = taken.try_take(["any"])
    wire.report({"taken": claim.value.decode()})
    return Holding(wire, store, taken, lambda: claim.is_held, claim.fence, claim)


def _group(wire, store, name, _ttl_s):
    member = Group(store, name, member_id="holder")
    member.start()
    member.wait(20.0)
    wire.report({"joined": True})
    return Holding(wire, store, member, lambda: "holder" in member.view)


def _once(wire, store, name, _ttl_s):
    def run(_work):
        wire.report({"running": True})
        threading.Event().wait()

    Once(store, name).run(run)


def _shared(store, name, ttl_s):
    keeper = LockKeeper(store, ttl_s=ttl_s, owner_label="holder", session=store.primary_session)
    return PersistentLock(store, name, keeper=keeper)


HOLDERS = {
    "shared lock": partial(_held, _shared),
    "lock": partial(_held, lambda store, name, ttl_s: PersistentLock(store, name, ttl_s=ttl_s, owner_label="holder")),
    "session lock": partial(_held, lambda store, name, _: Lock(store, name, label="holder")),
    "semaphore": partial(_held, lambda store, name, _: Semaphore(store, name, leases=1)),
    "latch": _latch,
    "queue": _queue,
    "backlog": _backlog,
    "group": _group,
    "once": _once,
}


def serve(wire, url, kind, name, ttl_s):
    with latchwork.connect(url, session_ttl_s=ttl_s) as store:
        holding = HOLDERS[kind](wire, store, name, ttl_s)
        wire.serve(holding)
        holding.thing.close()
