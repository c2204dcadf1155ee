"""Every primitive that lives by a session, through faults of real servers: one hold of each kind at the same time."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import grpc
import psycopg
import pytest
from kazoo.client import KazooClient

import latchwork
from backends_table import BY_NAME, SERVERS
from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown, OwnershipLost, Unavailable
from latchwork.primitives import Counter, Election, LeaderLatch, Lock, ReadWriteLock, Semaphore, Sequence
from latchwork.types import Create, Put
from latchwork_testkit.etcd_rpc import Stub, pb

TTL_S = 1.0
KINDS = ("lock", "read side", "write side", "semaphore", "election", "latch")


@pytest.fixture(params=SERVERS)
def server(request):
    with BY_NAME[request.param].launch() as started:
        yield started


@pytest.fixture
def open_store(server):
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(
            latchwork.connect(server.url("faults", **{"session_ttl_s": TTL_S, "call_timeout_s": 2.0, **options}))
        )


class Held:
    """One hold of some kind: what it says of itself, and when it was told to stop."""

    def __init__(self, kind, store):
        self.kind = kind
        self.told = threading.Event()
        self.hold, self.end = getattr(self, "_" + kind.replace(" ", "_"))(store)
        (self.hold.on_revoked if kind == "latch" else self.hold.on_lost)(self.told.set)
        self.fence = self.hold.fence
        self.work = self.hold.guard_work()
        self.left_when_stopped = None
        self.work.__enter__()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def _watch(self):
        self.work.wait(60.0)
        self.left_when_stopped = self.hold.remaining_s()

    @property
    def is_held(self):
        return self.hold.remaining_s() > 0.0

    def close(self):
        self.end()  # stops the work, lost or not
        self.watcher.join(10.0)
        self.work.__exit__(None, None, None)

    def _lock(self, store):
        return self._acquired(Lock(store, "lock"))

    def _read_side(self, store):
        return self._acquired(ReadWriteLock(store, "shared").read)

    def _write_side(self, store):
        return self._acquired(ReadWriteLock(store, "exclusive").write)

    def _semaphore(self, store):
        return self._acquired(Semaphore(store, "semaphore", leases=1))

    def _election(self, store):
        term = Election(store, "election", node_id="n").campaign(timeout_s=30.0)
        return term, term.close

    def _latch(self, store):
        latch = LeaderLatch(store, "latch", node_id="n")
        latch.start()
        latch.wait(30.0)
        return latch, latch.close

    @staticmethod
    def _acquired(held):
        held.acquire(30.0)
        return held, held.close


@pytest.fixture
def hold_all():
    holds = []

    def make(store):
        holds.extend(made := [Held(kind, store) for kind in KINDS])
        return made

    yield make
    for each in holds:
        each.close()


def refused(store, held):
    """Whether a write under this fence is refused."""
    try:
        store.commit([held.fence], [Put("written", b"late")])
    except Conflict:
        return True
    return False


def expire(server, store):
    """End the store's session from outside, as an operator could."""
    session = store.session
    if server.SCHEME == "etcd":
        with grpc.insecure_channel(server.endpoint) as channel:
            Stub(channel, "Lease").LeaseRevoke(pb.LeaseRevokeRequest(ID=int(session.id, 16)), timeout=5)
        return
    if server.SCHEME == "postgresql":
        with psycopg.connect(f"postgresql://latchwork@{server.endpoint}/postgres", autocommit=True) as connection:
            connection.execute(
                "select latchwork.close_sessions(root, array[id]) from latchwork.sessions where id = %s", [session.id]
            )
        return
    client = session._backend.connection._link._client
    thief = KazooClient(server.endpoint, client_id=client.client_id, timeout=5.0)
    thief.start()
    thief.stop()
    thief.close()


