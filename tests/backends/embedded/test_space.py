"""A store file gives space back: its log stays short under a steady load, and the file shrinks after deletions."""

from __future__ import annotations

import os
import threading
import time

import pytest

import latchwork
from latchwork.backends.embedded import connection

LOAD_S = 4.0


@pytest.mark.slow
def test_the_log_stays_short_while_readers_never_rest(tmp_path):
    path = tmp_path / "store.db"
    url, until, longest = f"sqlite:///{path}", time.monotonic() + LOAD_S, 0

    def read():
        with latchwork.connect(url) as reader:
            while time.monotonic() < until:
                reader.list("k", recursive=True)

    with latchwork.connect(url) as store:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        written = 0
        while time.monotonic() < until or written < 1200:
            store.put(f"k/{written % 50}", os.urandom(30_000))
            written += 1
            longest = max(longest, path.with_name("store.db-wal").stat().st_size)
        for thread in threads:
            thread.join()
    assert longest < 3 * connection._LONG_LOG_BYTES


def test_a_file_shrinks_once_most_of_it_was_deleted(tmp_path):
    path = tmp_path / "store.db"
    with latchwork.connect(f"sqlite:///{path}") as store:
        for number in range(300):
            store.put(f"big/{number}", os.urandom(40_000))
        store.delete_tree("big")
    full = path.stat().st_size
    with latchwork.connect(f"sqlite:///{path}") as store:
        for number in range(32 * 20):
            store.put("small", b"%d" % number)
    assert full > 12_000_000
    assert path.stat().st_size < full / 2


def test_two_processes_that_create_a_file_together_make_one_that_can_shrink(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    stores = []
    threads = [threading.Thread(target=lambda: stores.append(latchwork.connect(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    modes = [
        store._core.backend._db._writer.use(
            lambda conn: conn.execute("PRAGMA auto_vacuum").fetchone(), time.monotonic() + 5
        )
        for store in stores
    ]
    for store in stores:
        store.close()
    assert modes == [(2,)] * 4
