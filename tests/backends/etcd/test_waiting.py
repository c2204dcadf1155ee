"""Calls made in the threads of those who wait for them: one request each, no hand-over, and the same promises."""

from __future__ import annotations

import threading
import time

import pytest

import latchwork
from latchwork.errors import Closed, LatchworkError
from latchwork.types import At, Put


@pytest.fixture
def sent(backend):
    """Method and way of each call that the backend sends."""
    calls = []
    send = backend._connection.send

    def spy(method, request, timeout_s, **how):
        calls.append((method, how.get("in_caller_thread", False)))
        return send(method, request, timeout_s, **how)

    backend._connection.send = spy
    return calls


@pytest.fixture
def cut_off(server, proxied, root, opened):
    """A backend that has written once, and the proxy it is behind."""
    proxy = proxied(server)
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=6")
    backend.commit([], [Put("warm", b"up")]).result(5)
    return backend, proxy


@pytest.mark.parametrize("operation", ["get", "put", "commit", "verify", "list"])
def test_operation_is_one_request_made_in_the_thread_that_waits(operation, backend, sent):
    entry = backend.commit([], [Put("k", b"1"), Put("k/below", b"1")]).result(5).entries[0]
    sent.clear()
    waiting = backend.for_blocking_calls
    done = {
        "get": lambda: waiting.get("k", stale_ok=False),
        "put": lambda: waiting.commit([], [Put("k", b"2")]),
        "commit": lambda: waiting.commit([At(entry)], [Put("k", b"2"), Put("other", b"2")]),
        "verify": lambda: waiting.commit([At(entry)], []),
        "list": lambda: waiting.list("k", recursive=True, limit=None, start_after=None),
    }[operation]()
    assert done.done()
    assert [now for _, now in sent] == [True]


def test_many_gets_are_one_request_made_in_the_thread_that_waits_where_the_server_can_bear_it(backend, sent):
    backend._connection.survives_canceled_reads = True
    done = backend.for_blocking_calls.get_many([f"k{n}" for n in range(100)])
    assert done.done()
    assert sent == [("Txn", True)]


def test_store_makes_its_calls_in_a_thread_that_waits_and_its_pipeline_does_not(server, root):
    with latchwork.connect(server.url(root)) as store:
        store.put("warm", b"up")
        calls = []
        link = store._core.backend._connection
        send = link.send
        link.send = lambda *args, in_caller_thread=False: (
            calls.append(in_caller_thread),
            send(*args, in_caller_thread=in_caller_thread),
        )[1]
        store.put("k", b"1")
        store.pipeline().put("k", b"2").result(5)
        assert calls == [True, False]


def test_write_that_waits_is_settled_when_its_answer_is_lost(cut_off, backend):
    writer, proxy = cut_off
    proxy.hold("answers", open_only=True)
    timer = threading.Timer(0.3, proxy.cut_clients)
    timer.start()
    told = writer.for_blocking_calls.commit([], [Put("k", b"1")]).result(8)
    timer.join()
    found = backend.get("k", stale_ok=False).result(5)
    assert told.entries == (found,)


def test_closing_the_store_ends_a_call_that_waits_in_another_thread(cut_off):
    backend, proxy = cut_off
    proxy.hold("answers", open_only=True)
    proxy.refuse(new_only=True)
    errors = []

    def read():
        try:
            backend.for_blocking_calls.get("k", stale_ok=False).result(20)
        except LatchworkError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.2)
    started = time.monotonic()
    backend.close()
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - started < 5
    assert isinstance(errors[0], Closed)


def test_write_that_an_interrupt_cut_short_is_settled_before_the_next_read(backend, eventually):
    backend.commit([], [Put("warm", b"up")]).result(5)
    link = backend._connection
    send = link.send

    def interrupted(*args, **how):
        link.send = send
        send(*args, **how)
        raise KeyboardInterrupt

    link.send = interrupted
    with pytest.raises(KeyboardInterrupt):
        backend.for_blocking_calls.commit([], [Put("k", b"1")])
    assert len(backend._recovery.unresolved) == 1
    assert backend.get("k", stale_ok=False).result(5).value == b"1"
    assert not backend._recovery.unresolved


def test_next_page_of_a_list_is_on_its_way_before_the_one_before_is_decoded(backend):
    names = [f"k/{n:03d}" for n in range(600)]
    for at in range(0, 600, 100):
        backend.commit([], [Put(name, b"v") for name in names[at : at + 100]]).result(5)
    happened = []
    link, read = backend._connection, backend._connection.read

    class Page:
        def __init__(self, page):
            self._page = page

        def __getattr__(self, name):
            return getattr(self._page, name)

        def __len__(self):
            return len(self._page)

        def entries(self, *skip):
            happened.append("decoded")
            return self._page.entries(*skip)

    def spy(method, request, what, decode, **how):
        happened.append("asked")
        return read(method, request, what, lambda answer: Page(decode(answer)), **how)

    link.read = spy
    found = backend.for_blocking_calls.list("k", recursive=False, limit=None, start_after=None).result(5)
    assert [entry.key for entry in found] == names
    assert happened == ["asked", "asked", "decoded", "decoded"]
