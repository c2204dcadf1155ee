"""pipeline() and namespace()."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import latchwork
from latchwork import At, Closed, Conflict, InvalidKey, KeyExists, LatchworkError, Put
from latchwork.primitives import Lock

SOON_S = 20.0


@pytest.mark.threads
def test_a_pipeline_returns_futures_of_the_same_calls(store):
    session = store.open_session(5.0)
    with store.pipeline() as pipeline:
        created = pipeline.create("a", b"1")
        put = pipeline.put("b", b"2", session=session)
        ticket = pipeline.create("q/t", b"", sequential=True)
        many = pipeline.commit([], [Put("c", b"3"), Put("d", b"4")])
    assert created.result(0).value == b"1"
    assert put.result(0).owner == session.id
    assert ticket.result(0).key.startswith("q/t")
    assert len(many.result(0).entries) == 2
    with store.pipeline() as pipeline:
        got = pipeline.get("a")
        got_many = pipeline.get_many(["a", "zzz"])
        listed = pipeline.list("")
        children = pipeline.children("")
        deleted = pipeline.delete("zzz")
        again = pipeline.create("a", b"")
        tree = pipeline.delete_tree("q")
    assert got.result(0) == created.result(0)
    assert got_many.result(0) == [created.result(0), None]
    assert [entry.key for entry in listed.result(0)] == ["a", "b", "c", "d"]
    assert set(children.result(0)) >= {"a", "b", "c", "d"}
    assert deleted.result(0) is False
    assert isinstance(again.exception(0), KeyExists)
    assert tree.result(0) == 1


def test_a_thousand_calls_in_flight_all_land(store):
    with store.pipeline() as pipeline:
        futures = [pipeline.put(f"k/{number:04d}", str(number).encode()) for number in range(1000)]
    assert len({future.result(0).token for future in futures}) == 1000
    assert len(store.list("k")) == 1000


def test_more_calls_than_may_be_in_flight_wait_their_turn(store):
    with store.pipeline(max_in_flight=3) as pipeline:
        futures = [pipeline.put("k", str(number).encode()) for number in range(30)]
    assert all(future.done() for future in futures)
    with pytest.raises(ValueError, match="max_in_flight"):
        store.pipeline(max_in_flight=0)


def test_a_conflict_in_a_pipeline_stays_in_its_future(store):
    old = store.put("k", b"1")
    store.put("k", b"2")
    with store.pipeline() as pipeline:
        bad = pipeline.commit([At(old)], [Put("k", b"3")])
        good = pipeline.put("other", b"")
    assert isinstance(bad.exception(0), Conflict)
    assert bad.exception(0).failed == (At(old),)
    assert good.result(0).key == "other"


def test_a_call_of_a_pipeline_cannot_be_cancelled_for_it_would_land_all_the_same(store):
    with store.pipeline() as pipeline:
        futures = [pipeline.put(f"k{number}", b"") for number in range(50)]
        cancelled = [future.cancel() for future in futures]
        states = {future.running() or future.done() for future in futures}
    assert (set(cancelled), states) == ({False}, {True})
    assert not any(future.cancelled() or future.running() for future in futures)
    assert [future.result(10.0).key for future in futures] == [f"k{number}" for number in range(50)]
    assert len(store.list("")) == 50


def test_a_namespace_is_the_same_interface_below_a_prefix(store):
    inner = store.namespace("team/a")
    entry = inner.put("k", b"1")
    assert entry.key == "k"
    assert store.get("team/a/k").value == b"1"
    assert inner.get("k") == entry
    assert inner.get_many(["k"]) == [entry]
    assert inner.list("") == [entry]
    assert inner.children("") == ["k"]
    assert store.namespace("team").namespace("a").get("k") == entry
    done = inner.commit([At(entry)], [Put("k", b"2"), Put("x/y", b"")])
    assert [written.key for written in done.entries] == ["k", "x/y"]
    assert [e.key for e in inner.list("", recursive=True, start_after="k")] == ["x/y"]
    with pytest.raises(Conflict) as caught:
        inner.commit([At(entry)], [])
    assert caught.value.failed == (At(entry),)
    assert inner.create("q/t", b"", sequential=True).key.startswith("q/t")
    inner.transact(lambda tx: tx.put("via", tx.get("k").value), guard="guard")
    assert store.get("team/a/via").value == b"2"
    assert inner.delete("k") is True
    with pytest.raises(InvalidKey):
        inner.put("@w/x", b"")
    store.put("team/ab", b"not inside")
    assert inner.delete_tree("") >= 3
    assert store.children("team") == ["ab"]


def test_namespaces_share_sessions_and_fences(store):
    inner = store.namespace("inner")
    session = inner.session
    assert session is store.session
    held = inner.put("held", b"", session=session)
    fence = inner.fence(held.token, At(held))
    store.commit([fence, session.fence], [Put("outside", b"")])
    store.namespace("third").commit([fence], [Put("x", b"")])
    inner.put("held", b"changed")
    with pytest.raises(Conflict) as caught:
        store.commit([fence], [Put("outside", b"2")])
    assert caught.value.failed == (fence,)


def test_watches_and_mirrors_of_a_namespace_use_its_keys(store):
    inner = store.namespace("n")
    inner.put("a", b"")
    with inner.watch("") as watch, inner.mirror("a") as mirror:
        assert [change.key for change in watch.next(5)] == ["a"]
        store.put("n/b/c", b"x")
        (change,) = watch.next(5)
        assert (change.key, change.entry.key) == ("b/c", "b/c")
        store.put("n/a/deep", b"")
        mirror.wait_until(lambda state: "a/deep" in state, 5)
        assert mirror["a"].key == "a"
        assert list(mirror) == ["a", "a/deep"]


def test_closing_a_namespace_leaves_the_store_open_and_not_the_other_way_round(backend_url):
    store = latchwork.connect(backend_url)
    inner = store.namespace("n")
    inner.close()
    inner.put("k", b"")
    store.close()
    with pytest.raises(Closed):
        inner.get("k")


def in_callback_of_a_put(store, call):
    """Make a call in the callback of a put's future. Return its result or error, its thread, and how long it took."""
    did, told = [], threading.Event()

    def callback(_):
        started_at = time.monotonic()
        try:
            outcome = call()
        except Exception as error:
            outcome = error
        did.append((outcome, threading.current_thread(), time.monotonic() - started_at))
        told.set()

    store.pipeline().put("x", b"1").add_done_callback(callback)
    assert told.wait(SOON_S)
    return did[0]


