"""A standby takes over, with and without the last writes; straight, and behind a pooler that keeps its clients."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from latchwork import Put
from latchwork.errors import Conflict, LatchworkError, LockLost, OutcomeUnknown, SessionLost
from latchwork.primitives import Lock, PersistentLock
from latchwork_testkit.servers import PgBouncer, PostgresServer
from patience import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def pair():
    """A primary, and a standby that follows it."""
    with PostgresServer() as primary, PostgresServer(standby_of=primary) as standby:
        yield primary, standby


def url_of(*servers, **options):
    """Both hosts, of which the store uses the one that takes writes."""
    query = "&".join(f"{name}={value}" for name, value in {"root": "app", "call_timeout_s": 3, **options}.items())
    return f"postgresql://latchwork@{','.join(server.endpoint for server in servers)}/postgres?{query}"


def be_synchronous(sql, primary):
    sql(primary, "alter system set synchronous_standby_names = '*'")
    sql(primary, "select pg_reload_conf()")
    eventually(lambda: sql(primary, "select sync_state from pg_stat_replication") == [("sync",)])


def fail_over(primary, standby):
    """The primary dies and never comes back."""
    primary.kill()
    standby.promote()


def leave_behind(standby, primary, write):
    """Have something written that the standby does not get, and then let it take over."""
    standby.stop()
    write()
    primary.kill()
    standby.start()
    standby.promote()


def test_a_synchronous_standby_loses_no_confirmed_write(pair, opened, sql):
    primary, standby = pair
    store = opened(url_of(primary, standby))
    be_synchronous(sql, primary)
    confirmed, stop = {}, threading.Event()

    def write():
        for number in range(1_000_000):
            if stop.is_set():
                return
            with contextlib.suppress(LatchworkError):
                entry = store.create("k/t-", b"%d" % number, sequential=True)
                confirmed[number] = entry

    writing = threading.Thread(target=write)
    writing.start()
    eventually(lambda: len(confirmed) > 50)
    before = len(confirmed)
    fail_over(primary, standby)
    eventually(lambda: len(confirmed) > before + 50, 20.0)
    stop.set()
    writing.join()
    found = {entry.key: entry for entry in store.list("k")}
    assert {entry.key for entry in confirmed.values()} <= found.keys()
    values = [entry.value for entry in found.values()]
    assert len(values) == len(set(values)), "a write was applied twice"
    tokens = [confirmed[number].token for number in sorted(confirmed)]
    assert tokens == sorted(set(tokens))


def test_after_a_failover_the_sessions_have_ended_and_watches_begin_again(pair, opened):
    primary, standby = pair
    store, other = opened(url_of(primary, standby)), opened(url_of(primary, standby))
    session = store.session
    store.create("w/bound", b"", session=session)
    store.put("w/kept", b"1")
    with other.mirror("w") as mirror:
        mirror.ready(5.0)
        fail_over(primary, standby)
        assert session.lost.wait(20.0)
        eventually(lambda: set(mirror) == {"w/kept"})
        with pytest.raises(SessionLost):
            store.put("w/again", b"", session=session)
        store.create("w/new", b"", session=store.session)
        eventually(lambda: set(mirror) == {"w/kept", "w/new"})


def test_writes_that_an_asynchronous_standby_lacks_are_lost_and_their_fences_refused(pair, opened):
    """The holder of a lock that was acquired in vain: its fence is refused, and the next one's token is greater."""
    primary, standby = pair
    store, other = opened(url_of(primary, standby)), opened(url_of(primary, standby))
    store.put("w/kept", b"1")
    lost = {}

    def write():
        lost["entry"] = store.put("w/lost", b"1")
        lost["persistent"] = PersistentLock(store, "persistent", ttl_s=20).acquire()
        lost["lock"] = Lock(store, "lock").acquire()

    with other.mirror("w") as mirror:
        mirror.ready(5.0)
        leave_behind(standby, primary, write)
        eventually(lambda: set(mirror) == {"w/kept"}, 20.0)
    assert other.get("w/lost") is None
    for kind, lock in (("persistent", PersistentLock(other, "persistent", ttl_s=20)), ("lock", Lock(other, "lock"))):
        with lock as fence:
            assert fence.token > lost[kind].token > lost["entry"].token
            with pytest.raises(Conflict):
                store.commit([lost[kind]], [Put("guarded", b"late")])
            other.commit([fence], [Put("guarded", b"good")])
    assert store.get("guarded").value == b"good"


