"""Rows that another program wrote into the file: each harms itself only, and hides no change beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from latchwork import connect

NO_KEYS = ["p/x//y", "p/a b", "p/\x1b[31mred", "p/", "p/[bold]", "p/\u00e9", "p/deep b/c", b"p/blob", b"p/\xff\xfe"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def store(file):
    with connect(f"sqlite:///{file}?root=r") as opened:
        opened.put("p/a", b"1")
        yield opened


def write(file, key, value=b"v", *, beside="p/ours"):
    """One foreign row and one good one, in the same moment."""
    with closing(sqlite3.connect(file, timeout=10)) as raw, raw:
        as_text = isinstance(key, bytes) and b"\xff" in key
        columns = "CAST(? AS TEXT)" if as_text else "?"
        (token,) = raw.execute("SELECT token FROM state").fetchone()
        insert = "INSERT OR REPLACE INTO entries (root, key, token, created, value) VALUES ('r', {}, ?, ?, ?)"
        raw.execute(insert.format(columns), (key, token + 1, token + 1, value))
        raw.execute(insert.format("?"), (beside, token + 2, token + 2, b"2"))
        raw.execute("UPDATE state SET token = token + 2")


@pytest.mark.parametrize("key", NO_KEYS, ids=ascii)
def test_a_row_that_is_no_key_is_skipped_and_hides_no_other(file, store, key, caplog, eventually):
    with store.mirror("p") as mirror, store.watch("p") as watch:
        watch.next(5.0)
        write(file, key)
        eventually(lambda: "p/ours" in mirror)
        assert set(mirror) == {"p/a", "p/ours"}
        assert [change.key for change in watch.next(5.0)] == ["p/ours"]
    assert [entry.key for entry in store.list("p", recursive=True)] == ["p/a", "p/ours"]
    assert [entry.key for entry in store.list("p")] == ["p/a", "p/ours"]
    assert {"a", "ours"} <= set(store.children("p")) <= {"a", "ours", "x"}
    with store.mirror("p") as later:
        assert set(later) == {"p/a", "p/ours"}
    named = [record for record in caplog.records if "are not valid keys" in record.getMessage()]
    assert bool(named) == (key != b"p/blob")  # one that is not even text is seen by nobody


@pytest.mark.parametrize(("value", "seen"), [("text", b"text"), (17, b"17"), (1.5, b"1.5"), ("\x00", b"\x00")])
def test_a_value_that_is_no_bytes_is_read_as_bytes(file, store, value, seen):
    write(file, "p/b", value)
    assert store.get("p/b").value == seen
    assert store.get_many(["p/b"])[0].value == seen
    assert [entry.value for entry in store.list("p")] == [b"1", seen, b"2"]
    store.put("p/b", b"again")


@pytest.mark.parametrize("key", NO_KEYS, ids=ascii)
def test_a_tree_is_deleted_around_it(file, store, key):
    write(file, key)
    assert store.delete_tree("p") >= 2
    assert store.list("p", recursive=True) == []
