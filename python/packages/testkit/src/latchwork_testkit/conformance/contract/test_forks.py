"""A forked child: each call is refused at once, sessions are lost, and closing does not affect the parent."""

from __future__ import annotations

import gc

import pytest

import latchwork
from latchwork.testing import FaultyStore
from latchwork_testkit.conformance.children import HANG_S, run_in_fork

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_closing_a_session_in_a_child_leaves_the_parents_alive(store, other):
    session = store.open_session(4.0)
    store.put("bound", b"", session=session)
    assert run_in_fork({"close": session.close, "store": store.close}) == {"close": "None", "store": "None"}
    assert not session.lost.wait(2.0), "the parent has renewed the session meanwhile"
    assert session.state == "active"
    assert other.get("bound").owner == session.id


def test_a_child_that_reopens_its_parents_store_has_one_like_it(backend_url):
    with latchwork.connect(backend_url, session_ttl_s=7) as store:
        if not store.capabilities.multi_process:
            pytest.skip("multi_process=False: a forked child does not share the memory")
        inner = store.namespace("inner")
        session_id = store.session.id

        def reopened():
            with inner.reopen() as again:
                again.put("from-the-child", again.session.id.encode())
                return again.url, again.session.ttl_s

        assert run_in_fork({"reopened": reopened, "theirs": lambda: inner.get("x")}) == {
            "reopened": repr((store.url, store.session.ttl_s)),
            "theirs": "ForkedProcess",
        }
        assert store.get("inner/from-the-child").value.decode() != session_id
        assert store.session.id == session_id
        assert store.session.state == "active"


def test_the_error_in_a_child_names_reopen(store):
    def refused():
        with pytest.raises(latchwork.ForkedProcess, match=r"store\.reopen\(\)"):
            store.get("k")

    assert run_in_fork({"refused": refused}) == {"refused": "None"}


def test_a_reopened_store_is_another_one(store):
    with store.reopen() as again:
        again.put("k", b"v")
        assert again.session.id != store.session.id
    assert store.get("k").value == b"v"


def test_a_store_built_on_another_is_not_reopened(store):
    with FaultyStore(store.reopen()) as faulty, pytest.raises(latchwork.LatchworkError, match="parts of another store"):
        faulty.reopen()


def test_a_session_is_lost_in_a_child(store):
    session = store.open_session(30.0)
    assert run_in_fork(
        {
            "state": lambda: session.state,
            "lost": lambda: session.lost.wait(HANG_S / 2),
            "remaining_s": session.remaining_s,
            "repr": lambda: " lost 0.00s " in repr(session),
            "fence": lambda: session.fence,
            "on_lost": lambda: session.on_lost(print),
            "on_end": lambda: session.on_end(print),
        }
    ) == {
        "state": "'lost'",
        "lost": "True",
        "remaining_s": "0.0",
        "repr": "True",
        "fence": "ForkedProcess",
        "on_lost": "ForkedProcess",
        "on_end": "ForkedProcess",
    }
    assert session.state == "active"
    assert not session.lost.is_set()


def test_watches_and_mirrors_are_refused_in_a_child_and_continue_in_the_parent(store, other):
    other.put("m/a", b"1")
    with store.mirror("m") as mirror, store.watch("m") as watch, store.watch("m") as unread:
        watch.next(10.0)
        calls = {
            "next of a watch that has something": lambda: unread.next(1.0),
            "next of a watch": lambda: watch.next(1.0),
            "iteration": lambda: next(iter(watch)),
            "subscribe": lambda: watch.subscribe(print),
            "siblings": lambda: watch.siblings,
            "item": lambda: mirror["m/a"],
            "get": lambda: mirror.get("m/a"),
            "keys": lambda: list(mirror),
            "count": lambda: len(mirror),
            "in": lambda: "m/a" in mirror,
            "snapshot": mirror.snapshot,
            "ready": lambda: mirror.ready(1.0),
            "wait_until": lambda: mirror.wait_until(bool, 1.0),
            "on_change": lambda: mirror.on_change(print),
        }
        quiet = {"stale_s": mirror.stale_s, "close": mirror.close, "close the watch": watch.close}
        assert run_in_fork({**calls, **quiet}) == {
            **dict.fromkeys(calls, "ForkedProcess"),
            "stale_s": "inf",
            "close": "None",
            "close the watch": "None",
        }
        other.put("m/b", b"2")
        assert [change.key for change in watch.next(10.0)] == ["m/b"]
        mirror.wait_until(lambda now: "m/b" in now, 10.0)


def test_a_full_pipeline_is_refused_in_a_child_without_waiting_for_calls_that_end_in_the_parent(store):
    pipeline = store.pipeline(max_in_flight=1)
    pipeline._count = 1  # as a call in flight leaves it
    ended = pipeline._calls.get("k")
    ended.result(10.0)

    def leaves(error):
        with pipeline:
            raise error

    results = run_in_fork(
        {
            "call": lambda: pipeline.get("k"),
            "flush": pipeline.flush,
            "end of a with": lambda: pipeline.__exit__(None, None, None),
            "end of a with that failed": lambda: leaves(SystemExit(3)),
            "begin": lambda: store.start_call("transact", lambda tx: tx.get("k")),
        }
    )
    assert results == {
        "call": "ForkedProcess",
        "flush": "ForkedProcess",
        "end of a with": "ForkedProcess",
        "end of a with that failed": "SystemExit",
        "begin": "ForkedProcess",
    }
    pipeline._count = 0


def test_a_callback_that_is_added_in_a_child_to_a_future_that_has_ended_is_called_there(store):
    with store.pipeline() as pipeline:
        future = pipeline.get("k")
    future.result(10.0)
    called = []
    assert run_in_fork({"add": lambda: future.add_done_callback(called.append) or len(called)}) == {"add": "1"}


def test_a_child_that_drops_what_the_parent_opened_does_it_no_harm(backend_url):
    opened = [latchwork.connect(backend_url, session_ttl_s=4.0)]
    session = opened[0].session
    opened[0].put("bound", b"", session=session)
    opened.append(opened[0].mirror("bound"))
    names = {"drop": lambda: (opened.clear(), gc.collect())[0]}
    holder = {"session": session}
    del session
    run_in_fork({"drop": lambda: (holder.clear(), names["drop"]())[1]})
    assert not holder["session"].lost.wait(2.0)
    assert holder["session"].state == "active"
    opened[0].put("bound", b"again")
    opened[1].wait_until(lambda now: now["bound"].value == b"again", 10.0)
    opened[0].close()
