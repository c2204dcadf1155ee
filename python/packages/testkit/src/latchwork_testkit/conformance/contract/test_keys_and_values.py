"""Data model: keys, implied parents, order, values."""

from __future__ import annotations

import string

import pytest

import latchwork
from latchwork import At, Delete, InvalidKey, Put, ValueTooLarge
from latchwork.primitives import Lock, PersistentLock, Queue

BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "a b",
    "a/b c",
    ".",
    "..",
    "a/../b",
    "a/.",
    "é",
    "a\n",
    "x" * 121,
    "a*",
    "@w/x",
    "@",
    "a/@inner",
]


def calls_with_key(store, key):
    """Return every call that takes a key or a prefix."""
    return [
        lambda: store.get(key),
        lambda: store.get_many(["ok", key]),
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.create(key, b"", sequential=True),
        lambda: store.delete(key),
        lambda: store.commit([latchwork.Absent(key)], []),
        lambda: store.commit([], [Put(key, b"")]),
        lambda: store.transact(lambda tx: tx.get(key)),
        lambda: store.namespace(key),
        lambda: store.pipeline().get(key),
        lambda: store.fence(1, latchwork.Absent(key)),
        *(
            []
            if key == ""
            else [
                lambda: store.list(key),
                lambda: store.list("", start_after=key),
                lambda: store.children(key),
                lambda: store.delete_tree(key),
                lambda: store.watch(key),
                lambda: store.mirror(key),
            ]
        ),
    ]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_malformed_and_reserved_keys_are_refused_by_every_call(store, key):
    for call in calls_with_key(store, key):
        with pytest.raises(InvalidKey):
            call()


def test_error_for_a_slash_too_many_names_the_key_and_the_rule(store):
    with pytest.raises(InvalidKey, match=r"'jobs//x' has an empty segment.*1-120 characters"):
        store.put("jobs//x", b"")


LONGEST = "/".join(["x" * 120] * 41 + ["y" * 39])
DEEPEST = "/".join("d" * 64)


def test_the_longest_and_the_deepest_key_can_be_written_read_listed_followed_and_deleted(store, other):
    assert (len(LONGEST), DEEPEST.count("/")) == (5_000, 63)
    with store.mirror("") as mirror:
        for key in (LONGEST, DEEPEST):
            entry = other.put(key, b"v", session=other.session)
            assert store.get(key) == entry
            assert store.list("", recursive=True) == [entry]
            mirror.wait_until(lambda now, key=key: key in now, 20.0)
            assert store.commit([At(entry)], [Delete(key)]).deleted == (key,)
    assert store.children("") == []


@pytest.mark.large
@pytest.mark.parametrize("key", [LONGEST + "z", DEEPEST + "/e", "a/" * 20_000 + "a", "x" * 10_000_000], ids=len)
def test_longer_and_deeper_keys_are_refused_by_every_call(store, key):
    for call in calls_with_key(store, key):
        with pytest.raises(
            InvalidKey, match=r"has .* characters and .* segments, and may have 5,000 and 64"
        ) as refused:
            call()
        assert len(str(refused.value)) < 300
    with pytest.raises(InvalidKey):
        store.namespace(key)
    with pytest.raises(InvalidKey):
        Lock(store, key)


def test_a_namespace_counts(store):
    inner = store.namespace("/".join(["n" * 99] * 3))  # 299 characters
    longest = "/".join(["x" * 99] * 47)  # 4,699 characters
    assert inner.get(inner.put(longest + "y", b"v").key) is not None
    for call in calls_with_key(inner, longest + "yz"):
        with pytest.raises(InvalidKey, match="with its namespace has 5,001 characters and 50 segments"):
            call()


@pytest.mark.parametrize("prefix", ["/".join(["n" * 100] * 4), "/".join("n" * 13)])
def test_a_namespace_leaves_room(store, prefix):
    room = "may have 400 and 12; use a shorter one"
    with pytest.raises(InvalidKey, match=room):
        store.namespace(prefix)
    with pytest.raises(InvalidKey, match=room):
        store.namespace("a/b").namespace(prefix[2:])


@pytest.mark.parametrize("name", ["/".join(["n" * 100] * 40), "/".join("n" * 41)])
def test_the_name_of_a_primitive_leaves_room(store, name):
    room = "name .* cannot be used: .* may have 4,000 and 40; use a shorter one"
    for make in (lambda: Lock(store, name), lambda: Queue(store, name), lambda: PersistentLock(store, name)):
        with pytest.raises(InvalidKey, match=room):
            make()
    longest = store.namespace("/".join(["m" * 99] * 4))
    with Lock(longest, name[:-2].rpartition("/")[0]) as fence:
        assert fence.token > 0


def test_a_sequential_key_has_room_for_its_suffix(store):
    entry = store.create("s/" + "x" * 110, b"", sequential=True)
    assert store.get(entry.key) == entry
    for key in ("s/" + "x" * 111, LONGEST):
        with pytest.raises(InvalidKey):
            store.create(key, b"", sequential=True)


