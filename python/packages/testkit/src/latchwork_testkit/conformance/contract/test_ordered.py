"""create_ordered_key: which older keys with the same prefix are named to the creator of a new key."""

from __future__ import annotations

import threading

import pytest

from latchwork import Absent, Closed, Conflict, InvalidKey
from latchwork.spi import MAX_OLDER, MAX_ORDER_SUFFIX, Backend


def names(*entries):
    return tuple(entry.key.rpartition("/")[2] for entry in entries)


def test_a_new_key_names_the_older_ones_in_the_order_of_their_creation(store, other):
    made = [
        client.create_ordered_key("q/t-", f"{nine}", b"")
        for client, nine in zip((store, other) * 3, "958372", strict=True)
    ]
    entries = [each.entry for each in made]
    assert [entry.created for entry in entries] == sorted({entry.created for entry in entries})
    for place, each in enumerate(made):
        assert each.older in {names(*entries[:place]), None}


def test_the_key_begins_with_the_given_prefix_and_is_an_ordinary_key(store):
    session = store.session
    entry = store.create_ordered_key("a/b/q/t-", "one", b"value", session=session).entry
    assert entry.key.startswith("a/b/q/t-one")
    assert len(entry.key) - len("a/b/q/t-one") <= MAX_ORDER_SUFFIX
    assert (entry.value, entry.owner, entry.token) == (b"value", session.id, entry.created)
    assert store.get(entry.key) == entry
    assert store.list("a/b/q") == [entry]
    assert store.put(entry.key, b"again").created == entry.created
    session.close()
    assert store.list("a/b/q") == []


def test_keys_that_are_gone_or_of_another_kind_are_not_named(store):
    store.put("q/t-/below", b"")
    store.put("q/u-1", b"")
    store.put("q/s", b"")
    gone, kept = (store.create_ordered_key("q/t-", unique, b"").entry for unique in ("gone", "kept"))
    store.create_ordered_key("q/other-", "1", b"")
    store.create_ordered_key("q/t-2/t-", "1", b"")
    store.create_ordered_key("qt-", "1", b"")
    store.delete(gone.key)
    assert store.create_ordered_key("q/t-", "new", b"").older in {names(kept), None}
    assert store.create_ordered_key("t-", "at the root".replace(" ", "."), b"").older in {(), None}


def test_the_order_survives_the_removal_of_all_keys(store):
    for round_number in range(3):
        made = [store.create_ordered_key("a/q/t-", f"{round_number}{unique}", b"") for unique in "ab"]
        assert made[0].older in {(), None}
        assert made[1].older in {names(made[0].entry), None}
        store.delete_tree("a")


def test_a_key_among_many_names_all_of_them_or_none_is_known(store):
    entries = [store.create_ordered_key("q/t-", f"{number:03}", b"").entry for number in range(MAX_OLDER + 2)]
    assert store.create_ordered_key("q/t-", "new", b"").older in {names(*entries), None}


def test_each_of_many_concurrent_creators_gets_every_older_key_that_exists(store, other):
    """If an older key were left out, a lock could have two holders."""
    made, lock = [], threading.Lock()

    def create(client, number):
        for turn in range(8):
            each = client.create_ordered_key("q/t-", f"{number}.{turn}", b"")
            with lock:
                made.append(each)

    threads = [threading.Thread(target=create, args=((store, other)[n % 2], n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = sorted((each.entry for each in made), key=lambda entry: entry.created)
    assert len({entry.created for entry in entries}) == 48
    for each in made:
        assert each.older in {names(*(entry for entry in entries if entry.created < each.entry.created)), None}


def test_a_key_in_a_namespace_names_the_older_keys_there(store):
    inner = store.namespace("inner")
    first = inner.create_ordered_key("q/t-", "1", b"").entry
    second = inner.create_ordered_key("q/t-", "2", b"")
    assert first.key.startswith("q/t-1")
    assert second.older in {names(first), None}
    assert store.get(f"inner/{first.key}").value == b""


def test_a_key_is_refused_like_any_other(store):
    session = store.open_session(10.0)
    store.put("bound", b"", session=session)
    with pytest.raises(InvalidKey, match="session"):
        store.create_ordered_key("bound/t-", "1", b"")
    for unique in ("", "a/b", "#"):
        with pytest.raises(InvalidKey):
            store.create_ordered_key("q/t-", unique, b"")
    session.close()
    with pytest.raises(Closed):
        store.create_ordered_key("q/t-", "1", b"", session=session)
    assert store.children("") == []


def test_a_fence_of_a_deleted_key_fails_although_a_later_key_exists(store):
    first = store.create_ordered_key("q/t-", "1", b"").entry
    store.delete(first.key)
    second = store.create_ordered_key("q/t-", "2", b"").entry
    assert second.created > first.created
    assert second.key != first.key
    store.commit([Absent(first.key)], [])
    with pytest.raises(Conflict):
        store.commit([Absent(second.key)], [])


def test_a_backend_that_does_not_name_older_keys_says_so(store):
    backend = store._core.backend
    done = Backend.create_ordered_key(backend, "q/t-", "plain", b"1", None).result(10.0)
    assert done.older is None
    assert store.get("q/t-plain") == done.entry
