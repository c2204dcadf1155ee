"""Events that arrive together are one read: what one transaction changed is told together, and costs one request."""

from __future__ import annotations

from queue import Queue

from latchwork.backends.base import Delta, Snapshot
from latchwork.backends.zookeeper.wire import CHANGED
from latchwork.types import Put

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
