"""A call that a signal handler makes in the middle of another one has no effect, and says so."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import latchwork
from latchwork._base.interrupts import not_reentrant
from latchwork.errors import LatchworkError, ReentrantCall
from latchwork.primitives import Lock
from latchwork.types import Put
from patience import eventually

pytestmark = pytest.mark.reentrant
CALLS = {
    "put": lambda store: store.put("k", b"late"),
    "create": lambda store: store.create("new", b"late"),
    "commit": lambda store: store.commit([], [Put("k", b"late")]),
    "delete": lambda store: store.delete("k"),
    "delete_tree": lambda store: store.delete_tree(""),
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list(""),
    "transact": lambda store: store.transact(lambda tx: tx.put("k", b"late")),
    "pipeline": lambda store: store.pipeline().put("k", b"late"),
    "session": lambda store: store.session,
    "lock": lambda store: Lock(store, "k").acquire(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_while_its_thread_is_inside_one_is_refused_without_effect(call, request):
    with latchwork.connect(f"memory://{abs(hash(request.node.nodeid))}") as store:
        store.put("k", b"v")
        with pytest.raises(ReentrantCall, match="signal handler"):
            not_reentrant(CALLS[call])(store)
        assert [(each.key, each.value) for each in store.list("")] == [("k", b"v")]


def test_a_store_is_closed_all_the_same():
    with latchwork.connect("memory://closed-in-a-handler") as store:
        not_reentrant(store.close)()


def test_a_call_in_a_signal_handler_while_a_lock_is_waited_for_is_refused(backend_url):
    """The lock is waited for on, and had."""
    said, answered = [], threading.Event()

    def handle(*_):
        for call in (lambda: store.put("handler", b"1"), lambda: Lock(store, "other").acquire(0.0)):
            try:
                call()
            except LatchworkError as error:
                said.append(type(error))
        answered.set()

    def interrupt():
        eventually(held.waiters)
        os.kill(os.getpid(), signal.SIGUSR1)
        answered.wait(30.0)
        held.release()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with latchwork.connect(backend_url) as store, latchwork.connect(backend_url) as other:
            held = Lock(other, "l")
            held.acquire()
            thread = threading.Thread(target=interrupt)
            thread.start()
            with Lock(store, "l"):
                pass
            thread.join()
            assert said == [ReentrantCall, ReentrantCall]
            assert store.get("handler") is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_call_in_a_signal_handler_of_a_users_function_is_served():
    said = []

    def run(tx):
        said.append(store.put("handler", b"1").value)
        tx.put("k", b"1")

    with latchwork.connect("memory://handler-of-a-function") as store:
        store.transact(run)
        assert said == [b"1"]
