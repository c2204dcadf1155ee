"""Stores of one process share a connection, and the trouble of one is not the trouble of the others."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import latchwork
from backends.etcd.test_interrupts import interrupted_once
from latchwork.backends.etcd import shared_connections
from latchwork.clock import SystemClock
from latchwork.errors import Closed, ConnectFailed, LatchworkError
from latchwork_testkit.conformance.children import run_in_fork
from patience import eventually
from primitives.test_request_counts import Etcd

WAIT_S = 20.0


@pytest.fixture
def stores(server, root):
    """Makes stores with the same URL, which are closed after the test."""
    with ExitStack() as stack:
        yield lambda count, **options: [
            stack.enter_context(latchwork.connect(server.url(root), **options)) for _ in range(count)
        ]


def connection_of(store):
    return store._core.backend._connection


def use(store, number):
    """Have a store open a session, write, and follow keys of its own."""
    store.put(f"{number}/bound", b"", session=store.session)
    return store.mirror(f"{number}").ready(WAIT_S)


def threads():
    """The threads of this process, with those of gRPC's core."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_a_store_with_a_session_and_a_watch_needs_no_thread_of_its_own(stores):
    for number, store in enumerate(stores(2)):
        use(store, number)
    before = threads()
    for number, store in enumerate(stores(30), 2):
        use(store, number)
    # gRPC's own pool may grow to the number of processors
    assert threads() <= before + 4


def test_stores_share_one_stream_of_watches(root):
    with Etcd("3.5") as server, ExitStack() as stack:

        def watched():
            return server.counts()["etcd_debugging_mvcc_watcher_total"]

        opened = [stack.enter_context(latchwork.connect(server.url(root))) for _ in range(5)]
        for number, store in enumerate(opened):
            use(store, number)
        assert server.counts()["etcd_debugging_mvcc_watch_stream_total"] == 1
        assert watched() == 15, "the key of a session, and a prefix with the keys below it"
        for store in opened[1:]:
            store.close()
        eventually(lambda: watched() == 3, WAIT_S)


def test_stores_that_are_opened_at_once_share_a_connection(server, root):
    start, opened = threading.Barrier(8), []

    def connect():
        start.wait(WAIT_S)
        opened.append(latchwork.connect(server.url(root)))

    connecting = [threading.Thread(target=connect) for _ in range(8)]
    for each in connecting:
        each.start()
    for each in connecting:
        each.join(WAIT_S)
    assert len(opened) == 8
    assert len({connection_of(store) for store in opened}) == 1
    for store in opened:
        store.close()


