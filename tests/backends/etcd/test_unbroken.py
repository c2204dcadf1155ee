"""A blocking call of gRPC's in one step: that gRPC has what it needs, and what is done without it."""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork.backends.etcd import unbroken


@pytest.fixture
def url(etcd35, root):
    return etcd35.url(root)


def test_this_version_of_grpc_has_what_is_needed(url):
    with latchwork.connect(url) as store:
        assert store._core.backend.inner.bears_interrupts


def test_the_threads_of_others_see_the_module_as_it_was(url):
    with latchwork.connect(url):
        assert unbroken._cygrpc.threading is threading


def test_a_put_of_the_main_thread_is_made_by_itself_and_starts_no_thread(url):
    makers = []
    with latchwork.connect(url) as store:
        store.put("k", b"first")
        link = store._core.backend.inner._link
        call = link._channel.calls["Txn"]

        def noted(*args):
            makers.append(threading.current_thread())
            return call(*args)

        link._channel.calls["Txn"] = noted
        store.put("k", b"second")
    assert makers == [threading.current_thread()]


def test_what_answers_by_a_callback_is_begun_by_another_thread(backend):
    beginners = []
    link = backend._link
    begin = link._channel.calls["Range"].future

    class Noted:
        def future(self, *args):
            beginners.append(threading.current_thread())
            return begin(*args)

    link._channel.calls["Range"] = Noted()
    assert backend.get("k", stale_ok=False).result(5) is None
    assert threading.main_thread() not in beginners
    assert beginners


def test_a_grpc_that_does_not_have_it_has_its_calls_made_by_other_threads(url, monkeypatch):
    monkeypatch.setattr("latchwork.backends.etcd.channel.make_whole", lambda _: unbroken.make_whole(object()))
    with latchwork.connect(url) as store:
        assert not store._core.backend.inner.bears_interrupts
        assert store.put("k", b"v").value == b"v"
        assert store.get("k").value == b"v"


def test_the_condition_is_a_condition():
    condition, seen = unbroken._Condition(), []

    def wait():
        with condition:
            condition.wait_for(lambda: seen, 10)
            seen.append("woken")

    thread = threading.Thread(target=wait)
    thread.start()
    with condition, condition:  # a finalizer may enter it again
        seen.append("told")
        condition.notify_all()
    thread.join()
    assert seen == ["told", "woken"]
    assert condition.__enter__.__name__ == "__enter__"
    assert not hasattr(condition.__exit__, "__code__"), "it has bytecode, at which it may be interrupted"
