"""A channel of gRPC whose call was interrupted keeps neither later calls nor the end of the store waiting."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

import latchwork
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.url import parse_url
from latchwork.clock import SYSTEM_CLOCK


def test_close_ends_in_time_although_the_channel_does_not(backend, monkeypatch, caplog):
    backend.commit([], [])
    go_on = threading.Event()
    close = backend._connection.close
    monkeypatch.setattr(backend._connection, "close", lambda: (go_on.wait(20.0), close()))
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 5.0
    assert "did not close within" in caplog.text
    go_on.set()


def interrupted_once(link, method):
    """Have the next call of a method, made in its caller's thread, interrupted as gRPC holds a lock of its channel."""
    channel = link._channel
    call = channel.calls[method]

    def torn(*args):
        channel.calls[method] = call
        raise KeyboardInterrupt

    channel.calls[method] = torn


@pytest.mark.parametrize(("method", "ask"), [("Range", lambda s: s.get("k")), ("Txn", lambda s: s.put("k", b"torn"))])
def test_a_call_after_an_interrupted_one_has_another_channel(etcd35, root, method, ask):
    with latchwork.connect(etcd35.url(root)) as store:
        store.put("k", b"v")
        link = store._core.backend._connection
        before = link._channel
        interrupted_once(link, method)
        with pytest.raises(KeyboardInterrupt):
            ask(store)
        assert link._channel is not before
        assert store.put("k", b"after").value == b"after"
        assert store.get("k").value == b"after"


def test_a_channel_that_never_closes_after_an_interrupt_keeps_no_store_from_closing(etcd35, root):
    go_on = threading.Event()
    store = latchwork.connect(etcd35.url(root))
    store.put("k", b"v")
    link = store._core.backend._connection
    close, link._channel.close = link._channel.close, lambda: (go_on.wait(30.0), close())
    interrupted_once(link, "Range")
    with pytest.raises(KeyboardInterrupt):
        store.get("k")
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 10.0
    go_on.set()


def test_another_threads_watch_is_told_of_changes_after_an_interrupt(etcd35, root):
    with latchwork.connect(f"{etcd35.url(root)}?call_timeout_s=1") as store, store.watch("k") as watch:
        assert watch.next(20.0) == ()
        interrupted_once(store._core.backend._connection, "Range")
        with pytest.raises(KeyboardInterrupt):
            store.get("k")
        for number in range(4):  # also once the channel that was left is closed
            value = b"%d" % number
            store.put("k", value)
            assert watch.next(20.0)[0].entry.value == value
            time.sleep(0.8)


class Delayed:
    """What a link asked its timer to call later."""

    def __init__(self):
        self.calls = []

    def call_later(self, _delay_s, call):
        self.calls.append(call)


@pytest.fixture
def link():
    """A link that never connects; its timer is driven by the test."""
    one = EtcdConnection(parse_url("etcd://localhost:1"), SYSTEM_CLOCK, Delayed(), tls={})
    yield one
    one.close()


def interrupt(link):
    interrupted_once(link, "Range")
    with pytest.raises(KeyboardInterrupt):
        link.send("Range", b"", 1.0, in_caller_thread=True)


def test_each_channel_that_was_left_is_closed_after_its_own_time(link, eventually):
    closed = []
    for number in range(2):
        link._channel.close = partial(closed.append, number)
        interrupt(link)
    for number in range(2):
        link.timer.calls[number]()
        eventually(lambda number=number: closed == [*range(number + 1)])


def test_a_channel_that_was_interrupted_after_another_member_was_chosen_does_not_keep_the_timer(link):
    go_on = threading.Event()
    link._channel.close = partial(go_on.wait, 30.0)
    interrupted_once(link, "Range")
    torn = link._channel.calls["Range"]

    def torn_later(*args):
        link._rotate()
        torn(*args)

    link._channel.calls["Range"] = torn_later
    with pytest.raises(KeyboardInterrupt):
        link.send("Range", b"", 1.0, in_caller_thread=True)
    began = time.monotonic()
    (retire,) = link.timer.calls
    retire()
    assert time.monotonic() - began < 5.0
    go_on.set()