@pytest.mark.parametrize(
    "options",
    [
        {"user": "ann", "password": "one"},
        {"call_timeout_s": 3},
        {"connect_timeout_s": 3},
        {"clock": SystemClock()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_store_with_other_settings_has_another_connection(stores, options):
    (store,) = stores(1)
    (other,) = stores(1, **options)
    assert connection_of(store) is not connection_of(other)


def test_stores_with_other_roots_and_ttls_share_a_connection(stores):
    (store,) = stores(1)
    (other,) = stores(1, root="elsewhere", session_ttl_s=7)
    assert connection_of(store) is connection_of(other)


def test_closing_a_store_ends_what_is_its_and_nothing_else(stores):
    one, other = stores(2)
    mirror, session, mine = use(one, 1), one.session, use(other, 2)
    with one.watch("k") as watch:
        watch.next(WAIT_S)
        one.close()
        with pytest.raises(Closed):
            watch.next(WAIT_S)
    assert other.get("1/bound") is None, "the session of the closed store was revoked"
    other.put("1/late", b"")
    other.put("2/late", b"")
    mine.wait_until(lambda it: "2/late" in it, WAIT_S)
    assert "1/late" not in mirror
    assert session.state == "closed"
    assert other.session.state == "active"


def test_the_session_of_a_store_is_renewed_while_others_open_and_close(stores):
    (store,) = stores(1, session_ttl_s=2)
    session, deadline = store.session, time.monotonic() + 5.0
    count = 0
    while time.monotonic() < deadline:
        (other,) = stores(1)
        use(other, count)
        other.close()
        count += 1
    assert session.state == "active"
    assert store.session is session


def test_the_last_store_closes_the_connection_and_the_next_one_opens_another(stores):
    one, other = stores(2)
    before = connection_of(one)
    one.close()
    assert other.put("k", b"v").value == b"v"
    other.close()
    assert before.closed
    (again,) = stores(1)
    assert connection_of(again) is not before
    assert again.get("k").value == b"v"


def test_stores_that_are_opened_and_closed_in_many_threads_meet_no_closed_connection(server, root):
    errors, ends_at = [], time.monotonic() + 2.0

    def work(number):
        while time.monotonic() < ends_at:
            try:
                with latchwork.connect(server.url(root)) as store, store.watch("k") as watch:
                    watch.next(WAIT_S)
                    store.put(f"{number}", b"")
            except LatchworkError as error:
                errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60.0)
    assert errors == []


def test_a_callback_that_blocks_delays_no_other_store(stores):
    one, other = stores(2)
    go_on, entered = threading.Event(), threading.Event()

    def block(_batch):
        entered.set()
        go_on.wait(60.0)

    one.watch("k").subscribe(block)
    session = one.open_session(5.0)
    session.on_end(lambda: go_on.wait(60.0))
    assert entered.wait(WAIT_S)
    session.mark_ended()
    seen = other.mirror("k").ready(WAIT_S)
    try:
        for number in range(3):
            other.put("k", b"%d" % number)
            seen.wait_until(lambda it, value=b"%d" % number: "k" in it and it["k"].value == value, WAIT_S)
        assert not other.open_session(5.0).lost.wait(6.0)
    finally:
        go_on.set()


def test_all_watches_go_on_after_a_disconnect(server, root, proxied):
    proxy = proxied(server)
    url = f"etcd://{proxy.endpoint}/{root}"
    with ExitStack() as stack:
        opened = [stack.enter_context(latchwork.connect(url)) for _ in range(5)]
        mirrors = [use(store, number) for number, store in enumerate(opened)]
        proxy.cut_clients()
        with latchwork.connect(server.url(root)) as writer:
            for number, mirror in enumerate(mirrors):
                writer.put(f"{number}/after", b"")
                mirror.wait_until(lambda it, key=f"{number}/after": key in it, WAIT_S)
        assert [store.session.state for store in opened] == ["active"] * 5


def test_a_store_is_not_opened_on_a_connection_that_does_not_work(server, root, proxied):
    proxy = proxied(server)
    url = f"etcd://{proxy.endpoint}/{root}?call_timeout_s=2"
    with latchwork.connect(url) as store:
        proxy.hold(open_only=True)
        with pytest.raises(LatchworkError):
            store.put("k", b"v")
        with store.reopen() as again:
            assert again.put("k", b"v").value == b"v"
            assert connection_of(again) is not connection_of(store)
            with latchwork.connect(url) as third:
                assert connection_of(third) is connection_of(again)
        proxy.release()


def test_a_store_that_cannot_be_opened_leaves_nothing_to_share(server, root, proxied):
    proxy = proxied(server)
    url = f"etcd://{proxy.endpoint}/{root}?connect_timeout_s=4"
    proxy.refuse()
    with pytest.raises(ConnectFailed):
        latchwork.connect(url)
    proxy.accept()
    with latchwork.connect(url) as store:
        assert store.put("k", b"v").value == b"v"


def test_an_interrupted_call_of_one_store_leaves_the_others_working(stores):
    one, other = stores(2)
    mirror, session = use(other, 2), other.session
    interrupted_once(one._core.backend._connection, "Range")
    with pytest.raises(KeyboardInterrupt):
        one.get("k")
    other.put("2/after", b"")
    mirror.wait_until(lambda it: "2/after" in it, WAIT_S)
    assert session.state == "active"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_a_connection_of_its_own(server, root, stores):
    (store,) = stores(1)
    mirror = use(store, 1)

    def in_child():
        with latchwork.connect(server.url(root)) as mine, latchwork.connect(server.url(root)) as another:
            use(mine, "child")
            is_shared = connection_of(mine) is connection_of(another)
            return connection_of(mine) is not connection_of(store), is_shared

    assert run_in_fork({"child": in_child}) == {"child": "(True, True)"}
    store.put("1/after", b"")
    mirror.wait_until(lambda it: "1/after" in it, WAIT_S)
    assert store.session.state == "active"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_is_forked_while_another_thread_opens_a_store_can_open_one(server, root, stores):
    (store,) = stores(1)

    def in_child():
        with latchwork.connect(server.url(root)) as mine:
            return mine.put("child", b"v").value

    with shared_connections._lock:
        assert run_in_fork({"child": in_child}) == {"child": "b'v'"}
    assert store.get("child").value == b"v"
