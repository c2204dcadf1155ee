"""What lies on the server: readable values, implied parents that come and go, marks that nobody sees."""

from __future__ import annotations

import threading

import pytest

from latchwork.errors import InvalidKey, TransactionTooLarge
from latchwork.types import Absent, Create, Delete, Exists, Put


def result(future):
    return future.result(15)


def put(backend, key, value=b"v", session=None):
    return result(backend.commit([], [Put(key, value, session)])).entries[0]


def get(backend, key):
    return result(backend.get(key, stale_ok=False))


def listed(backend, prefix="", **options):
    options = {"recursive": True, "limit": None, "start_after": None, **options}
    return [entry.key for entry in result(backend.list(prefix, **options))]


def test_values_are_readable_with_one_header_character(backend, raw, root):
    put(backend, "a/b", b'{"x": 1}')
    assert raw.get(f"/{root}/a/b")[0] == b'={"x": 1}'
    assert raw.get(f"/{root}/a")[0] == b""


def test_an_empty_value_is_a_key_and_an_implied_parent_is_none(backend):
    put(backend, "a/b", b"")
    assert get(backend, "a/b").value == b""
    assert get(backend, "a") is None
    assert listed(backend) == ["a/b"]


def test_created_is_new_when_a_key_comes_to_life_above_others(backend, other):
    put(backend, "a/b")
    first = put(backend, "a", b"1")
    assert first.created == first.token
    changed = put(other, "a", b"2")
    assert changed.created == first.created
    result(backend.commit([], [Delete("a")]))
    second = put(other, "a", b"3")
    assert second.created == second.token > changed.token
    for store in (backend, other):
        assert get(store, "a").created == second.created
        assert result(store.get_many(["a", "a/b"]))[0].created == second.created
        assert result(store.get("a", stale_ok=True)).created == second.created
    assert listed(backend) == ["a", "a/b"]
    assert result(backend.children("a")) == ["b"]


def test_marks_are_swept_with_the_last_descendant(backend, raw, root, wait_until, sweeps_soon):
    put(backend, "a/b/c")
    put(backend, "a/b")
    result(backend.commit([], [Delete("a/b/c"), Delete("a/b")]))
    wait_until(lambda: not raw.exists(f"/{root}/a"), 60.0)


def test_parents_emptied_by_an_ended_session_are_hidden_and_swept(backend, raw, root, wait_until, sweeps_soon):
    session = result(backend.open_session(5.0, lambda: None))
    put(backend, "p/q/mine", session=session)
    assert result(backend.children("")) == ["p"]
    result(session.close())
    assert result(backend.children("")) == []
    wait_until(lambda: not raw.exists(f"/{root}/p"), 60.0)


def test_a_key_can_be_made_and_bound_where_an_empty_parent_was_left(backend, other):
    session = result(backend.open_session(5.0, lambda: None))
    put(backend, "p/mine", session=session)
    result(session.close())
    entry = put(other, "p")
    assert entry.created == entry.token
    again = result(backend.open_session(5.0, lambda: None))
    assert put(backend, "p", session=again).owner == again.id


def test_session_bound_keys_are_leaves(backend, other):
    session = result(backend.open_session(5.0, lambda: None))
    put(backend, "leaf", session=session)
    put(backend, "tree/below")
    with pytest.raises(InvalidKey, match="leaf"):
        put(other, "leaf/below")
    with pytest.raises(InvalidKey, match="leaf"):
        put(backend, "leaf/deep/below")
    with pytest.raises(InvalidKey, match="tree"):
        put(backend, "tree", session=session)
    with pytest.raises(InvalidKey, match="new"):
        result(backend.commit([], [Create("new/below", b""), Create("new", b"", session)]))


def test_one_transaction_may_touch_a_key_its_parents_and_its_children(backend):
    result(backend.commit([], [Create("a/b/c", b"1"), Create("a", b"2"), Put("a/b", b"3")]))
    assert listed(backend) == ["a", "a/b", "a/b/c"]
    assert len({entry.created for entry in result(backend.get_many(["a", "a/b", "a/b/c"]))}) == 1
    result(backend.commit([Exists("a/b/c")], [Delete("a"), Delete("a/b"), Create("a/b/d", b"")]))
    assert listed(backend) == ["a/b/c", "a/b/d"]
    result(backend.commit([], [Delete("a/b/c"), Delete("a/b/d"), Put("a", b"4")]))
    assert listed(backend) == ["a"]


def test_a_hundred_deep_new_keys_with_long_names_fit(backend):
    """The multi with all their parents would be too long for the server: parents are made beforehand."""
    deep = "/".join(["d" * 100] * 14)
    ops = [Create(f"k{number}/{deep}", b"") for number in range(100)]
    assert len(result(backend.commit([], ops)).entries) == 100


def test_what_cannot_fit_is_refused_before_it_is_sent(backend):
    ops = [Put(f"k{number}", b"x" * 600_000) for number in range(2)]
    with pytest.raises(TransactionTooLarge):
        result(backend.commit([], ops))
    assert get(backend, "k0") is None


def test_the_largest_value_fits(backend):
    assert len(put(backend, "k", b"x" * 999_999).value) == 999_999
    assert len(get(backend, "k").value) == 999_999


def test_order_limit_and_start_follow_plain_string_order(backend):
    keys = sorted(["a", "a-b", "a/x", "a/x/y", "a0", "a/x-", "b/c", "B"])
    for key in keys:
        put(backend, key)
    assert listed(backend) == keys
    for limit in range(1, len(keys) + 1):
        assert listed(backend, limit=limit) == keys[:limit]
        for start in [*keys, "a/", "a/x/", "a/x0", "Z"]:
            assert listed(backend, limit=limit, start_after=start) == [key for key in keys if key > start][:limit]


def test_fifty_creators_get_fifty_suffixes_in_the_order_of_their_commits(connect):
    stores = [connect() for _ in range(5)]
    made = []

    def create(index):
        made.extend(result(stores[index % 5].create_sequential("q/deep/t-", b"", None)) for _ in range(4))

    threads = [threading.Thread(target=create, args=(index,)) for index in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_token = sorted(made, key=lambda entry: entry.token)
    assert [entry.key for entry in by_token] == sorted(entry.key for entry in made)
    assert len({entry.key for entry in made}) == 200


def test_suffixes_go_on_after_everything_was_deleted(backend, other):
    last = ""
    for number in range(4):
        entry = result((backend, other)[number % 2].create_sequential("q/t-", b"", None))
        assert entry.key > last
        last = entry.key
        assert result(backend.delete_tree(["q", "", "q", "q/t-"][number])) in {0, 1}
        assert result(backend.children("")) in ([], ["q"])
    result(backend.delete_tree(""))
    assert result(backend.children("")) == []
    assert result(other.create_sequential("q/t-", b"", None)).key > last


def test_checks_alone_write_nothing(backend):
    entry = put(backend, "k")
    assert result(backend.commit([Exists("k"), Absent("none")], [])).token == 0
    assert get(backend, "k").version == entry.version
