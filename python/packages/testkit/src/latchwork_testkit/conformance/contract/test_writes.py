"""put, create, delete, sequential keys, delete_tree: entries, versions and tokens."""

from __future__ import annotations

import threading

import pytest

from latchwork import At, Conflict, Delete, KeyExists


def test_put_creates_then_overwrites(store):
    first = store.put("k", b"1")
    second = store.put("k", b"2")
    assert store.get("k") == second
    assert (first.key, first.value, first.owner) == ("k", b"1", None)
    assert second.version != first.version
    assert second.token > first.token
    assert second.created == first.created == first.token


def test_writing_the_same_bytes_is_a_write(store):
    first = store.put("k", b"same")
    second = store.put("k", b"same")
    assert second.version != first.version
    assert second.token > first.token


def test_the_version_is_equal_exactly_while_nothing_is_written(store, other):
    written = store.put("k", b"v")
    assert store.get("k").version == other.get("k").version == written.version
    assert store.list("")[0].version == written.version
    other.put("unrelated", b"")
    assert store.get("k").version == written.version
    other.put("k", b"v")
    assert store.get("k").version != written.version


def test_tokens_grow_across_keys_and_clients(store, other):
    tokens = [
        store.put("a", b"").token,
        other.put("b", b"").token,
        store.create("c", b"").token,
        other.create("d/s", b"", sequential=True).token,
        store.put("a", b"").token,
    ]
    assert tokens == sorted(set(tokens))
    assert all(isinstance(token, int) for token in tokens)


def test_a_deletion_takes_a_token_of_its_own(store):
    first = store.put("a", b"v")
    deletion = store.commit([], [Delete("a")])
    assert first.token < deletion.token < store.put("b", b"v").token


def test_create_refuses_a_key_that_exists_and_changes_nothing(store):
    before = store.create("k", b"1")
    with pytest.raises(KeyExists, match="'k'"):
        store.create("k", b"2")
    assert store.get("k") == before


def test_create_makes_a_key_of_an_implied_parent(store):
    store.put("a/b", b"")
    assert store.create("a", b"now a key").value == b"now a key"
    assert store.get("a").value == b"now a key"


def test_exactly_one_of_many_creators_wins(store, other):
    outcomes: list[bool] = []

    def race(client, name):
        try:
            client.create("won", name)
            outcomes.append(True)
        except KeyExists:
            outcomes.append(False)

    threads = [threading.Thread(target=race, args=(client, b"x")) for client in (store, other) * 6]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 11 + [True]


def test_delete_says_whether_it_was_there(store):
    store.put("k", b"")
    assert store.delete("k") is True
    assert store.delete("k") is False
    assert store.get("k") is None


def test_delete_with_a_version_deletes_only_that_version(store):
    old = store.put("k", b"1")
    new = store.put("k", b"2")
    with pytest.raises(Conflict):
        store.delete("k", version=old.version)
    assert store.get("k") == new
    assert store.delete("k", version=new.version) is True
    with pytest.raises(Conflict):
        store.delete("k", version=new.version)


def test_a_created_token_tells_one_life_of_a_key_from_the_next(store):
    first = store.create("k", b"")
    store.delete("k")
    second = store.create("k", b"")
    assert second.created > first.created
    assert second.version != first.version


def test_delete_tree_takes_the_prefix_and_all_below(store):
    for key in ("t", "t/a", "t/a/b", "t/c", "tt"):
        store.put(key, b"")
    assert store.delete_tree("t") == 4
    assert [entry.key for entry in store.list("", recursive=True)] == ["tt"]
    assert store.delete_tree("") == 1
    assert store.list("", recursive=True) == []


def test_delete_tree_takes_more_keys_than_a_transaction_holds(store):
    with store.pipeline() as pipeline:
        for number in range(700):
            pipeline.put(f"wide/{number % 7}/{number}", b"")
    assert store.delete_tree("wide") == 700
    assert store.children("") == []


def test_delete_tree_takes_session_bound_keys_too(store, other):
    session = other.open_session(5.0)
    other.put("t/bound", b"", session=session)
    store.put("t/plain", b"")
    assert store.delete_tree("t") == 2
    assert store.children("") == []


def test_sequential_suffixes_grow_in_string_order(store):
    keys = [store.create("q/ticket-", str(n).encode(), sequential=True).key for n in range(12)]
    assert keys == sorted(set(keys))
    assert all(key.startswith("q/ticket-") for key in keys)
    assert len({len(key) for key in keys}) == 1
    assert [entry.value for entry in store.list("q")] == [str(n).encode() for n in range(12)]


def test_sequential_suffixes_are_shared_below_one_parent(store):
    suffixes = [store.create(f"q/{name}-", b"", sequential=True).key.rpartition("-")[2] for name in "abcab"]
    assert suffixes == sorted(set(suffixes))


def test_sequential_suffixes_never_restart_whatever_is_deleted(store):
    seen = [store.create("a/q/t-", b"", sequential=True).key]
    store.delete(seen[-1])
    seen.append(store.create("a/q/t-", b"", sequential=True).key)
    store.delete_tree("a/q")
    seen.append(store.create("a/q/t-", b"", sequential=True).key)
    store.delete_tree("a")
    seen.append(store.create("a/q/t-", b"", sequential=True).key)
    store.delete_tree("")
    seen.append(store.create("a/q/t-", b"", sequential=True).key)
    assert seen == sorted(set(seen))


def test_concurrent_sequential_creators_get_different_growing_keys(store, other):
    made: dict[int, list[str]] = {}

    def run(index, client):
        made[index] = [client.create("q/t-", b"", sequential=True).key for _ in range(10)]

    threads = [threading.Thread(target=run, args=(index, client)) for index, client in enumerate((store, other) * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [key for keys in made.values() for key in keys]
    assert len(set(every)) == 60
    assert all(keys == sorted(keys) for keys in made.values())
    assert {entry.key for entry in store.list("q")} == set(every)


def test_a_lower_ticket_never_appears_after_a_higher_one_was_seen(store, other):
    """The window between taking a number and creating the key would let two candidates lead."""
    stop = threading.Event()

    def create(client):
        while not stop.is_set():
            client.create("q/t-", b"", sequential=True)

    threads = [threading.Thread(target=create, args=(client,)) for client in (store, other)]
    for thread in threads:
        thread.start()
    highest = ""
    seen: set[str] = set()
    try:
        while len(seen) < 40:  # a fixed number of looks ends before a fast store has created anything
            keys = [entry.key for entry in store.list("q")]
            late = [key for key in keys if key not in seen and key < highest]
            assert late == []
            seen.update(keys)
            highest = max([highest, *keys])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_versions_never_lie_after_delete_and_re_creation(store, other):
    """dataVersion-like counters restart; a check must not pass on the next life of a key."""
    for writer in (store, other):
        old = store.put("k", b"1")
        writer.delete("k")
        writer.put("k", b"1")
        with pytest.raises(Conflict):
            store.commit([At(old)], [])
        with pytest.raises(Conflict):
            store.delete("k", version=old.version)
        store.delete("k")
