"""What a store remembers is bounded, and so is the time of a call that is made of several."""

from __future__ import annotations

import pytest

from latchwork.backends.etcd.writing import sequences
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.types import Put
from latchwork_testkit.proxy import Proxy
from latchwork_testkit.servers import EtcdServer


@pytest.fixture
def server(etcd35):
    """One version will do: nothing of this is the server's."""
    return etcd35


@pytest.fixture
def slow(server):
    """The shared server, behind a proxy."""
    with Proxy(server.endpoint) as proxy:
        yield proxy


def test_sessions_that_ended_on_the_server_are_forgotten_and_still_refused(backend, eventually):
    sessions = [backend.open_session(5, lambda: None).result(5) for _ in range(3)]
    for session in sessions:
        session.close().result(5)
    eventually(lambda: not backend._sessions.ended)
    assert not backend._sessions._open
    for session in sessions:
        assert session.close().result(5) is None
        with pytest.raises(SessionLost):
            session.renew().result(5)
        with pytest.raises(SessionLost):
            backend.commit([], [Put("k", b"", session)]).result(5)


def test_a_session_that_could_not_be_ended_is_refused_here_and_ended_later(slow, root, opened, eventually):
    backend = opened(f"etcd://{slow.endpoint}/{root}?call_timeout_s=2")
    session = backend.open_session(2, lambda: None).result(5)
    slow.refuse()
    assert session.close().result(5) is None
    assert backend._sessions.ended == {session.id}
    with pytest.raises(SessionLost):
        backend.commit([], [Put("k", b"", session)]).result(5)
    slow.accept()
    eventually(lambda: not backend._sessions.ended, 20.0)


def test_counters_of_no_more_than_some_parents_are_remembered_and_numbers_go_on(backend, monkeypatch):
    monkeypatch.setattr(sequences, "_REMEMBERED", 8)
    for round_number in (1, 2):
        for parent in range(20):
            entry = backend.create_sequential(f"p{parent}/n-", b"", None).result(5)
            assert entry.key == f"p{parent}/n-{round_number:010d}"
            assert len(backend._sequences._lines) <= 8


def test_opening_a_session_has_one_timeout_for_its_lease_and_its_marker(slow, root, opened):
    backend = opened(f"etcd://{slow.endpoint}/{root}?call_timeout_s=2")
    backend.commit([], [Put("warm", b"up")]).result(5)
    slow.delay(0.7)  # the lease takes 1.4 s, the marker as much again
    opening = backend.open_session(30, lambda: None)
    assert isinstance(opening.exception(15), LatchworkError)


def test_a_call_waits_for_a_login_that_others_wait_for_no_longer_than_its_own_deadline(root, opened):
    with EtcdServer("3.5") as server, Proxy(server.endpoint) as proxy:
        backend = opened(f"etcd://u:p@{proxy.endpoint}/{root}?call_timeout_s=30")
        proxy.hold()
        patient = backend._connection.refresh_token()
        impatient = backend._connection.refresh_token(SYSTEM_CLOCK.now() + 0.2)
        with pytest.raises(Unavailable, match="log in 'u' in time"):
            impatient.result(15)
        assert not patient.done()
        proxy.release()
        assert patient.result(20) is None


def test_a_call_waits_for_earlier_writes_to_be_settled_no_longer_than_its_own_deadline(slow, root, opened):
    backend = opened(f"etcd://{slow.endpoint}/{root}?call_timeout_s=1")
    backend.commit([], [Put("warm", b"up")]).result(5)
    slow.drop("answers")
    for future in [backend.commit([], [Put(f"k{number}", b"")]) for number in range(10)]:
        assert isinstance(future.exception(5), OutcomeUnknown)
    slow.release()
    slow.delay(0.25, "answers")  # each is settled by itself: 2.5 s for all
    took_s = []
    while backend._recovery.unresolved:
        called = SYSTEM_CLOCK.now()
        backend.get("k", stale_ok=False).exception(15)
        took_s.append(SYSTEM_CLOCK.now() - called)
    assert max(took_s) < 1.8
