"""How many statements a read takes, which is what its speed hangs on."""

from __future__ import annotations

import pytest

from latchwork.backends.embedded import layout, reads
from latchwork.backends.key_syntax import InvalidKeys


@pytest.fixture
def conn():
    opened = layout.open_memory_connection()
    yield opened
    opened.close()


def fill(conn, keys):
    insert = "INSERT INTO entries (root, key, token, created, owner, value) VALUES ('r', ?, 1, 1, NULL, x'00')"
    conn.executemany(insert, [(key,) for key in keys])


def test_list_of_many_direct_children_is_one_statement(conn):
    keys = [f"p/{n:04d}" for n in range(1000)]
    fill(conn, keys)
    statements = []
    conn.set_trace_callback(statements.append)
    found = reads.list_entries_below(conn, "r", "p", InvalidKeys("r"), recursive=False, limit=None, start_after=None)
    assert [entry.key for entry in found] == keys
    assert len(statements) == 1


def test_list_of_a_prefix_costs_the_same_next_to_a_large_one(conn):
    def instructions():
        count = 0

        def step():
            nonlocal count
            count += 1

        conn.set_progress_handler(step, 1)
        found = reads.list_entries_below(
            conn, "r", "mine", InvalidKeys("r"), recursive=False, limit=None, start_after=None
        )
        conn.set_progress_handler(None, 0)
        assert [entry.key for entry in found] == ["mine/a", "mine/b"]
        return count

    fill(conn, ["big/a", "mine/a", "mine/b", "others/a"])
    alone = instructions()
    fill(conn, [f"{parent}/{n}" for parent in ("big", "others") for n in range(3000)])
    assert instructions() == alone


def test_list_of_direct_children_takes_one_more_statement_for_each_subtree_however_large(conn):
    below = [f"p/{name}/{n:04d}" for name in ("b", "d") for n in range(1000)]
    fill(conn, ["p", "p/a", "p/b", "p/b-", "p/c", *below, "p0"])
    statements = []
    conn.set_trace_callback(statements.append)
    found = reads.list_entries_below(conn, "r", "p", InvalidKeys("r"), recursive=False, limit=None, start_after=None)
    assert [entry.key for entry in found] == ["p/a", "p/b", "p/b-", "p/c"]
    assert len(statements) == 3
