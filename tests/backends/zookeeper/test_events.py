"""Events that arrive together are one read, and later ones do not wait for its answer. All is reported in order."""

from __future__ import annotations

from queue import Queue

from latchwork.backends.base import Delta, Snapshot
from latchwork.backends.futures import LightFuture
from latchwork.backends.zookeeper.wire import CHANGED, DELETED
from latchwork.types import Delete, Put
from latchwork_testkit.proxy import Proxy

WAIT_S = 15


def test_events_that_arrive_together_are_one_read(backend, other, root, monkeypatch):
    told: Queue = Queue()
    keys = [f"in/k{number}" for number in range(5)]
    watch = backend.watch("in", told.put)
    assert isinstance(told.get(timeout=WAIT_S), Snapshot)
    asked, call = [], backend._main.call
    monkeypatch.setattr(backend._main, "call", lambda *args: asked.append(args) or call(*args))
    monkeypatch.setattr(backend._main._listener, "on_event", lambda *_: None)  # those of the server come in parts
    on_event = type(backend._hub).on_event
    other.commit([], [Put(key, b"v") for key in keys]).result(WAIT_S)
    for key in keys:
        on_event(backend._hub, CHANGED, f"/{root}/{key}")
    assert asked == []
    backend._hub.on_event_batch_end()
    delta = told.get(timeout=WAIT_S)
    assert isinstance(delta, Delta)
    assert sorted(change.key for change in delta.changes) == keys
    assert len(asked) == 1
    watch.close()


def test_a_later_event_does_not_wait_for_the_read_of_an_earlier_one(connect, other, zookeeper, root, monkeypatch):
    told: Queue = Queue()
    keys = [f"in/k{number}" for number in range(6)]
    with Proxy(zookeeper.endpoint) as link:
        backend = connect(link.endpoint)
        watch = backend.watch("in", told.put)
        assert isinstance(told.get(timeout=WAIT_S), Snapshot)
        asked, call = [], backend._main.call
        monkeypatch.setattr(backend._main, "call", lambda *args: asked.append(args) or call(*args))
        monkeypatch.setattr(backend._main._listener, "on_event", lambda *_: None)
        on_event = type(backend._hub).on_event
        other.commit([], [Put(key, b"v") for key in keys]).result(WAIT_S)
        link.hold("answers")
        for key in keys:
            on_event(backend._hub, CHANGED, f"/{root}/{key}")
            backend._hub.on_event_batch_end()
        assert len(asked) == 4  # the last two wait for one of these, and are read together
        link.release()
        deltas = [told.get(timeout=WAIT_S) for _ in range(5)]
        assert [len(delta.changes) for delta in deltas] == [1, 1, 1, 1, 2]
        assert sorted(change.key for delta in deltas for change in delta.changes) == keys
        watch.close()


def test_a_deletion_that_was_read_before_the_new_key_is_reported_before_it(backend, other, root, monkeypatch):
    """The answer of the earlier read takes longer, as if it had several parts."""
    told: Queue = Queue()
    other.commit([], [Put("in/k", b"old")]).result(WAIT_S)
    watch = backend.watch("in", told.put)
    assert isinstance(told.get(timeout=WAIT_S), Snapshot)
    reader = backend._hub._lister.reader
    read, answered, rest = reader.read_with_guards, Queue(), LightFuture()

    def read_slowly(*args):
        entries = yield from read(*args)
        answered.put(entries)
        if entries == [None]:
            yield rest
        return entries

    monkeypatch.setattr(reader, "read_with_guards", read_slowly)
    monkeypatch.setattr(backend._main._listener, "on_event", lambda *_: None)
    on_event = type(backend._hub).on_event
    for kind, op in ((DELETED, Delete("in/k")), (CHANGED, Put("in/k", b"new"))):
        other.commit([], [op]).result(WAIT_S)
        on_event(backend._hub, kind, f"/{root}/in/k")
        backend._hub.on_event_batch_end()
        answered.get(timeout=WAIT_S)
    rest.set_result(None)
    (gone,), (new,) = (told.get(timeout=WAIT_S).changes for _ in range(2))
    assert (gone.entry, new.entry.value) == (None, b"new")
    watch.close()