def test_every_allowed_character_and_length_can_be_stored_and_listed(store):
    alphabet = string.ascii_letters + string.digits + "._-~%@:+=,"
    keys = sorted({f"k{char}" for char in alphabet} | {"x" * 120, "...", "a@b", "%2F"})
    for key in keys:
        store.put(key, key.encode())
    assert [entry.key for entry in store.list("", recursive=True)] == keys
    assert [entry.value for entry in store.get_many(keys)] == [key.encode() for key in keys]


def test_a_key_may_hold_a_value_above_others_and_parents_are_no_keys(store):
    store.put("a/b/c", b"deep")
    assert store.get("a") is None
    assert store.get("a/b") is None
    assert store.children("") == ["a"]
    assert store.children("a") == ["b"]
    assert store.list("a") == []
    store.put("a/b", b"middle")
    assert store.get("a/b").value == b"middle"
    assert [entry.key for entry in store.list("a")] == ["a/b"]
    assert [entry.key for entry in store.list("a", recursive=True)] == ["a/b", "a/b/c"]


def test_an_implied_parent_goes_away_with_its_last_descendant(store):
    store.put("a/b/c", b"")
    store.put("a/b/d", b"")
    store.delete("a/b/c")
    assert store.children("a") == ["b"]
    store.delete("a/b/d")
    assert store.children("a") == []
    assert store.children("") == []


def test_an_implied_parent_goes_away_with_its_last_session_bound_descendant(store):
    session = store.open_session(2.0)
    store.put("a/b/c", b"", session=session)
    assert store.children("a") == ["b"]
    session.close()
    assert store.children("a") == []
    assert store.children("") == []


def test_deleting_a_key_leaves_its_descendants(store):
    store.put("a", b"1")
    store.put("a/b", b"2")
    assert store.delete("a") is True
    assert store.get("a") is None
    assert store.get("a/b").value == b"2"
    assert store.children("") == ["a"]


def test_an_empty_value_is_a_value(store):
    store.put("empty", b"")
    assert store.get("empty").value == b""
    assert [entry.key for entry in store.list("")] == ["empty"]


def test_every_byte_survives(store):
    value = bytes(range(256)) * 3
    store.put("bytes", value)
    assert store.get("bytes").value == value


def test_a_value_may_have_a_million_bytes_with_its_key_and_no_more(store):
    largest = b"x" * (1_000_000 - len("big"))
    store.put("big", largest)
    assert store.get("big").value == largest
    with pytest.raises(ValueTooLarge, match=r"'big'.*1,000,001 bytes.*1,000,000"):
        store.put("big", largest + b"x")
    with pytest.raises(ValueTooLarge):
        store.create("bigger", largest, sequential=True)
    assert store.get("big").value == largest


def test_a_value_that_is_not_bytes_is_refused(store):
    with pytest.raises(TypeError, match="'k' must be bytes, not str"):
        store.put("k", "text")


def test_order_is_plain_string_order_of_the_full_key_everywhere(store):
    keys = ["a-b", "a", "a/x", "a/x-1", "a/x/y", "a.b", "a0", "B", "a~", "a%"]
    for key in keys:
        store.put(key, b"")
    assert [entry.key for entry in store.list("", recursive=True)] == sorted(keys)
    assert [entry.key for entry in store.list("")] == sorted(key for key in keys if "/" not in key)
    assert store.children("") == sorted({key.split("/")[0] for key in keys})


def test_a_prefix_is_whole_segments(store):
    for key in ("a", "a/1", "ab", "ab/1", "a-1"):
        store.put(key, b"")
    assert [entry.key for entry in store.list("a", recursive=True)] == ["a/1"]
    assert store.children("a") == ["1"]
    assert store.delete_tree("a") == 2
    assert [entry.key for entry in store.list("", recursive=True)] == ["a-1", "ab", "ab/1"]


def test_roots_do_not_see_each_other(backend_url, store):
    store.put("mine", b"1")
    with latchwork.connect(backend_url, root="elsewhere/deep") as elsewhere:
        assert elsewhere.get("mine") is None
        assert elsewhere.list("", recursive=True) == []
        elsewhere.put("theirs", b"2")
        assert [entry.key for entry in store.list("", recursive=True)] == ["mine"]
        assert elsewhere.delete_tree("") == 1
    assert store.get("mine").value == b"1"


def test_children_are_told_from_parents_left_empty_however_many_there_are_and_however_deep(store):
    names = [f"n{number:02d}" for number in range(40)]
    with store.pipeline(max_in_flight=16) as pipeline:
        for name in names:
            for number in range(6):
                pipeline.put(f"a/{name}/deep/b{number}/c", b"")
    assert store.children("a") == names
    with store.pipeline(max_in_flight=16) as pipeline:
        for name in names[::2]:
            for number in range(6):
                pipeline.delete(f"a/{name}/deep/b{number}/c")
        for name in names[1::2]:
            for number in range(5):
                pipeline.delete(f"a/{name}/deep/b{number}/c")
    assert store.children("a") == names[1::2]