def test_a_persistent_lock_that_the_standby_lacks_is_reported_as_lost(pair, opened):
    primary, standby = pair
    store = opened(url_of(primary, standby))
    store.put("k", b"")
    lock, told = PersistentLock(store, "lock", ttl_s=6), threading.Event()
    lock.on_lost(told.set)
    leave_behind(standby, primary, lock.acquire)
    assert told.wait(20.0)
    with pytest.raises(LockLost):
        lock.release()


def test_a_frozen_primary_is_left_for_the_promoted_standby(pair, opened):
    primary, standby = pair
    store = opened(url_of(primary, standby, call_timeout_s=2))
    store.put("k", b"1")
    primary.pause()
    standby.promote()
    for call in (lambda: store.put("k", b"2"), lambda: store.get("k")):  # each kind of call has its own connection
        with contextlib.suppress(LatchworkError):  # the first one reaches its timeout
            call()
    began = time.monotonic()
    assert store.put("k", b"3") == store.get("k")
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("loses", [False, True], ids=["nothing-lost", "writes-lost"])
def test_a_failover_behind_a_pooler_is_noticed_although_no_connection_breaks(pair, opened, sql, loses):
    primary, standby = pair
    with PgBouncer(primary.endpoint) as bouncer:
        store, other = opened(bouncer.url("app", call_timeout_s=3)), opened(bouncer.url("app", call_timeout_s=3))
        session = store.open_session(3.0)
        store.create("w/bound", b"", session=session)
        with other.mirror("w") as mirror:
            mirror.ready(5.0)
            lost = []
            if loses:
                leave_behind(standby, primary, lambda: lost.append(store.put("w/lost", b"1")))
            else:
                fail_over(primary, standby)
            bouncer.change_target(standby.endpoint)
            eventually(lambda: set(mirror) == set(), 20.0)
            assert session.lost.wait(20.0)
        with pytest.raises(SessionLost):
            store.put("late", b"", session=session)
        entry = store.put("w/after", b"1")
        assert entry.token > max((each.token for each in lost), default=0) + 1_000_000
        assert sql(standby, "select count(*) from latchwork.sessions") == [(0,)]


@pytest.mark.parametrize("first", ["write", "renewal", "read"])
def test_the_first_call_behind_a_pooler_finds_the_sessions_ended_whatever_it_is(pair, opened, sql, first):
    """None of the store's own looks comes first: they are an hour apart."""
    primary, standby = pair
    with PgBouncer(primary.endpoint) as bouncer:
        store = opened(bouncer.url("app", call_timeout_s=10))
        session = store.open_session(3600.0)
        store.create("bound", b"", session=session)
        store._core.backend._hub._sweep_at = time.monotonic() + 3600
        token = store.put("k", b"").token
        fail_over(primary, standby)
        bouncer.change_target(standby.endpoint)
        if first == "write":
            with pytest.raises((Conflict, OutcomeUnknown)):
                eventually(lambda: store.commit([session.fence], [Put("k", b"late")]), 20.0)
        elif first == "renewal":
            with pytest.raises(SessionLost):
                session._backend.renew().result(20.0)
        else:
            assert store.get("k").token == token
        if first != "read":
            eventually(lambda: sql(standby, "select count(*) from latchwork.sessions") == [(0,)])
        assert store.put("k", b"").token > token + 1_000_000
