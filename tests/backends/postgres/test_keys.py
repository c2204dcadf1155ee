"""Keys that are longer than a row of an index, and lists that jump over what lies below."""

from __future__ import annotations

import random
import string

import latchwork

LETTERS = string.ascii_letters + string.digits + "._~%:+=,-"


def random_key(source, segments, start="k"):
    """A key that no compression makes shorter."""
    return "/".join([start, *("".join(source.choices(LETTERS, k=110)) for _ in range(segments))])


def test_keys_longer_than_an_index_row_are_kept_found_and_in_order(postgresql, root, opened):
    store, source = opened(postgresql.url(root)), random.Random(1)
    stem = random_key(source, 30)
    keys = [f"{stem}/{name}" for name in ("b", "a", "a-", "a/x")] + [random_key(source, 44) for _ in range(20)]
    for key in keys:
        store.create(key, key[-3:].encode())
    assert [store.get(key).value for key in keys] == [key[-3:].encode() for key in keys]
    assert [entry.key for entry in store.list("k", recursive=True)] == sorted(keys)
    assert [entry.key for entry in store.list(stem)] == [f"{stem}/{name}" for name in ("a", "a-", "b")]
    assert store.children(stem) == ["a", "a-", "b"]
    assert store.put(keys[0], b"again").created == store.get(keys[0]).created
    assert store.delete_tree(stem) == 4
    assert store.children("k") == sorted({key.split("/")[1] for key in keys[4:]})


def test_a_list_of_one_level_does_not_read_what_lies_below(postgresql, root, opened, sql):
    store = opened(postgresql.url(root))
    for parent in ("a", "b"):
        with store.pipeline() as pipeline:
            for number in range(1500):
                pipeline.put(f"{parent}/{number:05d}/x", b"x" * 200)
        store.put(parent, b"")
    before = reads(sql, postgresql)
    assert [entry.key for entry in store.list("")] == ["a", "b"]
    assert store.children("") == ["a", "b"]
    assert reads(sql, postgresql) - before < 1000


def reads(sql, server):
    """Blocks that the server has read of the table and its indexes, by its own count."""
    sql(server, "select pg_stat_force_next_flush()")
    query = "select heap_blks_hit + idx_blks_hit from pg_statio_user_tables where relname = 'entries'"
    return sql(server, query)[0][0]


def test_one_level_of_many_keys_is_listed_with_limits(postgresql, root, opened):
    store = opened(postgresql.url(root))
    keys = [f"p/{number:04d}" for number in range(50)]
    for key in keys:
        store.commit([], [latchwork.Put(key, b""), latchwork.Put(f"{key}/below", b"")])
    assert [entry.key for entry in store.list("p", limit=7, start_after=keys[10])] == keys[11:18]
    assert len(store.list("p", recursive=True, limit=30)) == 30
