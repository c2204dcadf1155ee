"""pipeline() and namespace()."""

from __future__ import annotations

import pytest

from latchwork import At, Closed, Conflict, InvalidKey, KeyExists, Put


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
    import latchwork

    store = latchwork.connect(backend_url)
    inner = store.namespace("n")
    inner.close()
    inner.put("k", b"")
    store.close()
    with pytest.raises(Closed):
        inner.get("k")
