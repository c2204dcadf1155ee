"""Reads, lists, transactions and sequences of the embedded backend, in memory and in a file alike."""

from __future__ import annotations

import random

import pytest

from latchwork.backends.embedded import writes
from latchwork.errors import Closed, Conflict, InvalidKey, KeyExists, QuotaExceeded
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Put, SessionAlive


def put(store, *keys, value=b"v"):
    return store.commit([], [Put(key, value) for key in keys]).result()


def listed(store, prefix, *, recursive=False, limit=None, start_after=None):
    found = store.list(prefix, recursive=recursive, limit=limit, start_after=start_after).result()
    return [entry.key for entry in found]


def direct_children_of(keys, prefix):
    below = [key[len(prefix) + 1 :] if prefix else key for key in keys if not prefix or key.startswith(prefix + "/")]
    return sorted({rest.partition("/")[0] for rest in below})


def test_entry_reads_back_as_it_was_written(store):
    (written,) = put(store, "a/b", value=bytes(range(256))).entries
    assert store.get("a/b", stale_ok=False).result() == written
    assert written == Entry("a/b", bytes(range(256)), written.version, written.token, written.token, None)


def test_absent_key_reads_as_none(store):
    put(store, "a/b")
    assert store.get("a", stale_ok=False).result() is None
    assert [e and e.key for e in store.get_many(["x", "a/b", "x", "a/b"]).result()] == [None, "a/b", None, "a/b"]


def test_many_keys_are_read_at_once_in_the_order_asked(store):
    keys = [f"k{n:04d}" for n in range(1200)]
    for first in range(0, 1200, 100):
        put(store, *keys[first : first + 100])
    random.Random(1).shuffle(keys)
    assert [entry.key for entry in store.get_many(keys).result()] == keys


def test_lists_and_children_agree_with_a_plain_set_of_keys(store):
    rng = random.Random(20261121)
    names = ["a", "a-b", "a.b", "b", "a+", "a0", "a~", "A", "0", "a%", "a:b", "ab"]
    keys = sorted({"/".join(rng.choices(names, k=rng.randint(1, 4))) for _ in range(250)})
    for first in range(0, len(keys), 100):
        put(store, *keys[first : first + 100])
    prefixes = ["", *names, *("/".join(rng.choices(names, k=2)) for _ in range(20)), "absent"]
    for prefix in prefixes:
        subtree = [key for key in keys if not prefix or key.startswith(prefix + "/")]
        direct = [key for key in subtree if "/" not in key[len(prefix) + 1 if prefix else 0 :]]
        assert listed(store, prefix, recursive=True) == subtree
        assert listed(store, prefix) == direct
        assert store.children(prefix).result() == direct_children_of(keys, prefix)
        for after in [*rng.choices(keys, k=3), "", prefix]:
            for limit in (None, 1, 3):
                assert (
                    listed(store, prefix, recursive=True, limit=limit, start_after=after)
                    == [key for key in subtree if key > after][:limit]
                )
                assert (
                    listed(store, prefix, limit=limit, start_after=after)
                    == [key for key in direct if key > after][:limit]
                )


def test_limit_zero_lists_nothing(store):
    put(store, "a", "b")
    assert listed(store, "", limit=0) == []


def test_hidden_keys_show_neither_in_lists_nor_in_watches(store, collector, eventually):
    sink = collector()
    store.watch("", sink)
    put(store, "@own/x", "@own", "a", "Z", "%")
    assert listed(store, "", recursive=True) == ["%", "Z", "a"]
    assert store.children("").result() == ["%", "Z", "a"]
    eventually(lambda: "a" in sink.seen())
    assert sorted(sink.seen()) == ["%", "Z", "a"]


def test_tokens_grow_and_are_shared_within_a_commit(store):
    first, second = put(store, "a", "b"), put(store, "a")
    assert {entry.token for entry in first.entries} == {first.token}
    assert second.token > first.token > 0


def test_overwriting_keeps_created_and_changes_the_version(store):
    (before,), (after,) = put(store, "a").entries, put(store, "a").entries
    assert after.created == before.created == before.token < after.token
    assert after.version != before.version


