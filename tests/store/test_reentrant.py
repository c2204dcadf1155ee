"""A call that comes while its thread holds what the answer may need has no effect, and says so."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.errors import ReentrantCall
from latchwork.interrupts import OncePerThread, mutex
from latchwork.types import Put

CALLS = {
    "put": lambda store: store.put("k", b"late"),
    "create": lambda store: store.create("new", b"late"),
    "commit": lambda store: store.commit([], [Put("k", b"late")]),
    "delete": lambda store: store.delete("k"),
    "delete_tree": lambda store: store.delete_tree(""),
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list(""),
    "pipeline": lambda store: store.pipeline().put("k", b"late"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("section", [mutex, OncePerThread])
def test_a_call_while_its_thread_holds_a_mutex_is_refused_without_effect(call, section, request):
    with latchwork.connect(f"memory://{abs(hash(request.node.nodeid))}") as store:
        store.put("k", b"v")
        with section(), pytest.raises(ReentrantCall, match="signal handler"):
            CALLS[call](store)
        assert [(each.key, each.value) for each in store.list("")] == [("k", b"v")]


def test_a_store_is_closed_all_the_same():
    with latchwork.connect("memory://closed-in-a-handler") as store, mutex():
        store.close()
