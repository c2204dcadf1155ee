"""Lanes: one run at a time, signals merged, none lost."""

from __future__ import annotations

import threading

from latchwork.store.dispatch import Dispatcher


def test_a_signal_during_a_run_causes_exactly_one_more_run():
    dispatcher = Dispatcher("test")
    started, release, ended = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)

    def drain():
        started.release()
        release.acquire(timeout=5)
        ended.release()

    lane = dispatcher.lane(drain, "test")
    lane.signal()
    assert started.acquire(timeout=5)
    for _ in range(5):
        lane.signal()
    release.release()
    assert ended.acquire(timeout=5)
    assert started.acquire(timeout=5)
    release.release()
    assert ended.acquire(timeout=5)
    assert not started.acquire(timeout=0.1)
    dispatcher.close()


def test_runs_of_one_lane_never_overlap_and_no_signal_is_lost():
    dispatcher = Dispatcher("test", size=8)
    lock = threading.Lock()
    overlaps: list[int] = []
    wanted = seen = 0
    done = threading.Event()

    def drain():
        nonlocal seen
        if not lock.acquire(blocking=False):
            overlaps.append(1)
            return
        seen = wanted
        lock.release()
        if seen == 4000:
            done.set()

    lane = dispatcher.lane(drain, "test")
    count = threading.Lock()

    def produce():
        nonlocal wanted
        for _ in range(1000):
            with count:
                wanted += 1
            lane.signal()

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.wait(5)
    assert overlaps == []
    dispatcher.close()


def test_a_drain_that_raises_is_run_again_at_the_next_signal():
    dispatcher = Dispatcher("test")
    runs = threading.Semaphore(0)

    def drain():
        runs.release()
        raise RuntimeError

    lane = dispatcher.lane(drain, "test")
    for _ in range(2):
        lane.signal()
        assert runs.acquire(timeout=5)
        threading.Event().wait(0.05)
    dispatcher.close()


def test_a_closed_lane_or_pool_takes_signals_and_runs_nothing():
    dispatcher = Dispatcher("test")
    ran = threading.Event()
    lane = dispatcher.lane(ran.set, "test")
    lane.close()
    lane.signal()
    open_lane = dispatcher.lane(ran.set, "test")
    dispatcher.close()
    open_lane.signal()
    assert not ran.wait(0.1)
