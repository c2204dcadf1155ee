"""Who sends a request: the thread that asks, while nothing is in flight; otherwise the connection's."""

from __future__ import annotations

import socket
import threading

import pytest

from latchwork.types import Put


@pytest.fixture
def senders(monkeypatch):
    """Has the threads noted that take requests of a backend from its outbox to send them."""

    def note(backend):
        threads, take = [], backend._main.take_requests

        def noted(most_bytes):
            batch = take(most_bytes)
            threads.extend([threading.current_thread().name] * bool(batch))
            return batch

        monkeypatch.setattr(backend._main, "take_requests", noted)
        return threads

    return note


def put(backend, key, value=b""):
    return backend.commit([], [Put(key, value)]).result(10)


def test_whoever_asks_sends_while_nothing_is_in_flight(backend, senders):
    put(backend, "k")
    threads = senders(backend)
    for _ in range(20):
        backend.get("k", stale_ok=False).result(10)
    assert threads.count(threading.current_thread().name) >= 10  # else a heartbeat or the like was under way


def test_with_an_answer_outstanding_the_connections_thread_sends_many_requests_at_once(
    connect, proxy, senders, wait_until
):
    backend = connect(proxy.endpoint)
    put(backend, "k")
    threads = senders(backend)
    proxy.drop_requests.set()  # the first is never answered on this connection
    asked = [backend.get("k", stale_ok=True) for _ in range(100)]
    wait_until(lambda: backend._main._kazoo.oldest_sent_at() is not None)
    mine = threading.current_thread().name
    assert threads.count(mine) <= 1
    proxy.drop_requests.clear()
    proxy.cut()
    assert all(each.result(10) is not None for each in asked)
    assert threads.count(mine) <= 1


def test_what_a_full_socket_does_not_take_is_sent_by_the_connections_thread(backend, other):
    put(backend, "k")
    backend._main._kazoo.loop._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    value = bytes(range(256)) * 3_500
    for number in range(3):
        put(backend, f"large{number}", value)
        put(backend, "small", b"%d" % number)
    assert [other.get(f"large{number}", stale_ok=False).result(10).value for number in range(3)] == [value] * 3


def test_threads_that_ask_at_the_same_time_all_get_their_own_answers(backend, in_many_threads):
    for number in range(8):
        put(backend, f"k{number}", b"%d" % number)

    def ask(number):
        for _ in range(50):
            assert backend.get(f"k{number}", stale_ok=True).result(10).value == b"%d" % number
            put(backend, f"w{number}", b"%d" % number)

    in_many_threads(ask, 8)


@pytest.fixture
def in_many_threads():
    """Runs a function of a number in so many threads, and raises what any of them raised."""

    def run(fn, count):
        errors = []

        def guarded(number):
            try:
                fn(number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []

    return run


def test_what_an_interrupted_sender_had_taken_and_not_sent_is_sent_by_the_next_connection(backend, monkeypatch):
    put(backend, "k")
    loop, sends = backend._main._kazoo.loop, []
    next_batch = loop._take_batch

    def interrupted():
        sends.append(threading.current_thread())
        if len(sends) == 1:
            loop._owner.take_requests(10**6)
            raise KeyboardInterrupt
        return next_batch()

    monkeypatch.setattr(loop, "_take_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.commit([], [Put("k", b"interrupted")])
    assert backend.get("k", stale_ok=False).result(5) is not None
