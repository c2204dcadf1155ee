"""CleanupThread in the background: one thread for all jobs of a store."""

from __future__ import annotations

import threading

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Unavailable
from latchwork.store.driving.cleanup import CleanupThread

PATIENCE_S = 20.0


@pytest.fixture
def cleanup():
    made = CleanupThread(SYSTEM_CLOCK, "latchwork-cleanup-test")
    yield made
    made.close()
    made.join(PATIENCE_S)


def test_all_jobs_run_in_one_thread(cleanup):
    gate, threads, done = threading.Event(), set(), threading.Semaphore(0)

    async def job():
        gate.wait(PATIENCE_S)
        threads.add(threading.current_thread())
        done.release()

    for _ in range(100):
        cleanup.add(job)
    gate.set()
    assert all(done.acquire(timeout=PATIENCE_S) for _ in range(100))
    assert len(threads) == 1


def test_job_is_attempted_again_after_the_seconds_that_it_returns_while_others_go_on(cleanup):
    order, done = [], threading.Event()

    async def first():
        order.append("first")
        if order.count("first") == 2:
            done.set()
            return None
        return 0.02

    async def second():
        order.append("second")

    cleanup.add(first)
    cleanup.add(second)
    assert done.wait(PATIENCE_S)
    assert order == ["first", "second", "first"]


@pytest.mark.parametrize("error", [Unavailable("gone"), ValueError("a defect")])
def test_job_that_raises_stops_no_other(cleanup, error):
    done = threading.Event()

    async def fails():
        raise error

    async def works():
        done.set()

    cleanup.add(fails)
    cleanup.add(works)
    assert done.wait(PATIENCE_S)


def test_close_drops_jobs_and_their_thread_ends(cleanup):
    async def never():
        raise AssertionError

    cleanup.add(never, after_s=1000.0)
    thread = next(each for each in threading.enumerate() if each.name == "latchwork-cleanup-test")
    cleanup.close()
    cleanup.join(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    cleanup.add(never)
    assert thread.name not in {each.name for each in threading.enumerate()}


def test_join_leaves_a_call_behind_that_a_client_library_holds_forever(cleanup, caplog):
    begun, held = threading.Event(), threading.Event()

    async def hangs():
        begun.set()
        held.wait(PATIENCE_S)

    cleanup.add(hangs)
    assert begun.wait(PATIENCE_S)
    cleanup.close()
    cleanup.join(0.1)
    assert "is abandoned" in caplog.text
    held.set()
