"""Watches of single keys begin at the present and read behind: what comes in between is neither lost nor told twice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from latchwork.backends.base import Delta, Snapshot
from latchwork.backends.etcd.watching import watches
from latchwork.types import Delete, Put
from latchwork_testkit.proxy import Proxy


def put(backend, key, value):
    return backend.commit([], [Put(key, value)]).result(10)


def told(collector):
    """Values in the order in which they were told; None for none."""
    found = []
    for event in collector.events:
        if isinstance(event, Snapshot):
            found.append([entry.value for entry in event.entries])
        elif isinstance(event, Delta):
            found += [change.entry and change.entry.value for change in event.changes]
    return found


@pytest.fixture
def around_read(monkeypatch):
    """Has something done before or after the read of a watch, before the hub has its answer."""

    def patch(before=lambda: None, after=lambda: None):
        read_pages = watches.read_pages

        def read(*args, **options):
            answered = Future()

            def work():
                before()
                answers = read_pages(*args, **options).result(10)
                after()
                answered.set_result(answers)

            threading.Thread(target=work).start()
            return answered

        monkeypatch.setattr(watches, "read_pages", read)

    return patch


@pytest.fixture
def other(server, root, opened):
    """A second store of the same root."""
    return opened(server.url(root))


def test_a_leaf_is_watched_from_the_present_so_that_the_server_does_not_put_it_aside(backend, collector, monkeypatch):
    made = []
    put(backend, "w/k", b"1")
    create = watches.pb.WatchCreateRequest
    monkeypatch.setattr(watches.pb, "WatchCreateRequest", lambda **fields: made.append(fields) or create(**fields))
    seen = collector()
    backend.watch("w/k", seen, single_key=True)
    seen.wait_until(lambda it: it.values() == {"w/k": b"1"})
    assert [(fields["start_revision"], fields["range_end"][-1:]) for fields in made] == [(0, b"\0")]


def test_what_is_written_between_the_watch_and_the_read_is_told_once(backend, other, collector, around_read):
    seen = collector()
    put(other, "w/k", b"1")

    def write():
        put(other, "w/k", b"2")
        time.sleep(0.3)  # the event is there before the read is even sent

    around_read(before=write)
    backend.watch("w/k", seen, single_key=True)
    seen.wait_until(lambda it: it.values() == {"w/k": b"2"})
    put(other, "w/k", b"3")
    seen.wait_until(lambda it: it.values() == {"w/k": b"3"})
    assert told(seen) == [[b"2"], b"3"]


def test_what_is_written_between_the_read_and_its_answer_is_held_until_that_was_told(
    backend, other, collector, around_read
):
    seen = collector()
    put(other, "w/k", b"1")

    def write():
        other.commit([], [Delete("w/k")]).result(10)
        time.sleep(0.3)

    around_read(after=write)
    backend.watch("w/k", seen, single_key=True)
    seen.wait_until(lambda it: len(told(it)) == 2)
    assert told(seen) == [[b"1"], None]


def test_a_leaf_hears_of_an_end_that_came_while_it_was_cut_off(server, root, opened, other, collector):
    with Proxy(server.endpoint) as proxy:
        backend, seen = opened(f"etcd://{proxy.endpoint}/{root}"), collector()
        put(other, "w/k", b"1")
        backend.watch("w/k", seen, single_key=True)
        seen.wait_until(lambda it: it.values() == {"w/k": b"1"})
        proxy.refuse()
        other.commit([], [Delete("w/k")]).result(10)
        proxy.accept()
        seen.wait_until(lambda it: told(it)[-1:] == [None], 30.0)
