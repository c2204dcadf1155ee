"""Backends of other packages that were written before some methods were part of the protocol."""

from __future__ import annotations

import pytest

from latchwork.backends.base import Backend, with_defaults
from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LockLost
from latchwork.store.connection import StoreConnection
from latchwork.store.store import Store

NEW = {"for_blocking_calls", "for_event_loop", "within", "create_ordered_key"}
OLD = [name for name in vars(Backend) if not name.startswith("_") and name not in NEW]


class Older:
    """What such a package has: the methods of the time, and no base class."""

    def __init__(self, inner):
        for name in OLD:
            setattr(self, name, getattr(inner, name))


class Older2(Older):
    """One that works in the calling thread, and said so as it was told to then."""

    def __init__(self, inner):
        super().__init__(inner)
        self.limits = []

    def within(self, limit_s):
        self.limits.append(limit_s)
        return self


@pytest.fixture
def memory():
    backend = open_backend(parse_url("memory://older/app"), SYSTEM_CLOCK)
    yield backend
    backend.close()


def store_on(backend):
    return Store(StoreConnection(backend, SYSTEM_CLOCK, "memory://older/app", session_ttl_s=5.0, call_timeout_s=5.0))


@pytest.mark.parametrize("make", [Older, Older2])
def test_an_older_backend_serves_a_store(memory, make):
    store = store_on(make(memory))
    entry = store.put("k", b"v", session=store.session)
    assert (store.get("k"), store.pipeline().get("k").result(5)) == (entry, entry)
    assert store.create_ordered_key("q/t-", "1", b"v").older is None
    with store.mirror("") as mirror:
        assert mirror["k"] == entry
    within = store.within(lambda: 3.0)
    assert (within.get("k"), within.delete("k")) == (entry, True)
    with pytest.raises(LockLost):
        store.within(lambda: 0.0).get("k")


def test_what_an_older_backend_has_of_the_new_methods_is_used(memory):
    backend = Older2(memory)
    store_on(backend).within(lambda: 3.0).put("k", b"v")
    assert backend.limits == [3.0]


def test_backend_that_names_the_protocol_as_its_base_needs_no_help(memory):
    class Newer(Backend):
        """Takes the defaults."""

    newer = Newer()
    assert (newer.for_blocking_calls, newer.within(1.0)) == (newer, newer)
    assert with_defaults(newer) is newer
    assert with_defaults(memory) is memory