def test_version_of_a_recreated_key_is_new(store):
    (before,) = put(store, "a").entries
    store.commit([], [Delete("a")]).result()
    put(store, "a")
    with pytest.raises(Conflict) as caught:
        store.commit([At(before)], [Put("b", b"")]).result()
    assert caught.value.failed == (At(before),)
    assert store.get("b", stale_ok=False).result() is None


def test_conflict_names_every_failed_check_and_create_and_writes_nothing(store):
    put(store, "there")
    checks = [Absent("there"), Exists("there"), Exists("gone"), SessionAlive("nobody")]
    create = Create("there", b"")
    with pytest.raises(Conflict, match="'there' exists") as caught:
        store.commit(checks, [Put("x", b""), create]).result()
    assert caught.value.failed == (checks[0], checks[2], checks[3], create)
    assert store.get("x", stale_ok=False).result() is None


def test_conflict_is_not_key_exists(store):
    put(store, "a")
    with pytest.raises(Conflict) as caught:
        store.commit([], [Create("a", b"")]).result()
    assert not isinstance(caught.value, KeyExists)  # the store layer above decides which of the two it was


def test_version_of_another_kind_of_store_is_refused(store):
    with pytest.raises(ValueError, match="did not come from this store"):
        store.commit([At.of("a", "3-7")], [Put("a", b"")]).result()


def test_commit_without_operations_only_checks(store):
    (entry,) = put(store, "a").entries
    assert store.commit([At(entry), Absent("b")], []).result().token == 0
    with pytest.raises(Conflict):
        store.commit([Absent("a")], []).result()


def test_deleting_an_absent_key_writes_nothing(store):
    put(store, "a/b")
    done = store.commit([], [Delete("a"), Delete("x")]).result()
    assert (done.token, done.deleted) == (0, ())


def test_committed_lists_entries_and_deleted_in_order(store):
    put(store, "c", "a")
    done = store.commit([], [Delete("c"), Put("z", b"1"), Delete("x"), Delete("a"), Put("b", b"2")]).result()
    assert [entry.key for entry in done.entries] == ["z", "b"]
    assert done.deleted == ("c", "a")


def test_delete_leaves_descendants(store):
    put(store, "a", "a/b")
    store.commit([], [Delete("a")]).result()
    assert listed(store, "", recursive=True) == ["a/b"]


def test_sequence_grows_and_is_never_used_again(store):
    first = [store.create_sequential("q/n-", b"", None).result().key for _ in range(3)]
    assert first == ["q/n-0000000000", "q/n-0000000001", "q/n-0000000002"]
    assert store.delete_tree("q").result() == 3
    assert store.create_sequential("q/n-", b"", None).result().key == "q/n-0000000003"
    assert store.delete_tree("").result() == 1
    assert store.create_sequential("q/other-", b"", None).result().key == "q/other-0000000004"


def test_sequences_of_different_parents_are_independent(store):
    store.create_sequential("q/n-", b"", None).result()
    assert store.create_sequential("r/n-", b"", None).result().key == "r/n-0000000000"
    assert store.create_sequential("n-", b"", None).result().key == "n-0000000000"


def test_sequence_steps_over_a_key_made_by_hand(store):
    put(store, "q/n-0000000001")
    keys = [store.create_sequential("q/n-", b"new", None).result().key for _ in range(2)]
    assert keys == ["q/n-0000000000", "q/n-0000000002"]


def test_delete_tree_takes_the_prefix_and_nothing_beside_it(store):
    put(store, "a", "a/b", "a/b/c", "a-b", "ab", "a0")
    assert store.delete_tree("a").result() == 3
    assert listed(store, "", recursive=True) == ["a-b", "a0", "ab"]


def test_delete_tree_of_more_than_one_batch(store):
    for first in range(0, 1300, 100):
        put(store, *(f"a/{n}" for n in range(first, first + 100)))
    assert store.delete_tree("").result() == 1300
    assert listed(store, "") == []