def test_an_outage_longer_than_the_ttl_stops_the_work_first_and_then_ends_every_hold(
    server, open_store, hold_all, eventually
):
    store, other = open_store(), open_store()
    holds = hold_all(store)
    granted_s = store.session.ttl_s
    paused_at = time.monotonic()
    server.pause()
    try:
        eventually(lambda: not any(held.is_held for held in holds), granted_s + 5.0)
        over_s = time.monotonic() - paused_at
        eventually(lambda: all(held.left_when_stopped is not None for held in holds))
        eventually(lambda: all(held.told.is_set() for held in holds))
    finally:
        server.resume()
    assert over_s < granted_s + 1.0
    assert [held.kind for held in holds if not held.left_when_stopped > 0.0] == []
    eventually(lambda: all(refused(other, held) for held in holds), 15.0)
    for held in holds:
        held.close()
    again = hold_all(other)
    assert [new.kind for new, old in zip(again, holds, strict=True) if new.fence.token <= old.fence.token] == []


def test_a_session_ended_from_outside_ends_every_hold_and_its_fence(server, open_store, hold_all, eventually):
    store, other = open_store(session_ttl_s=5.0), open_store()
    holds = hold_all(store)
    expire(server, store)
    assert all(refused(other, held) for held in holds)  # at once, whatever their owner knows
    # The latch among them queues again by itself, and may lead again before we look.
    eventually(lambda: all(held.told.is_set() and held.work.is_stopped for held in holds), 30.0)
    assert [held.kind for held in holds if held.is_held and held.kind != "latch"] == []
    for held in holds[:3]:
        with pytest.raises(OwnershipLost):
            held.hold.release()
    for held in holds:
        held.close()
    assert not any(refused(store, held) for held in hold_all(other))


def test_a_restart_of_the_server_within_the_ttl_costs_no_hold(server, open_store, hold_all):
    store, other = open_store(session_ttl_s=20.0, call_timeout_s=10.0), open_store(call_timeout_s=10.0)
    holds = hold_all(store)
    server.kill()
    server.restart()
    assert other.get("written") is None
    assert all(held.is_held and not held.work.is_stopped for held in holds)
    assert not any(refused(other, held) for held in holds)
    for held in holds:
        held.close()
    hold_all(other)


def test_counts_stay_exact_and_ids_without_gaps_through_restarts_of_the_server(server, open_store, in_thread):
    known, unknown, done = [], [], threading.Event()

    def count(store):
        counter, sequence = Counter(store, "hits"), Sequence(store, "ids")
        while not done.is_set():
            for change in (
                lambda: counter.add(timeout_s=20.0),
                lambda: sequence.take(lambda number: [Create(f"records/{number:06d}", b"")], timeout_s=20.0),
            ):
                try:
                    change()
                except OutcomeUnknown:
                    unknown.append(change)
                except (Unavailable, Conflict):
                    pass
                else:
                    known.append(change)

    running = [in_thread(lambda store=store: count(store)) for store in (open_store(), open_store())]
    for _ in range(3):
        time.sleep(0.4)
        server.kill()
        server.restart()
    time.sleep(0.4)
    done.set()
    for each in running:
        each.outcome(60.0)
    with latchwork.connect(server.url("faults")) as store:
        hits, last = Counter(store, "hits").value(), Sequence(store, "ids").last()
        records = [int(entry.key.rpartition("/")[2]) for entry in store.list("records")]
    assert records == list(range(1, last + 1))
    assert len(known) <= hits + last <= len(known) + len(unknown)
    assert len(known) > 10


def test_a_waiter_gets_its_turn_although_the_server_restarts_meanwhile(server, open_store, in_thread, eventually):
    first, second = Lock(open_store(session_ttl_s=20.0), "orders"), Lock(open_store(session_ttl_s=20.0), "orders")
    first.acquire(10.0)
    waiting = in_thread(lambda: second.acquire(60.0))
    eventually(lambda: len(first.waiters()) == 1)
    server.kill()
    server.restart()
    eventually(lambda: _released(first), 20.0)
    assert waiting.outcome(40.0)
    second.close()


def _released(lock):
    try:
        lock.release()
    except OwnershipLost:
        raise
    except LatchworkError:
        return False
    return True
