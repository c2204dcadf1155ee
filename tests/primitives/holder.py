"""Run by tests in a process of its own: hold a lock or lead, and answer on stdout what is asked on stdin."""

from __future__ import annotations

import json
import sys

import latchwork
from latchwork.errors import LatchworkError
from latchwork.primitives import Group, LeaderLatch, Lock, Once, PersistentLock, Queue, Semaphore
from latchwork.types import Put


def say(**words):
    sys.stdout.write(json.dumps(words) + "\n")  # in one piece: listeners speak from their own thread
    sys.stdout.flush()


def write(store, fence):
    try:
        store.commit([fence], [Put("written", b"by the holder")])
    except LatchworkError as error:
        return type(error).__name__
    return "written"


def lock(store, name, ttl_s):
    held = PersistentLock(store, name, ttl_s=ttl_s, owner_label="holder")
    fence = held.acquire(10.0)
    held.on_lost(lambda: say(lost=True))
    say(token=fence.token)
    return lambda: held.is_held, fence, held


def session_lock(store, name, _ttl_s):
    return held_by_session(Lock(store, name, label="holder"))


def semaphore(store, name, _ttl_s):
    return held_by_session(Semaphore(store, name, leases=1))


def held_by_session(held):
    fence = held.acquire(10.0)
    held.on_lost(lambda: say(lost=True))
    say(token=fence.token)
    return lambda: held.is_held, fence, held


def latch(store, name, _ttl_s):
    candidate = LeaderLatch(store, name, node_id="holder")
    candidate.start()
    fence = candidate.wait(10.0)
    candidate.on_revoked(lambda: say(lost=True))
    say(token=fence.token)
    return lambda: candidate.is_leader, fence, candidate


def queue(store, name, _ttl_s):
    taken = Queue(store, name)
    claim = taken.take(10.0)
    say(taken=claim.value.decode())

    def ack():
        try:
            claim.ack()
        except LatchworkError as error:
            return type(error).__name__
        return "done"

    return lambda: claim.is_held, claim.fence, taken, ack


def group(store, name, _ttl_s):
    member = Group(store, name, member_id="holder")
    member.start()
    member.wait(20.0)
    say(joined=True)
    return lambda: "holder" in member.view, None, member


def once(store, name, _ttl_s):
    def run(_work):
        say(running=True)
        sys.stdin.read()

    Once(store, name).run(run)


HOLDERS = {
    "lock": lock,
    "session lock": session_lock,
    "latch": latch,
    "semaphore": semaphore,
    "queue": queue,
    "group": group,
    "once": once,
}


def main():
    url, kind, name, ttl_s = sys.argv[1:]
    with latchwork.connect(url, session_ttl_s=float(ttl_s)) as store:
        is_ours, fence, owned, *more = HOLDERS[kind](store, name, float(ttl_s))
        for line in sys.stdin:
            if line.strip() == "ours":
                say(ours=is_ours())
            elif line.strip() == "write":
                say(write=write(store, fence))
            elif line.strip() == "ack":
                say(ack=more[0]())
            else:
                break
        owned.close()
        say(closed=True)


main()