def test_roots_are_separate(url, store, opened):
    other = opened(url, root="other")
    put(store, "a")
    assert other.get("a", stale_ok=False).result() is None
    assert other.delete_tree("").result() == 0
    assert listed(store, "") == ["a"]


def test_two_stores_share_data(url, store, opened):
    put(opened(url), "a")
    assert listed(store, "") == ["a"]


def test_memory_is_gone_with_its_last_store(opened):
    first, second = opened("memory://fleeting"), opened("memory://fleeting")
    put(first, "a")
    first.close()
    assert listed(second, "") == ["a"]
    second.close()
    assert listed(opened("memory://fleeting"), "") == []


def test_closed_store_says_so(store):
    store.close()
    store.close()
    for call in (
        lambda: store.get("a", stale_ok=False).result(),
        lambda: store.commit([], [Put("a", b"")]).result(),
        lambda: store.open_session(1, lambda: None).result(),
        lambda: store.watch("", lambda _: None),
    ):
        with pytest.raises(Closed, match="connect again"):
            call()


def test_key_below_a_session_bound_key_is_refused(store):
    session = store.open_session(10, lambda: None).result()
    store.commit([], [Put("a/leaf", b"", session)]).result()
    for op in (Put("a/leaf/x", b""), Create("a/leaf/x/y", b"")):
        with pytest.raises(InvalidKey, match="'a/leaf'"):
            store.commit([], [Put("other", b""), op]).result()
    with pytest.raises(InvalidKey):
        store.create_sequential("a/leaf/n-", b"", None).result()
    assert listed(store, "", recursive=True) == ["a/leaf"]


def test_key_with_descendants_cannot_be_bound(store):
    session = store.open_session(10, lambda: None).result()
    put(store, "a", "a/b")
    with pytest.raises(InvalidKey, match="'a'"):
        store.commit([], [Put("a", b"", session)]).result()
    assert store.get("a", stale_ok=False).result().owner is None


def test_leaf_rule_looks_at_the_state_after_the_transaction(store):
    session = store.open_session(10, lambda: None).result()
    store.commit([], [Put("a", b"", session)]).result()
    store.commit([], [Create("a/b", b""), Delete("a")]).result()
    store.commit([], [Create("a", b"", session), Delete("a/b")]).result()
    assert listed(store, "", recursive=True) == ["a"]
    with pytest.raises(InvalidKey):
        store.commit([], [Create("x/y", b"", session), Create("x/y/z", b"")]).result()


def test_put_without_session_keeps_the_owner_and_with_one_binds(store):
    first = store.open_session(10, lambda: None).result()
    second = store.open_session(10, lambda: None).result()
    store.commit([], [Put("a", b"", first)]).result()
    (kept,) = store.commit([], [Put("a", b"x")]).result().entries
    (moved,) = store.commit([], [Put("a", b"x", second)]).result().entries
    assert (kept.owner, moved.owner) == (first.id, second.id)
    first.close().result()
    assert listed(store, "") == ["a"]
    second.close().result()
    assert listed(store, "") == []


def test_old_deletions_are_forgotten_but_never_a_key(store, monkeypatch):
    monkeypatch.setattr(writes, "KEPT_TOMBSTONES", 10)
    put(store, "kept")
    for n in range(60):
        store.commit([], [Put(f"k{n}", b"")]).result()
        store.commit([], [Delete(f"k{n}")]).result()
    count = store._db.read(lambda conn: conn.execute("SELECT count(*) FROM tombstones").fetchone()[0], 1)
    assert 10 <= count <= 20
    assert listed(store, "") == ["kept"]


def test_numbers_end_with_an_error_before_one_would_sort_before_others(store):
    first = store.create_sequential("q/t-", b"", None).result()
    store._db.write(lambda conn: conn.execute("UPDATE counters SET next = 9999999999"), 5.0)
    last = store.create_sequential("q/t-", b"", None).result()
    assert (first.key, last.key) == ("q/t-0000000000", "q/t-9999999999")
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="keys next to 'q/t-' have been used; use another parent"):
            store.create_sequential("q/t-", b"", None).result()
    assert store.create_sequential("other/t-", b"", None).result().key == "other/t-0000000000"