@pytest.mark.threads
def test_a_lock_cannot_be_waited_for_in_a_callback_of_a_future(store):
    outcome, _, took_s = in_callback_of_a_put(store, lambda: Lock(store, "free").acquire(10.0))
    assert isinstance(outcome, LatchworkError)
    assert "must not be waited for in a callback" in str(outcome)
    assert took_s < 1.0
    assert store.session.state == "active"


def test_callbacks_of_futures_may_call_the_store(store):
    outcome, thread, _ = in_callback_of_a_put(store, lambda: store.get("x"))
    assert outcome.value == b"1"
    assert thread.name.startswith("latchwork-futures-")


def test_callbacks_of_a_future_that_has_ended_run_where_all_do(store):
    ended, ran_in, told = store.pipeline().put("x", b"1"), [], threading.Event()
    ended.result(SOON_S)
    ended.add_done_callback(lambda _: ran_in.append(threading.current_thread().name))
    ended.add_done_callback(lambda _: told.set())
    assert told.wait(SOON_S)
    assert ran_in[0].startswith("latchwork-futures-")


def test_a_callback_that_blocks_delays_neither_other_calls_nor_the_session(store):
    session, release = store.open_session(2.0), threading.Event()
    put = store.pipeline().put("x", b"1")
    put.add_done_callback(lambda _: release.wait(SOON_S))
    put.result(SOON_S)
    try:
        until = time.monotonic() + 1.5 * session.ttl_s
        while time.monotonic() < until:
            started_at = time.monotonic()
            assert store.get("x").value == b"1"
            assert time.monotonic() - started_at < 1.5
            assert not session.lost.wait(0.1)
    finally:
        release.set()


def test_futures_that_end_with_the_store_have_their_callbacks_called(backend_url):
    store, told = latchwork.connect(backend_url), threading.Semaphore(0)
    pipeline = store.pipeline()
    futures = [pipeline.put(f"k/{number}", b"") for number in range(100)]
    for future in futures:
        future.add_done_callback(lambda _: told.release())
    store.close()
    for _ in futures:
        assert told.acquire(timeout=SOON_S)
    futures[0].add_done_callback(lambda _: told.release())
    assert told.acquire(timeout=SOON_S)


def test_futures_can_be_awaited_in_an_event_loop(store):
    async def puts():
        pipeline = store.pipeline()
        sent = [asyncio.wrap_future(pipeline.put(f"k/{number}", b"")) for number in range(50)]
        return await asyncio.wait_for(asyncio.gather(*sent), SOON_S)

    assert len({entry.token for entry in asyncio.run(puts())}) == 50
