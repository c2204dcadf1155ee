"""Events that arrive together are one read: what one transaction changed is told together, and costs one request."""

from __future__ import annotations

import time
from contextlib import ExitStack
from queue import Queue

from latchwork.backends.base import Delta, Snapshot
from latchwork.backends.url import open_backend, parse_url
from latchwork.backends.zookeeper.wire import CHANGED
from latchwork.clock import SYSTEM_CLOCK
from latchwork.types import Put
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


def test_on_a_slow_link_a_change_does_not_wait_for_the_read_of_the_one_before(zookeeper, other, root):
    """Nor does it overtake it."""
    told: Queue = Queue()
    with Proxy(zookeeper.endpoint) as proxy, ExitStack() as stack:
        backend = open_backend(parse_url(f"zk://{proxy.endpoint}/{root}", {}), SYSTEM_CLOCK)
        stack.callback(backend.close)
        backend.watch("in", told.put, heartbeats=False)
        assert isinstance(told.get(timeout=WAIT_S), Snapshot)
        proxy.delay(1.5, "answers")
        for key in ("in/a", "in/b"):
            other.commit([], [Put(key, b"v")]).result(WAIT_S)
            begun = time.monotonic()
            time.sleep(0.15)
        assert [change.key for _ in "ab" for change in told.get(timeout=WAIT_S).changes] == ["in/a", "in/b"]
        assert time.monotonic() - begun < 3.7  # the event and its read
        proxy.delay(0.0, "answers")
