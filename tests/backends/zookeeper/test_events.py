"""Events that arrive together are one read: what one transaction changed is reported together, and costs one request.

Events that arrive while a read is in flight are read at once. The states are reported in the order of the events.
"""

from __future__ import annotations

import time
from queue import Queue

import pytest

from latchwork.backends.base import Current, Delta, Snapshot
from latchwork.backends.futures import LightFuture
from latchwork.backends.zookeeper.wire import CHANGED
from latchwork.types import Delete, Put
from latchwork_testkit.proxy import Proxy

WAIT_S = 15


@pytest.fixture
def delayed(zookeeper):
    """A proxy that can hold the answers."""
    with Proxy(zookeeper.endpoint) as proxy:
        yield proxy


@pytest.fixture
def far(connect, delayed):
    """A backend behind that proxy."""
    return connect(delayed.endpoint)


@pytest.fixture
def batches(far):
    """The reports of a watch of ``in``."""
    reports: Queue = Queue()
    watch = far.watch("in", reports.put)
    assert isinstance(reports.get(timeout=WAIT_S), Snapshot)
    yield reports
    watch.close()


@pytest.fixture
def reads(far, batches, monkeypatch):
    """The requests that the backend sends. It learns of no events of the server."""
    asked, call = [], far._main.call
    monkeypatch.setattr(far._main, "call", lambda *args: asked.append(args) or call(*args))
    monkeypatch.setattr(far._main._listener, "on_event", lambda *_: None)  # those of the server come in parts
    return asked


@pytest.fixture
def notify(far, reads, root):
    """Report events of keys to the backend, as if they had arrived together."""
    on_event = type(far._hub).on_event

    def notify_of(*keys):
        for key in keys:
            on_event(far._hub, CHANGED, f"/{root}/{key}")
        far._hub.on_event_batch_end()

    return notify_of


def changes(report):
    assert isinstance(report, Delta)
    return {change.key: change.entry and change.entry.value for change in report.changes}


def test_events_that_arrive_together_are_one_read(other, batches, reads, notify):
    keys = [f"in/k{number}" for number in range(5)]
    other.commit([], [Put(key, b"v") for key in keys]).result(WAIT_S)
    assert reads == []
    notify(*keys)
    assert changes(batches.get(timeout=WAIT_S)) == dict.fromkeys(keys, b"v")
    assert len(reads) == 1


def test_an_event_that_arrives_during_a_read_is_read_without_waiting_for_its_answer(
    other, delayed, batches, reads, notify
):
    other.commit([], [Put("in/a", b"1"), Put("in/b", b"1")]).result(WAIT_S)
    delayed.hold("answers")
    notify("in/a")
    notify("in/b")
    assert len(reads) == 2
    delayed.release()
    assert changes(batches.get(timeout=WAIT_S)) == {"in/a": b"1"}
    assert changes(batches.get(timeout=WAIT_S)) == {"in/b": b"1"}


def test_events_of_a_flood_share_reads(other, delayed, batches, reads, notify):
    keys = [f"in/k{number:02}" for number in range(50)]
    other.commit([], [Put(key, b"v") for key in keys]).result(WAIT_S)
    delayed.hold("answers")
    for key in keys:
        notify(key)
    delayed.release()
    found = {}
    while len(found) < len(keys):
        found |= changes(batches.get(timeout=WAIT_S))
    assert len(reads) < 10


def test_a_key_with_children_never_moves_back_to_the_state_of_a_later_read(
    other, delayed, batches, reads, notify, wait_until
):
    other.commit([], [Put("in/key", b"1"), Put("in/key/child", b"")]).result(WAIT_S)
    delayed.hold("answers")
    notify("in/key")  # a second request will be needed
    wait_until(lambda: delayed.held_bytes > 0)
    held = delayed.held_bytes
    other.commit([], [Delete("in/key"), Delete("in/key/child")]).result(WAIT_S)
    notify("in/key")  # reads that there is none
    wait_until(lambda: delayed.held_bytes > held)
    other.commit([], [Put("in/key", b"2"), Put("in/key/child", b"")]).result(WAIT_S)
    delayed.release()
    notify("in/last")
    other.commit([], [Put("in/last", b"")]).result(WAIT_S)
    notify("in/last")
    states = []
    while True:
        found = changes(batches.get(timeout=WAIT_S))
        states += [found["in/key"]] if "in/key" in found else []
        if "in/last" in found:
            break
    assert states == [b"2"]


def test_a_state_is_reported_as_current_after_the_changes_before_it(other, far, delayed, batches, reads, notify):
    far._hub._watches["in"][0].heartbeats = True
    other.commit([], [Put("in/a", b"1"), Put("in/b", b"1")]).result(WAIT_S)
    delayed.hold("answers")
    notify("in/a")
    far._hub._on_confirmation(1.0, True)
    notify("in/b")
    delayed.release()
    assert changes(batches.get(timeout=WAIT_S)) == {"in/a": b"1"}
    assert batches.get(timeout=WAIT_S) == Current(1.0)
    assert changes(batches.get(timeout=WAIT_S)) == {"in/b": b"1"}


def test_a_read_of_several_requests_that_outlives_its_connection_reports_nothing(backend, other, monkeypatch):
    reports: Queue = Queue()
    other.commit([], [Put("in/key", b"1"), Put("in/key/child", b""), Put("in/x", b"1")]).result(WAIT_S)
    watch = backend.watch("in", reports.put)
    assert isinstance(reports.get(timeout=WAIT_S), Snapshot)
    reader, rest, begun = backend._hub._lister.reader, LightFuture(), Queue()
    reread = reader._reread_parents_once

    def reread_later(*args):
        if begun.empty():
            begun.put(None)
            yield rest
        return (yield from reread(*args))

    monkeypatch.setattr(reader, "_reread_parents_once", reread_later)
    other.commit([], [Put("in/key", b"2"), Delete("in/x")]).result(WAIT_S)
    while begun.empty():
        time.sleep(0.01)
    backend._main._kazoo.disconnect()
    other.commit([], [Put("in/x", b"2")]).result(WAIT_S)
    while not isinstance(loaded := reports.get(timeout=WAIT_S), Snapshot):
        pass
    assert "in/x" in {entry.key for entry in loaded.entries}
    rest.set_result(None)
    other.commit([], [Put("in/last", b"")]).result(WAIT_S)
    found = {}
    while "in/last" not in found:
        found |= changes(reports.get(timeout=WAIT_S))
    assert found.get("in/x", b"2") == b"2"
    watch.close()
