"""A fork while other threads are inside of SQLite: its own mutexes must not be held in the child for ever."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
import traceback

import pytest

import latchwork
from patience import came_true

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

#: Seconds before a child counts as hanging.
HANG_S = 10


def reopened_in_a_child(store):
    """Fork, and use the store's file in the child; the status of its end."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANG_S)
        status = 1
        try:
            with store.reopen() as again:
                again.put("from-a-child", b"")
            status = 0
        except BaseException:
            traceback.print_exc()  # what it says is in the report of the test
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_a_child_that_was_forked_while_threads_read_and_wrote_can_open_the_file(tmp_path):
    with latchwork.connect(f"sqlite:///{tmp_path}/store.db") as store:
        is_over = threading.Event()

        def be_busy(number):
            while not is_over.wait(0.001):  # or the child may find the file locked each time that it tries
                store.put(f"busy/{number}", b"x" * 1000)
                store.list("", recursive=True)

        threads = [threading.Thread(target=be_busy, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            ended = [reopened_in_a_child(store) for _ in range(15)]
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert ended == [0] * 15
        store.put("the-parent", b"goes on")


def test_a_fork_does_not_wait_long_for_a_write_that_waits_for_another_process(tmp_path):
    with latchwork.connect(f"sqlite:///{tmp_path}/store.db") as store:
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=store.put, args=("late", b""))
        thread.start()
        came_true(lambda: store._core.backend._db._writer._lent, 10)
        began = time.monotonic()
        if (pid := os.fork()) == 0:
            os._exit(0)
        took_s = time.monotonic() - began
        os.waitpid(pid, 0)
        other.execute("ROLLBACK")
        other.close()
        thread.join(HANG_S)
        assert 0.4 < took_s < HANG_S
        assert store.get("late") is not None


def test_calls_that_come_while_a_fork_is_near_wait_for_it(tmp_path):
    with latchwork.connect(f"sqlite:///{tmp_path}/store.db") as store:
        pool = store._core.backend._db._writer
        pool.pause_for_fork(0.0)
        thread = threading.Thread(target=store.put, args=("k", b""))
        thread.start()
        assert came_true(lambda: pool._queue, 10)
        assert thread.is_alive()
        pool.resume_after_fork()
        thread.join(HANG_S)
        assert store.get("k") is not None
