"""Names of other programs below the root that are not valid keys, and values that look as if a session owned them."""

from __future__ import annotations

import logging

import pytest

from latchwork.types import Delete, Put

NAMES = ["a b", "\u00e9", "[bold]", "x" * 121, "semi;colon"]
CLAIMS = [b"f" * 32, b"../../../../../zookeeper/quota/x", b"\xff" * 32, b"\0" * 32, b"F" * 32]


def result(future):
    return future.result(15)


def put(backend, key, value=b"v"):
    return result(backend.commit([], [Put(key, value)])).entries[0]


def listed(backend, prefix="", **options):
    options = {"recursive": True, "limit": None, "start_after": None, **options}
    return [entry.key for entry in result(backend.list(prefix, **options))]


@pytest.fixture
def invaded(backend, raw, root):
    """A root with such names at two levels, a key of ours beside them, and names of ours below them."""
    put(backend, "x/ours")
    for name in NAMES:
        raw.create(f"/{root}/{name}/below", b"=v", makepath=True)
        raw.create(f"/{root}/x/{name}", b"=v")
    return backend


def test_lists_and_children_leave_them_out(invaded):
    assert listed(invaded) == ["x/ours"]
    assert listed(invaded, "x", recursive=False) == ["x/ours"]
    assert listed(invaded, "", limit=10) == ["x/ours"]
    assert result(invaded.children("")) == ["x"]
    assert result(invaded.children("x")) == ["ours"]


def test_watches_tell_the_other_changes(invaded, raw, root, wait_until):
    events = []
    invaded.watch("", events.append)
    wait_until(lambda: events)
    assert [entry.key for entry in events[0].entries] == ["x/ours"]
    for name in NAMES:
        raw.set(f"/{root}/x/{name}", b"=w")
        raw.create(f"/{root}/x/{name}!", b"=v")
    put(invaded, "x/later")
    wait_until(lambda: any(change.key == "x/later" for each in events[1:] for change in getattr(each, "changes", ())))
    assert {change.key for each in events[1:] for change in getattr(each, "changes", ())} == {"x/later"}


def test_keys_beside_them_are_deleted_and_they_stay(invaded, raw, root):
    assert result(invaded.delete_tree("")) == 1
    assert listed(invaded) == []
    assert result(invaded.children("")) == []
    assert raw.exists(f"/{root}/x/a b")


def test_each_is_named_once(invaded, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            listed(invaded)
    told = [record.getMessage() for record in caplog.records if "are not valid keys" in record.getMessage()]
    assert len(told) == 2, "one for each level"
    assert all(message.startswith(f"{len(NAMES)} names below ") for message in told)
    assert invaded._layout.invalid_keys.count == 2 * len(NAMES)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_value_that_looks_owned_is_a_value_and_is_overwritten(backend, raw, root, claim):
    put(backend, "ours")
    data = b"@" + claim + b"=v"
    raw.create(f"/{root}/claimed", data)
    raw.create(f"/{root}/claimed/below", b"=v")
    for found in (result(backend.get("claimed", stale_ok=False)), *result(backend.get_many(["claimed"]))):
        assert (found.value, found.owner) == (data, None)
    assert listed(backend) == ["claimed", "claimed/below", "ours"]
    assert put(backend, "claimed", b"new").owner is None
    assert result(backend.get("claimed", stale_ok=False)).value == b"new"
    assert result(backend.commit([], [Delete("claimed")])).deleted == ("claimed",)


def test_a_watch_tells_a_value_that_looks_owned(backend, raw, root, wait_until):
    put(backend, "ours")
    events = []
    backend.watch("claimed", events.append)
    wait_until(lambda: events)
    raw.create(f"/{root}/claimed", b"@" + CLAIMS[0] + b"=v")
    wait_until(lambda: [change.entry.owner for each in events for change in getattr(each, "changes", ())] == [None])
