"""get, get_many, list, children."""

from __future__ import annotations

import pytest

from latchwork import At, Conflict, Put


def test_a_read_sees_what_another_client_has_just_written(store, other):
    for number in range(50):
        other.put("k", str(number).encode())
        assert store.get("k").value == str(number).encode()


def test_a_stale_read_gives_an_entry_or_none(store):
    assert store.get("k", stale_ok=True) is None
    written = store.put("k", b"v")
    assert store.get("k", stale_ok=True) == written


def test_stale_reads_of_many_keys_and_of_a_level_see_what_their_own_client_wrote(store):
    written = [store.put(f"many/{number}", b"v") for number in range(3)]
    store.delete("many/1")
    keys = [f"many/{number}" for number in range(4)]
    assert store.get_many(keys, stale_ok=True) == [written[0], None, written[2], None]
    assert store.list("many", stale_ok=True) == [written[0], written[2]]
    assert store.list("many", stale_ok=True, limit=1, start_after="many/0") == [written[2]]
    assert store.list("none", stale_ok=True) == []


def test_a_version_from_a_stale_read_is_checked_like_any_other(store, other):
    store.put("k", b"1")
    (seen,) = store.get_many(["k"], stale_ok=True)
    store.commit([At(seen)], [Put("k", b"2")])
    (seen,) = store.list("", stale_ok=True)
    other.put("k", b"3")
    with pytest.raises(Conflict):
        store.commit([At(seen)], [Put("k", b"4")])


def test_get_many_answers_in_order_with_none_for_the_absent(store):
    store.put("a", b"1")
    store.put("c", b"3")
    answers = store.get_many(["c", "b", "a", "c"])
    assert [entry and entry.value for entry in answers] == [b"3", None, b"1", b"3"]
    assert store.get_many([]) == []


def test_get_many_and_list_carry_more_than_one_request_holds(store):
    keys = [f"many/{number:04d}" for number in range(1500)]
    with store.pipeline() as pipeline:
        for key in keys:
            pipeline.put(key, key.encode() * 20)
    assert [entry.key for entry in store.get_many(keys)] == keys
    listed = store.list("many")
    assert [entry.key for entry in listed] == keys
    assert all(entry.value == entry.key.encode() * 20 for entry in listed)


def test_list_carries_values_of_many_megabytes(store):
    for number in range(12):
        store.put(f"large/{number:02d}", bytes([number]) * 900_000)
    listed = store.list("large")
    assert [entry.value[:1] for entry in listed] == [bytes([number]) for number in range(12)]


def test_list_pages_with_limit_and_start_after(store):
    keys = [f"p/{number:02d}" for number in range(10)] + ["p/03/below", "p/03-x"]
    for key in keys:
        store.put(key, b"")
    expected = sorted(keys)
    assert [entry.key for entry in store.list("p", recursive=True, limit=4)] == expected[:4]
    paged, after = [], None
    while page := store.list("p", recursive=True, limit=5, start_after=after):
        assert len(page) <= 5
        paged += [entry.key for entry in page]
        after = page[-1].key
    assert paged == expected
    direct = [key for key in expected if key.count("/") == 1]
    assert [entry.key for entry in store.list("p", limit=6)] == direct[:6]
    assert [entry.key for entry in store.list("p", start_after="p/03")] == [key for key in direct if key > "p/03"]
    assert store.list("p", start_after="p/99") == []
    assert store.list("p", limit=0) == []
    with pytest.raises(ValueError, match="limit"):
        store.list("p", limit=-1)


def test_start_after_need_not_exist_nor_lie_at_a_key(store):
    for key in ("s/a", "s/c"):
        store.put(key, b"")
    assert [entry.key for entry in store.list("s", start_after="s/b")] == ["s/c"]
    assert [entry.key for entry in store.list("s", start_after="s/a/zzz")] == ["s/c"]


def test_what_latchwork_keeps_for_itself_is_never_shown(store, other):
    session = store.open_session(5.0)
    store.put("mine", b"", session=session)
    store.create("q/t", b"", sequential=True)
    store.delete("q/t")
    other.put("plain", b"")
    shown = [entry.key for entry in store.list("", recursive=True)]
    assert not [key for key in shown if key.startswith("@")]
    assert sorted(store.children("")) == ["mine", "plain", "q"]
    with store.watch("") as watch:
        assert not [change for change in watch.next(5) if change.key.startswith("@")]


def test_listing_what_is_not_there_is_empty(store):
    assert store.list("nothing") == []
    assert store.list("nothing", recursive=True) == []
    assert store.children("nothing") == []
    assert store.delete_tree("nothing") == 0


def test_children_that_may_be_stale_are_those_that_its_own_watch_saw(store):
    with store.watch("p") as watch:
        seen = {change.key for change in watch.next(5)}
        for name in ("b", "a/x", "c"):
            store.put(f"p/{name}", b"")
        while len(seen) < 3:
            seen.update(change.key for change in watch.next(5))
    assert store.children("p", stale_ok=True) == ["a", "b", "c"]
