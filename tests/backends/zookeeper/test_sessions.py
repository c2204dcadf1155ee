"""A session is one ZooKeeper session: what it was granted, how it ends, and that nothing outlives it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from latchwork.errors import Conflict, InvalidKey, OutcomeUnknown, SessionLost, Unavailable
from latchwork.types import Delete, Put, SessionAlive


def result(future):
    return future.result(15)


def put(backend, key, value=b"v", session=None):
    return result(backend.commit([], [Put(key, value, session)])).entries[0]


def expire(zookeeper, session):
    """End its ZooKeeper session from outside, as an operator could."""
    client = session.connection._kazoo._client
    thief = KazooClient(zookeeper.endpoint, client_id=client.client_id, timeout=5.0)
    thief.start()
    thief.stop()
    thief.close()


def test_ttl_is_what_the_server_granted(backend):
    session = result(backend.open_session(0.01, lambda: None))
    assert session.ttl_s == 0.5
    assert result(backend.open_session(1000.0, lambda: None)).ttl_s == 60.0
    assert session.confirm_gap_s == session.ttl_s / 4


def test_opening_and_renewals_count_from_before_they_were_sent(backend):
    before = backend._clock.now()
    session = result(backend.open_session(2.0, lambda: None))
    asked = backend._clock.now()
    assert before <= session.opened_at <= asked
    assert asked <= result(session.renew()) <= backend._clock.now()


def test_a_renewal_counts_from_its_very_send(backend, monkeypatch):
    session = result(backend.open_session(5.0, lambda: None))
    call, sent = session.connection.call, []
    monkeypatch.setattr(session.connection, "call", lambda *asked: sent.append(call(*asked)) or sent[-1])
    assert result(session.renew()) == sent[0].sent_at


def test_a_session_whose_marker_is_gone_is_lost(backend, raw, root):
    session = result(backend.open_session(5.0, lambda: None))
    raw.delete(f"/{root}/@s/{session.id}")
    with pytest.raises(SessionLost, match=session.id):
        result(session.renew())


def test_an_expired_session_is_gone_for_ever(backend, zookeeper, raw, root):
    gone = threading.Event()
    session = result(backend.open_session(5.0, gone.set))
    put(backend, "mine", session=session)
    expire(zookeeper, session)
    assert gone.wait(5.0)
    assert session.connection.join(5.0), "its thread went on, with another ZooKeeper session"
    assert not raw.exists(f"/{root}/mine")
    for call in (lambda: put(backend, "mine", session=session), lambda: result(session.renew())):
        with pytest.raises(SessionLost, match=session.id):
            call()
    with pytest.raises(Conflict):
        result(backend.commit([SessionAlive(session.id)], [Put("k", b"")]))
    assert not raw.exists(f"/{root}/mine")


def test_nothing_asked_around_an_expiry_lands_in_another_session(backend, zookeeper, raw, root, wait_until):
    """Writes are poured into a session while it expires: the acknowledged are gone with it, the rest never come."""
    session = result(backend.open_session(5.0, lambda: None))
    calls = []

    def pour():
        for number in range(400):
            calls.append(backend.commit([], [Put(f"mine/{number}", b"", session)]))
            time.sleep(0.0005)

    thread = threading.Thread(target=pour)
    thread.start()
    wait_until(lambda: any(call.done() for call in list(calls)))
    expire(zookeeper, session)
    thread.join()
    errors = [call.exception(15) for call in calls]
    assert any(error is None for error in errors)
    assert isinstance(errors[-1], SessionLost)
    assert all(error is None or isinstance(error, (SessionLost, OutcomeUnknown)) for error in errors)
    time.sleep(0.3)
    assert raw.get_children(f"/{root}/mine") == [] if raw.exists(f"/{root}/mine") else True


def test_close_ends_the_keys_at_once_and_is_not_a_loss(backend, other):
    gone = threading.Event()
    session = result(backend.open_session(10.0, gone.set))
    put(backend, "mine", session=session)
    result(session.close())
    assert session.close() is session.close()
    assert result(other.get("mine", stale_ok=False)) is None
    with pytest.raises(SessionLost):
        result(session.renew())
    assert not gone.is_set()


def test_a_disconnect_shorter_than_the_ttl_keeps_session_and_keys(connect, proxy, raw, root):
    backend = connect(proxy.endpoint)
    session = result(backend.open_session(5.0, lambda: pytest.fail("it was lost")))
    put(backend, "mine", session=session)
    proxy.cut()
    result(session.renew())
    put(backend, "mine", b"2", session=session)
    assert raw.get(f"/{root}/mine")[0].endswith(b"=2")


def test_a_session_closed_while_disconnected_is_ended_on_reconnection(connect, proxy, raw, root, wait_until):
    backend = connect(proxy.endpoint)
    session = result(backend.open_session(30.0, lambda: None))
    put(backend, "mine", session=session)
    proxy.refuse.set()
    proxy.cut()
    closing = session.close()
    with pytest.raises(SessionLost):
        put(backend, "mine", session=session)
    time.sleep(0.3)
    assert raw.exists(f"/{root}/mine")
    proxy.refuse.clear()
    result(closing)
    wait_until(lambda: not raw.exists(f"/{root}/mine"))


def test_a_session_that_cannot_be_opened_says_so_and_leaves_nothing(connect, proxy, raw, root):
    backend = connect(proxy.endpoint, call_timeout_s=0.5)
    put(backend, "k")
    proxy.refuse.set()
    proxy.cut()
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        result(backend.open_session(1.0, lambda: None))
    assert time.monotonic() - begun < 1.5
    assert raw.get_children(f"/{root}/@s") == []


def test_a_parent_of_sequential_keys_cannot_be_bound_and_the_error_says_why(backend):
    entry = backend.create_sequential("q/n-", b"", None).result(15)
    backend.commit([], [Delete(entry.key)]).result(15)
    session = backend.open_session(5.0, lambda: None).result(15)
    with pytest.raises(InvalidKey, match="sequential keys were created below it"):
        backend.commit([], [Put("q", b"", session)]).result(15)


def test_the_sockets_of_sessions_that_have_ended_are_closed_although_no_other_is_opened(backend, wait_until):
    def sockets():
        return len(list(Path("/proc/self/fd").iterdir()))

    result(backend.open_session(5.0, lambda: None).result(10.0).close())
    before = sockets()
    sessions = [result(backend.open_session(5.0, lambda: None)) for _ in range(10)]
    assert sockets() >= before + 20
    for session in sessions:
        result(session.close())
    wait_until(lambda: sockets() <= before + 2)
